"""The settings that verbs on data share: the fields of `DataConfig` as keyword arguments, and where to write."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitrail.data.config import DataConfig
from vitrail.schema import from_dict, to_dict
from vitrail.verbs.settings import check_settings

Out = str | Path | Callable[[], Path] | None  # the folder to write to, or a function that makes one once it is needed

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
