"""`pretrained_cfg` of timm's `config.json`: the evaluation transform, read and written, and the class names, read.

The transform is that of timm's `create_transform(**resolve_data_config({}, pretrained_cfg=…))`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from vitrail.data.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess, preset
from vitrail.errors import WeightsError, list_names, shorten
from vitrail.model import ViTConfig
from vitrail.model.parts import Pair
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import exact_share
from vitrail.weights.sidecars import Settings

# Fields that say where the weights come from, how to train or test at another size, or what people call them.
_IRRELEVANT = """
    url file state_dict hf_hub_id hf_hub_filename source architecture tag custom_load test_input_size min_input_size
    test_crop_pct label_descriptions pool_size test_pool_size first_conv classifier license description origin_url
    paper_name paper_ids notes
"""
_USED = """
    input_size fixed_input_size interpolation crop_pct crop_mode mean std num_classes label_offset label_names
"""
KNOWN = frozenset(f"{_USED} {_IRRELEVANT}".split())
WHERE = "pretrained_cfg of config.json"
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
BARE = (
    "the file does not state its preprocessing: assumed timm's usual one, with mean and std 0.5; DeiT, "
    "DINO and MAE weights need ImageNet's; timm's config.json beside the file would settle it"
)


def assume_preprocess(config: ViTConfig) -> Preprocess:
    """The usual preprocessing of timm's checkpoints, for files without a `config.json`."""
    return _settle_kernel(preset("timm", config.image_size, config.channels))


def read_preprocess(data: Mapping[str, Any], config: ViTConfig, *, dynamic: bool) -> tuple[Preprocess, tuple[str, ...]]:
    """What `pretrained_cfg` says, and notes on what had to be assumed.

    A `dynamic` model takes pictures of the data's size; any other one, pictures of its own size.
    """
    if unknown := sorted(data.keys() - KNOWN):
        raise WeightsError(f"{WHERE} has {list_names(unknown)}, which we do not know.")
    if data.get("label_offset"):
        raise WeightsError(
            f"config.json says label_offset={shorten(data['label_offset'])}; remove those rows of the head."
        )
    prepared, notes = _read_size(data, config, dynamic)
    mean, std, more = _read_statistics(data, config.channels)
    settings = Settings(WHERE, {name: value for name, value in data.items() if value})
    crop = settings.number("crop_pct", 0.875)
    if not 0 < crop <= 1:
        raise WeightsError(f"{WHERE}: crop_pct must be above 0 and at most 1; got {crop!r}.")
    spec = Preprocess(
        size=prepared,
        channels=config.channels,
        mean=mean,
        std=std,
        resize=settings.choice("crop_mode", {None: "shortest", "center": "shortest", "squash": "squash"}),
        crop=crop,
        interpolation=settings.choice("interpolation", {None: "bicubic", **{name: name for name in INTERPOLATIONS}}),
    )
    return _settle_kernel(spec), (*notes, *more)


def _settle_kernel(spec: Preprocess) -> Preprocess:
    """timm always resizes bilinearly to a shape that is not square, unless it squashes."""
    sides = {math.floor(side / spec.crop) for side in spec.size}
    return replace(spec, interpolation="bilinear") if spec.resize == "shortest" and len(sides) == 2 else spec


def _read_size(data: Mapping[str, Any], config: ViTConfig, dynamic: bool) -> tuple[Pair, tuple[str, ...]]:
    size = cast("Pair", tuple((data.get("input_size") or (3, 224, 224))[1:]))
    if size == config.image_size:
        return size, ()
    if dynamic:
        config.grid_of(size)  # raises if no whole number of patches fits
        return size, ()
    return config.image_size, (
        f"config.json prepares pictures of {size[0]}×{size[1]} pixels for a model that takes "
        f"{config.image_size[0]}×{config.image_size[1]}: assumed the model's size",
    )


def _read_statistics(
    data: Mapping[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    """Mean and std, one per channel; ImageNet's if there are none."""
    both: list[tuple[float, ...]] = []
    averaged = False
    for name, usual in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
        values: Any = data.get(name) or usual
        if not isinstance(values, list | tuple) or {type(value) for value in cast("Any", values)} - {int, float}:
            raise WeightsError(f"{WHERE}: {name} must be a list of numbers; got {shorten(values)}.")
        numbers = tuple(float(value) for value in cast("tuple[float, ...]", values))
        if len(numbers) == 3 != channels:
            numbers, averaged = (sum(numbers) / 3,), True
        if len(numbers) not in (1, channels):
            raise WeightsError(f"{WHERE}: {name} must have {channels} values, one per channel; got {numbers}.")
        both.append(numbers if len(numbers) == channels else numbers * channels)
    note = f"config.json gives mean and std for 3 channels, but the model has {channels}: assumed their average"
    return both[0], both[1], (note,) if averaged else ()


def read_classes(data: Mapping[str, Any], config: ViTConfig) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The class names in the order of the head, and a note if they do not fit it."""
    labels: Any = data.get("label_names")
    if not labels:
        return None, ()
    if isinstance(labels, Mapping):  # index → name
        numbered = {str(index): name for index, name in cast("Mapping[Any, Any]", labels).items()}
        labels = [numbered.get(str(index)) for index in range(len(numbered))]
    names = cast("list[Any]", labels) if isinstance(labels, list | tuple) else []
    if len(names) != config.num_classes or not all(isinstance(name, str) for name in names):
        return None, (
            f"config.json's label_names do not name the {config.num_classes} classes of the head one by one: left out",
        )
    if len(set(names)) != len(names):
        return None, ("config.json's label_names give several classes the same name: left out",)
    return tuple(names), ()


def last_width(config: ViTConfig) -> int:
    """Rows of what timm calls the head, which may be CLIP's projection."""
    return config.projection or config.num_classes


def write_data(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `pretrained_cfg` of a checkpoint, without class names, which are on the top level."""
    spec = checkpoint.preprocess
    return {
        "input_size": [spec.channels, *spec.size],
        "mean": list(spec.mean),
        "std": list(spec.std),
        "interpolation": spec.interpolation,
        "crop_pct": spec.crop if spec.resize_to is None else exact_share(spec.size[:1], (spec.resize_to,)),
        "crop_mode": "squash" if spec.resize == "squash" else "center",
        "num_classes": last_width(checkpoint.config),
    }
