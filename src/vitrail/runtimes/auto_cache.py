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

from vitrail import __version__
from vitrail.cache import Shelf, mark_used
from vitrail.errors import VitrailError, WeightsError
from vitrail.files import atomic_path
from vitrail.registry import RUNTIMES, NumberFormat, label_of
from vitrail.runtimes import onnx_runtime
from vitrail.runtimes.exporter import prepare_export
from vitrail.runtimes.graph import FORM, GraphOptions
from vitrail.runtimes.graph_runtime import ExportedRuntime
from vitrail.runtimes.manifest import KEY, GraphFile, Manifest, read_manifest
from vitrail.runtimes.runtime import LoadOptions, open_runtime
from vitrail.schema import from_dict, to_dict
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.resolve import locate
from vitrail.wording import counted

DECISIONS = Shelf(name="decisions", most_items=500, most_bytes=32 * 2**20)
INT8_PATHS = Shelf(name="int8", most_items=500, most_bytes=8 * 2**20)
GRAPHS = Shelf(name="exports", most_items=100, most_bytes=4 * 2**30)
GRAPH = "graph.onnx"
WORTH = 1.05  # another runtime must be this much faster to be taken
WORTH_OTHER = 1.1  # and another number format, which changes the answers a little, this much


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one way to compute did."""

    runtime: str
    precision: NumberFormat
    seconds: float = 0.0  # for one picture, when all cores are busy; 0 if there is a problem
    difference: float = 0.0  # the largest from float32 in torch, relative to the largest number
    top1: float = 1.0  # the share of `pictures` with the same answer as in float32
    pictures: int = 0  # that were compared for `top1`
    export: str = ""  # of int8: the path of the export; `top1` is then what was measured when it was made
    problem: str = ""  # why it cannot be used

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

    def describe(self, same: str) -> str:
        """One line for people: what is taken, and why; `same` is what pictures get where answers agree."""
        best, plain = self.best, self.outcomes[0]
        if best is plain:
            others = [_compare(each, plain) for each in self.outcomes[1:]]
            return f"staying on {plain.label}; here {', '.join(others)} (measured)"
        text = f"running on {best.label}, {plain.seconds / best.seconds:.2f}× {plain.label} here (measured)"
        if best.export:
            text += f"; {best.export} gave {best.top1:.1%} of held-out pictures {same} as float32"
        elif best.precision == "bf16" and plain.precision != "bf16":
            agrees = f"{same} as in float32 for {best.top1:.0%} of {counted(best.pictures, 'picture')}"
            text += f"; {agrees if best.pictures else f'differs by up to {best.difference:.1e} of the largest number'}"
        return text


def _compare(outcome: Outcome, plain: Outcome) -> str:
    if outcome.problem:
        return f"{outcome.label} {outcome.problem}"
    return f"{outcome.label} gives {plain.seconds / outcome.seconds:.2f}×"


def read_decision(key: str) -> Decision | None:
    """What was measured for this key; anything odd in the file counts as nothing."""
    try:
        decision = from_dict(Decision, DECISIONS.read(key), "decision")
    except (VitrailError, ValueError, TypeError, OverflowError):
        return None
    good = [0 < each.seconds < math.inf or (each.problem and each.seconds == 0) for each in decision.outcomes]
    known = all(each.runtime in RUNTIMES for each in decision.outcomes)
    if decision.key != key or not decision.outcomes or decision.outcomes[0].problem or not all(good) or not known:
        return None
    return decision


def write_decision(decision: Decision) -> None:
    DECISIONS.write(decision.key, to_dict(decision))


def find_graph(checkpoint: Checkpoint, sha256: str) -> GraphFile | None:
    """The ONNX file of a checkpoint whose weights have this fingerprint, if one is kept and whole."""
    path = GRAPHS.folder / _graph_name(checkpoint, sha256) / GRAPH
    try:
        facts = onnx_runtime.read_onnx_facts(path)
        manifest = read_manifest(facts.metadata.get(KEY, ""), path)
    except (WeightsError, OSError):
        return None
    same = manifest.weights_sha256 == sha256 and manifest.config == json.dumps(to_dict(checkpoint.config))
    if not same or manifest.graph_crc32 != facts.crc32:
        return None
    mark_used(path.parent)
    return GraphFile(path=path, manifest=manifest)


def make_graph(checkpoint: Checkpoint, sha256: str, folder: Path | None = None) -> GraphFile:
    """Convert a checkpoint, into a folder or the cache; without room there, the file lasts until the process ends."""
    exported = prepare_export(checkpoint, GraphOptions(), sha256)
    size = sum(tensor.numel() * 4 for tensor in checkpoint.tensors.values())
    if folder is None and _has_room(GRAPHS.folder, size):
        folder = GRAPHS.folder
        GRAPHS.make_room(size)
    elif folder is None:
        folder = Path(tempfile.mkdtemp(prefix="vitrail-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / _graph_name(checkpoint, sha256)
    with atomic_path(target) as draft:
        draft.mkdir()
        onnx_runtime.write_export(exported, draft / GRAPH)
    return GraphFile(path=target / GRAPH, manifest=exported.manifest)


def _has_room(folder: Path, size: int) -> bool:
    """Whether a graph of this size may and can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder):
            return size <= GRAPHS.most_bytes and shutil.disk_usage(folder).free > 3 * size
    except OSError:
        return False


def _graph_name(checkpoint: Checkpoint, sha256: str) -> str:
    """Of the folder of a graph: the weights, and whatever else decides about it."""
    rest = [to_dict(checkpoint.config), FORM, onnx_runtime.OPSET, version("torch"), __version__]
    return f"{sha256[:32]}-{hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:12]}"


@dataclass(frozen=True, kw_only=True)
class Int8Export:
    """An int8 export that was made here earlier, ready to run."""

    path: str
    runtime: ExportedRuntime


def remember_int8(path: Path, manifest: Manifest) -> None:
    """Write down where an accepted int8 export is."""
    INT8_PATHS.write(f"{manifest.weights_sha256} {manifest.config}", {"path": str(path.absolute())})


def find_int8(weights_sha256: str, config: str) -> Int8Export | None:
    """The last int8 export of these weights, if it is still there, whole, and can be run."""
    try:
        path = INT8_PATHS.read(f"{weights_sha256} {config}")["path"]
        runtime, _ = open_runtime(locate(path, allow_export=True), LoadOptions())
    except (VitrailError, OSError, ValueError, TypeError, KeyError):
        return None
    if not isinstance(runtime, ExportedRuntime):
        return None
    manifest = runtime.manifest
    same = manifest.weights_sha256 == weights_sha256 and manifest.config == config and manifest.precision == "int8"
    return Int8Export(path=path, runtime=runtime) if same else None
