"""Which edited copies of a photograph `vitrail data check` recognises, and how often it mistakes two for one.

    python -m benchmarks.duplicates PHOTOGRAPHS

Every photograph of the folder gets an edited copy in another split, one kind of edit after the other. `found` is the
share of copies that the check reports together with their original; `mistaken` counts reported pairs of two different
photographs.
"""

import argparse
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance
from rich.console import Console
from rich.table import Table

import vitrail
from vitrail.data.pixels import EXTENSIONS

Edit = Callable[[Image.Image], Image.Image]
LABELS = ("even", "odd")  # a data set has at least two classes; the check does not look at them


def shrink(share: float) -> Edit:
    return lambda image: image.resize((round(image.width * share), round(image.height * share)))


def crop(share: float) -> Edit:
    """Without this share of the width and height at each side."""

    def edit(image: Image.Image) -> Image.Image:
        x, y = share * image.width, share * image.height
        return image.crop((round(x), round(y), round(image.width - x), round(image.height - y)))

    return edit


def add_noise(image: Image.Image) -> Image.Image:
    noise = np.random.default_rng(0).normal(0, 12, (image.height, image.width, 3))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


# What is done to the copy, and the quality of the JPEG in which it is kept.
EDITS: dict[str, tuple[Edit, int]] = {
    "recompressed, quality 40": (lambda image: image, 40),
    "recompressed, quality 10": (lambda image: image, 10),
    "resized to a half": (shrink(1 / 2), 90),
    "resized to a third": (shrink(1 / 3), 90),
    "brighter by 30 %": (lambda image: ImageEnhance.Brightness(image).enhance(1.3), 90),
    "contrast reduced by 40 %": (lambda image: ImageEnhance.Contrast(image).enhance(0.6), 90),
    "noise, standard deviation 12 of 255": (add_noise, 90),
    "grey": (lambda image: image.convert("L"), 90),
    "stretched by 20 %": (lambda image: image.resize((round(image.width * 1.2), image.height)), 90),
    "cropped by 1 % at each side": (crop(0.01), 90),
    "cropped by 2 % at each side": (crop(0.02), 90),
    "cropped by 4 % at each side": (crop(0.04), 90),
    "mirrored": (lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 90),
}


def measure(photographs: list[Path], edit: Edit, quality: int) -> tuple[int, int]:
    """How many copies were found, and how many pairs of different photographs were reported."""
    with tempfile.TemporaryDirectory() as place:
        for split, label in itertools.product(("train", "val"), LABELS):
            Path(place, split, label).mkdir(parents=True)
        for number, path in enumerate(photographs):
            with Image.open(path) as opened:
                image = opened.convert("RGB")
            label = LABELS[number % 2]
            image.save(f"{place}/train/{label}/{number}.png", compress_level=1)
            edit(image).save(f"{place}/val/{label}/{number}.jpg", quality=quality)
        report = vitrail.check_data(place)
    pairs = [{Path(fact.key).stem for fact in finding.pair} for finding in report.findings if finding.pair]
    own = {name for pair in pairs if len(pair) == 1 for name in pair}
    return len(own), sum(len(pair) == 2 for pair in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    folder = parser.parse_args().photographs
    photographs = sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)
    table = Table("copy", "found", "mistaken", title=f"{len(photographs):,} photographs", title_justify="left")
    for name, (edit, quality) in EDITS.items():
        found, mistaken = measure(photographs, edit, quality)
        table.add_row(name, f"{found / len(photographs):.1%}", f"{mistaken:,}")
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
