"""The settings that verbs share for foreign checkpoints: what the user knows and the file does not say."""

from collections.abc import Callable, Mapping
from typing import Any

from vitrail.model.config import Pair
from vitrail.schema import parse_size
from vitrail.verbs.settings import Size, check_settings
from vitrail.weights.infer import Hints


def read_hints(verb: Callable[..., Any], settings: Mapping[str, Any]) -> Hints:
    """The hints among the settings of a verb; a name that is neither a hint nor an argument of it is an error."""
    check_settings(verb, settings, Hints)
    values: dict[str, Any] = {**settings, "image_size": read_size(settings.get("image_size"), "image_size")}
    return Hints(**values)


def read_size(size: Size | None, name: str) -> Pair | None:
    """The height and width that a number, a pair or a text stands for."""
    if isinstance(size, str):
        return parse_size(size, name)
    return (size, size) if isinstance(size, int) else size
