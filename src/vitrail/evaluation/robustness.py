"""Accuracy on pictures as cameras, networks and tilted phones spoil them: five corruptions, each in five severities.

Corruptions work on pixels at the model's input size, and each sample's random numbers are its own: the same picture is
corrupted in the same way whatever the batch, the threads or the ranks. The kinds are those of Hendrycks & Dietterich
(2019); blur is measured as a share of the picture's side, so that a severity means the same at 32 and at 224 pixels.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.data.source import Dataset
from vitrail.data.transform import denormalize, normalize, to_pil, to_tensor
from vitrail.errors import ConfigError, InputError, suggest
from vitrail.evaluation import ViewName
from vitrail.evaluation.measurement import Change, measure_split
from vitrail.prediction import Predictor
from vitrail.progress import Advance
from vitrail.rng import Draws, Integers
from vitrail.tasks.rates import Rate, Share
from vitrail.tasks.task import Compared, Task

SEVERITIES = (1, 2, 3, 4, 5)
LEAST_BLUR = 0.3  # pixels, added: a share of a tiny picture's side would be nothing

# Corruption → its strength at each severity.
STRENGTHS = {
    "noise": (0.04, 0.08, 0.12, 0.18, 0.26),  # standard deviation of Gaussian noise, of pixels in [0, 1]
    "blur": (0.005, 0.01, 0.015, 0.02, 0.03),  # standard deviation of a Gaussian, as a share of the shorter side
    "jpeg": (50, 30, 20, 12, 7),  # quality
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),  # added to pixels in [0, 1]
    "rotation": (5, 10, 15, 22.5, 30),  # degrees, to either side
}


def corrupt(images: Tensor, name: str, severity: int, draws: Draws) -> Tensor:
    """Bytes (B, C, H, W) → bytes, corrupted."""
    if name not in STRENGTHS:
        raise ConfigError(f"unknown corruption {name!r}; {suggest(name, STRENGTHS)}")
    if severity not in SEVERITIES:
        raise ConfigError(f"severity must be from 1 to 5; got {severity}.")
    return _CORRUPTIONS[name](images, STRENGTHS[name][severity - 1], draws)


def corruption(name: str, severity: int, spec: Preprocess, seed: int = 0) -> Change:
    """The same for prepared pictures, whose samples are known."""

    def change(images: Tensor, samples: Integers) -> Tensor:
        draws = Draws(seed, severity, samples)
        return normalize(corrupt(denormalize(images, spec), name, severity, draws), spec)

    return change


def _add_noise(images: Tensor, strength: float, draws: Draws) -> Tensor:
    count = math.prod(images.shape[1:])
    uniform = draws.uniform("noise", 2 * count)
    radius = np.sqrt(-2 * np.log1p(-uniform[:, :count]))
    noise = torch.as_tensor(radius * np.cos(2 * np.pi * uniform[:, count:])).view(images.shape)
    return _to_bytes(images + 255 * strength * noise)


def _blur(images: Tensor, strength: float, draws: Draws) -> Tensor:
    sigma = LEAST_BLUR + strength * min(images.shape[-2:])
    reach = max(1, math.ceil(4 * sigma))
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / sigma) ** 2)
    weights /= weights.sum()
    planes = images.double().flatten(0, 1)[:, None]  # (B·C, 1, H, W)
    planes = F.pad(planes, (reach, reach, reach, reach), mode="replicate")
    planes = F.conv2d(F.conv2d(planes, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1))
    return _to_bytes(planes.view(images.shape))


def _compress(images: Tensor, strength: float, draws: Draws) -> Tensor:
    if images.shape[1] not in (1, 3):
        raise InputError(f"JPEG needs pictures of 1 or 3 channels; these have {images.shape[1]}.")
    compressed: list[Tensor] = []
    for image in images:
        buffer = io.BytesIO()
        to_pil(image).save(buffer, "JPEG", quality=int(strength))
        compressed.append(to_tensor(Image.open(buffer)))
    return torch.stack(compressed)


def _brighten(images: Tensor, strength: float, draws: Draws) -> Tensor:
    return _to_bytes(images.double() + 255 * strength)


def _rotate(images: Tensor, strength: float, draws: Draws) -> Tensor:
    """Rotate about the centre, to the left or right as drawn for each sample; border pixels fill the corners."""
    side = torch.as_tensor(np.where(draws.one("rotation") < 0.5, -1.0, 1.0))
    angle = math.radians(strength) * side
    height, width = images.shape[-2:]
    zero = torch.zeros_like(angle)
    across = torch.stack([angle.cos(), angle.sin() * height / width, zero], dim=1)  # in units of half the width
    down = torch.stack([-angle.sin() * width / height, angle.cos(), zero], dim=1)  # of half the height
    turn = torch.stack([across, down], dim=1)  # (B, 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    turned = F.grid_sample(images.double(), grid, "bilinear", padding_mode="border", align_corners=False)
    return _to_bytes(turned)


def _to_bytes(images: Tensor) -> Tensor:
    return images.round().clamp(0, 255).to(torch.uint8)


_CORRUPTIONS: dict[str, Callable[[Tensor, float, Draws], Tensor]] = {
    "noise": _add_noise,
    "blur": _blur,
    "jpeg": _compress,
    "brightness": _brighten,
    "rotation": _rotate,
}


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """The task's first metric without corruption, and under each corruption at severities 1 to 5."""

    clean: Rate | Share
    curves: dict[str, tuple[Rate | Share, ...]]
    pictures: int
    metric: str = "top-1 accuracy"

    @property
    def mean(self) -> float:
        """Over all corruptions and severities."""
        rates = [rate.value for curve in self.curves.values() for rate in curve]
        return sum(rates) / len(rates)


def measure_robustness(
    predictor: Predictor,
    dataset: Dataset,
    split: str = "test",
    *,
    kinds: Sequence[str] = tuple(STRENGTHS),
    tta: ViewName | None = None,
    limit: int | None = None,
    by_position: bool = False,
    progress: Advance = lambda _: None,
) -> Robustness:
    """Evaluate once for every corruption and severity, on the same `limit` samples."""
    options: dict[str, Any] = {"tta": tta, "limit": limit, "by_position": by_position, "progress": progress}

    def measure(change: Change | None = None) -> tuple[int, Compared]:
        measurement = measure_split(predictor, dataset, split, change=change, **options)
        compared = measurement.results.compared()
        assert compared is not None
        return len(measurement.targets), compared

    check_robustness(predictor.task)
    curves = {
        kind: tuple(measure(corruption(kind, severity, predictor.preprocess))[1].share for severity in SEVERITIES)
        for kind in kinds
    }
    pictures, (metric, clean) = measure()
    return Robustness(clean=clean, curves=curves, pictures=pictures, metric=metric)


def check_robustness(task: Task) -> None:
    """Refuse a task whose first metric is not from 0 to 1, so that its curves could not be drawn on one scale."""
    if not task.compares:
        raise ConfigError(
            f"compares metrics from 0 to 1, such as accuracy; the task {task.kind} is measured by "
            f"{next(iter(task.metrics))}; omit it.",
            field="robustness",
        )
