"""transformers' `preprocessor_config.json`, read and written: what each of its image processors does with its settings.

A closed world: every key is used, known to change no pixel, or refused by name. What a file leaves out is what its
class does by default. The table below is from transformers 5.22; of its two backends, ours equals torchvision's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from vitrail.data.preprocess import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD, Preprocess, preset
from vitrail.errors import WeightsError, shorten
from vitrail.model import ViTConfig
from vitrail.model.parts import Pair
from vitrail.weights.foreign.huggingface_family import Family
from vitrail.weights.infer import exact_share
from vitrail.weights.sidecars import PREPROCESSOR as FILE
from vitrail.weights.sidecars import PROCESSOR, Settings

HALF = (0.5, 0.5, 0.5)
NEAREST, LANCZOS, BILINEAR, BICUBIC = 0, 1, 2, 3  # Pillow's numbers, which `resample` holds
INTERPOLATIONS: dict[int, Any] = {NEAREST: "nearest_exact", BILINEAR: "bilinear", BICUBIC: "bicubic"}
SQUASH_FROM = 384  # ConvNextImageProcessor crops below this size, and squashes from it on


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """What one class of transformers does by default."""

    size: Any = (224, 224)  # as `_read_size` gives it: both sides, or one number for the shortest
    square: bool = True  # a size of one number in the file means both sides, or else the shortest
    crop_size: Pair | None = None
    center_crop: bool = False
    crop_pct: float | None = None
    resample: int = BICUBIC
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    kernel: Literal["bytes", "float"] = "bytes"  # it resizes bytes, or numbers that are already scaled


FLOATS = "DINOv3ViTImageProcessor"
_CLIP = ImageProcessor(size=224, square=False, crop_size=(224, 224), center_crop=True, mean=CLIP_MEAN, std=CLIP_STD)
PROCESSORS = {
    "ViTImageProcessor": ImageProcessor(resample=BILINEAR),
    "DeiTImageProcessor": ImageProcessor(size=(256, 256), crop_size=(224, 224), center_crop=True),
    "BeitImageProcessor": ImageProcessor(crop_size=(224, 224)),
    "BitImageProcessor": _CLIP,
    "CLIPImageProcessor": _CLIP,
    "SiglipImageProcessor": ImageProcessor(square=False),
    "DINOv3ViTImageProcessor": ImageProcessor(resample=BILINEAR, mean=IMAGENET_MEAN, std=IMAGENET_STD, kernel="float"),
    "ConvNextImageProcessor": ImageProcessor(size=384, square=False, crop_pct=224 / 256),
    "PoolFormerImageProcessor": ImageProcessor(
        size=224,
        square=False,
        crop_size=(224, 224),
        center_crop=True,
        crop_pct=0.9,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
}
# NaFlex: pictures keep their shape, and get as many patches as fit. Ours all have one size, the square one.
NAFLEX, NAFLEX_DEFAULTS = "Siglip2ImageProcessor", {"patch_size": 16, "max_num_patches": 256}

_USED = """
    image_processor_type feature_extractor_type do_resize size default_to_square resample do_center_crop crop_size
    crop_pct do_rescale rescale_factor do_normalize image_mean image_std
"""
# What changes no pixel of a picture file, which transformers' pipelines always decode to upright RGB.
_IRRELEVANT = """
    do_convert_rgb processor_class model_input_names _valid_processor_keys _valid_kwargs_names _processor_class
    return_tensors input_data_format device disable_grouping image_seq_length use_fast backend transformers_version
    do_reduce_labels reduce_labels
"""
USED, IRRELEVANT = frozenset(_USED.split()), frozenset(_IRRELEVANT.split())
# What many files contain, and must have this value.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "do_pad": (False,),
    "use_square_size": (False,),
    "data_format": ("channels_first", "FIRST"),
}


def read_preprocess(
    sidecars: Mapping[str, Any], family: Family, config: ViTConfig, pictures: Pair | None = None
) -> tuple[Preprocess, tuple[str, ...]]:
    """What the folder says about its pictures, and notes on what it leaves to its class; or the family's defaults.

    `pictures` is their size if the model's patches fill only a part of it.
    """
    spec, notes = _read(sidecars, family, config, pictures or config.image_size)
    if pictures in (None, config.image_size) or spec.size != pictures:
        check_input_size(spec, config, resamples=family.resamples)
        return spec, notes
    share = exact_share(config.image_size, pictures)
    if spec.resize != "squash" or spec.crop != 1.0 or share is None:
        raise WeightsError(
            f"{FILE}: pictures of which patches fill only a part must be squashed, not cropped, and the part must be "
            f"the same share of both sides; got {config.image_size} of {pictures}."
        )
    return replace(spec, size=config.image_size, crop=share, anchor="corner"), notes


def _read(
    sidecars: Mapping[str, Any], family: Family, config: ViTConfig, pictures: Pair
) -> tuple[Preprocess, tuple[str, ...]]:
    settings = _settings(sidecars)
    if settings is None:
        other = "; DeiT, DINO and MAE weights need ImageNet's mean and std" if family.kind == "vit" else ""
        note = f"the folder has no {FILE}: assumed the preprocessing of {family.preset}{other}"
        return preset(family.preset, pictures, config.channels), (note,)
    name, notes = _class_of(settings, family.processor)
    if name == NAFLEX:
        settings, more = _square_naflex(settings)
        name, notes = "ViTImageProcessor", [*notes, *more]
    settings.refuse_unknown(USED | IRRELEVANT, REQUIRED, "none of the image processors that we know reads")
    processor = PROCESSORS[name]
    if not settings.flag("do_resize", True):
        raise WeightsError(f"{FILE}: do_resize must be true, since models need pictures of one size.")
    if "crop_pct" in settings and processor.crop_pct is None:
        notes.append(f"{FILE}: crop_pct has no effect in {name}, nor here")
    missing = [key for key in ("image_mean", "image_std") if key not in settings]
    if missing and settings.flag("do_normalize", True):
        notes.append(f"{FILE} does not give {' and '.join(missing)}: the defaults of {name} are used")
    spec = Preprocess(
        channels=config.channels,
        interpolation=_interpolation(settings.get("resample", processor.resample)),
        kernel=_kernel(settings, processor),
        **_statistics(settings, processor, config.channels),
        **_geometry(name, settings),
    )
    return spec, tuple(notes)


def _kernel(settings: Settings, processor: ImageProcessor) -> Literal["bytes", "float"]:
    """What the processor resizes; scaled numbers may overshoot in a bicubic resize, which ours cuts off."""
    if processor.kernel == "bytes":
        return "bytes"
    if not settings.flag("do_rescale", True) or type(settings.get("rescale_factor", 1 / 255)) is not float:
        raise WeightsError(
            f"{FILE}: pixels must be scaled by a fraction (do_rescale, rescale_factor) before the resize."
        )
    if settings.get("resample", processor.resample) == BICUBIC:
        raise WeightsError(f"{FILE}: resample must not be {BICUBIC} (bicubic) where scaled pixels are resized.")
    return "float"


def _square_naflex(settings: Settings) -> tuple[Settings, list[str]]:
    """What NaFlex does with a square picture, as a processor of one size."""
    patch, most = (settings.whole(key, default) for key, default in NAFLEX_DEFAULTS.items())
    for key in (*NAFLEX_DEFAULTS, "size", "do_center_crop"):
        if key in NAFLEX_DEFAULTS and key in settings and settings[key] < 1:
            raise WeightsError(f"{FILE}: {key} must be positive; got {shorten(settings[key])}.")
        if key not in NAFLEX_DEFAULTS and settings.get(key):
            raise WeightsError(f"{FILE}: {key} has no effect in {NAFLEX}; remove it.")
    side = math.isqrt(most) * patch
    rest = {key: value for key, value in settings.items() if key not in NAFLEX_DEFAULTS}
    note = (
        f"{FILE}: {NAFLEX} keeps the shape of a picture; here every picture is squashed to {side}×{side}, as a square "
        "one is there (the model itself takes a list of pictures of any sizes)"
    )
    size = {"height": side, "width": side}
    return Settings(FILE, {"resample": BILINEAR, **rest, "size": size}), [note]


def _settings(sidecars: Mapping[str, Any]) -> Settings | None:
    """The image processor's own file, unless a processor of several parts includes it, which transformers prefers."""
    nested: Any = sidecars.get(PROCESSOR, {}).get("image_processor")
    values: Any = sidecars.get(FILE) if nested is None else nested
    if values is not None and not isinstance(values, Mapping):
        raise WeightsError(f"{PROCESSOR}: image_processor must be an object; got {shorten(values)}.")
    return None if values is None else Settings(FILE, cast("Mapping[str, Any]", values))


def check_input_size(spec: Preprocess, config: ViTConfig, *, resamples: bool) -> None:
    """Raise unless the model reads pictures of the size that the preprocessing gives.

    `resamples` is for models that fit their positions to any picture of whole patches, as DINOv2's do.
    """
    if spec.channels != config.channels:
        raise WeightsError(f"pictures have {spec.channels} channels, and the model expects {config.channels}.")
    if resamples:
        config.grid_of(spec.size)
    elif spec.size != config.image_size:
        raise WeightsError(
            f"the preprocessing gives pictures of {spec.size[0]}×{spec.size[1]}, and the model expects "
            f"{config.image_size[0]}×{config.image_size[1]}; transformers needs both to be the same."
        )


def _class_of(settings: Settings, family: str) -> tuple[str, list[str]]:
    """The image processor's class; where none is named, the one that transformers takes for the model."""
    named: Any = settings.get("image_processor_type")
    if named is None and settings.get("feature_extractor_type") is not None:
        named = str(settings["feature_extractor_type"]).replace("FeatureExtractor", "ImageProcessor")
    if named is None:
        return family, [f"{FILE} names no image processor: assumed {family}, as transformers does"]
    name = str(named).removesuffix("Fast")
    if name != f"{FLOATS}Pil":  # which does not exist: its order of steps needs torch
        name = name.removesuffix("Pil")
    if name == family.replace("ImageProcessor", "FeatureExtractor"):  # written while both names were in use
        name = family
    if name not in (*PROCESSORS, NAFLEX):
        raise WeightsError(
            f"{FILE}: image_processor_type must be one of {', '.join(PROCESSORS)}, {NAFLEX}; got {shorten(named)}."
        )
    return name, []


def _geometry(name: str, settings: Settings) -> dict[str, Any]:
    """How to resize and crop, in our terms."""
    processor = PROCESSORS[name]
    square = settings.flag("default_to_square", processor.square)
    size: int | Pair = _read_size(settings["size"], "size", square) if "size" in settings else processor.size
    crop: Pair | None = None
    if settings.flag("do_center_crop", processor.center_crop):
        crop = processor.crop_size
        if "crop_size" in settings:
            crop = cast("Pair", _read_size(settings["crop_size"], "crop_size"))
        if crop is None:
            raise WeightsError(f"{FILE}: do_center_crop needs crop_size.")
    if processor.crop_pct is not None:
        share = settings.positive("crop_pct", processor.crop_pct)
        if name == "ConvNextImageProcessor":
            size, crop = _convnext(size, crop, share)
        else:
            size = _enlarged(size, share)
    if isinstance(size, int):
        if crop is None:
            raise WeightsError(
                f"{FILE} must crop after resizing the shortest side (do_center_crop), or give height and width."
            )
        _refuse_padding((size, size), (max(crop), max(crop)))
        return {"size": crop, "resize": "shortest", "resize_to": size, "anchor": "floor"}
    if crop is None or crop == size:
        return {"size": size, "resize": "squash"}
    _refuse_padding(size, crop)
    share = exact_share(crop, size)
    if share is None:
        raise WeightsError(
            f"{FILE} crops a different share of the height than of the width: {crop} of {size}; we cannot."
        )
    return {"size": crop, "resize": "squash", "crop": share, "anchor": "floor"}


def _convnext(size: int | Pair, crop: Pair | None, share: float) -> tuple[int | Pair, Pair]:
    """What ConvNextImageProcessor resizes to and crops: its size is that of the result."""
    if not isinstance(size, int):
        raise WeightsError(f"{FILE}: the size of a ConvNextImageProcessor must be a shortest_edge; got {size}.")
    if crop not in (None, (size, size)):
        raise WeightsError(f"{FILE}: a ConvNextImageProcessor crops to its size {size}; got crop_size {crop}.")
    return (int(size / share) if size < SQUASH_FROM else (size, size)), (size, size)


def _enlarged(size: int | Pair, share: float) -> int | Pair:
    """What PoolFormerImageProcessor resizes to: it takes a square for the shortest side."""
    if isinstance(size, int) or size[0] == size[1]:
        return int((size if isinstance(size, int) else size[0]) / share)
    return int(size[0] / share), int(size[1] / share)


def _refuse_padding(size: Pair, crop: Pair) -> None:
    if crop[0] > size[0] or crop[1] > size[1]:
        raise WeightsError(
            f"{FILE} crops {crop[0]}×{crop[1]} from pictures of {size[0]}×{size[1]}, which transformers pads with "
            "black; we do not."
        )


def _read_size(value: Any, name: str, square: bool = True) -> int | Pair:
    """Both sides, or one number for the shortest."""
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        if set(named) == {"shortest_edge"} and name == "size":
            value, square = named["shortest_edge"], False
        elif set(named) == {"height", "width"}:
            value = [named["height"], named["width"]]
        else:
            known = "height and width, or shortest_edge" if name == "size" else "height and width"
            raise WeightsError(f"{FILE}: {name} must have {known}; got {shorten(dict(named))}.")
    pair = Settings(FILE, {name: value}).pair(name)
    return pair if square or not isinstance(value, int) else pair[0]


def _interpolation(resample: Any) -> Any:
    if not isinstance(resample, int) or isinstance(resample, bool) or resample not in INTERPOLATIONS:
        known = ", ".join(f"{number} ({name})" for number, name in INTERPOLATIONS.items())
        raise WeightsError(f"{FILE}: resample must be one of {known}; got {shorten(resample)}.")
    return INTERPOLATIONS[resample]


def _statistics(settings: Settings, processor: ImageProcessor, channels: int) -> dict[str, tuple[float, ...]]:
    """Our mean and std, of pixels in [0, 1]: another factor than 1/255 (or none) moves into them."""
    factor = 255.0
    if settings.flag("do_rescale", True):
        factor *= settings.positive("rescale_factor", 1 / 255)
    if not settings.flag("do_normalize", True):
        return {"mean": (0.0,) * channels, "std": (1.0 / factor,) * channels}
    mean = _per_channel(settings.get("image_mean", processor.mean), "image_mean", channels)
    std = _per_channel(settings.get("image_std", processor.std), "image_std", channels)
    return {"mean": tuple(value / factor for value in mean), "std": tuple(value / factor for value in std)}


def _per_channel(value: Any, name: str, channels: int) -> list[float]:
    numbers = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        raise WeightsError(f"{FILE}: {name} must be one number per channel; got {shorten(value)}.")
    numbers = numbers * channels if len(numbers) == 1 else numbers  # transformers broadcasts it too
    if len(numbers) != channels:
        raise WeightsError(f"{FILE}: {name} must have {channels} numbers, one per channel; got {shorten(value)}.")
    return [float(number) for number in numbers]


def processor_config(spec: Preprocess, naflex_patch: int | None = None) -> dict[str, Any]:
    """The `preprocessor_config.json` of the transformers processor that does the same, except for its resize kernel.

    `naflex_patch` is the side of the patches of a model that NaFlex prepares pictures for.
    """
    if spec.anchor == "corner":  # the model ignores the rest
        spec = replace(spec, size=spec.resized(*spec.size), crop=1.0, anchor="floor")
    numbers = {name: number for number, name in INTERPOLATIONS.items()}
    if spec.interpolation not in numbers:
        raise WeightsError(
            f"hf cannot hold this preprocessing: transformers has no {spec.interpolation} resize that is the same "
            f"with every torchvision; it has {', '.join(numbers)}."
        )
    settings: dict[str, Any] = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(spec.mean),
        "image_std": list(spec.std),
        "resample": numbers[spec.interpolation],
        "rescale_factor": 1 / 255,
    }
    height, width = spec.size
    resized = math.floor(height / spec.crop), math.floor(width / spec.crop)
    if naflex_patch is not None:
        if spec.resize != "squash" or resized != spec.size or height != width:
            raise WeightsError(f"hf cannot hold this preprocessing: {NAFLEX} does not crop pictures.")
        most = {"patch_size": naflex_patch, "max_num_patches": (height // naflex_patch) ** 2}
        return {"image_processor_type": NAFLEX, **most, **settings}
    floats = ""
    if spec.kernel == "float" and spec.antialias and spec.interpolation != "bicubic":
        floats = FLOATS
    if spec.resize == "squash" and resized == spec.size:
        size = {"height": height, "width": width}
        return {"image_processor_type": floats or "ViTImageProcessor", "size": size, **settings}
    settings |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    if spec.resize == "squash":
        size = {"height": resized[0], "width": resized[1]}
        return {"image_processor_type": floats or "DeiTImageProcessor", "size": size, **settings}
    if spec.resize_to is None and resized[0] != resized[1]:
        raise WeightsError(
            f"hf cannot hold this preprocessing: for pictures of {height}×{width}, transformers cannot resize "
            "until both sides just cover that; squash them, or set the length of the shortest side (resize_to)."
        )
    settings |= {"do_convert_rgb": spec.channels == 3}
    size = {"shortest_edge": spec.resize_to or resized[0]}
    return {"image_processor_type": floats or "BitImageProcessor", "size": size, **settings}
