// A picture with its overlay: the map of an explanation, or what one patch attends to.

// matplotlib's inferno at equal steps: equal steps of a map look equal. The colours of `vitrail explain`.
const INFERNO = [
  0x000004, 0x0b0724, 0x210c4a, 0x3d0965, 0x57106e, 0x71196e, 0x8a226a, 0xa32c61, 0xbc3754, 0xd24644, 0xe45a31,
  0xf1731d, 0xf98e09, 0xfcac11, 0xf9cb35, 0xf2ea69, 0xfcffa4,
];
const LONGEST = 960; // pixels of the longer side that are drawn
const FAINTEST = 0.2; // share of the colour where a map is lowest
const PIXELATED = 128; // pictures whose longer side is below it are shown with their pixels as squares
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** The colour of a value from 0 to 1: [red, green, blue]. */
export function colour(value) {
  const place = Math.min(Math.max(value, 0), 1) * (INFERNO.length - 1);
  const index = Math.min(Math.floor(place), INFERNO.length - 2);
  const share = place - index;
  return [16, 8, 0].map((shift) => {
    const [low, high] = [INFERNO[index], INFERNO[index + 1]].map((rgb) => (rgb >> shift) & 255);
    return Math.round(low + (high - low) * share);
  });
}

/** Draws, and turns pointer and keys into patches. `onPatch(index or null, byKeyboard)` is told which one. */
export class Stage {
  constructor(frame, onPatch) {
    this.frame = frame;
    this.onPatch = onPatch;
    [this.picture, this.overlay] = frame.querySelectorAll("canvas");
    this.patches = frame.querySelector(".patches");
    this.mark = document.createElement("span");
    this.mark.className = "mark";
    this.frame.append(this.mark);
    this.clear();
    this.listen();
  }

  clear() {
    this.bitmap = null;
    this.map = this.row = this.patch = null;
    this.grid = this.box = null;
    this.mark.hidden = true;
    this.picture.getContext("2d").clearRect(0, 0, this.picture.width, this.picture.height);
    this.paint();
  }

  /** Show a picture (an ImageBitmap), without an overlay. */
  show(bitmap, name) {
    this.clear();
    this.bitmap = bitmap;
    const longer = Math.max(bitmap.width, bitmap.height);
    const factor = longer < LONGEST / 2 ? Math.max(1, Math.floor(LONGEST / longer)) : Math.min(1, LONGEST / longer);
    for (const canvas of [this.picture, this.overlay]) {
      canvas.width = Math.max(1, Math.round(bitmap.width * factor));
      canvas.height = Math.max(1, Math.round(bitmap.height * factor));
    }
    this.picture.setAttribute("aria-label", `The picture ${name}`);
    this.patches.setAttribute("aria-label", `Patches of ${name}`);
    this.paintPicture();
  }

  /** Where the patches are, from an answer of the server: rows and columns, and the box in pixels of the picture. */
  place({ grid, box, picture_size: [width, height] }) {
    this.grid = grid;
    this.box = [box[0] / width, box[1] / height, box[2] / width, box[3] / height]; // shares of the sides
    this.paintPicture();
  }

  setMap(map) {
    this.map = map;
    this.paint();
  }

  /** What the chosen patch attends to, a byte for each patch; null while it is not known. */
  setRow(row) {
    this.row = row;
    this.paint();
  }

  setOpacity(share) {
    this.overlay.style.opacity = share;
  }

  choose(patch, byKeyboard = false) {
    if (patch === this.patch) return;
    this.patch = patch;
    this.row = null;
    this.placeMark();
    this.onPatch(patch, byKeyboard);
    this.paint();
  }

  paintPicture() {
    const context = this.picture.getContext("2d");
    const { width, height } = this.picture;
    context.imageSmoothingEnabled = Math.max(this.bitmap.width, this.bitmap.height) >= PIXELATED;
    context.imageSmoothingQuality = "high";
    context.clearRect(0, 0, width, height);
    context.drawImage(this.bitmap, 0, 0, width, height);
    if (this.box && this.isCropped) this.hideUnseen(context, width, height);
  }

  /** Whether the preprocessing cuts something off. */
  get isCropped() {
    const [left, top, right, bottom] = this.pixels();
    return left >= 1 || top >= 1 || right <= this.picture.width - 1 || bottom <= this.picture.height - 1;
  }

  /** Stripes over what is cut off. */
  hideUnseen(context, width, height) {
    const [left, top, right, bottom] = this.pixels();
    context.save();
    context.beginPath();
    context.rect(0, 0, width, height);
    context.rect(left, top, right - left, bottom - top);
    context.clip("evenodd");
    context.fillStyle = "rgb(205 205 205 / 60%)";
    context.fillRect(0, 0, width, height);
    context.strokeStyle = "rgb(90 90 90 / 45%)";
    context.lineWidth = 2;
    context.beginPath();
    for (let start = -height; start < width; start += 14) {
      context.moveTo(start, height);
      context.lineTo(start + height, 0);
    }
    context.stroke();
    context.restore();
  }

  pixels() {
    const { width, height } = this.picture;
    const [left, top, right, bottom] = this.box;
    return [left * width, top * height, right * width, bottom * height];
  }

  paint() {
    const context = this.overlay.getContext("2d");
    context.clearRect(0, 0, this.overlay.width, this.overlay.height);
    this.frame.classList.toggle("explained", this.map !== null);
    this.frame.classList.toggle("attending", this.patch !== null);
    if (!this.box) return;
    if (this.patch !== null && this.row) this.paintBlocks(context);
    else if (this.patch === null && this.map) this.paintMap(context);
  }

  paintBlocks(context) {
    const [left, top, right, bottom] = this.pixels();
    const [rows, columns] = this.grid;
    for (let index = 0; index < rows * columns; index++) {
      const value = this.row[index] / 255;
      const [row, column] = [Math.floor(index / columns), index % columns];
      const edges = [
        Math.round(left + ((right - left) * column) / columns),
        Math.round(top + ((bottom - top) * row) / rows),
        Math.round(left + ((right - left) * (column + 1)) / columns),
        Math.round(top + ((bottom - top) * (row + 1)) / rows),
      ];
      context.fillStyle = `rgb(${colour(value).join(" ")} / ${FAINTEST + (1 - FAINTEST) * value})`;
      context.fillRect(edges[0], edges[1], edges[2] - edges[0], edges[3] - edges[1]);
    }
  }

  /** Linear between the centres of the patches, as the library draws it. */
  paintMap(context) {
    const [left, top, right, bottom] = this.pixels();
    const [first, start] = [Math.max(0, Math.round(top)), Math.max(0, Math.round(left))];
    const height = Math.min(this.overlay.height, Math.round(bottom)) - first;
    const width = Math.min(this.overlay.width, Math.round(right)) - start;
    if (width < 1 || height < 1) return;
    const down = spread(this.map.length, height, first - top, bottom - top);
    const across = spread(this.map[0].length, width, start - left, right - left);
    const image = context.createImageData(width, height);
    for (let y = 0, at = 0; y < height; y++) {
      const [upper, lower, low] = [this.map[down[y][0]], this.map[down[y][1]], down[y][2]];
      for (let x = 0; x < width; x++, at += 4) {
        const [one, other, share] = across[x];
        const value =
          (upper[one] * (1 - share) + upper[other] * share) * (1 - low) +
          (lower[one] * (1 - share) + lower[other] * share) * low;
        image.data.set(TABLE[Math.round(value * 255)], at);
      }
    }
    context.putImageData(image, start, first);
  }

  placeMark() {
    this.mark.hidden = this.patch === null;
    if (this.patch === null) return;
    const [rows, columns] = this.grid;
    const [left, top, right, bottom] = this.box;
    const [row, column] = [Math.floor(this.patch / columns), this.patch % columns];
    const percent = (share) => `${100 * share}%`;
    Object.assign(this.mark.style, {
      left: percent(left + ((right - left) * column) / columns),
      top: percent(top + ((bottom - top) * row) / rows),
      width: percent((right - left) / columns),
      height: percent((bottom - top) / rows),
    });
  }

  listen() {
    const area = this.patches;
    area.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") this.choose(this.patchAt(event));
    });
    area.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.choose(null);
    });
    area.addEventListener("pointerup", (event) => {
      if (event.pointerType !== "touch") return;
      const patch = this.patchAt(event);
      this.choose(patch === this.patch ? null : patch);
    });
    area.addEventListener("focus", () => {
      if (!this.grid || !area.matches(":focus-visible") || this.patch !== null) return;
      const [rows, columns] = this.grid;
      this.choose(Math.floor(rows / 2) * columns + Math.floor(columns / 2), true);
    });
    area.addEventListener("blur", () => this.choose(null));
    area.addEventListener("keydown", (event) => this.move(event));
  }

  move(event) {
    if (!this.grid) return;
    if (event.key === "Escape") {
      this.choose(null, true);
      return;
    }
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const [rows, columns] = this.grid;
    const from = this.patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    const row = Math.min(Math.max(Math.floor(from / columns) + step[0], 0), rows - 1);
    const column = Math.min(Math.max((from % columns) + step[1], 0), columns - 1);
    this.choose(row * columns + column, true);
  }

  /** The patch under the pointer; null beside what the model saw. */
  patchAt(event) {
    if (!this.grid) return null;
    const area = this.patches.getBoundingClientRect();
    const [left, top, right, bottom] = this.box;
    const x = ((event.clientX - area.left) / area.width - left) / (right - left);
    const y = ((event.clientY - area.top) / area.height - top) / (bottom - top);
    if (x < 0 || y < 0 || x >= 1 || y >= 1) return null;
    const [rows, columns] = this.grid;
    return Math.floor(y * rows) * columns + Math.floor(x * columns);
  }
}

/** For each pixel of one axis: the two cells between whose centres it lies, and the share of the second. */
function spread(cells, pixels, offset, length) {
  return Array.from({ length: pixels }, (_, pixel) => {
    const place = Math.min(Math.max(((pixel + 0.5 + offset) / length) * cells - 0.5, 0), cells - 1);
    const low = Math.min(Math.floor(place), Math.max(cells - 2, 0));
    return [low, Math.min(low + 1, cells - 1), place - low];
  });
}

const TABLE = Array.from({ length: 256 }, (_, value) => {
  const share = value / 255;
  return [...colour(share), Math.round(255 * (FAINTEST + (1 - FAINTEST) * share))];
});

/** Draw the scale of colours. */
export function paintRamp(canvas) {
  const context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = `rgb(${colour(x / (canvas.width - 1)).join(" ")})`;
    context.fillRect(x, 0, 1, canvas.height);
  }
}
