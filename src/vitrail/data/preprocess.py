"""How a picture becomes a model's input, as data: the spec that is stored with every checkpoint and export.

The presets reproduce the evaluation transforms of the families whose weights we load; `transform.py` carries them out.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from vitrail.errors import ConfigError, InputError, suggest
from vitrail.schema import IF_USED, validate

MAX_PIXELS = 89_478_485  # Pillow's own threshold: 256 MB once decoded

LONGEST = 64  # times its short side, for the model's own shape: of a longer picture, only the middle is resized

# "nearest_exact" is torch's own rounding to the nearest pixel, which transformers uses when its files say nearest.
Interpolation = Literal["nearest", "nearest_exact", "bilinear", "bicubic", "lanczos"]

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """Decode → resize → centre crop → scale to [0, 1] → subtract the mean, divide by the standard deviation."""

    size: tuple[int, int] = (224, 224)  # (height, width) of the model's input
    channels: int = 3  # 1: grey; 3: RGB; 4: RGB with alpha; other numbers: arrays and TIFF files that have them
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # per channel, of pixels in [0, 1]
    std: tuple[float, ...] = (0.5, 0.5, 0.5)  # likewise
    resize: Literal["squash", "shortest"] = "squash"  # to the size itself, or the shortest side (then centre crop)
    crop: float = 1.0  # the part of each side that the centre crop keeps: we resize to floor(size / crop)
    resize_to: int | None = None  # resize the shortest side to this length instead of floor(size / crop)
    interpolation: Interpolation = "bilinear"  # the filter of the resize
    antialias: bool = True  # widen the filter when shrinking (nearest never does)
    # Where the resize is computed, which decides its last bits: Pillow on bytes (timm, torchvision on PIL pictures),
    # torch on bytes (transformers, torchvision on tensors), or torch on floats without rounding (TensorFlow).
    kernel: Literal["pillow", "bytes", "float"] = "pillow"
    # Where the crop is: in the centre, with its corner rounded half to even or down when the margin is odd; or at the
    # top left, which is all that a model sees whose patches do not fill the picture.
    anchor: Literal["round", "floor", "corner"] = "round"
    alpha: Literal["drop", "white", "black"] = "drop"  # transparent pixels: their hidden colour, or laid on this one
    orient: bool = True  # rotate the picture as its EXIF (or else XMP) tag says
    animated: Literal["first", "error"] = "first"  # use the first of several frames, or refuse
    # The values that become black and white, for pictures of more than 8 bits (bytes are 0…255); None: refused.
    value_range: Range | None = field(default=None, metadata=IF_USED)

    def __post_init__(self) -> None:
        validate(self)
        _check_numbers(self)
        if self.resize == "squash" and self.resize_to is not None:
            raise ConfigError("resize_to goes with `resize='shortest'`; with 'squash' the size itself is the target.")
        if self.resize != "squash" and self.anchor == "corner":
            raise ConfigError(
                "`anchor='corner'` goes with `resize='squash'`; other pictures are cropped at the centre."
            )
        if self.resize_to is not None and self.crop != 1.0:
            raise ConfigError(
                f"give crop or resize_to, not both; got `crop={self.crop}`, `resize_to={self.resize_to}`."
            )
        if self.resize_to is not None and self.resize_to < max(self.size):
            raise ConfigError(f"resize_to must be at least the size {self.size}; got {self.resize_to}.")
        if self.kernel == "pillow" and not self.antialias and self.interpolation != "nearest":
            raise ConfigError(
                "`kernel='pillow'` always antialiases; use `kernel='bytes'` or 'float' with `antialias=False`."
            )
        if self.kernel == "pillow" and self.interpolation == "nearest_exact":
            raise ConfigError(
                "`interpolation='nearest_exact'` needs `kernel='bytes'` or 'float'; Pillow has 'nearest'."
            )
        if self.kernel != "pillow" and self.interpolation == "lanczos":
            raise ConfigError(f"`interpolation='lanczos'` needs `kernel='pillow'`; got `kernel={self.kernel!r}`.")

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """The (height, width) that a picture of this size has between the resize and the crop."""
        target = self._target(height, width)
        if target[0] * target[1] > max(MAX_PIXELS, 16 * self.size[0] * self.size[1]):
            raise InputError(
                f"a picture of {width}×{height} pixels is too narrow: with its short side at {min(target)}, "
                f"the long one would have {max(target):,}; crop it first."
            )
        return target

    def _target(self, height: int, width: int) -> tuple[int, int]:
        target = (math.floor(self.size[0] / self.crop), math.floor(self.size[1] / self.crop))
        if self.resize == "squash":
            return target
        if self.resize_to is not None:
            target = (self.resize_to, self.resize_to)
        if target[0] == target[1]:  # torchvision truncates the long side
            short, long = min(height, width), max(height, width)
            other = int(target[0] * long / short)
            return (target[0], other) if height <= width else (other, target[0])
        scale = min(height / target[0], width / target[1])  # timm rounds when the target is not square
        return (round(height / scale), round(width / scale))

    def middle(self, height: int, width: int) -> tuple[int, int]:
        """The (height, width) around the centre that has to be resized for the crop: the whole picture, unless it is
        so long that resizing would take a second for pixels outside the crop."""
        if self.resize == "squash":
            return height, width
        longest = LONGEST * min(height, width) * max(self.size) // min(self.size)
        height, width = (min(side, longest + (side - longest) % 2) for side in (height, width))
        return height, width

    def corner(self, height: int, width: int) -> tuple[int, int]:
        """The (top, left) of the crop in a resized picture of this size."""
        margins = (height - self.size[0], width - self.size[1])
        if self.anchor == "corner":
            return (0, 0)
        if self.anchor == "floor":
            return (margins[0] // 2, margins[1] // 2)
        return (round(margins[0] / 2), round(margins[1] / 2))


def _check_numbers(spec: Preprocess) -> None:
    if len(spec.size) != 2 or min(spec.size) < 1:
        raise ConfigError(f"size must be (height, width), both at least 1; got {spec.size!r}.")
    if spec.channels < 1:
        raise ConfigError(f"channels must be at least 1; got {spec.channels}.")
    for name, values in (("mean", spec.mean), ("std", spec.std)):
        if len(values) != spec.channels:
            raise ConfigError(f"{name} must have one value per channel ({spec.channels}); got {values!r}.")
    if not all(math.isfinite(value) for value in (*spec.mean, *spec.std)) or min(spec.std) <= 0:
        raise ConfigError(f"mean and std must be finite and std above 0; got `mean={spec.mean!r}`, `std={spec.std!r}`.")
    if spec.value_range is not None:
        check_range(spec.value_range)
    if not 0 < spec.crop <= 1:
        raise ConfigError(f"crop must be above 0 and at most 1; got {spec.crop}.")


def check_range(value_range: Range) -> None:
    """Refuse what is no range of values."""
    low, high = value_range
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(
            f"value_range must be (low, high), such as (0, 4095), with low below high; got {value_range}."
        )


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

# Family → its evaluation transform at 224 pixels.
PRESETS = {
    # google-research/vision_transformer and big_vision: tf.image.resize, which neither antialiases nor rounds
    "google": Preprocess(antialias=False, kernel="float"),
    # timm's AugReg and other 0.5 checkpoints; crop 1.0 from 384 pixels on
    "timm": Preprocess(resize="shortest", crop=0.9, interpolation="bicubic"),
    # timm's DeiT, DINO and MAE checkpoints
    "timm-imagenet": Preprocess(
        resize="shortest", crop=0.9, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD
    ),
    # transformers' ViTImageProcessor (its torchvision backend)
    "hf": Preprocess(kernel="bytes"),
    # transformers' DeiT, MAE, MSN and I-JEPA checkpoints
    "hf-imagenet": Preprocess(kernel="bytes", mean=IMAGENET_MEAN, std=IMAGENET_STD),
    # transformers' SiglipImageProcessor
    "siglip": Preprocess(kernel="bytes", interpolation="bicubic"),
    # torchvision's ViT_B_16_Weights.IMAGENET1K_V1 and the like
    "torchvision": Preprocess(resize="shortest", resize_to=256, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    # facebookresearch/dinov2's own transform
    "dinov2": Preprocess(
        resize="shortest", resize_to=256, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD
    ),
    # google-deepmind/tips: pixels in [0, 1]
    "tips": Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    # facebookresearch/dinov3's own transforms, for photographs and for satellite pictures
    "dinov3": Preprocess(kernel="bytes", mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "dinov3-sat": Preprocess(kernel="bytes", mean=(0.430, 0.411, 0.296), std=(0.213, 0.156, 0.143)),
    # OpenAI's CLIP (its own code: torchvision on a PIL picture)
    "clip": Preprocess(resize="shortest", interpolation="bicubic", mean=CLIP_MEAN, std=CLIP_STD),
    # microsoft/unilm's BEiT; crop 1.0 from 384 pixels on
    "beit": Preprocess(resize="shortest", crop=224 / 256, interpolation="bicubic"),
    # OpenCLIP's CLIPA, and Meta's Perception Encoder
    "clipa": Preprocess(mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "pe": Preprocess(),
}

_FULL_CROP_FROM = 384  # timm's and BEiT's checkpoints at 384 pixels and above look at the whole shortest side


def preset(name: str, size: int | tuple[int, int] | None = None, channels: int = 3) -> Preprocess:
    """A family's evaluation transform, at another input size or number of channels if asked."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preprocessing {name!r}; {suggest(name, PRESETS)}")
    spec = PRESETS[name]
    if size is not None:
        target = (size, size) if isinstance(size, int) else size
        spec = _resize_spec(spec, target)
        if name.startswith(("timm", "beit")) and max(target) >= _FULL_CROP_FROM:
            spec = replace(spec, crop=1.0)
    if channels != spec.channels:  # other channels have no statistics of their own: the average of RGB's
        mean, std = (sum(values) / len(values) for values in (spec.mean, spec.std))
        spec = replace(spec, channels=channels, mean=(mean,) * channels, std=(std,) * channels)
    return spec


def _resize_spec(spec: Preprocess, size: tuple[int, int]) -> Preprocess:
    if spec.resize_to is None or size == spec.size:
        return replace(spec, size=size)
    return replace(spec, size=size, resize_to=None, crop=spec.size[0] / spec.resize_to)
