"""The JSON files beside weights, in which other libraries describe their models. We do not trust them.

They are a closed world: each key is used, known to change nothing, or refused by name.
"""

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

from vitrail.errors import WeightsError, list_names, shorten

CONFIG, PREPROCESSOR, PROCESSOR = "config.json", "preprocessor_config.json", "processor_config.json"
OPEN_CLIP = "open_clip_config.json"
SIDECARS = (CONFIG, PREPROCESSOR, PROCESSOR, OPEN_CLIP)
MAX_SIDECAR = 10 * 2**20
LARGEST = sys.float_info.max


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that we do not trust."""
    if path.stat().st_size > MAX_SIDECAR:
        raise WeightsError(f"{path} is larger than {MAX_SIDECAR // 2**20} MiB, too large for a configuration.")
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise WeightsError(f"{path} must hold a JSON object; got {type(values).__name__}.")
    return cast("dict[str, Any]", values)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_sidecars(folder: Path) -> dict[str, Any]:
    """The files that describe the weights beside them, by name."""
    return {name: read_json(folder / name) for name in SIDECARS if (folder / name).is_file()}


class Settings(dict[str, Any]):
    """What such a file says. A value that is not of the required kind is an error that names its key."""

    def __init__(self, file: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.file = file

    def whole(self, name: str, default: Any = None) -> int:
        value = self.get(name, default)
        return self._check(name, value, type(value) is int, "a whole number")

    def side(self, name: str, default: Any = None) -> int:
        """The height and width of a square."""
        value = self.get(name, default)
        return self._check(name, value, type(value) is int and value > 0, "a positive whole number")

    def number(self, name: str, default: Any = None) -> float:
        value = self.get(name, default)
        return float(self._check(name, value, type(value) in (int, float) and abs(value) <= LARGEST, "a number"))

    def positive(self, name: str, default: Any = None) -> float:
        value = self.get(name, default)
        fits = type(value) in (int, float) and 0 < value <= LARGEST
        return float(self._check(name, value, fits, "a positive number"))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false; null means false."""
        value = self.get(name, default)
        return bool(self._check(name, value, value is None or type(value) is bool, "true or false"))

    def pair(self, name: str, default: Any = None) -> tuple[int, int]:
        """The height and width; one number means both."""
        value = self.get(name, default)
        sides = value if isinstance(value, list | tuple) else (value, value)
        fits = len(cast("list[Any]", sides)) == 2 and all(type(side) is int and side > 0 for side in sides)
        self._check(name, value, fits, "one positive whole number or two")
        return sides[0], sides[1]

    def choice(self, name: str, choices: Mapping[Any, Any]) -> Any:
        """What one of the known words stands for; an empty text means none."""
        value = self.get(name) or None
        if not isinstance(value, str | None) or value not in choices:
            known = ", ".join(repr(choice) for choice in choices if choice)
            raise WeightsError(f"{self.file} says {name}={shorten(self.get(name))}; it must be one of {known}.")
        return choices[value]

    def _check(self, name: str, value: Any, fits: bool, kind: str) -> Any:
        if not fits:
            raise WeightsError(f"{self.file}: {name} must be {kind}; got {shorten(value)}.")
        return value

    def refuse_unknown(self, known: Collection[str], required: Mapping[str, tuple[Any, ...]], whose: str) -> None:
        """Refuse keys that are neither known nor without a value, and values other than the required ones."""
        for key, value in self.items():
            if value is None or key in known or value in required.get(key, ()):
                continue
            if key in required:
                raise WeightsError(
                    f"{self.file}: {key} must be {required[key][0]!r}; got {shorten(value)}, which we cannot compute."
                )
            raise WeightsError(f"{self.file} has {list_names([key])}, which {whose}; remove it if it has no effect.")
