// The same requests from a shell and from Python, ready to be copied.

const inShell = (text) => (/^[\w@./:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// Task → what is asked for, and how Python prints it.
const ASKED = {
  one: ["the five most likely classes", "labels", "print(f\"{each['score']:6.1%} {each['label']}\")"],
  several: ["the labels that apply", "labels", "print(f\"{each['score']:6.1%} {each['label']}\")"],
  number: ["the values, in the order of /v1/labels", "values", "print(each)"],
};
const few = (task) => (task === "one" ? 5 : null);
const asked = (task) => ASKED[task] ?? ASKED.one;

/** What to write for one picture; `model` is null where the service has only one. */
export function curl({ origin, model, name, type, method, token, task }) {
  const headers = [`-H "Content-Type: ${type}"`];
  if (token) headers.push('-H "Authorization: Bearer $VITRAIL_TOKEN"');
  const send = `curl ${headers.join(" ")} --data-binary ${inShell(`@${name}`)}`;
  return [
    `# ${asked(task)[0]}`,
    `${send} \\\n  "${address(origin, "predict", { top_k: few(task), model })}"`,
    "",
    "# what the model looks at, drawn over the picture",
    `${send} -o why.png \\\n  "${address(origin, "explain", { method, model })}"`,
  ].join("\n");
}

export function python({ origin, model, name, type, method, token, task }) {
  const [, field, print] = asked(task);
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
    `predict = Request(${JSON.stringify(address(origin, "predict", { top_k: few(task), model }))}, picture, headers)`,
    "with urlopen(predict) as answer:",
    `    for each in json.load(answer)["predictions"][0]["${field}"]:`,
    `        ${print}`,
    "",
    `explain = Request(${JSON.stringify(address(origin, "explain", { method, model }))}, picture, headers)`,
    "with urlopen(explain) as answer:",
    '    Path("why.png").write_bytes(answer.read())',
  ].join("\n");
}

function address(origin, verb, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value);
  return `${origin}/v1/${verb}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}
