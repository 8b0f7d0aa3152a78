"""What `search=` says: lr=1e-4..1e-2,weight_decay=0..0.1,optimizer=adamw|sgd."""

import itertools
import math
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from vitrail.errors import ConfigError, shorten
from vitrail.training.changes import apply_changes, field_homes, suggest_setting, with_changes
from vitrail.training.config import TrainConfig

LOG_FROM = 10.0  # a range of positive numbers whose ends are this many times apart is searched by orders of magnitude
# What a trial may change: the data, the model and the machine stay those of the run.
MOST_TRIED = 500  # combinations that are looked at for one that allows a value; a trial records why it failed
SEARCHED = {
    "optim": (),  # all of it
    "augment": (),
    "schedule": ("epochs", "schedule", "warmup", "cooldown", "final_lr"),
    "start": ("dropout", "drop_path", "lora_rank", "lora_alpha", "lora_targets"),
    "machine": ("batch_size",),
}


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`, both included."""

    low: float
    high: float
    whole: bool  # whole numbers only

    @property
    def log(self) -> bool:
        """Whether orders of magnitude are equally likely, rather than numbers."""
        return not self.whole and self.low > 0 and self.high / self.low >= LOG_FROM


Choices = tuple[Any, ...]
Space = dict[str, Range | Choices]


def parse_search(text: str) -> Space:
    """Setting → what is tried; a name, a number or a choice that can never be right is an error."""
    space: Space = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, values = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_")
        if not equals or not values:
            raise _error(f"must be such as `lr=1e-4..1e-2,optimizer=adamw|sgd`; got {shorten(part)}.")
        _check_name(name)
        if name in space:
            raise _error(f"has {name} twice; keep one.")
        space[name] = _parse_values(name, values)
        _check_values(name, space[name])
    if not space:
        raise _error("must name settings, such as `lr=1e-4..1e-2,weight_decay=0..0.1`.")
    return space


def check_space(space: Space, config: TrainConfig) -> None:
    """Refuse to search what the rest of the config leaves no choice about."""
    if "epochs" in space and config.schedule.minutes is not None:
        raise _error("has epochs, but `minutes=` decides how many there are; omit one of them.")
    for name in space:
        changes_pictures = field_homes()[name] == "augment" or name in ("dropout", "drop_path")
        if config.start.training.on_features and changes_pictures:
            raise _error(f"has {name}, but {config.start.training.called} works on features of unchanged pictures.")
        for value in _ends_of(space[name]):
            _check_value(name, value, space, config)


def _check_value(name: str, value: Any, space: Space, config: TrainConfig) -> None:
    """Refuse a value that goes neither with the run's settings nor with anything that is tried of the others."""
    others = {other: _ends_of(values) for other, values in space.items() if other != name}
    combinations = (dict(zip(others, rest, strict=True)) for rest in itertools.product(*others.values()))
    refusal = ""
    for rest in itertools.islice(itertools.chain([{}], combinations), 1 + MOST_TRIED):
        try:
            with_changes(config, {**rest, name: value})
        except ConfigError as error:
            refusal = refusal or error.message
        else:
            return
    if math.prod(map(len, others.values())) <= MOST_TRIED:
        raise _error(f"has `{name}={value!r}`, which this run cannot have: {refusal}")


def _check_name(name: str) -> None:
    homes = field_homes()
    if name not in homes:
        raise _error(f"has no setting {shorten(name)}; {suggest_setting(name, [*homes])}")
    allowed = SEARCHED.get(homes[name])
    if allowed is None or (allowed and name not in allowed):
        raise _error(f"cannot try values of {name}: the data, the model and the machine stay those of the run.")


def _parse_values(name: str, text: str) -> Range | Choices:
    if ".." not in text:
        choices = tuple(_value(choice.strip()) for choice in text.split("|"))
        if len(set(map(repr, choices))) < max(len(choices), 2):
            raise _error(f"needs different choices for {name}, such as a|b, or a range a..b; got {shorten(text)}.")
        return choices
    low, high = (_value(end.strip()) for end in text.split("..", 1))
    if isinstance(low, bool) or not isinstance(low, int | float) or not isinstance(high, int | float) or not low < high:
        raise _error(f"needs a range of {name} from a low to a high number, such as 1e-4..1e-2; got {shorten(text)}.")
    return Range(low, high, whole=float not in _types_of(name))


def _types_of(name: str) -> set[Any]:
    """The types that a setting can have."""
    hint = get_type_hints(type(getattr(TrainConfig(), field_homes()[name])))[name]
    return {hint, *get_args(hint)}


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"none": None, "true": True, "false": False}.get(text.lower(), text)


def _ends_of(values: Range | Choices) -> Choices:
    """All choices, or the ends of a range."""
    return values if isinstance(values, tuple) else (values.low, values.high)


def _check_values(name: str, values: Range | Choices) -> None:
    for value in _ends_of(values):
        try:
            apply_changes(TrainConfig(), {name: value})
        except ConfigError as error:
            raise _error(f"has a value that {name} cannot have: {error.message}") from error


def _error(text: str) -> ConfigError:
    return ConfigError(text, field="search")
