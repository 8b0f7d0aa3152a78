"""Which operation each sample gets, and how strong: a policy is a list of steps, each an operation per sample."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data.augment.ops import WARPS
from vitrail.data.config import Augment
from vitrail.rng import Draws, Floats

Names = np.ndarray[Any, Any]
Step = tuple[Names, Floats]  # operation and strength, (B,) each
LEVELS = 30  # RandAugment's magnitudes are 0 … 30


@dataclass(frozen=True, kw_only=True)
class Space:
    """The strength at magnitude 0 … 1 of every operation, in one policy."""

    shear: float
    rotate: float  # degrees
    enhance: float  # brightness, saturation, contrast and sharpness move this far from 1
    bits: int  # that posterize removes
    translate: float | None = None  # pixels; None: 150 of AutoAugment's 331

    def value(self, op: str, magnitude: Floats, sign: Floats, size: tuple[int, int]) -> Floats:
        """What the operation takes: a slope, pixels, degrees, a factor, bits or a threshold."""
        if op.startswith("shear"):
            return sign * magnitude * self.shear
        if op.startswith("translate"):
            side = size[1] if op.endswith("x") else size[0]
            return sign * magnitude * (150 / 331 * side if self.translate is None else self.translate)
        if op == "rotate":
            return sign * magnitude * self.rotate
        if op in ENHANCED:
            return 1 + sign * magnitude * self.enhance
        if op == "posterize":
            return np.round(8 - magnitude * self.bits)
        return 255 * (1 - magnitude)  # solarize; the rest take none


AUTO_SPACE = Space(shear=0.3, rotate=30, enhance=0.9, bits=4)  # AutoAugment's and RandAugment's
WIDE_SPACE = Space(shear=0.99, rotate=135, enhance=0.99, bits=6, translate=32)  # TrivialAugment's

ENHANCED = ("brightness", "saturation", "contrast", "sharpness")
RAND_OPS = ("", *WARPS, *ENHANCED, "posterize", "solarize", "autocontrast", "equalize")

# AutoAugment's 25 sub-policies for CIFAR-10 (Cubuk et al., 2019, Table 7): twice (operation, rate, magnitude of 9).
AUTO_CIFAR = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("saturation", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("saturation", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("saturation", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("saturation", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("saturation", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)


def _values(space: Space, ops: Names, magnitude: Floats, sign: Floats, size: tuple[int, int]) -> Floats:
    values = np.zeros(len(ops))
    for op in np.unique(ops):
        rows = ops == op
        values[rows] = space.value(str(op), magnitude[rows], sign[rows], size)
    return values


def _signs(draws: Draws, stream: str) -> Floats:
    return np.where(draws.one(stream) < 0.5, -1.0, 1.0)


def rand_augment(augment: Augment, draws: Draws, size: tuple[int, int]) -> Iterator[Step]:
    """RandAugment (Cubuk et al., 2020): a few operations, all of one magnitude."""
    for step in range(augment.num_ops):
        ops = np.array(RAND_OPS)[draws.choice(f"rand-op-{step}", len(RAND_OPS))]
        noise = augment.magnitude_std * draws.normal(f"rand-noise-{step}") if augment.magnitude_std else 0
        magnitude = np.clip(np.full(len(draws), augment.magnitude) + noise, 0, LEVELS) / LEVELS
        yield ops, _values(AUTO_SPACE, ops, magnitude, _signs(draws, f"rand-sign-{step}"), size)


def auto_augment(_: Augment, draws: Draws, size: tuple[int, int]) -> Iterator[Step]:
    """AutoAugment (Cubuk et al., 2019) with the policy found on CIFAR-10."""
    chosen = draws.choice("auto-policy", len(AUTO_CIFAR))
    for step in range(2):
        names, rates, levels = (np.array([policy[step][part] for policy in AUTO_CIFAR]) for part in range(3))
        ops = np.where(draws.one(f"auto-apply-{step}") < rates[chosen], names[chosen], "")
        yield ops, _values(AUTO_SPACE, ops, levels[chosen] / 9, _signs(draws, f"auto-sign-{step}"), size)


def trivial_augment(_: Augment, draws: Draws, size: tuple[int, int]) -> Iterator[Step]:
    """TrivialAugment (Müller & Hutter, 2021): one operation of any magnitude."""
    ops = np.array(RAND_OPS)[draws.choice("trivial-op", len(RAND_OPS))]
    magnitude = draws.choice("trivial-magnitude", LEVELS + 1) / LEVELS
    yield ops, _values(WIDE_SPACE, ops, magnitude, _signs(draws, "trivial-sign"), size)


def three_augment(_: Augment, draws: Draws, size: tuple[int, int]) -> Iterator[Step]:
    """3-Augment (Touvron et al., 2022): grey, solarised or blurred."""
    ops = np.array(("grayscale", "solarize", "blur"))[draws.choice("three-op", 3)]
    yield ops, np.where(ops == "blur", 0.1 + 1.9 * draws.one("three-sigma"), 128.0)


def color_jitter(augment: Augment, draws: Draws) -> Iterator[Step]:
    """Brightness, contrast, saturation and hue by random amounts, in a random order for each sample."""
    names = np.array(("brightness", "contrast", "saturation", "hue"))
    reach = np.array(augment.jitter)
    low = np.array([max(0.0, 1 - amount) for amount in reach[:3]] + [-reach[3]])
    high = np.array([1 + amount for amount in reach[:3]] + [reach[3]])
    values = low + (high - low) * draws.uniform("jitter", 4)  # (B, 4)
    order = np.argsort(draws.uniform("jitter-order", 4), axis=1)
    for step in range(4):
        chosen = order[:, step]
        ops = np.where(reach[chosen] > 0, names[chosen], "")
        yield ops, np.take_along_axis(values, chosen[:, None], axis=1)[:, 0]


POLICIES: dict[str, Callable[[Augment, Draws, tuple[int, int]], Iterator[Step]]] = {
    "rand": rand_augment,
    "auto": auto_augment,
    "trivial": trivial_augment,
    "three": three_augment,
}


def steps(augment: Augment, draws: Draws, size: tuple[int, int]) -> Iterator[Step]:
    """Everything that a spec does to the pixels of these samples, in order."""
    if augment.policy != "none":
        yield from POLICIES[augment.policy](augment, draws, size)
    if any(augment.jitter):
        yield from color_jitter(augment, draws)
