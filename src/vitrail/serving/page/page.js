// The page: where pictures come from, the settings that all panes share, colours, snippets.

import { Pane, tell } from "./pane.js";
import { ask, download, Problem, usesToken } from "./server.js";
import { curl, python } from "./snippets.js";

const find = (id) => document.getElementById(id);
const TYPES = { jpg: "image/jpeg", jpeg: "image/jpeg", png: "image/png", webp: "image/webp" };

const FEW = 12; // classes that are all named at once
const shared = {
  settings: { method: "auto", layer: "", head: "" },
  /** Resolved once the models are known; whatever is in the way is told, and can be tried again. */
  connected: () => {
    connect();
    return connection.promise;
  },
  announce: (text) => {
    find("announcer").textContent = text;
  },
  change: (pane) => {
    selectSide(panes.indexOf(pane));
    find("file").click();
  },
  changed: () => {
    if (models.length) {
      showClasses();
      offerSettings();
    }
    writeSnippet();
  },
};
const connection = Promise.withResolvers();
let connecting = null; // the attempt that is under way
let models = []; // none until it has succeeded
let panes = [new Pane(shared)];
let language = "curl";

// --- pictures ---

const side = () => (panes.length < 2 ? 0 : Number(document.querySelector("input[name=side]:checked").value));

function selectSide(number) {
  document.querySelector(`input[name=side][value="${number}"]`).checked = true;
}

/** Which pane a picture belongs to is decided here, when it is chosen; the pane shows the one that was chosen last. */
function take(source, name, number = side()) {
  tell(find("problem"), null);
  document.body.classList.add("used");
  find("bench").hidden = false;
  panes[number].load(source, name);
  if (matchMedia("(max-width: 719px)").matches) find("bench").scrollIntoView();
}

/** Files that were dropped, pasted or chosen: one for the given side, or two side by side. */
function takeFiles(files, number = side()) {
  const shown = [...files].slice(0, panes.length);
  shown.forEach((file, index) => take(() => file, file.name || "pasted.png", shown.length > 1 ? index : number));
  if (!shown.length) {
    tell(find("problem"), new Problem("That was not a picture.", "Drop or paste a JPEG, PNG or WebP file."));
  } else if (files.length > shown.length) {
    const [which, hint] = shown.length > 1 ? ["two are", ""] : ["is", "Choose Compare to see two side by side."];
    tell(find("problem"), new Problem(`Of ${files.length} pictures, the first ${which} shown.`, hint));
  }
}

function listenForPictures() {
  find("choose").addEventListener("click", () => find("file").click());
  find("photograph").addEventListener("click", () => find("camera").click());
  for (const input of [find("file"), find("camera")]) {
    input.addEventListener("change", () => {
      if (input.files.length) takeFiles(input.files);
      input.value = "";
    });
  }
  find("examples").addEventListener("click", (event) => {
    const name = event.target.closest("button")?.dataset.example;
    if (name) take((signal) => download(`/examples/${name}`, signal), name);
  });
  addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) takeFiles(event.clipboardData.files);
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dragging");
  });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    const onto = panes.findIndex((pane) => pane.element.contains(event.target));
    takeFiles(event.dataTransfer.files, onto < 0 ? side() : onto);
  });
}

// --- models, and two panes to compare ---

/** Ask for the models, unless they are known or being asked for. */
function connect() {
  if (models.length) return;
  connecting ??= fetchModels().finally(() => {
    connecting = null;
  });
}

async function fetchModels() {
  try {
    const answer = await ask("/v1/models");
    const named = await Promise.all(answer.models.map(({ name }) => ask("/v1/labels", { model: name })));
    models = answer.models.map((model, index) => {
      const { labels, thresholds } = named[index];
      return { ...model, labels, thresholds };
    });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    find("served").textContent = "not connected";
    tell(find("problem"), error, connect);
    return;
  }
  tell(find("problem"), null);
  const [{ name, version }] = models;
  find("served").textContent = models.length > 1 ? `${models.length} models` : `${name} · ${version}`;
  find("compare").disabled = false;
  panes[0].offerModels(models, models[0]);
  shared.changed();
  connection.resolve();
}

/** A second pane: the same picture with another model if there is one, or room for another picture. */
function compare(wanted) {
  find("compare").setAttribute("aria-pressed", String(wanted));
  document.body.classList.toggle("comparing", wanted);
  find("sides").hidden = !wanted;
  const [first] = panes;
  if (wanted) {
    const second = new Pane(shared);
    second.offerModels(models, models.find((model) => model !== first.model) ?? first.model);
    panes.push(second);
    showPanes();
    selectSide(first.source ? 1 : 0);
    if (first.source && second.model !== first.model) second.load(first.source, first.name);
  } else {
    panes.pop().withdraw();
    showPanes();
    selectSide(0);
  }
  find("bench").hidden = !wanted && !first.source;
  document.body.classList.toggle("used", !find("bench").hidden);
  shared.changed();
}

function showPanes() {
  find("panes").replaceChildren(...panes.map((pane) => pane.element));
  for (const pane of panes) pane.stage.setOpacity(find("opacity").value / 100);
}

/** What the shown models can tell apart, and the examples among it. */
function showClasses() {
  const shown = [...new Set(panes.map((pane) => pane.model))];
  find("known").replaceChildren(...shown.map((model) => listClasses(model)));
  const known = new Set(shown.flatMap(({ labels }) => labels.map((label) => label.toLowerCase())));
  let any = false;
  for (const button of find("examples").querySelectorAll("button")) {
    const fits = known.has(button.dataset.example.replace(/\.\w+$/, ""));
    button.parentElement.hidden = !fits;
    any ||= fits;
  }
  find("examples").hidden = find("try-label").hidden = !any;
}

const NOUNS = { several: ["label", "labels"], number: ["value", "values"] };

function listClasses({ name, task, classes, labels }) {
  const [one, many] = NOUNS[task] ?? ["class", "classes"];
  const [line, count] = [document.createElement("p"), `${classes.toLocaleString("en")} ${classes === 1 ? one : many}`];
  const knows = task === "number" ? "measures" : "knows";
  if (!classes) line.textContent = `${name} gives embeddings and knows no classes.`;
  else if (labels.every((label, index) => label === String(index))) line.textContent = `${name} ${knows} ${count}, which have no names.`;
  else if (classes <= FEW) line.textContent = `${name} ${knows} ${count}: ${labels.join(", ")}.`;
  else {
    const [details, summary] = [document.createElement("details"), document.createElement("summary")];
    summary.textContent = `${name} ${knows} ${count}, such as ${labels.slice(0, FEW / 2).join(", ")}.`;
    line.textContent = labels.join(", ");
    details.append(summary, line);
    return details;
  }
  return line;
}

// --- settings ---

function offer(field, options, chosen) {
  field.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  field.value = options.some(([value]) => value === chosen) ? chosen : options[0][0];
  return field.value;
}

/** What all shown models can do. */
function offerSettings() {
  const shown = panes.map((pane) => pane.model);
  const methods = shown[0].methods.filter((method) => shown.every((model) => model.methods.includes(method)));
  const numbers = (count, ends) => Array.from({ length: count ?? 0 }, (_, i) => [String(i), `${i}${ends(i)}`]);
  const depth = Math.min(...shown.map((model) => model.depth ?? 0));
  const heads = Math.min(...shown.map((model) => model.heads ?? 0));
  const { settings } = shared;
  settings.method = offer(find("method"), ["auto", ...methods].map((name) => [name, name]), settings.method);
  settings.layer = offer(find("layer"), [["", "last"], ...numbers(depth, (i) => (i === 0 ? " (first)" : ""))], settings.layer);
  settings.head = offer(find("head"), [["", "mean of all"], ...numbers(heads, () => "")], settings.head);
  find("controls").hidden = !shown.some((model) => model.explains);
  disableUnused();
}

/** Only attention has layers and heads. */
function disableUnused() {
  for (const name of ["layer", "head"]) find(name).disabled = shared.settings.method !== "attention";
}

function listenForSettings() {
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["method", "layer", "head"]) {
    find(name).addEventListener("change", (event) => {
      shared.settings[name] = event.target.value;
      disableUnused();
      for (const pane of panes) pane.update();
      writeSnippet();
    });
  }
  find("opacity").addEventListener("input", ({ target }) => {
    find("opacity-value").textContent = `${target.value} %`;
    for (const pane of panes) pane.stage.setOpacity(target.value / 100);
  });
  find("compare").addEventListener("click", () => compare(panes.length < 2));
}

// --- colours ---

function listenForTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const show = () => find("theme").setAttribute("aria-pressed", String(isDark()));
  dark.addEventListener("change", show);
  find("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  show();
}

// --- snippets ---

function writeSnippet() {
  const pane = panes[0];
  const name = pane.name ?? "picture.jpg";
  const type = (!pane.isFlattened && pane.file?.type) || TYPES[name.split(".").at(-1).toLowerCase()] || "application/octet-stream";
  const model = models.length > 1 ? pane.model.name : null;
  const task = pane.model?.task ?? "one";
  const facts = { origin: location.origin, model, name, type, task, method: shared.settings.method, token: usesToken() };
  find("snippet").textContent = (language === "curl" ? curl : python)(facts);
}

function listenForSnippets() {
  const tabs = [find("tab-curl"), find("tab-python")];
  const select = (tab) => {
    language = tab === tabs[0] ? "curl" : "python";
    for (const each of tabs) {
      each.setAttribute("aria-selected", String(each === tab));
      each.tabIndex = each === tab ? 0 : -1;
    }
    find("snippet").setAttribute("aria-labelledby", tab.id);
    writeSnippet();
  };
  for (const tab of tabs) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = tabs[1 - tabs.indexOf(tab)];
      select(other);
      other.focus();
    });
  }
  find("copy").addEventListener("click", copySnippet);
}

async function copySnippet() {
  const button = find("copy");
  try {
    await navigator.clipboard.writeText(find("snippet").textContent);
    button.textContent = "Copied";
    shared.announce("Copied.");
  } catch {
    getSelection().selectAllChildren(find("snippet")); // no permission, or not a secure address: at least select it
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 2500);
}

listenForPictures();
listenForSettings();
listenForTheme();
listenForSnippets();
showPanes();
writeSnippet();
connect();
