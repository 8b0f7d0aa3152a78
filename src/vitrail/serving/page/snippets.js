// The same requests from a shell and from Python, ready to be copied.

const inShell = (text) => (/^[\w@./:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** What to write for one picture; `model` is null where the service has only one. */
export function curl({ origin, model, name, type, method, token }) {
  const headers = [`-H "Content-Type: ${type}"`];
  if (token) headers.push('-H "Authorization: Bearer $VITRAIL_TOKEN"');
  const send = `curl ${headers.join(" ")} --data-binary ${inShell(`@${name}`)}`;
  return [
    "# the five most likely classes",
    `${send} \\\n  "${address(origin, "predict", { top_k: 5, model })}"`,
    "",
    "# what the model looks at, drawn over the picture",
    `${send} -o why.png \\\n  "${address(origin, "explain", { method, model })}"`,
  ].join("\n");
}

export function python({ origin, model, name, type, method, token }) {
  const headers = [`"Content-Type": ${JSON.stringify(type)}`];
  if (token) headers.push('"Authorization": f"Bearer {os.environ[\'VITRAIL_TOKEN\']}"');
  return [
    "import json",
    ...(token ? ["import os"] : []),
    "from pathlib import Path",
    "from urllib.request import Request, urlopen",
    "",
    `picture = Path(${JSON.stringify(name)}).read_bytes()`,
    `headers = {${headers.join(", ")}}`,
    "",
    `predict = Request(${JSON.stringify(address(origin, "predict", { top_k: 5, model }))}, picture, headers)`,
    "with urlopen(predict) as answer:",
    '    for each in json.load(answer)["predictions"][0]["labels"]:',
    '        print(f"{each[\'score\']:6.1%} {each[\'label\']}")',
    "",
    `explain = Request(${JSON.stringify(address(origin, "explain", { method, model }))}, picture, headers)`,
    "with urlopen(explain) as answer:",
    '    Path("why.png").write_bytes(answer.read())',
  ].join("\n");
}

function address(origin, verb, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value);
  return `${origin}/v1/${verb}?${new URLSearchParams(given)}`;
}
