"""Images per second of our loader against torchvision's ImageFolder + v2 + DataLoader and transformers' processor.

    python -m benchmarks.data [--workers 2] [--pictures 512] [--repeats 3] [--cifar DIR]

JPEGs are crops of scikit-learn's two photographs; CIFAR's pictures are noise unless DIR holds the real ones. The
contestants of a row take turns several times, and the best run of each counts.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.peers import torchvision, transformers
from benchmarks.timing import print_machine
from vitrail.data import Augment, Loader, LoaderConfig, Preprocess, open_data, preset
from vitrail.data.source import ArraySource
from vitrail.data.source import Dataset as VitrailDataset

Run = Callable[[], int]  # goes through the data once and returns how many pictures it saw
Row = tuple[str, dict[str, float]]  # the setting, and the images per second of each contestant
BATCH = 64
CIFAR_BATCH = 512


def write_photographs(folder: Path, count: int, width: int, height: int) -> None:
    """Different crops of scikit-learn's two photographs as JPEGs, in two class folders."""
    draw = np.random.default_rng(0)
    for number, pixels in enumerate(load_sample_images().images):
        target = folder / f"class-{number}"
        target.mkdir(parents=True)
        photograph = Image.fromarray(pixels)
        if photograph.width < width * 1.2:
            photograph = photograph.resize(
                (round(width * 1.28), round(width * 1.28 * 427 / 640)), Image.Resampling.LANCZOS
            )
        for index in range(count // 2):
            left = int(draw.integers(photograph.width - width + 1))
            top = int(draw.integers(photograph.height - height + 1))
            photograph.crop((left, top, left + width, top + height)).save(target / f"{index}.jpg", quality=90)


def count_pictures(batches: Iterable[tuple[torch.Tensor, ...]]) -> int:
    """Go through the batches as training would, touching each."""
    total = 0
    for images, *_ in batches:
        assert images.dtype == torch.float32
        total += len(images)
    return total


def torchvision_run(dataset: Dataset, batch_size: int, workers: int) -> Run:
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=False,
    )
    return lambda: count_pictures(loader)


def vitrail_run(dataset: VitrailDataset, spec: Preprocess, workers: int, augment: Augment | None, batch: int) -> Run:
    config = LoaderConfig(batch_size=batch, workers=workers, remainder="pad")
    loader = Loader(dataset, "train", spec, config, augment)
    return lambda: count_pictures(loader)


def train_transform() -> Callable:
    v2 = torchvision.transforms.v2
    return v2.Compose(
        [
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )


def cifar_transform() -> Callable:
    v2 = torchvision.transforms.v2
    return v2.Compose(
        [
            v2.RandomCrop(32, padding=4),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )


class CifarPictures(Dataset):
    """CIFAR as torchvision's own data set gives it: a PIL picture per sample, then the transform."""

    def __init__(self, images: torch.Tensor, transform: Callable) -> None:
        self.arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.arrays[index])), 0


def processor_run(paths: list[Path]) -> Run:
    processor = transformers.ViTImageProcessor()

    def batches() -> Iterator[tuple[torch.Tensor]]:
        for start in range(0, len(paths), BATCH):
            pictures = [Image.open(path).convert("RGB") for path in paths[start : start + BATCH]]
            yield (processor(pictures, return_tensors="pt")["pixel_values"],)

    return lambda: count_pictures(batches())


def cifar_processor_run(images: torch.Tensor) -> Run:
    processor = transformers.ViTImageProcessor(do_resize=False)
    loader = DataLoader(TensorDataset(images), batch_size=CIFAR_BATCH)
    return lambda: count_pictures((processor(batch, return_tensors="pt")["pixel_values"],) for (batch,) in loader)


def measure(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    """Images per second of each contestant, the best of several interleaved runs."""
    best = dict.fromkeys(runs, 0.0)
    for run in runs.values():
        run()  # starts the workers and warms the caches
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            count = run()
            best[name] = max(best[name], count / (time.perf_counter() - start))
    return best


def jpeg_rows(count: int, width: int, height: int, workers: int, repeats: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "train"
        write_photographs(folder, count, width, height)
        data, folders = open_data(Path(name)), torchvision.datasets.ImageFolder
        torchvision_eval = torchvision.transforms._presets.ImageClassification(crop_size=224)  # pyright: ignore[reportAttributeAccessIssue]
        bilinear = Preprocess(size=(224, 224))
        ours = vitrail_run(data, bilinear, workers, Augment(crop="resized"), BATCH)
        theirs = torchvision_run(folders(folder, train_transform()), BATCH, workers)
        what = f"JPEG {width}×{height} → 224"
        yield f"{what}, training (crop, flip)", measure({"vitrail": ours, "torchvision": theirs}, repeats)
        ours = vitrail_run(data, preset("torchvision"), workers, None, BATCH)
        theirs = torchvision_run(folders(folder, torchvision_eval), BATCH, workers)
        yield f"{what}, evaluation as torchvision", measure({"vitrail": ours, "torchvision": theirs}, repeats)
        ours = vitrail_run(data, preset("hf"), workers, None, BATCH)
        processor = processor_run(sorted(folder.rglob("*.jpg")))
        yield f"{what}, evaluation as transformers", measure({"vitrail": ours, "transformers": processor}, repeats)


def cifar_rows(images: torch.Tensor, workers: int, repeats: int) -> Iterator[Row]:
    count = len(images)
    source = ArraySource(images, np.arange(count) % 10, "pictures")
    data = VitrailDataset(name="cifar", classes=tuple("0123456789"), splits={"train": source})
    spec = Preprocess(size=(32, 32))
    runs = {
        "vitrail": vitrail_run(data, spec, workers, Augment(crop="pad"), CIFAR_BATCH),
        "torchvision": torchvision_run(CifarPictures(images, cifar_transform()), CIFAR_BATCH, workers),
    }
    yield "CIFAR 32×32, training (crop, flip)", measure(runs, repeats)
    runs = {
        "vitrail": vitrail_run(data, spec, workers, None, CIFAR_BATCH),
        "transformers": cifar_processor_run(images),
    }
    yield "CIFAR 32×32, evaluation as transformers", measure(runs, repeats)
    rand = Augment(crop="pad", policy="rand")
    v2 = torchvision.transforms.v2
    transform = v2.Compose([v2.RandAugment(), cifar_transform()])
    runs = {
        "vitrail": vitrail_run(data, spec, workers, rand, CIFAR_BATCH),
        "torchvision": torchvision_run(CifarPictures(images, transform), CIFAR_BATCH, workers),
    }
    yield "CIFAR 32×32, training (RandAugment, crop, flip)", measure(runs, repeats)


def opening_row(count: int, repeats: int) -> Row:
    """Files per second while a folder of empty files is opened; ours includes the split."""
    with tempfile.TemporaryDirectory() as name:
        for label in range(100):
            folder = Path(name, f"class-{label:02}")
            folder.mkdir()
            for index in range(count // 100):
                (folder / f"picture-{index:06}.jpg").touch()
        runs: dict[str, Run] = {
            "vitrail": lambda: sum(len(source) for source in open_data(Path(name)).splits.values()),
            "torchvision": lambda: len(torchvision.datasets.ImageFolder(name)),
        }
        return f"opening a folder of {count:,} files", measure(runs, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--files", type=int, default=200_000, help="in the folder whose opening is timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cifar", type=Path, help="a folder with CIFAR-10")
    options = parser.parse_args()
    print_machine("torchvision", "transformers")
    if options.cifar:
        train: Any = open_data(options.cifar).split("train")
        small = train.images
    else:
        small = torch.randint(0, 256, (20 * options.pictures, 3, 32, 32), dtype=torch.uint8)
    table = Table(title=f"images per second, {options.workers} workers, best of {options.repeats} interleaved runs")
    table.add_column("")
    for name in ("vitrail", "torchvision", "transformers", "ratio"):
        table.add_column(name, justify="right")
    rows = [
        *cifar_rows(small[: 20 * options.pictures], options.workers, options.repeats),
        *jpeg_rows(options.pictures, 500, 375, options.workers, options.repeats),
        *jpeg_rows(options.pictures // 4, 1600, 1067, options.workers, options.repeats),
        opening_row(options.files, options.repeats),
    ]
    for what, speeds in rows:
        other = speeds.get("torchvision") or speeds["transformers"]
        cells = [
            f"{speeds[name]:,.0f}" if name in speeds else "" for name in ("vitrail", "torchvision", "transformers")
        ]
        table.add_row(what, *cells, f"{speeds['vitrail'] / other:.2f}×")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
