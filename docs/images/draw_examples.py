"""Draw the example pictures of the page that `vitrail serve` shows.

    python docs/images/draw_examples.py src/vitrail/serving/examples

writes one JPEG per class, named after it. They are drawn here, so that no photograph needs a licence.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE, OVERSAMPLING, QUALITY = 256, 4, 82
Colour = tuple[int, int, int]
Point = tuple[float, float]


class Sheet:
    """A square canvas whose coordinates go from 0 to 1, drawn large and then shrunk, for smooth edges."""

    def __init__(self, seed: int) -> None:
        self.side = SIDE * OVERSAMPLING
        self.image = Image.new("RGB", (self.side, self.side))
        self.draw = ImageDraw.Draw(self.image)
        self.random = np.random.default_rng(seed)

    def blend(self, top: float, bottom: float, start: Colour, end: Colour) -> None:
        """A vertical gradient between two heights."""
        first, last = round(top * self.side), round(bottom * self.side)
        share = np.linspace(0, 1, last - first)[:, None]
        column = (np.asarray(start) * (1 - share) + np.asarray(end) * share).astype(np.uint8)
        self.image.paste(Image.fromarray(np.repeat(column[:, None], self.side, axis=1)), (0, first))

    def polygon(self, colour: Colour, *corners: Point) -> None:
        self.draw.polygon([(x * self.side, y * self.side) for x, y in corners], fill=colour)

    def ellipse(self, colour: Colour, x: float, y: float, across: float, down: float) -> None:
        """An ellipse around a centre, by its half axes."""
        box = [(x - across) * self.side, (y - down) * self.side, (x + across) * self.side, (y + down) * self.side]
        self.draw.ellipse(box, fill=colour)

    def line(self, colour: Colour, width: float, *points: Point) -> None:
        pixels = [(x * self.side, y * self.side) for x, y in points]
        self.draw.line(pixels, fill=colour, width=max(1, round(width * self.side)), joint="curve")
        for x, y in points:
            self.ellipse(colour, x, y, width / 2, width / 2)

    def strokes(self, colour: Colour, count: int, top: float, bottom: float, tilt: Point = (0.05, 0)) -> None:
        """Short lines at random places between two heights: waves, grass, clouds."""
        for x, y, length in self.random.uniform((0, top, 0.3), (1, bottom, 1), (count, 3)):
            self.line(colour, 0.003, (x, y), (x + tilt[0] * length, y + tilt[1] * length))

    def soften(self, radius: float) -> None:
        """Blur what has been drawn so far, as a lens does with the background."""
        self.image.paste(self.image.filter(ImageFilter.GaussianBlur(radius * self.side)))

    def finish(self) -> Image.Image:
        """At its final size."""
        return self.image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def draw_ship(sheet: Sheet) -> None:
    sheet.blend(0, 0.62, (120, 175, 225), (214, 228, 240))
    sheet.blend(0.62, 1, (52, 105, 140), (27, 60, 90))
    sheet.strokes((95, 150, 178), 120, 0.64, 1, (0.1, 0))
    white, glass = (245, 245, 240), (50, 80, 110)
    sheet.polygon((150, 40, 35), (0.12, 0.60), (0.88, 0.60), (0.80, 0.74), (0.20, 0.74))
    sheet.polygon(white, (0.12, 0.60), (0.88, 0.60), (0.872, 0.63), (0.128, 0.63))
    sheet.polygon(white, (0.30, 0.48), (0.66, 0.48), (0.66, 0.60), (0.30, 0.60))
    sheet.polygon((235, 235, 228), (0.36, 0.38), (0.58, 0.38), (0.58, 0.48), (0.36, 0.48))
    sheet.polygon((40, 40, 45), (0.44, 0.24), (0.51, 0.24), (0.515, 0.38), (0.435, 0.38))
    sheet.polygon((205, 150, 50), (0.44, 0.27), (0.51, 0.27), (0.51, 0.30), (0.44, 0.30))
    sheet.line((70, 60, 55), 0.008, (0.70, 0.30), (0.70, 0.60))
    for x in np.arange(6) * 0.055 + 0.33:
        sheet.polygon(glass, (x, 0.52), (x + 0.03, 0.52), (x + 0.03, 0.55), (x, 0.55))


def draw_airplane(sheet: Sheet) -> None:
    sheet.blend(0, 1, (72, 140, 212), (196, 222, 243))
    for x, y, across in ((0.2, 0.8, 0.16), (0.34, 0.83, 0.14), (0.85, 0.2, 0.12), (0.74, 0.22, 0.1), (0.8, 0.9, 0.2)):
        sheet.ellipse((236, 243, 250), x, y, across, across * 0.32)
    sheet.soften(0.02)
    body, shade, dark = (240, 242, 245), (186, 194, 205), (52, 74, 120)
    sheet.polygon(shade, (0.50, 0.47), (0.66, 0.22), (0.72, 0.22), (0.63, 0.48))
    sheet.polygon(
        body, (0.10, 0.50), (0.20, 0.44), (0.80, 0.44), (0.93, 0.40), (0.90, 0.50), (0.78, 0.55), (0.20, 0.56)
    )
    sheet.ellipse(body, 0.17, 0.50, 0.08, 0.06)
    sheet.polygon(dark, (0.78, 0.45), (0.90, 0.24), (0.96, 0.24), (0.92, 0.45))
    sheet.polygon(shade, (0.80, 0.47), (0.97, 0.42), (0.99, 0.44), (0.86, 0.50))
    sheet.polygon((205, 212, 222), (0.40, 0.52), (0.60, 0.52), (0.66, 0.80), (0.60, 0.80))
    sheet.ellipse((92, 100, 115), 0.50, 0.60, 0.05, 0.028)
    for x in np.arange(13) * 0.04 + 0.24:
        sheet.ellipse((70, 95, 130), x, 0.485, 0.009, 0.011)
    sheet.polygon((60, 85, 120), (0.115, 0.485), (0.165, 0.458), (0.175, 0.485))


def draw_automobile(sheet: Sheet) -> None:
    sheet.blend(0, 0.55, (170, 200, 225), (222, 230, 234))
    for x in np.arange(9) * 0.13:
        sheet.ellipse((84, 118, 84), x, 0.5, 0.1, 0.09 + 0.03 * (x * 7 % 1))
    sheet.soften(0.012)
    sheet.blend(0.55, 1, (128, 128, 130), (92, 92, 96))
    sheet.ellipse((60, 60, 64), 0.5, 0.80, 0.42, 0.05)
    red, deep, glass = (198, 36, 40), (150, 22, 30), (60, 80, 100)
    sheet.polygon(red, (0.26, 0.52), (0.36, 0.37), (0.66, 0.37), (0.78, 0.52))
    sheet.polygon(red, (0.08, 0.60), (0.14, 0.53), (0.30, 0.50), (0.78, 0.50), (0.92, 0.55), (0.94, 0.74), (0.08, 0.74))
    sheet.polygon(deep, (0.08, 0.68), (0.94, 0.68), (0.94, 0.75), (0.08, 0.75))
    sheet.polygon(glass, (0.31, 0.51), (0.38, 0.40), (0.50, 0.40), (0.50, 0.51))
    sheet.polygon(glass, (0.53, 0.51), (0.53, 0.40), (0.65, 0.40), (0.73, 0.51))
    sheet.ellipse((250, 240, 200), 0.115, 0.60, 0.028, 0.024)
    sheet.polygon((250, 120, 90), (0.91, 0.56), (0.94, 0.57), (0.94, 0.62), (0.91, 0.62))
    for x in (0.26, 0.75):
        sheet.ellipse((28, 28, 30), x, 0.74, 0.09, 0.09)
        sheet.ellipse((190, 194, 200), x, 0.74, 0.05, 0.05)
        sheet.ellipse((90, 94, 100), x, 0.74, 0.02, 0.02)


def draw_horse(sheet: Sheet) -> None:
    sheet.blend(0, 0.45, (168, 202, 228), (222, 232, 230))
    for x in np.arange(7) * 0.17:
        sheet.ellipse((74, 108, 70), x, 0.44, 0.13, 0.09)
    sheet.soften(0.015)
    sheet.blend(0.47, 1, (118, 152, 74), (88, 124, 54))
    sheet.strokes((140, 172, 90), 260, 0.5, 1, (0, -0.03))
    brown, dark = (122, 70, 38), (58, 34, 22)
    for x, lean in ((0.30, -0.02), (0.38, 0.01), (0.64, -0.01), (0.72, 0.02)):
        sheet.line(brown if lean > 0 else (98, 56, 30), 0.045, (x, 0.56), (x + lean, 0.74), (x + lean / 2, 0.88))
        sheet.ellipse(dark, x + lean / 2, 0.89, 0.03, 0.018)
    sheet.line(dark, 0.04, (0.77, 0.46), (0.84, 0.55), (0.84, 0.72))
    sheet.ellipse(brown, 0.52, 0.52, 0.26, 0.13)
    sheet.polygon(brown, (0.27, 0.56), (0.20, 0.26), (0.32, 0.20), (0.46, 0.44))
    sheet.polygon(brown, (0.30, 0.17), (0.33, 0.27), (0.14, 0.42), (0.08, 0.38), (0.16, 0.24))
    sheet.polygon(brown, (0.27, 0.20), (0.28, 0.11), (0.33, 0.19))
    sheet.polygon(dark, (0.30, 0.14), (0.36, 0.20), (0.47, 0.44), (0.42, 0.44), (0.32, 0.26))
    sheet.ellipse((20, 14, 10), 0.215, 0.262, 0.012, 0.012)


def draw_bird(sheet: Sheet) -> None:
    sheet.blend(0, 1, (150, 190, 130), (96, 140, 84))
    for x, y, size in sheet.random.uniform((0, 0, 0.05), (1, 1, 0.16), (26, 3)):
        sheet.ellipse((128, 172, 106), x, y, size, size)
    sheet.soften(0.03)
    sheet.line((96, 70, 48), 0.035, (-0.05, 0.80), (0.4, 0.77), (1.05, 0.72))
    blue, pale = (66, 104, 176), (238, 214, 182)
    sheet.polygon((44, 70, 128), (0.64, 0.52), (0.96, 0.70), (0.90, 0.78), (0.58, 0.64))
    sheet.ellipse(pale, 0.46, 0.55, 0.20, 0.20)
    sheet.ellipse(blue, 0.54, 0.49, 0.20, 0.14)
    sheet.ellipse(blue, 0.34, 0.32, 0.13, 0.12)
    sheet.ellipse(pale, 0.31, 0.39, 0.09, 0.06)
    sheet.polygon((230, 160, 50), (0.22, 0.30), (0.09, 0.35), (0.22, 0.37))
    sheet.ellipse((18, 18, 20), 0.29, 0.30, 0.02, 0.02)
    for x in (0.43, 0.52):
        sheet.line((70, 54, 44), 0.012, (x, 0.73), (x - 0.01, 0.79))


def draw_frog(sheet: Sheet) -> None:
    sheet.blend(0, 1, (112, 92, 66), (78, 62, 44))
    for x, y, size in sheet.random.uniform((0, 0, 0.02), (1, 1, 0.1), (70, 3)):
        sheet.ellipse((126, 104, 72), x, y, size, size * 0.5)
    sheet.soften(0.012)
    green, dark, belly = (98, 148, 52), (58, 98, 36), (206, 214, 150)
    for side in (-1, 1):
        sheet.ellipse(dark, 0.5 + side * 0.30, 0.66, 0.14, 0.17)
        sheet.line(dark, 0.06, (0.5 + side * 0.24, 0.66), (0.5 + side * 0.30, 0.82), (0.5 + side * 0.40, 0.84))
    sheet.ellipse(green, 0.5, 0.60, 0.30, 0.25)
    sheet.ellipse(belly, 0.5, 0.70, 0.22, 0.13)
    sheet.ellipse(green, 0.5, 0.42, 0.26, 0.17)
    sheet.line((60, 88, 36), 0.012, (0.28, 0.46), (0.4, 0.52), (0.6, 0.52), (0.72, 0.46))
    for side in (-1, 1):
        sheet.ellipse(green, 0.5 + side * 0.16, 0.28, 0.09, 0.085)
        sheet.ellipse((226, 196, 72), 0.5 + side * 0.16, 0.27, 0.062, 0.06)
        sheet.ellipse((16, 16, 14), 0.5 + side * 0.16, 0.27, 0.042, 0.026)
        sheet.line(green, 0.05, (0.5 + side * 0.2, 0.62), (0.5 + side * 0.22, 0.84), (0.5 + side * 0.15, 0.88))
    for x, y, size in sheet.random.uniform((0.3, 0.36, 0.008), (0.7, 0.6, 0.022), (22, 3)):
        sheet.ellipse(dark, x, y, size, size * 0.8)


def draw_cat(sheet: Sheet) -> None:
    sheet.blend(0, 1, (196, 178, 158), (150, 128, 108))
    sheet.soften(0.01)
    fur, dark, pale = (140, 122, 104), (74, 62, 52), (226, 214, 200)
    sheet.ellipse(fur, 0.5, 0.98, 0.34, 0.36)
    for side in (-1, 1):
        x = 0.5 + side * 0.2
        sheet.polygon(fur, (x - 0.13, 0.36), (x + side * 0.06, 0.08), (x + 0.13, 0.38))
        sheet.polygon((206, 150, 140), (x - 0.06, 0.32), (x + side * 0.045, 0.15), (x + 0.06, 0.33))
    sheet.ellipse(fur, 0.5, 0.48, 0.32, 0.27)
    sheet.ellipse(pale, 0.5, 0.62, 0.17, 0.12)
    for shift in (-0.07, 0, 0.07):
        sheet.line(dark, 0.016, (0.5 + shift, 0.24), (0.5 + shift * 0.8, 0.36))
    for side in (-1, 1):
        sheet.ellipse((160, 186, 92), 0.5 + side * 0.13, 0.46, 0.062, 0.052)
        sheet.ellipse((14, 14, 14), 0.5 + side * 0.13, 0.46, 0.02, 0.047)
        for y in (0.56, 0.60, 0.64):
            sheet.line((240, 236, 230), 0.004, (0.5 + side * 0.1, 0.61), (0.5 + side * 0.42, y))
        for y in (0.50, 0.57):
            sheet.line(dark, 0.012, (0.5 + side * 0.24, y), (0.5 + side * 0.31, y - 0.02))
        sheet.line(dark, 0.008, (0.5, 0.60), (0.5, 0.64), (0.5 + side * 0.06, 0.67))
    sheet.polygon((190, 116, 112), (0.465, 0.565), (0.535, 0.565), (0.5, 0.605))


def draw_dog(sheet: Sheet) -> None:
    sheet.blend(0, 1, (156, 186, 140), (104, 142, 92))
    sheet.soften(0.01)
    fur, dark, pale = (196, 146, 88), (128, 84, 46), (238, 222, 198)
    sheet.ellipse(fur, 0.5, 0.98, 0.32, 0.34)
    sheet.ellipse(pale, 0.5, 0.98, 0.16, 0.24)
    sheet.ellipse(fur, 0.5, 0.42, 0.26, 0.27)
    for side in (-1, 1):
        sheet.ellipse(dark, 0.5 + side * 0.27, 0.44, 0.09, 0.21)
    sheet.polygon(pale, (0.46, 0.16), (0.54, 0.16), (0.56, 0.48), (0.44, 0.48))
    sheet.ellipse(pale, 0.5, 0.57, 0.16, 0.14)
    sheet.ellipse((24, 20, 20), 0.5, 0.51, 0.065, 0.045)
    sheet.polygon((214, 110, 118), (0.455, 0.65), (0.545, 0.65), (0.54, 0.76), (0.5, 0.79), (0.46, 0.76))
    for side in (-1, 1):
        sheet.ellipse((30, 20, 14), 0.5 + side * 0.115, 0.37, 0.036, 0.04)
        sheet.ellipse((240, 240, 240), 0.5 + side * 0.105, 0.36, 0.01, 0.011)
        sheet.line(dark, 0.008, (0.5, 0.55), (0.5, 0.62), (0.5 + side * 0.09, 0.65))


DRAWINGS: tuple[Callable[[Sheet], None], ...] = (
    draw_airplane,
    draw_automobile,
    draw_bird,
    draw_cat,
    draw_dog,
    draw_frog,
    draw_horse,
    draw_ship,
)


def main(folder: Path) -> None:
    """Write the pictures."""
    for seed, draw in enumerate(DRAWINGS):
        sheet = Sheet(seed)
        draw(sheet)
        name = draw.__name__.removeprefix("draw_")
        sheet.finish().save(folder / f"{name}.jpg", quality=QUALITY, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
