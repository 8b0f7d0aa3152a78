"""What training does to pictures, as data."""

from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.schema import validate

MAX_PAD = 1024
MAX_OPS = 100  # each takes milliseconds, and no signal ends a run in the middle of a picture


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Crop → flip → policy → colour jitter → erase → mix. The defaults do nothing but flip."""

    crop: Literal["none", "pad", "resized"] = "none"
    """The random crop: none (as in evaluation), pad (shifted within a border) or resized (RandomResizedCrop)."""
    pad: int = 4
    """With crop=pad: the border, in pixels of the model's input."""
    pad_fill: Literal["black", "reflect"] = "black"
    """With crop=pad: what fills the border."""
    scale: tuple[float, float] = (0.08, 1.0)
    """With crop=resized: the range of the crop's share of the picture's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """With crop=resized: the range of the crop's aspect ratio."""
    flip_rate: float = 0.5
    """Share of pictures that are flipped left to right."""
    vertical_flip_rate: float = 0.0
    """Share of pictures that are flipped upside down."""
    policy: Literal["none", "rand", "auto", "trivial", "three"] = "none"
    """RandAugment, AutoAugment (with CIFAR-10's policy), TrivialAugment or 3-Augment."""
    num_ops: int = 2
    """With policy=rand: operations per picture."""
    magnitude: float = 9.0
    """With policy=rand: their strength, 0 to 30."""
    magnitude_std: float = 0.0
    """With policy=rand: how much the strength varies."""
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Strength of random changes of brightness, contrast, saturation and hue."""
    erase_rate: float = 0.0
    """Share of pictures in which a box is erased."""
    erase_fill: Literal["mean", "noise"] = "mean"
    """What fills the erased box."""
    mixup: float = 0.0
    """Alpha of mixup's Beta distribution; 0 turns it off."""
    cutmix: float = 0.0
    """Alpha of cutmix's Beta distribution; 0 turns it off."""
    mix_rate: float = 1.0
    """Share of pictures that are mixed at all."""
    switch_rate: float = 0.5
    """Share of these that are mixed by cutmix, if both are on."""
    repeats: int = 1
    """Versions of each picture in one batch (repeated augmentation)."""

    def __post_init__(self) -> None:
        validate(self)
        rates = ("flip_rate", "vertical_flip_rate", "erase_rate", "mix_rate", "switch_rate")
        for name in rates:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be between 0 and 1; got {getattr(self, name)}.")
        for name, low in (
            ("pad", 0),
            ("num_ops", 1),
            ("repeats", 1),
            ("mixup", 0),
            ("cutmix", 0),
            ("magnitude_std", 0),
        ):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}; got {getattr(self, name)}.")
        if self.pad > MAX_PAD:
            raise ConfigError(f"pad must be at most {MAX_PAD} pixels; got {self.pad}.")
        if self.num_ops > MAX_OPS:
            raise ConfigError(f"num_ops must be at most {MAX_OPS}; got {self.num_ops}.")
        if not 0 <= self.magnitude <= 30:
            raise ConfigError(f"magnitude must be between 0 and 30; got {self.magnitude}.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigError(f"scale must be (low, high) with 0 < low ≤ high ≤ 1; got {self.scale}.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(f"ratio must be (low, high) with 0 < low ≤ high; got {self.ratio}.")
        if min(self.jitter) < 0 or self.jitter[3] > 0.5:
            raise ConfigError(f"jitter must be at least 0, and its hue at most 0.5; got {self.jitter}.")

    @property
    def mixes(self) -> bool:
        """Whether the targets are soft: a share of each class."""
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_rate > 0
