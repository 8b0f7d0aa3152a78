// One picture with one model: its labels, its explanation, what its patches attend to.

import { askAbout } from "./server.js";
import { paintRamp, Stage } from "./stage.js";

const TOP_K = 5;
const TOUCH = matchMedia("(pointer: coarse)");

/** The words for a Problem; anything else is ours. */
export function tell(element, problem, retry = null) {
  element.hidden = problem === null;
  element.replaceChildren();
  if (problem === null) return;
  const strong = document.createElement("strong");
  strong.textContent = problem.message;
  element.append(strong, problem.hint ? ` ${problem.hint}` : "");
  if (!retry) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Try again";
  button.addEventListener("click", retry);
  element.append(" ", button);
}

export class Pane {
  /** `shared` has the settings of the overlay, `announce`, and what to do when a picture is to be changed. */
  constructor(shared, models, model) {
    this.shared = shared;
    this.models = models;
    this.model = model;
    this.file = null;
    this.target = null; // the class that is explained; null: the predicted one
    this.turn = new AbortController();
    this.known = new Map(); // requests that need not be made again for this picture
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.part = (name) => this.element.querySelector(`.${name}`);
    this.stage = new Stage(this.part("frame"), (patch, byKeyboard) => this.attend(patch, byKeyboard));
    this.part("change").addEventListener("click", () => shared.change(this));
    this.part("model").addEventListener("change", (event) => this.use(event.target.value));
    paintRamp(this.part("ramp"));
    this.offerModels();
    this.empty();
  }

  offerModels() {
    const field = this.part("model");
    field.replaceChildren(...this.models.map((model) => new Option(model.name, model.name)));
    field.value = this.model.name;
    this.part("model-field").hidden = this.models.length < 2;
  }

  empty() {
    this.element.classList.add("empty");
    this.part("pane-name").textContent = "No picture yet";
    this.part("change").textContent = "Choose a picture";
    this.part("caption").textContent = "Drop, paste or choose the picture to compare with.";
  }

  use(name) {
    this.model = this.models.find((model) => model.name === name);
    this.shared.changed();
    if (this.file) this.start();
  }

  /** Take a picture: a File or a Blob. */
  async load(file, name) {
    this.file = file;
    this.name = name;
    this.element.classList.remove("empty");
    this.part("pane-name").textContent = name;
    this.part("change").textContent = "Change picture";
    await this.start();
  }

  async start() {
    this.turn.abort();
    this.turn = new AbortController();
    this.known.clear();
    this.target = null;
    const { signal } = this.turn;
    this.element.setAttribute("aria-busy", "true");
    for (const name of ["answer", "bars", "bars-note", "facts", "caption"]) this.part(name).replaceChildren();
    this.part("unfamiliar").hidden = true;
    tell(this.part("problem"), null);
    const bitmap = await createImageBitmap(this.file).catch(() => null);
    if (signal.aborted) return;
    this.element.classList.toggle("blank", bitmap === null);
    if (bitmap) this.stage.show(bitmap, this.name);
    else this.stage.clear();
    this.shared.changed();
    const works = await this.predict(signal);
    if (works && !signal.aborted) await this.explain();
    if (!signal.aborted) this.element.removeAttribute("aria-busy");
  }

  async predict(signal) {
    if (!this.model.classes) {
      this.part("answer").textContent = "This model has no classes; it gives embeddings.";
      this.showFacts(null);
      return true;
    }
    try {
      const answer = await askAbout("/v1/predict", { top_k: TOP_K, model: this.model.name }, this.file, signal);
      if (!signal.aborted) this.showLabels(answer);
      return true;
    } catch (error) {
      if (error.name === "AbortError") return false;
      error.message = this.inWords(error.message);
      tell(this.part("problem"), error, error.status === 0 || error.status >= 500 ? () => this.start() : null);
      return false;
    }
  }

  /** A message about the only picture: by the name that people know, without the decoder's own words. */
  inWords(message) {
    return message.replace(/^(picture 0|the body)\b/i, () => this.name).replace(/(damaged or truncated) \(.*\)\.$/s, "$1.");
  }

  showLabels({ predictions: [{ labels, familiar }], milliseconds, model }) {
    this.labels = labels;
    const [best] = labels;
    this.part("answer").textContent = nameOf(best);
    this.part("unfamiliar").hidden = familiar !== false;
    this.part("bars").replaceChildren(...labels.map((label) => this.bar(label)));
    const explains = this.model.methods.some((method) => method !== "attention" && method !== "rollout");
    this.part("bars-note").textContent = explains ? "Select a class to see what speaks for it." : "";
    this.showFacts(milliseconds, model);
    const spoken = labels.map((label) => `${nameOf(label)} ${percent(label.score)}`).join(", ");
    const doubt = familiar === false ? ` ${this.part("unfamiliar").textContent}` : "";
    this.shared.announce(`${this.name}, ${model.name}: ${spoken}.${doubt}`);
  }

  bar(label) {
    const { index, score } = label;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "bar";
    button.disabled = !this.model.explains;
    button.setAttribute("aria-pressed", "false");
    button.dataset.index = index;
    const [name, track, share] = ["bar-label", "track", "share"].map((kind) => {
      const span = document.createElement("span");
      span.className = kind;
      return span;
    });
    name.textContent = nameOf(label);
    share.textContent = percent(score);
    const fill = document.createElement("span");
    fill.style.width = `${100 * score}%`;
    track.append(fill);
    button.append(name, share, track);
    button.addEventListener("click", () => {
      this.target = index;
      this.explain();
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }

  showFacts(milliseconds, model = this.model) {
    const facts = [
      ["Model", model.name],
      ["Version", model.version],
      ["Runs on", model.runtime],
    ];
    if (milliseconds) {
      const { total, queue, decode, compute } = milliseconds;
      const parts = `of which queue ${short(queue)}, decode ${short(decode)}, compute ${short(compute)}`;
      facts.unshift(["Answered in", `${short(total)} ms`, parts]);
    }
    if (this.model.temperature) facts.push(["Calibrated", `temperature ${this.model.temperature.toFixed(2)}`]);
    this.part("facts").replaceChildren(
      ...facts.flatMap(([name, value, title]) => {
        const [term, description] = [document.createElement("dt"), document.createElement("dd")];
        term.textContent = name;
        description.textContent = value;
        if (title) {
          const small = document.createElement("small");
          small.textContent = title;
          description.append(small);
        }
        return [term, description];
      }),
    );
  }

  /** The map of the chosen method; after a change of the settings, again. */
  async explain() {
    if (!this.file) return;
    if (!this.model.explains) {
      this.say(`${this.model.name} runs on ${this.model.runtime} and cannot be explained.`);
      return;
    }
    const { method } = this.shared.settings;
    const parameters = { format: "json", method, target: this.target, model: this.model.name, ...this.attention(method) };
    const { signal } = this.turn;
    this.asked = parameters;
    this.element.classList.add("working");
    try {
      const answer = await this.fetch("/v1/explain", parameters);
      if (signal.aborted || this.asked !== parameters) return;
      this.stage.place(answer);
      this.stage.setMap(answer.map);
      this.describe(answer);
    } catch (error) {
      if (error.name === "AbortError" || this.asked !== parameters) return;
      this.stage.setMap(null);
      this.say(`${error.message} ${error.hint}`);
    } finally {
      if (this.asked === parameters) this.element.classList.remove("working");
    }
  }

  /** Layer and head belong to attention only. */
  attention(method) {
    const { layer, head } = this.shared.settings;
    return method === "attention" ? { layer, head } : {};
  }

  describe({ method, target }) {
    const looks = target === null || ["attention", "rollout"].includes(method);
    const bright = looks ? "The model looks at the bright parts" : `The bright parts speak for ${nameOf(target)}`;
    this.said = `${bright} (${method}).${this.stage.isCropped ? " The model does not see the striped part." : ""}`;
    const how = `${TOUCH.matches ? "Touch" : "Point at"} a patch to see what it attends to.`;
    this.say(this.said, this.model.methods.includes("attention") ? how : "");
    this.stage.patches.setAttribute(
      "aria-label",
      `Patches of ${this.name}, ${this.stage.grid.join(" by ")}. ${this.said} Use the arrow keys to move from patch to patch.`,
    );
    const shown = target ? target.index : null;
    for (const button of this.part("bars").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.index) === shown));
    }
  }

  /** What the caption says as long as no patch is chosen. */
  say(text, hint = "") {
    const small = document.createElement("span");
    small.className = "hint";
    small.textContent = hint;
    this.resting = hint ? [`${text} `, small] : [text];
    this.part("caption").replaceChildren(...this.resting);
  }

  /** What one patch attends to; null: back to the explanation. */
  async attend(patch, byKeyboard) {
    if (patch === null) {
      this.part("caption").replaceChildren(...(this.resting ?? []));
      return;
    }
    const [, columns] = this.stage.grid;
    const where = (index) => `row ${Math.floor(index / columns) + 1}, column ${(index % columns) + 1}`;
    if (!this.model.methods.includes("attention")) {
      this.part("caption").textContent = `The patch in ${where(patch)}; this model cannot show what it attends to.`;
      return;
    }
    const { layer, head } = this.shared.settings;
    try {
      const answer = await this.fetch("/v1/attention", { layer, head, model: this.model.name });
      if (this.stage.patch !== patch) return;
      answer.rows ??= Uint8Array.from(atob(answer.data), (sign) => sign.charCodeAt(0));
      const count = this.stage.grid[0] * columns;
      const row = answer.rows.subarray(patch * count, (patch + 1) * count);
      this.stage.setRow(row);
      const best = row.reduce((most, value, index) => (value > row[most] ? index : most), 0);
      const by = answer.head === null ? `mean of ${answer.heads} heads` : `head ${answer.head}`;
      const most = best === patch ? "itself" : where(best);
      const text = `The patch in ${where(patch)} attends most to ${most} (layer ${answer.layer}, ${by}).`;
      this.part("caption").textContent = text;
      if (byKeyboard) this.shared.announce(text);
    } catch (error) {
      if (error.name !== "AbortError") this.part("caption").textContent = `${error.message} ${error.hint}`;
    }
  }

  /** An answer about this picture, kept until another comes. */
  fetch(path, parameters) {
    const key = JSON.stringify([path, parameters]);
    if (!this.known.has(key)) {
      const answer = askAbout(path, parameters, this.file, this.turn.signal);
      answer.catch(() => this.known.get(key) === answer && this.known.delete(key));
      this.known.set(key, answer);
    }
    return this.known.get(key);
  }
}

/** A class of a model without names is called by its number. */
const nameOf = ({ label, index }) => (label === String(index) ? `class ${index}` : label);
const percent = (score) => `${(100 * score).toFixed(1)} %`;
const short = (milliseconds) => (milliseconds < 10 ? milliseconds.toFixed(1) : milliseconds.toFixed(0));
