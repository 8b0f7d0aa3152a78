// The page: where pictures come from, the settings that all panes share, colours, snippets.

import { Pane, tell } from "./pane.js";
import { ask, Problem, usesToken } from "./server.js";
import { curl, python } from "./snippets.js";

const find = (id) => document.getElementById(id);
const KNOWN = { jpg: "image/jpeg", jpeg: "image/jpeg", png: "image/png", webp: "image/webp" };

const shared = {
  settings: { method: "auto", layer: "", head: "" },
  announce: (text) => {
    find("announcer").textContent = text;
  },
  change: (pane) => {
    selectSide(panes.indexOf(pane));
    find("file").click();
  },
  changed: () => {
    offerSettings();
    writeSnippet();
  },
};
let models = [];
let panes = [];
let language = "curl";

// --- pictures ---

const side = () => (panes.length < 2 ? 0 : Number(document.querySelector("input[name=side]:checked").value));

function selectSide(number) {
  document.querySelector(`input[name=side][value="${number}"]`).checked = true;
}

async function take(file, name = file.name || "pasted.png", number = side()) {
  tell(find("problem"), null);
  if (!panes.length && !(await connect())) return;
  document.body.classList.add("used");
  find("bench").hidden = false;
  panes[number].load(file, name);
  if (matchMedia("(max-width: 719px)").matches) find("bench").scrollIntoView();
}

async function takeExample(name) {
  try {
    const answer = await fetch(`/examples/${name}`);
    if (!answer.ok) throw new Problem(`The example ${name} cannot be loaded.`);
    await take(await answer.blob(), name);
  } catch (error) {
    const problem = error instanceof Problem ? error : new Problem("The server cannot be reached.", "Check the network.");
    tell(find("problem"), problem);
  }
}

/** Files that were dropped or pasted: the first for the chosen side, a second one beside it. */
function takeFiles(files, number) {
  const [first, second] = [...files];
  if (!first) {
    tell(find("problem"), new Problem("That was not a picture.", "Drop or paste a JPEG, PNG or WebP file."));
    return;
  }
  take(first, first.name, number);
  if (second && panes.length > 1) take(second, second.name, 1 - number);
}

function listenForPictures() {
  find("choose").addEventListener("click", () => find("file").click());
  find("photograph").addEventListener("click", () => find("camera").click());
  for (const input of [find("file"), find("camera")]) {
    input.addEventListener("change", () => {
      if (input.files.length) take(input.files[0]);
      input.value = "";
    });
  }
  find("examples").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) takeExample(button.dataset.example);
  });
  addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) takeFiles(event.clipboardData.files, side());
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

async function connect() {
  try {
    ({ models } = await ask("/v1/models"));
  } catch (error) {
    find("served").textContent = "not connected";
    tell(find("problem"), error, connect);
    return false;
  }
  tell(find("problem"), null);
  const [{ name, version }] = models;
  find("served").textContent = models.length > 1 ? `${models.length} models` : `${name} · ${version}`;
  addPane(models[0]);
  return true;
}

function addPane(model) {
  const pane = new Pane(shared, models, model);
  panes.push(pane);
  find("panes").append(pane.element);
  pane.stage.setOpacity(find("opacity").value / 100);
  shared.changed();
  return pane;
}

/** A second pane: the same picture with another model if there is one, or room for another picture. */
function compare(wanted) {
  find("compare").setAttribute("aria-pressed", String(wanted));
  document.body.classList.toggle("comparing", wanted);
  find("sides").hidden = !wanted;
  if (wanted) {
    const [first] = panes;
    const other = models.find((model) => model !== first.model) ?? first.model;
    const second = addPane(other);
    selectSide(1);
    if (first.file && other !== first.model) second.load(first.file, first.name);
    find("bench").hidden = false;
    document.body.classList.add("used");
  } else {
    const last = panes.pop();
    last.turn.abort();
    last.element.remove();
    selectSide(0);
    shared.changed();
    if (!panes[0].file) {
      find("bench").hidden = true;
      document.body.classList.remove("used");
    }
  }
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
  const attention = methods.includes("attention");
  for (const name of ["layer", "head"]) find(name).disabled = !attention;
}

function listenForSettings() {
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["method", "layer", "head"]) {
    find(name).addEventListener("change", (event) => {
      shared.settings[name] = event.target.value;
      // Only attention has layers and heads: who chooses one wants to see it.
      if (name !== "method" && event.target.value !== "") shared.settings.method = find("method").value = "attention";
      for (const pane of panes) pane.explain();
      writeSnippet();
    });
  }
  find("opacity").addEventListener("input", ({ target }) => {
    find("opacity-value").textContent = `${target.value} %`;
    for (const pane of panes) pane.stage.setOpacity(target.value / 100);
  });
  find("compare").addEventListener("click", async () => {
    if (panes.length || (await connect())) compare(panes.length < 2);
  });
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
  const name = pane?.name ?? "picture.jpg";
  const type = pane?.file?.type || KNOWN[name.split(".").at(-1).toLowerCase()] || "application/octet-stream";
  const model = models.length > 1 && pane ? pane.model.name : null;
  const facts = { origin: location.origin, model, name, type, method: shared.settings.method, token: usesToken() };
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
writeSnippet();
await connect();
writeSnippet();
