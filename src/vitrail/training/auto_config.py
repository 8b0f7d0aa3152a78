"""Settings that suit the data, for users who pass only a folder: a recipe, pretrained weights, a size; and the whole
config, from these and whatever was passed.
"""

import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from vitrail.data import Augment, Dataset
from vitrail.data.agreement import check_same_data
from vitrail.data.depth import check_channels, observe_depth, refuse_unknown_range
from vitrail.data.pixels import fetched, open_picture, read_raster
from vitrail.data.source import ArraySource, Source
from vitrail.errors import AssumptionWarning, ConfigError, InputError, WeightsError
from vitrail.model import ViTConfig
from vitrail.ranks import Ranks
from vitrail.registry import NO_TASK
from vitrail.tasks.task import make_task
from vitrail.training.changes import NO_FILES, apply_changes, read_field, report_giving_way, with_changes
from vitrail.training.config import Start, TrainConfig
from vitrail.training.recipes import recipe
from vitrail.training.setup import (
    add_validation,
    check_start,
    fit_batch_size,
    open_pictures,
    open_training_data,
    own_channels,
    require_weights,
)
from vitrail.training.teacher import check_channels as check_teachers_channels
from vitrail.training.teacher import load_teacher
from vitrail.weights.addresses import is_cached
from vitrail.weights.pretrained import Pretrained, default, usual_size
from vitrail.weights.read import open_checkpoint
from vitrail.weights.resolve import locate

AUTO, NONE = "auto", "none"  # of `weights=`: what suits the data, and from scratch


def fetch(backbone: Pretrained, say: Callable[[str], None]) -> str:
    """Get a backbone into the hub's cache, if it is not there; why that failed, in one line, or ""."""
    located = locate(backbone.source)
    if is_cached(located.address):
        return ""
    about = f"{backbone.megabytes} MB, {backbone.licence}"
    say(f"downloading {backbone.name} ({backbone.source}, {about}) to the hub's cache")
    try:
        located.fetch()
    except WeightsError as error:
        return str(error).rstrip(".")
    return ""


def explain_how_to_bring(backbone: Pretrained) -> str:
    """What to do on a machine that cannot download a backbone."""
    folder = backbone.repository.partition("/")[2]
    return (
        f"to start from {backbone.name}, run hf download {backbone.repository} --local-dir {folder} where there is a "
        f'network, and pass `weights="{folder}"`'
    )


MANY = 20_000  # training pictures from which the paper's fine-tuning pays off
HUGE = 500_000  # … and from which a GPU can train a ViT-S/16 from scratch
PHOTO_SIDE = 64  # pixels from which a picture counts as a photograph
PROBES = 64  # pictures that are looked at
# Settings that ask for more than a head on features of unchanged pictures: time, and what changes pictures or weights.
BEYOND_THE_HEAD = {
    *("minutes", "epochs", "probe", "dropout", "drop_path", "layer_decay", "recompute", "micro_batch"),
    *(each.name for each in fields(Augment)),
}
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "F")


class PictureKind(NamedTuple):
    """What most of some pictures look like."""

    side: int  # the median of the shorter sides
    grey: bool

    @property
    def is_photograph(self) -> bool:
        return self.side >= PHOTO_SIDE and not self.grey


def choose(dataset: Dataset, kind: PictureKind, weights: str | None, suited: str = "") -> TrainConfig:
    """A recipe for the data's number, size and colours, and for whether there are weights to start from.

    `suited` is the recipe of what is to be trained, if it has one.
    """
    train = dataset.split("train")
    if weights is not None:
        name = suited or ("finetune" if len(train) >= MANY else "finetune-adamw")
        return apply_changes(recipe(name), {"weights": weights})
    side, grey = kind
    if grey and isinstance(train, ArraySource) and side <= 32:
        return recipe("digits" if side < 16 else "mnist")
    if side <= 32:
        chosen = recipe("cifar10")
        return chosen if dataset.name == chosen.data else apply_changes(chosen, {"outlier_rate": 0.0})  # may be classes
    if len(train) >= HUGE and torch.cuda.is_available():
        return recipe("imagenet-s16")
    chosen = recipe("scratch")
    return replace(chosen, start=Start(model="compact-64" if side < 100 else "compact-128"))


def choose_pretraining(kind: PictureKind, weights: str | None) -> TrainConfig:
    """A recipe for pictures without labels, of their size and colours."""
    if kind.side >= PHOTO_SIDE or weights is not None:
        return apply_changes(recipe("mae"), {"weights": weights, "model": None} if weights is not None else {})
    chosen = recipe("mae-small")
    if kind.grey and kind.side <= 32:  # too small for patches of 4 pixels
        return replace(chosen, start=Start(model="compact-8" if kind.side < 16 else "compact-28"))
    return chosen if kind.side <= 40 else apply_changes(chosen, {"image_size": (64, 64)})


def look_at(source: Source) -> PictureKind:
    """The usual size of a few pictures, and whether most of them are grey."""
    if isinstance(source, ArraySource):
        return PictureKind(min(source.images.shape[-2:]), source.images.shape[1] == 1)
    looks: list[PictureKind] = []
    indices = np.linspace(0, len(source) - 1, min(PROBES, len(source))).astype(int).tolist()
    source.prefetch(indices)
    for index in indices:
        try:
            looks.append(_look_of(source.picture(index)))
        except (InputError, OSError):
            continue
    if not looks:
        return PictureKind(224, False)
    return PictureKind(round(median(look.side for look in looks)), 2 * sum(look.grey for look in looks) > len(looks))


def _look_of(picture: Any) -> PictureKind:
    if isinstance(picture, np.ndarray | torch.Tensor):
        return PictureKind(min(picture.shape[-2:]), picture.ndim == 2 or picture.shape[0] == 1)
    if isinstance(picture, Image.Image):
        return PictureKind(min(picture.size), picture.mode in GREY_MODES)
    if (raster := read_raster(fetched(picture), str(picture)[:200])) is not None:
        return PictureKind(min(raster.values.shape[1:]), len(raster.values) == 1)
    with open_picture(picture) as image:
        return PictureKind(min(image.size), image.mode in GREY_MODES)


def resolve(
    data: str,
    changes: dict[str, Any],
    ranks: Ranks,
    say: Callable[[str], None] = lambda _: None,
    *,
    check: bool = False,
    dataset: Dataset | None = None,
) -> tuple[TrainConfig, Dataset]:
    """The whole config from what was requested: a recipe, named or chosen from the data, and then the changes.

    `say` is told what is downloaded, and what could not be. `check` refuses labels that are no classes. Data that are
    not opened by a name are passed as `dataset`.
    """
    changes = dict(changes)
    name, named_data = changes.pop("recipe", None), changes.pop("data", "")
    config = recipe(name) if name else TrainConfig()
    pretrains = with_changes(config, _without_files(changes)).pretrains
    auto = _leaves_weights_open(config, changes) and not pretrains
    sources = {key: value for key, value in changes.items() if hasattr(config.source, key)}
    config = apply_changes(replace(config, data=data or named_data or config.data), sources)
    model = ranks.in_turn(lambda: check_start(with_changes(config, changes), may_get_weights=auto))
    if dataset is None:
        opener = open_pictures if pretrains else open_training_data
        dataset = ranks.in_turn(lambda: opener(config, validation=False))
    check_same_data(dataset, ranks)
    if dataset.task == NO_TASK and not pretrains:
        raise ConfigError("leaves no labels to train on; use vitrail pretrain to learn without labels.", field="task")
    if check and not pretrains:
        dataset.refuse_labels()
    _check_depth(dataset, with_changes(config, changes).start, model)
    _check_teacher(dataset, with_changes(config, changes), model, ranks)
    kind = None if name and not auto else look_at(dataset.split("train"))
    backbone, why = _get_backbone(dataset, kind, ranks, say, bool(name)) if auto and kind else (None, "")
    reasons = [why]
    if backbone is not None:
        changes["weights"] = backbone.source
        changes.setdefault("image_size", usual_size(backbone.config))
    require_weights(with_changes(config, changes))
    weights = with_changes(config, changes).start.weights
    if weights is not None and backbone is None:
        size, why = _choose_size(model or ranks.from_first(lambda: _read_model(weights)))
        if "image_size" not in changes and size is not None:
            changes["image_size"] = size
            reasons.append(why)
    if kind and not name:
        if pretrains:
            made, why = choose_pretraining(kind, weights), ""
        else:
            made, why = _choose(dataset, kind, weights, changes, ranks)
        reasons.append(why)
        source = config.source
        if not dataset.made_split and "val_rate" not in changes:
            source = replace(source, val_rate=made.source.val_rate)
        config = replace(made, data=config.data, source=source)
    reasons += [note.rstrip(".") for note in dataset.assumed]
    chosen = ". ".join(filter(None, reasons))
    if not pretrains:
        config = apply_changes(config, dict(make_task(dataset.task).unsuited))
    for line in report_giving_way(config, changes):
        say(line)
    config = replace(with_changes(config, changes), chosen=chosen)
    if dataset.task != "one":  # a resumed run must not choose again
        config = apply_changes(config, {"task": dataset.task})
    if config.start.training.on_features:
        config = _without_augmentation(config, changes)
    if "batch_size" not in changes:
        config = fit_batch_size(config, dataset, ranks.world_size)
    whole = add_validation(dataset, config)
    if whole is not dataset:
        check_same_data(whole, ranks)
    return config, whole


def _without_files(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes without words that stand for no file."""
    return {name: value for name, value in changes.items() if (name, value) not in NO_FILES}


def _check_depth(dataset: Dataset, start: Start, model: ViTConfig | None) -> None:
    """Refuse pictures of more bits or channels than the settings, or the weights, have a rule for."""
    depth = observe_depth(dataset.split("train"), start.channels)
    if depth is None:
        return
    if start.channels is None:
        check_channels(depth, dataset.name, model.channels if model is not None and start.weights is not None else 3)
    if depth.num_deep and start.value_range is None:
        if start.weights is not None and open_checkpoint(start.weights).preprocess.value_range is not None:
            return
        refuse_unknown_range(depth, dataset.name)


def _check_teacher(dataset: Dataset, config: TrainConfig, model: ViTConfig | None, ranks: Ranks) -> None:
    """Refuse a teacher of other classes, another task or other channels before the pictures are looked at."""
    if config.distill.teacher is None:
        return
    channels = model.channels if model is not None and config.start.weights is not None else None
    channels = config.start.channels or channels or own_channels(dataset.split("train"))
    spec = ranks.in_turn(lambda: load_teacher(config.distill, dataset)).preprocess
    check_teachers_channels(spec.channels, channels)


def _leaves_weights_open(config: TrainConfig, changes: dict[str, Any]) -> bool:
    """Whether weights are to be chosen; "auto" and "none" are taken out of the changes, since they are no files."""
    asked = changes.get("weights", AUTO)
    if asked in (AUTO, NONE):
        changes.pop("weights", None)
    if asked != AUTO or changes.get("model") is not None or changes.get("whiten", "off") != "off":
        return False
    return config.start.model is None and config.start.weights is None


def _get_backbone(
    dataset: Dataset, kind: PictureKind, ranks: Ranks, say: Callable[[str], None], required: bool
) -> tuple[Pretrained | None, str]:
    """Weights for photographs, if they can be had; and what was chosen, and why."""
    train, device = dataset.split("train"), ranks.device.type
    if not kind.is_photograph or (device == "cuda" and len(train) >= HUGE):
        return None, ""
    backbone = default(device)
    if problem := ranks.from_first(lambda: fetch(backbone, say)):
        how = explain_how_to_bring(backbone)
        if required:
            raise WeightsError(f"{problem}; {how}.")
        say(f"{problem}; training from scratch instead, which is usually far less accurate; {how}")
        return None, f"from scratch, since {backbone.name} could not be fetched"
    return backbone, f"{backbone.name} ({backbone.source}, {backbone.licence}) to start from, for photographs"


def _read_model(weights: str) -> ViTConfig:
    """What weights on a hub are for; whatever is assumed of them is said when the model is built."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)
        return open_checkpoint(weights).config


def _choose_size(model: ViTConfig) -> tuple[tuple[int, int] | None, str]:
    """The size at which such weights are trained further, where that is not their own; and why."""
    height, width = usual_size(model)
    if (height, width) == model.image_size:
        return None, ""
    own = f"{model.image_size[1]}×{model.image_size[0]}"
    return (height, width), f"Pictures of {width}×{height}, for speed; the weights' own size is {own}"


def _choose(
    dataset: Dataset, kind: PictureKind, weights: str | None, changes: dict[str, Any], ranks: Ranks
) -> tuple[TrainConfig, str]:
    """A recipe; and for photographs, why it was chosen: what a GPU has time for, a CPU may not."""
    train = dataset.split("train")
    if weights is None or "train" in changes or not kind.is_photograph:
        return choose(dataset, kind, weights, with_changes(TrainConfig(), changes).start.training.recipe), ""
    if ranks.device.type == "cuda" and len(train) >= MANY:
        name, why = "finetune", f"Everything is trained: there are {len(train):,} pictures, and a GPU"
    elif ranks.device.type == "cuda":
        name, why = "finetune-adamw", "First the head is trained, then everything"
    elif BEYOND_THE_HEAD & changes.keys():
        name, why = "lora", "First the head is trained, on features computed once; then the rest, with LoRA"
        why += ", as far as time allows"
    else:
        name, why = "linear", "Only the head is trained, on features computed once, since there is no GPU"
        why += "; `minutes=` allows fine-tuning too"
    return choose(dataset, kind, weights, name), why


def _without_augmentation(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """Features are those of unchanged pictures; settings that would change them are refused."""
    called = config.start.training.called
    config = replace(config, augment=Augment(flip_rate=0.0), start=replace(config.start, dropout=0.0, drop_path=0.0))
    for name in ("dropout", "drop_path", *(field.name for field in fields(Augment))):
        changed = name in changes and read_field(apply_changes(config, {name: changes[name]}), name)
        if name in changes and changed != read_field(config, name):
            raise ConfigError(f"{called} works on features of unchanged pictures; omit `{name}={changes[name]!r}`.")
    return config
