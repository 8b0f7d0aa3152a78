"""The keywords of a verb that are fields of config dataclasses, just as they are flags of the command.

The typed dictionaries are for editors and type checkers, which cannot see the fields of a dataclass in `**settings`; a
test compares them with the dataclasses."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar

from vitrail.data.config import Augment, Columns, DataConfig
from vitrail.errors import ConfigError
from vitrail.registry import PrecisionChoice, RuntimeChoice
from vitrail.schema import from_dict, parse_size, to_dict
from vitrail.synonyms import suggest_option
from vitrail.weights.hints import Hints

if TYPE_CHECKING:
    from vitrail.model.parts import Pair

T = TypeVar("T")
P = ParamSpec("P")
Size = int | str | tuple[int, int]  # 384, "224x320", or (224, 320): height and width


class DataSettings(TypedDict, total=False):
    """The fields of `DataConfig`."""

    data_dir: str | Path | None
    split_file: str | Path | None
    val_rate: float
    test_rate: float
    split_seed: int
    max_broken_rate: float
    exclude: str | Path | Sequence[str | Path]
    columns: Columns | dict[str, str]
    group: str | None
    task: str
    separator: str | None


class ViewSettings(TypedDict, total=False):
    """The fields of `Augment`, except for what mixes labels."""

    crop: Literal["none", "pad", "resized"]
    pad: int
    pad_fill: Literal["black", "reflect"]
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip_rate: float
    alternate_flip: bool
    vertical_flip_rate: float
    policy: Literal["none", "rand", "auto", "trivial", "three"]
    num_ops: int
    magnitude: float
    magnitude_std: float
    jitter: tuple[float, float, float, float]
    erase_rate: float
    erase_fill: Literal["mean", "noise"]
    repeats: int
    views: int


class AugmentSettings(ViewSettings, total=False):
    """The fields of `Augment`."""

    mixup: float
    cutmix: float
    mix_rate: float
    switch_rate: float
    outlier_rate: float


class ShowSettings(DataSettings, AugmentSettings, total=False):
    """What decides how training pictures look."""


class LearnSettings(TypedDict, total=False):
    """The fields of `TrainConfig`'s parts that do not depend on labels."""

    model: str | None
    weights: str | Path | None
    image_size: Size | None
    channels: int | None
    value_range: tuple[float, float] | None
    dropout: float
    drop_path: float
    whiten: Literal["off", "on", "frozen"]
    optimizer: Literal["adamw", "sgd", "muon"]
    lr: float
    muon_lr: float
    muon_split: Literal["none", "qkv", "heads"]
    weight_decay: float
    momentum: float
    beta2: float
    layer_decay: float
    clip: float | None
    ema: float | None
    epochs: int
    minutes: float | None
    schedule: Literal["cosine", "constant", "wsd"]
    warmup: float
    cooldown: float
    final_lr: float
    patience: int | None
    best: str
    batch_size: int | Literal["auto"]
    micro_batch: int | None
    device: str
    precision: Literal["float32", "bf16", "auto"]
    compile: Literal["auto", "on", "off"]
    recompute: bool
    strategy: Literal["ddp", "fsdp"]
    workers: int | None
    save_minutes: float
    seed: int


class TrainSettings(LearnSettings, ShowSettings, total=False):
    """The fields of every part of `TrainConfig` that `train` has a use for."""

    classes: str | Path | None
    train: Literal["all", "head", "lora"]
    probe: bool
    lora_rank: int
    lora_alpha: float
    lora_targets: str
    label_smoothing: float
    loss: str
    balance: Literal["auto", "none", "sample", "weight", "focal", "logit"]
    folds: int | None
    fold_repeats: int
    search: str | None
    trials: int
    teacher: str | Path | None
    distill_weight: float
    distill_temperature: float
    distill_hard: bool
    distill_features: float
    teacher_sha256: str | None


class PretrainSettings(LearnSettings, DataSettings, ViewSettings, total=False):
    """The fields of every part of `TrainConfig` that `pretrain` has a use for."""

    mask_rate: float
    decoder_width: int | None
    decoder_depth: int | None
    pixels: Literal["normalized", "raw"]
    probe_every: int | None


# What some of them mean where nothing is learned from labels, as the command's help says it.
PRETRAIN_TEXTS = {
    "weights": (
        "A checkpoint to start from: a file, a run folder, hf://OWNER/NAME or google://NAME [default: none, from "
        "scratch]."
    ),
    "best": "The validation metric whose best epoch is kept: knn or loss [default: none, the last epoch is kept].",
    "views": "Fixed versions of each picture, which take turns; 0 makes a new one each time.",
    "val_rate": (
        "Without a split file: the share of each class used for validation [default: a named recipe's, else 0.15; "
        "without class folders, 0.05]."
    ),
    "test_rate": (
        "Without a split file: the share of each class used for testing [default: 0.15; without class folders, 0]."
    ),
    "group": (
        "For a table: a column whose values are never split up, such as the patient or the video: pictures with the "
        "same one are in the same split."
    ),
    "task": (
        "What labels are, if there are any, for the kNN probe: one, several, number, or none, which does not read them "
        "[default: auto, what they look like]."
    ),
}


class PlanSettings(TrainSettings, PretrainSettings, total=False):
    """Those of a run with labels, or with a method that needs none."""

    method: Literal["none", "mae"]


class ResumeSettings(PlanSettings, total=False):
    """Those of a run, whose data may have moved."""

    data: str | Path
    recipe: str


class HintSettings(TypedDict, total=False):
    """The fields of `Hints`."""

    ema: bool | None
    heads: int | None
    image_size: Size | None
    patch_size: Size | None
    pooling: Literal["cls", "mean", "map"] | None
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] | None
    norm_eps: float | None
    attention_scale: float | None
    architecture: str | None


class ServiceSettings(TypedDict, total=False):
    """The fields of `ServeSettings`."""

    host: str
    port: int
    token: str | None
    max_batch: int | None
    max_wait_ms: float | None
    queue_size: int
    timeout: float
    client_timeout: float
    max_body_mb: float
    max_buffer_mb: float
    max_pixels: int
    max_request_pixels: int
    max_queue_pixels: int
    max_client_connections: int
    max_pictures: int
    rate_limit: float | None
    runtime: RuntimeChoice
    precision: PrecisionChoice
    threads: int | None
    reload: bool
    access_log: bool


def renamed(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A verb that goes on taking old names of arguments, with a warning: `renamed(old="new")`."""

    def decorate(verb: Callable[P, T]) -> Callable[P, T]:
        @wraps(verb)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for old, new in names.items():
                if old in kwargs:
                    warnings.warn(f"{old}= is called {new}= now", DeprecationWarning, stacklevel=2)
                    kwargs[new] = kwargs.pop(old)
            return verb(*args, **kwargs)

        return call

    return decorate


def configs_of(settings: type) -> tuple[type[Any], ...]:
    """The dataclasses whose fields a typed dictionary has."""
    if settings is ServiceSettings:
        from vitrail.serving.settings import ServeSettings

        return (ServeSettings,)
    if settings in (TrainSettings, PretrainSettings, PlanSettings, ResumeSettings):
        from vitrail.training.config import Distill, Machine, Optim, Pretraining, Schedule, Selection, Start

        return Start, Optim, Schedule, Machine, Augment, DataConfig, Selection, Distill, Pretraining
    return {DataSettings: (DataConfig,), ShowSettings: (DataConfig, Augment), HintSettings: (Hints,)}[settings]


def check_settings(verb: Callable[..., Any], settings: Mapping[str, Any], *configs: type) -> None:
    """Raise unless every keyword is a field of one of the configs."""
    fields = {field.name for config in configs for field in dataclasses.fields(config)}
    arguments = {name for name, each in signature(verb).parameters.items() if each.kind is not Parameter.VAR_KEYWORD}
    for name in settings:
        if name not in fields:
            hint = suggest_option(name, fields | arguments) or f"see help(vitrail.{verb.__name__})."
            raise ConfigError(f"{verb.__name__} has no setting {name!r}; {hint}")


def build(config: type[T], settings: Mapping[str, Any]) -> T:
    """A config made of those settings that are its fields."""
    fields = {field.name for field in dataclasses.fields(config)}  # pyright: ignore[reportArgumentType]
    return config(**{name: value for name, value in settings.items() if name in fields})


def settings_of(*configs: Any) -> dict[str, Any]:
    """The fields of configs as the keywords of a verb."""
    return {field.name: getattr(config, field.name) for config in configs for field in dataclasses.fields(config)}


def read_hints(verb: Callable[..., Any], settings: Mapping[str, Any]) -> Hints:
    """The hints among the settings of a verb; a name that is neither a hint nor an argument of it is an error."""
    check_settings(verb, settings, Hints)
    sizes = {name: read_size(settings.get(name), name) for name in ("image_size", "patch_size")}
    values: dict[str, Any] = {**settings, **sizes}
    return Hints(**values)


def read_size(size: Size | None, name: str) -> "Pair | None":
    """The height and width that a number, a pair or a text stands for."""
    if isinstance(size, str):
        return parse_size(size, name)
    return (size, size) if isinstance(size, int) else size


_USUAL = DataConfig()


def read_data_settings(verb: Callable[..., Any], settings: Mapping[str, Any]) -> DataConfig:
    """The settings as a config; a name that is neither a field of it nor an argument of the verb is an error."""
    check_settings(verb, settings, DataConfig)
    return from_dict(DataConfig, settings)


def changed_settings(config: DataConfig) -> dict[str, Any]:
    """The settings that differ from the defaults, as plain values; of the columns, only those that are named."""
    usual = to_dict(_USUAL)
    changed = {name: value for name, value in to_dict(config).items() if value != usual.get(name)}
    if "columns" in changed:
        changed["columns"] = {name: value for name, value in changed["columns"].items() if value is not None}
    return changed
