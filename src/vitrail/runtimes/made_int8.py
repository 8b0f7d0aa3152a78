"""Where the int8 exports of a checkpoint are that were made here, so that `precision="auto"` can take one."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.cache import cache_folder, make_room
from vitrail.errors import VitrailError
from vitrail.files import atomic_path
from vitrail.reading import parse_json, read_bytes
from vitrail.runtimes.exported import ExportedRuntime
from vitrail.runtimes.manifest import Manifest
from vitrail.runtimes.opening import RUNTIMES, LoadOptions, RuntimeName, open_runtime
from vitrail.weights.locate import locate

MOST_NOTES, LARGEST = 500, 16 * 1024  # bytes of one


@dataclass(frozen=True, kw_only=True)
class Int8Export:
    """An int8 export that was made here earlier, ready to run."""

    path: str
    runtime: ExportedRuntime[Any]

    @property
    def runtime_name(self) -> RuntimeName:
        """Its runtime, as users ask for it."""
        return next(kind.key for kind in RUNTIMES if kind.name == self.runtime.name)


def remember_int8(path: Path, manifest: Manifest) -> None:
    """Write down where an accepted int8 export is; a cache that cannot be written remembers nothing."""
    note = _note(manifest.weights_sha256, manifest.config)
    try:
        make_room(note.parent, MOST_NOTES * LARGEST, MOST_NOTES - 1)
        with atomic_path(note) as draft:
            draft.write_text(json.dumps({"path": str(path.absolute())}), encoding="utf-8")
    except OSError:
        pass


def has_int8() -> bool:
    """Whether any was made at all: a short job must not pay for the hash of its weights."""
    try:
        return any(_folder().iterdir())
    except OSError:
        return False


def find_int8(weights_sha256: str, config: str) -> Int8Export | None:
    """The last int8 export of these weights, if it is still there, whole, and can be run."""
    try:
        path = parse_json(read_bytes(_note(weights_sha256, config), LARGEST))["path"]
        runtime, _ = open_runtime(locate(path, allow_export=True), LoadOptions())
    except (VitrailError, OSError, ValueError, TypeError, KeyError):
        return None
    if not isinstance(runtime, ExportedRuntime):
        return None
    manifest: Manifest = runtime.manifest
    same = manifest.weights_sha256 == weights_sha256 and manifest.config == config and manifest.precision == "int8"
    return Int8Export(path=path, runtime=runtime) if same else None


def _note(weights_sha256: str, config: str) -> Path:
    key = hashlib.sha256(f"{weights_sha256} {config}".encode()).hexdigest()[:32]
    return _folder() / f"{key}.json"


def _folder() -> Path:
    return cache_folder() / "int8"
