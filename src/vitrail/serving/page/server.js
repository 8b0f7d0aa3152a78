// Requests to this server, and what went wrong in words. The token is kept here, in memory, and nowhere else.

let token = "";
let asking = null; // the dialog's answer, shared by all requests that wait for it

/** What a person is told: what happened, and what to do. */
export class Problem extends Error {
  constructor(message, hint = "", status = 0) {
    super(message);
    this.hint = hint;
    this.status = status;
  }
}

export const usesToken = () => token !== "";

/** Ask this server; the answer's JSON, or a Problem. */
export async function ask(path, parameters = {}, options = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  for (;;) {
    const used = token;
    const answer = await send(query ? `${path}?${query}` : path, options, used);
    if (answer.status !== 401) return read(answer);
    if (used === token) await renew(used !== "");
  }
}

/** Ask about one picture. */
export const askAbout = (path, parameters, picture, signal) =>
  ask(path, parameters, {
    method: "POST",
    body: picture,
    headers: { "Content-Type": picture.type || "application/octet-stream" },
    signal,
  });

/** A file of this server, which needs no token. */
export async function download(path, signal) {
  const answer = await send(path, { signal }, "");
  return answer.ok ? answer.blob().catch(unreachable) : read(answer);
}

async function send(address, options, used) {
  const headers = { ...options.headers, ...(used ? { Authorization: `Bearer ${used}` } : {}) };
  try {
    return await fetch(address, { ...options, headers, cache: "no-store" });
  } catch (error) {
    return unreachable(error);
  }
}

function unreachable(error) {
  if (error.name === "AbortError") throw error;
  throw new Problem("The server cannot be reached.", "Check the network, and that vitrail serve is still running.");
}

async function read(answer) {
  const text = await answer.text().catch(unreachable);
  const body = parse(text);
  if (answer.ok && body !== null) return body;
  const error = body?.error;
  if (!error) throw new Problem(`The server answered with status ${answer.status} and no explanation.`, "", answer.status);
  const wait = answer.headers.get("Retry-After");
  const hint = wait ? `Try again in ${wait} ${wait === "1" ? "second" : "seconds"}.` : error.hint;
  throw new Problem(asSentence(error.message), hint, answer.status);
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const asSentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function renew(wasRefused) {
  asking ??= askForToken(wasRefused).finally(() => {
    asking = null;
  });
  return asking;
}

function askForToken(wasRefused) {
  const dialog = document.getElementById("token-dialog");
  const field = document.getElementById("token");
  const problem = document.getElementById("token-problem");
  problem.textContent = "This token was not accepted. Check it and try again.";
  problem.hidden = !wasRefused;
  field.value = "";
  return new Promise((resolve, reject) => {
    const form = document.getElementById("token-form");
    form.onsubmit = (event) => {
      event.preventDefault();
      token = field.value.trim();
      field.value = "";
      dialog.onclose = null;
      dialog.close();
      resolve();
    };
    dialog.onclose = () => reject(new Problem("This service needs a token.", "Choose Try again to enter one."));
    dialog.showModal();
  });
}
