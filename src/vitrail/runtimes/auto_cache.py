"""What `auto` keeps in the user's cache: measurements, exports, and where int8 exports are."""

import atexit
import hashlib
import json
import math
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.cache import cache_folder, make_room, mark_used
from vitrail.errors import VitrailError, WeightsError
from vitrail.files import atomic_path
from vitrail.runtimes.exporter import GRAPH_FORM, OPSET, prepare_export, write_onnx
from vitrail.runtimes.graph import GraphOptions
from vitrail.runtimes.graph_runtime import ExportedRuntime
from vitrail.runtimes.manifest import KEY, Manifest, read_manifest
from vitrail.runtimes.onnx_runtime import read_onnx_facts
from vitrail.runtimes.runtime import RUNTIMES, LoadOptions, Numbers, RuntimeName, label_of, open_runtime
from vitrail.schema import from_dict, to_dict
from vitrail.untrusted import parse_json, read_bytes
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.resolve import locate
from vitrail.wording import counted

MOST_DECISIONS = 500
LARGEST_DECISION = 64 * 1024  # bytes of one
WORTH = 1.05  # another runtime must be this much faster to be taken
WORTH_OTHER = 1.1  # and other numbers, which change the answers a little, this much


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one way to compute did."""

    runtime: RuntimeName
    precision: Numbers
    seconds: float = 0.0  # for one picture, when all cores are busy; 0 if there is a problem
    difference: float = 0.0  # the largest from float32 in torch, relative to the largest number
    top1: float = 1.0  # the share of `pictures` with the same class as in float32
    pictures: int = 0  # that were compared for `top1`
    export: str = ""  # of int8: the path of the export; `top1` is then what was measured when it was made
    problem: str = ""  # why it is not to be taken

    @property
    def label(self) -> str:
        return label_of(self.runtime, self.precision)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was measured for a key; the first outcome is what runs where nothing is measured."""

    key: str
    outcomes: tuple[Outcome, ...]

    @property
    def best(self) -> Outcome:
        """The fastest whose answers are the same; bf16 and int8 only if they gain more."""
        best = self.outcomes[0]
        for worth, precision in ((WORTH, best.precision), (WORTH_OTHER, "bf16"), (WORTH_OTHER, "int8")):
            usable = [each for each in self.outcomes if not each.problem and each.precision == precision]
            fastest = min(usable, key=lambda each: each.seconds, default=best)
            if worth * fastest.seconds <= best.seconds:
                best = fastest
        return best

    def describe(self) -> str:
        """One line for people: what is taken, and why."""
        best, plain = self.best, self.outcomes[0]
        if best is plain:
            others = [_compare(each, plain) for each in self.outcomes[1:]]
            return f"staying on {plain.label}; here {', '.join(others)} (measured)"
        text = f"running on {best.label}, {plain.seconds / best.seconds:.2f}× {plain.label} here (measured)"
        if best.export:
            text += f"; {best.export} gave {best.top1:.1%} of held-out pictures the same class as float32"
        elif best.precision == "bf16" and plain.precision != "bf16":
            same = f"the same class as in float32 for {best.top1:.0%} of {counted(best.pictures, 'picture')}"
            text += f"; {same if best.pictures else f'differs by up to {best.difference:.1e} of the largest number'}"
        return text


def _compare(outcome: Outcome, plain: Outcome) -> str:
    if outcome.problem:
        return f"{outcome.label} {outcome.problem}"
    return f"{outcome.label} gives {plain.seconds / outcome.seconds:.2f}×"


def read_decision(key: str) -> Decision | None:
    """What was measured for this key; anything odd in the file counts as nothing."""
    try:
        decision = from_dict(Decision, parse_json(read_bytes(_decision_path(key), LARGEST_DECISION)), "decision")
    except (VitrailError, OSError, ValueError, TypeError, OverflowError):
        return None
    good = [0 < each.seconds < math.inf or (each.problem and each.seconds == 0) for each in decision.outcomes]
    if decision.key != key or not decision.outcomes or decision.outcomes[0].problem or not all(good):
        return None
    return decision


def write_decision(decision: Decision) -> None:
    """Keep a decision; a cache that cannot be written keeps none."""
    path = _decision_path(decision.key)
    try:
        make_room(path.parent, MOST_DECISIONS * LARGEST_DECISION, MOST_DECISIONS - 1)
        with atomic_path(path) as draft:
            draft.write_text(json.dumps(to_dict(decision), indent=1, allow_nan=False), encoding="utf-8")
    except OSError:
        pass


def has_decisions() -> bool:
    """Whether there is any at all."""
    try:
        return any(decisions_folder().iterdir())
    except OSError:
        return False


def decisions_folder() -> Path:
    return cache_folder() / "decisions"


def _decision_path(key: str) -> Path:
    return decisions_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


MOST_BYTES = 4 * 2**30  # of all exports that are kept
MOST_EXPORTS = 100
GRAPH = "graph.onnx"


@dataclass(frozen=True, kw_only=True)
class KeptExport:
    """An ONNX file, and what it says about itself."""

    path: Path
    manifest: Manifest


def exports_folder() -> Path:
    return cache_folder() / "exports"


def find_export(checkpoint: Checkpoint, sha256: str) -> KeptExport | None:
    """The export of a checkpoint whose weights have this fingerprint, if one is kept and whole."""
    path = exports_folder() / _export_name(checkpoint, sha256) / GRAPH
    try:
        facts = read_onnx_facts(path)
        manifest = read_manifest(facts.metadata.get(KEY, ""), path)
    except (WeightsError, OSError):
        return None
    same = manifest.weights_sha256 == sha256 and manifest.config == json.dumps(to_dict(checkpoint.config))
    if not same or manifest.graph_crc32 != facts.crc32:
        return None
    mark_used(path.parent)
    return KeptExport(path=path, manifest=manifest)


def make_export(checkpoint: Checkpoint, sha256: str) -> KeptExport:
    """Convert a checkpoint, and keep the result where the cache has room for it; elsewhere it lasts until the end."""
    exported = prepare_export(checkpoint, GraphOptions(), sha256)
    folder = exports_folder()
    size = sum(tensor.numel() * 4 for tensor in checkpoint.tensors.values())
    if not _has_room(folder, size):
        folder = Path(tempfile.mkdtemp(prefix="vitrail-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    else:
        make_room(folder, MOST_BYTES - size, MOST_EXPORTS - 1)
    target = folder / _export_name(checkpoint, sha256)
    with atomic_path(target) as draft:
        draft.mkdir()
        write_onnx(exported, draft / GRAPH)
    return KeptExport(path=target / GRAPH, manifest=exported.manifest)


def _has_room(folder: Path, size: int) -> bool:
    """Whether an export of this size may and can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder):
            return size <= MOST_BYTES and shutil.disk_usage(folder).free > 3 * size
    except OSError:
        return False


def _export_name(checkpoint: Checkpoint, sha256: str) -> str:
    """Of the folder of an export: the weights, and whatever else decides about the graph."""
    rest = [to_dict(checkpoint.config), GRAPH_FORM, OPSET, version("torch"), __version__]
    return f"{sha256[:32]}-{hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:12]}"


MOST_NOTES, LARGEST_NOTE = 500, 16 * 1024  # bytes of one


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
        make_room(note.parent, MOST_NOTES * LARGEST_NOTE, MOST_NOTES - 1)
        with atomic_path(note) as draft:
            draft.write_text(json.dumps({"path": str(path.absolute())}), encoding="utf-8")
    except OSError:
        pass


def has_int8() -> bool:
    """Whether any was made at all: a short job must not pay for the hash of its weights."""
    try:
        return any(_int8_folder().iterdir())
    except OSError:
        return False


def find_int8(weights_sha256: str, config: str) -> Int8Export | None:
    """The last int8 export of these weights, if it is still there, whole, and can be run."""
    try:
        path = parse_json(read_bytes(_note(weights_sha256, config), LARGEST_NOTE))["path"]
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
    return _int8_folder() / f"{key}.json"


def _int8_folder() -> Path:
    return cache_folder() / "int8"
