"""What training does to pictures, as data."""

from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Crop → flip → policy → colour jitter → erase → mix. The defaults do nothing but flip."""

    crop: Literal["none", "pad", "resized"] = "none"  # as in evaluation; shifted within a border; RandomResizedCrop
    pad: int = 4  # the border of crop="pad", in pixels of the model's input
    pad_fill: Literal["black", "reflect"] = "black"
    scale: tuple[float, float] = (0.08, 1.0)  # crop="resized": the share of the area …
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # … and the aspect ratio
    flip_rate: float = 0.5  # left-right
    vertical_flip_rate: float = 0.0
    policy: Literal["none", "rand", "auto", "trivial", "three"] = "none"  # auto: AutoAugment's for CIFAR-10
    num_ops: int = 2  # policy="rand": operations per picture …
    magnitude: float = 9.0  # … and their strength, 0 … 30
    magnitude_std: float = 0.0
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # brightness, contrast, saturation, hue
    erase_rate: float = 0.0
    erase_fill: Literal["mean", "noise"] = "mean"
    mixup: float = 0.0  # alpha of the Beta distribution; 0: off
    cutmix: float = 0.0
    mix_rate: float = 1.0  # the share of pictures that are mixed at all
    switch_rate: float = 0.5  # of these, the share of cutmix where both are on
    repeats: int = 1  # repeated augmentation: versions of a picture in one batch

    def __post_init__(self) -> None:
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
