"""Who takes part in a benchmark (one model on several runtimes, in several precisions, and in other libraries), and how
it is measured.
"""

import json
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.preprocess import preset
from vitrail.errors import ConfigError, WeightsError, suggest
from vitrail.machine import computes_bf16, processor_name
from vitrail.model import ViTConfig, summarize
from vitrail.model.merging import with_merging
from vitrail.registry import RUNTIMES, Precision, key_of
from vitrail.runtimes.auto import Converter, Way
from vitrail.runtimes.graph_runtime import ExportedRuntime
from vitrail.runtimes.int8_trials import size_of
from vitrail.runtimes.runtime import Floats, LoadOptions, answers_of, open_runtime, run_in_pieces
from vitrail.runtimes.torch_runtime import DTYPES, TorchRuntime
from vitrail.schema import from_dict
from vitrail.threads import cores, num_cores, start_workers
from vitrail.timing import Timing, best_of, repeat, seconds_of, sum_up, take_turns
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.peers import build_peer
from vitrail.weights.resolve import FormatName, locate
from vitrail.weights.write import check_writable, write_checkpoint

ROUNDS = 6  # turns of each
REST = 0.02  # seconds before a turn, in which the threads of the one before fall asleep
# Rows × inner × columns of products as large as those of ViT-B/16 with a batch of 8, and a square one.
PRODUCTS = ((1576, 768, 3072), (1576, 3072, 768), (1024, 1024, 1024))

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One call, and the number of cores that it may take."""

    call: Callable[[], object]
    cores: int


def time_in_turns(
    turns: Mapping[Key, Turn], seconds: float, advance: Callable[[int], None] = lambda _: None, rounds: int = ROUNDS
) -> dict[Key, Timing]:
    """Measure each call for about `seconds` in all, in turns."""
    taken = {key: list[list[float]]() for key in turns}

    def take(key: Key) -> None:
        spent = sum(map(sum, taken[key]))
        if len(taken[key]) < 2 or spent < seconds:  # a call that takes longer than its time has two turns all the same
            time.sleep(REST)
            with cores(turns[key].cores):
                taken[key].append(take_turn(turns[key].call, seconds / rounds))
        advance(1)

    take_turns([partial(take, key) for key in turns], rounds, rotate=True)
    return {key: sum_up(taken[key]) for key in turns}


def take_turn(call: Callable[[], object], seconds: float) -> list[float]:
    """The seconds of each call; the first one wakes the threads and counts only if it takes the whole turn."""
    first = seconds_of(call)
    return [first] if first >= seconds else repeat(call, seconds=seconds)


def measure_gemm_peak(count: int, seconds: float = 1.0) -> float:
    """The most float32 operations per second that matrix products reach here on `count` cores.

    A multiplication and an addition are two. The best of torch's library, NumPy's, and a product for each core by
    itself, which no core has to wait for.
    """
    with_numpy = count == num_cores()  # NumPy always takes them all
    with cores(count), start_workers(count) as workers:
        runs = [run for sizes in PRODUCTS for run in _products(*sizes, workers, count, with_numpy)]
        laps = take_turns([multiply for _, multiply in runs], sys.maxsize, patience=seconds)
    return max(operations / best_of(own).wall for (operations, _), own in zip(runs, laps, strict=True))


def _products(
    rows: int, inner: int, columns: int, workers: ThreadPoolExecutor, count: int, with_numpy: bool
) -> Iterator[tuple[int, Callable[[], object]]]:
    """The operations of a product, and what does it."""
    own = [(torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)) for _ in range(count)]
    operations = 2 * rows * inner * columns

    def multiply(matrices: tuple[Tensor, Tensor, Tensor]) -> None:
        torch.mm(matrices[0], matrices[1], out=matrices[2])

    yield operations, partial(multiply, own[0])
    if with_numpy:
        left, right, out = (matrix.numpy() for matrix in own[0])
        yield operations, lambda: np.matmul(left, right, out=out)
    if count > 1:
        yield operations * count, lambda: list(workers.map(multiply, own))


PRECISIONS: tuple[str, ...] = get_args(Precision)
# Library → the format that it reads, and the suffix of that.
PEERS: dict[str, tuple[FormatName, str]] = {
    "timm": ("timm", ""),
    "transformers": ("hf", ""),
    "torchvision": ("torchvision", ".pth"),
}
Compute = Callable[[Floats], Floats]  # prepared pictures → logits, or features where there is no head


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """What is measured."""

    runtime: str  # torch, onnx, openvino, or a library of PEERS
    precision: str = "float32"
    merge: int = 0  # patches that each block merges away
    compiled: bool = False  # by torch.compile
    export: str = ""  # the file or folder, where it was exported before

    @property
    def is_peer(self) -> bool:
        return self.runtime in PEERS

    @property
    def label(self) -> str:
        """For a table or a figure, without the precision: "onnx, merge 8"."""
        parts = [self.runtime, "compiled" if self.compiled else "", f"merge {self.merge}" if self.merge else ""]
        return ", ".join(part for part in (*parts, Path(self.export).name) if part)


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A contestant, ready to compute."""

    contestant: Contestant
    compute: Compute
    megabytes: float
    macs: int  # that it really computes for one picture; 0 where that is unknown


def check_runtimes(names: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The runtimes to measure: those named, or all that are installed; and the names of the others."""
    for name in names or ():
        if name not in RUNTIMES:
            raise ConfigError(f"unknown runtime {name!r}; {suggest(name, RUNTIMES)}")
    missing = [kind.key for kind in RUNTIMES.values() if not kind.is_installed]
    if names is None:
        return [name for name in RUNTIMES if name not in missing], missing
    if absent := [name for name in names if name in missing]:
        raise ConfigError(f'{", ".join(absent)}: not installed; run: pip install "vitrail[export]"')
    return list(dict.fromkeys(names)), []


def check_precisions(names: Sequence[str] | None) -> list[str]:
    """The precisions to measure: those named, or all that this processor supports natively."""
    for name in names or ():
        if name not in PRECISIONS:
            raise ConfigError(
                f"unknown precision {name!r}; {suggest(name, PRECISIONS)} For int8, export the model and "
                "pass `exports=`"
            )
    if names is None:
        return ["float32", *(["bf16"] if computes_bf16() else [])]
    if "bf16" in names and not computes_bf16():
        raise ConfigError(f"this processor ({processor_name()}) does not compute in bf16; omit that precision.")
    return list(dict.fromkeys(names))


def check_peers(names: Sequence[str], checkpoint: Checkpoint) -> list[str]:
    """The libraries to compare with, each of which must be there and able to hold the model."""
    for name in dict.fromkeys(names):
        if name not in PEERS:
            raise ConfigError(f"unknown library {name!r} in `compare=`; {suggest(name, PEERS)}")
        if find_spec(name) is None:
            raise ConfigError(f'{name} is not installed; run: pip install "vitrail[peers]"')
        kind, suffix = PEERS[name]
        check_writable(as_peer(checkpoint, kind).config, Path(f"model{suffix}"), kind)
    return list(dict.fromkeys(names))


def as_peer(checkpoint: Checkpoint, kind: FormatName) -> Checkpoint:
    """With the resampling and the preprocessing that the library has, which pictures of the model's own size skip."""
    positions = replace(checkpoint.config.positions, resample=cast("Any", kind))
    config = replace(checkpoint.config, positions=positions)
    spec = preset(kind, config.image_size, config.channels)
    return replace(checkpoint, config=config, preprocess=spec, file_format=kind)


def merged(checkpoint: Checkpoint, merge: int) -> Checkpoint:
    """The same weights, merging `merge` patches in each block."""
    return replace(checkpoint, config=with_merging(checkpoint.config, merge)) if merge else checkpoint


class Workshop:
    """Builds the contestants of one checkpoint; a graph is exported once for all runtimes and precisions."""

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self.checkpoint, self.folder = checkpoint, folder
        self._converters: dict[int, Converter] = {}  # by the patches that each block merges

    def build(self, contestant: Contestant) -> Entrant:
        """A contestant, ready to compute; compiling by torch happens at the first call."""
        if contestant.is_peer:
            return self._build_peer(contestant)
        if contestant.merge not in self._converters:
            checkpoint = merged(self.checkpoint, contestant.merge)
            self._converters[contestant.merge] = Converter(TorchRuntime(checkpoint.build()), checkpoint, self.folder)
        converter = self._converters[contestant.merge]
        runtime = converter.open(Way(contestant.runtime, cast("Precision", contestant.precision)))
        if isinstance(runtime, TorchRuntime):
            compute = _forward(contestant, runtime.model) if contestant.compiled else answers_of(runtime)
            return _torch_entrant(contestant, runtime.model, summarize(runtime.model.config).forward_macs, compute)
        return Entrant(
            contestant=contestant,
            compute=answers_of(runtime),
            megabytes=size_of(converter.graph.path) / 1e6,
            macs=summarize(converter.checkpoint.config).forward_macs,
        )

    def _build_peer(self, contestant: Contestant) -> Entrant:
        kind, suffix = PEERS[contestant.runtime]
        path = self.folder / f"{contestant.runtime}{suffix}"
        checkpoint = as_peer(self.checkpoint, kind)
        if not path.exists():
            write_checkpoint(checkpoint, path, kind)
        model = build_peer(checkpoint, path)
        return _torch_entrant(contestant, model, summarize(checkpoint.config).macs, _forward(contestant, model))


def _torch_entrant(contestant: Contestant, model: nn.Module, macs: int, compute: Compute) -> Entrant:
    megabytes = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters()) / 1e6
    return Entrant(contestant=contestant, compute=compute, megabytes=megabytes, macs=macs)


def _forward(contestant: Contestant, model: nn.Module) -> Compute:
    """A plain call of a model in torch, as the users of its library write it."""
    dtype = DTYPES[contestant.precision]
    run = cast("nn.Module", torch.compile(model, dynamic=False)) if contestant.compiled else model

    @torch.inference_mode()
    def compute(images: Floats) -> Floats:
        return run(torch.from_numpy(images).to(dtype)).float().numpy()

    return compute


def open_exports(paths: Sequence[str | Path], weights_sha256: str) -> list[Entrant]:
    """Exports that were made before, each of which must be of the same weights."""
    entrants: list[Entrant] = []
    for path in paths:
        runtime, _ = open_runtime(locate(path, allow_export=True), LoadOptions())
        if not isinstance(runtime, ExportedRuntime):
            raise WeightsError(
                f"takes what `vitrail export` wrote, to run beside the model; {path} is none.", field="exports"
            )
        if runtime.manifest.weights_sha256 != weights_sha256:
            raise WeightsError(f"{path} is not an export of this model: it was made from other weights.")
        entrants.append(export_entrant(runtime, path))
    return entrants


def export_entrant(runtime: ExportedRuntime, path: str | Path) -> Entrant:
    """An export as it was loaded."""
    manifest = runtime.manifest
    merge, macs = _of_config(manifest.config)
    bf16 = runtime.name.endswith(" in bf16")
    contestant = Contestant(
        runtime=key_of(runtime.name), precision="bf16" if bf16 else manifest.precision, merge=merge, export=str(path)
    )
    return Entrant(contestant=contestant, compute=answers_of(runtime), megabytes=size_of(Path(path)) / 1e6, macs=macs)


def _of_config(text: str) -> tuple[int, int]:
    """How many patches each block merges, and the MACs, as an export's own config says; zeros where it has none."""
    facts = json.loads(text)
    if not facts:
        return 0, 0
    config = from_dict(ViTConfig, facts, "config")
    return max(config.merge, default=0), summarize(config).forward_macs


def answer_all(compute: Compute, images: Floats, batch: int) -> Floats:
    """The answers to all pictures, in batches of one size, for torch.compile compiles for each size anew."""
    return run_in_pieces(lambda part: [compute(np.ascontiguousarray(part))], images, batch)[0]
