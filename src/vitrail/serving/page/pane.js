// One picture with one model: its labels, its explanation, what its patches attend to.

import { askAbout, Problem } from "./server.js";
import { paintRamp, Stage } from "./stage.js";

const COVERAGE = 0.9; // of the intervals around values, if the calibration promises as much
const BAND = 256; // rows of a picture that are looked at together
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
  /** `shared` has the settings of the overlay, `connected`, `announce`, and what to do when a picture is to be changed. */
  constructor(shared) {
    this.shared = shared;
    this.models = [];
    this.model = null; // until the page is connected
    this.source = null; // gives the chosen picture's file, which an example has to fetch
    this.file = null; // what is sent to the server, once it is here
    this.target = null; // the number of what is explained; null: the most likely class, or the first value
    this.turns = { picture: 0, map: 0, patch: 0 }; // the number of the latest question of each kind
    this.loading = new AbortController();
    this.questions = new Map(); // those about this picture, answered or under way, by what is asked
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.part = (name) => this.element.querySelector(`.${name}`);
    this.stage = new Stage(this.part("frame"), (patch, byKeyboard) => this.attend(patch, byKeyboard));
    this.part("change").addEventListener("click", () => shared.change(this));
    this.part("model").addEventListener("change", (event) => {
      this.model = this.models.find((model) => model.name === event.target.value);
      this.shared.changed();
      if (this.source) this.start();
    });
    paintRamp(this.part("ramp"));
  }

  offerModels(models, model) {
    const field = this.part("model");
    this.models = models;
    this.model = model;
    field.replaceChildren(...models.map(({ name }) => new Option(name, name)));
    field.value = model.name;
    this.part("model-field").hidden = models.length < 2;
  }

  /** Take a picture; `source(signal)` gives its File or Blob. */
  load(source, name) {
    this.source = source;
    this.name = name;
    this.element.classList.remove("empty");
    this.part("pane-name").textContent = name;
    this.part("change").textContent = "Change picture";
    this.start();
  }

  /** A new question of a kind. The function tells whether it still is the latest one, about the latest picture. */
  turn(kind) {
    const number = ++this.turns[kind];
    const { picture } = this.turns;
    return () => number === this.turns[kind] && picture === this.turns.picture;
  }

  /** Withdraw every question, and drop the answers that are on their way. */
  withdraw() {
    this.turns.picture++;
    this.loading.abort();
    for (const { controller } of this.questions.values()) controller.abort();
    this.questions.clear();
    this.file = null;
  }

  async start() {
    this.withdraw();
    const isLatest = this.turn("picture");
    this.loading = new AbortController();
    this.target = null;
    this.element.setAttribute("aria-busy", "true");
    this.element.classList.remove("working");
    this.resting = [];
    for (const name of ["answer", "bars", "bars-note", "facts", "caption"]) this.part(name).replaceChildren();
    this.part("unfamiliar").hidden = true;
    tell(this.part("problem"), null);
    this.stage.clear();
    try {
      const { file, bitmap, isFlattened } = await look(await this.source(this.loading.signal));
      if (!isLatest()) return;
      this.file = file;
      this.isFlattened = isFlattened;
      this.element.classList.toggle("blank", bitmap === null);
      if (bitmap) this.stage.show(bitmap, this.name);
      this.shared.changed();
      await this.shared.connected();
      if (!isLatest()) return;
      await this.predict(isLatest);
      if (isLatest()) await this.explain();
    } catch (error) {
      if (!isLatest()) return;
      if (!(error instanceof Problem)) throw error;
      error.message = this.inWords(error.message);
      tell(this.part("problem"), error, error.status === 0 || error.status >= 500 ? () => this.start() : null);
    }
    if (isLatest()) this.element.removeAttribute("aria-busy");
  }

  async predict(isLatest) {
    if (!this.model.classes) {
      this.part("answer").textContent = "This model has no classes; it gives embeddings.";
      this.showFacts(null);
      return;
    }
    const { name, highest_coverage: highest } = this.model;
    const coverage = this.model.task === "number" && highest !== null ? Math.min(COVERAGE, highest) : null;
    const answer = await this.ask("/v1/predict", { model: name, coverage });
    if (!isLatest()) return;
    if (answer.predictions[0].values.length) this.showValues(answer, coverage);
    else this.showLabels(answer);
  }

  /** A message about the only picture: by the name that people know, without the decoder's own words. */
  inWords(message) {
    const named = message.replace(/^(picture 0|the body)\b/i, () => this.name);
    return named.replace(/(damaged or truncated) \(.*\)\.$|; it starts with .*$/s, "$1.");
  }

  showLabels({ predictions: [{ labels, familiar }], milliseconds, model }) {
    const { thresholds } = this.model; // of several labels, of which only those above them are answered
    this.part("bars").classList.toggle("several", thresholds !== null);
    const names = labels.map(nameOf);
    this.part("answer").textContent = thresholds ? names.join(", ") || "No label applies" : names[0];
    this.part("bars").replaceChildren(...labels.map((label) => this.labelBar(label, thresholds?.[label.index])));
    const explains = labels.length && this.explainsTargets();
    const line = thresholds && labels.length ? " The line on a bar is where the label begins to apply." : "";
    const noun = thresholds ? "label" : "class";
    this.part("bars-note").textContent = explains ? `Select a ${noun} to see what speaks for it.${line}` : line.trim();
    const spoken = labels.map((label) => `${nameOf(label)} ${percent(label.score)}`).join(", ");
    this.finish(spoken || "no label applies", familiar, milliseconds, model);
  }

  /** What a model measures: each value, and the interval that holds the true one as often as the coverage says. */
  showValues({ predictions: [{ values, intervals, familiar }], milliseconds, model }, coverage) {
    const { labels } = this.model;
    const texts = values.map((value, index) => `${labels[index]} ${digits(value)}`);
    this.part("answer").textContent = texts.join(", ");
    const spans = values.map((_, index) => (intervals ? intervals[index].map(digits).join(" to ") : ""));
    this.part("bars").replaceChildren(
      ...values.map((value, index) => this.bar(labels[index], index, digits(value), spans[index])),
    );
    const promise = intervals ? `The true value lies in its interval for ${Math.round(100 * coverage)} % of pictures like those of the calibration.` : "";
    const select = this.explainsTargets() ? "Select a value to see what it rests on." : "";
    this.part("bars-note").textContent = `${select} ${promise}`.trim();
    this.finish(texts.map((text, index) => text + (spans[index] && `, ${spans[index]}`)).join("; "), familiar, milliseconds, model);
  }

  explainsTargets() {
    return this.model.methods.some((method) => method !== "attention" && method !== "rollout");
  }

  finish(spoken, familiar, milliseconds, model) {
    this.part("unfamiliar").hidden = familiar !== false;
    this.showFacts(milliseconds, model);
    const doubt = familiar === false ? ` ${this.part("unfamiliar").textContent}` : "";
    this.shared.announce(`${this.name}, ${model.name}: ${spoken}.${doubt}`);
  }

  labelBar(label, threshold) {
    const item = this.bar(nameOf(label), label.index, percent(label.score));
    const track = document.createElement("span");
    track.className = "track";
    const fill = document.createElement("span");
    fill.style.width = `${100 * label.score}%`;
    track.append(fill);
    if (threshold !== undefined) {
      const mark = document.createElement("i");
      mark.className = "threshold";
      mark.style.left = `${100 * threshold}%`;
      track.append(mark);
    }
    item.firstElementChild.append(track);
    return item;
  }

  /** A row that can be selected to be explained: its name, a number, and what is below them. */
  bar(text, index, number, below = "") {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "bar";
    button.disabled = !this.model.explains;
    button.setAttribute("aria-pressed", "false");
    button.dataset.index = index;
    const parts = { "bar-label": text, share: number, ...(below && { interval: below }) };
    for (const [kind, content] of Object.entries(parts)) {
      const span = document.createElement("span");
      span.className = kind;
      span.textContent = content;
      button.append(span);
    }
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
    if (!this.file || !this.model) return;
    if (!this.model.explains) {
      this.say(`${this.model.name} runs on ${this.model.runtime} and cannot be explained.`);
      return;
    }
    const isLatest = this.turn("map");
    const { method } = this.shared.settings;
    const parameters = { format: "json", method, target: this.target, model: this.model.name, ...this.attention() };
    this.element.classList.add("working");
    try {
      const answer = await this.ask("/v1/explain", parameters);
      if (!isLatest()) return;
      this.stage.place(answer);
      this.stage.setMap(answer.map);
      this.describe(answer);
    } catch (error) {
      if (!isLatest()) return;
      if (!(error instanceof Problem)) throw error;
      this.stage.setMap(null);
      this.say(`${error.message} ${error.hint}`);
    }
    this.element.classList.remove("working");
  }

  /** The settings have changed: what is shown is asked for anew. */
  update() {
    this.explain();
    if (this.stage.patch !== null) this.attend(this.stage.patch, false);
  }

  /** Layer and head belong to attention only. */
  attention() {
    const { method, layer, head } = this.shared.settings;
    return method === "attention" ? { layer, head } : {};
  }

  describe({ method, target }) {
    const looks = target === null || ["attention", "rollout"].includes(method);
    const speak = this.model.task === "number" ? "The value rests on the bright parts:" : "The bright parts speak for";
    const bright = looks ? "The model looks at the bright parts" : `${speak} ${nameOf(target)}`;
    const cropped = this.stage.isCropped ? " The model does not see the striped part." : "";
    const flattened = this.isFlattened ? " What is transparent was laid on white, for the model too." : "";
    this.said = `${bright} (${method}).${cropped}${flattened}`;
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
    if (this.stage.patch === null) this.part("caption").replaceChildren(...this.resting);
  }

  /** What one patch attends to; null: back to the explanation. */
  async attend(patch, byKeyboard) {
    const isLatest = this.turn("patch");
    const caption = this.part("caption");
    if (patch === null) {
      caption.replaceChildren(...this.resting);
      return;
    }
    const [, columns] = this.stage.grid;
    const where = (index) => `row ${Math.floor(index / columns) + 1}, column ${(index % columns) + 1}`;
    if (!this.model.methods.includes("attention")) {
      caption.textContent = `The patch in ${where(patch)}; this model cannot show what it attends to.`;
      return;
    }
    try {
      const answer = await this.ask("/v1/attention", { ...this.attention(), model: this.model.name });
      if (!isLatest()) return;
      answer.rows ??= Uint8Array.from(atob(answer.data), (sign) => sign.charCodeAt(0));
      const count = this.stage.grid[0] * columns;
      const row = answer.rows.subarray(patch * count, (patch + 1) * count);
      this.stage.setRow(row);
      const best = row.reduce((most, value, index) => (value > row[most] ? index : most), 0);
      const by = answer.head === null ? `mean of ${answer.heads} heads` : `head ${answer.head}`;
      const most = best === patch ? "itself" : where(best);
      const text = `The patch in ${where(patch)} attends most to ${most} (layer ${answer.layer}, ${by}).`;
      caption.textContent = text;
      if (byKeyboard) this.shared.announce(text);
    } catch (error) {
      if (!isLatest()) return;
      if (!(error instanceof Problem)) throw error;
      caption.textContent = `${error.message} ${error.hint}`;
    }
  }

  /** The answer to a question about this picture, kept until another comes; it takes the place of one still open. */
  ask(path, parameters) {
    const key = JSON.stringify([path, parameters]);
    for (const [other, question] of this.questions) {
      if (other === key || question.path !== path || !question.isOpen) continue;
      question.controller.abort();
      this.questions.delete(other);
    }
    if (!this.questions.has(key)) {
      const question = { path, isOpen: true, controller: new AbortController() };
      question.answer = askAbout(path, parameters, this.file, question.controller.signal).finally(() => {
        question.isOpen = false;
      });
      question.answer.catch(() => this.questions.get(key) === question && this.questions.delete(key));
      this.questions.set(key, question);
    }
    return this.questions.get(key).answer;
  }
}

/** A picture as it is shown and sent: where it is transparent, on white. `bitmap` is null if the browser cannot show it. */
async function look(file) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (bitmap === null || file.type === "image/jpeg") return { file, bitmap, isFlattened: false };
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  if (!hasTransparency(context, canvas)) return { file, bitmap, isFlattened: false };
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  const flat = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  return { file: flat, bitmap: await createImageBitmap(canvas), isFlattened: true };
}

function hasTransparency(context, { width, height }) {
  for (let top = 0; top < height; top += BAND) {
    const { data } = context.getImageData(0, top, width, Math.min(BAND, height - top));
    for (let at = 3; at < data.length; at += 4) if (data[at] < 255) return true;
  }
  return false;
}

/** A class of a model without names is called by its number. */
const nameOf = ({ label, index }) => (label === String(index) ? `class ${index}` : label);
const digits = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4, useGrouping: false });
const percent = (score) => `${(100 * score).toFixed(1)} %`;
const short = (milliseconds) => (milliseconds < 10 ? milliseconds.toFixed(1) : milliseconds.toFixed(0));
