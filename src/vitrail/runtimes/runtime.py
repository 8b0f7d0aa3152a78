"""What computes: prepared pictures in, logits or features out, as arrays; and what opens a source. Needs no torch."""

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

import numpy as np

from vitrail.data.pixels import Array, Floats
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, WeightsError
from vitrail.registry import EXPORTS, RUNTIMES, Precision, PrecisionChoice
from vitrail.threads import cores_of_this_thread, start_workers
from vitrail.weights.metadata import Metadata
from vitrail.weights.resolve import CHECKPOINT_SUFFIXES, Located

if TYPE_CHECKING:
    import torch

    from vitrail.model.parts import Pair
    from vitrail.runtimes.exporter import Exported
    from vitrail.runtimes.int8 import Quantizer
    from vitrail.runtimes.manifest import GraphFile
    from vitrail.runtimes.torch_runtime import TorchRuntime
    from vitrail.weights.hints import Kernel
    from vitrail.weights.infer import Hints
    from vitrail.weights.metadata import ClassNames


Run = Callable[[Array], Sequence[Floats]]  # one batch, as a graph takes it → its outputs in their order

# Tokens per call: enough rows for a matrix product to run at full speed on one core, and few enough that even some
# dozens of pictures keep all cores busy and that every thread's activations stay small.
TOKENS_PER_CALL = 4096
LARGEST_BATCH = 64


class Runtime(Protocol):
    """What a `Predictor` needs. Several threads call it at once.

    A call in one of our worker threads takes one core, a call from elsewhere all of them (`threads.py`).
    """

    name: str  # for people: "torch", "ONNX Runtime", "OpenVINO"

    @property
    def threads(self) -> int:
        """How many threads should prepare pictures and call at once to keep the machine busy."""
        ...

    @property
    def batch_size(self) -> int:
        """How many pictures one call should get."""
        ...

    @property
    def num_classes(self) -> int:
        """How many logits a picture gets; 0 for a model without a head."""
        ...

    def grid_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches of a prepared picture of this height and width."""
        ...

    def logits(self, images: Floats) -> Floats:
        """(B, C, H, W), as the preprocessing makes them → (B, classes)."""
        ...

    def features(self, images: Floats) -> Floats:
        """(B, C, H, W) → (B, D), what the head sees."""
        ...

    @property
    def has_features(self) -> bool:
        """Whether it can give them: a foreign export gives logits only."""
        ...

    def logits_and_features(self, images: Floats) -> tuple[Floats, Floats]:
        """Both, for the work of one."""
        ...


def answers_of(runtime: Runtime) -> Callable[[Floats], Floats]:
    """Logits, or features where there is no head."""
    return runtime.logits if runtime.num_classes else runtime.features


def batch_for(tokens: int) -> int:
    """How many pictures of `tokens` each suit one call on one core."""
    return max(1, min(LARGEST_BATCH, TOKENS_PER_CALL // max(tokens, 1)))


TOKENS_PER_SHARE = 512  # at least: with fewer, waking the threads costs more than it gains


def compute_divided(compute: Callable[[Floats], Sequence[Floats]], images: Floats, tokens: int) -> Sequence[Floats]:
    """The outputs of `compute`, (B, …) each, for pictures of `tokens` each: every core computes its own share.

    That is faster than all cores working on every product together, which wait for each other after each step, as long
    as the shares are large enough to fill a core by themselves.
    """
    count = cores_of_this_thread()
    if count < 2 or len(images) < count or len(images) * tokens < count * TOKENS_PER_SHARE:
        return compute(images)
    workers = _workers(count, "torch" in sys.modules, os.getpid())
    shares = list(workers.map(compute, np.array_split(images, count)))
    return [np.concatenate(rows) for rows in zip(*shares, strict=True)]


def run_in_pieces(run: Run, images: Floats, size: int) -> Sequence[Floats]:
    """Batches of one size only; the last is filled up with its own first pictures."""
    pieces: list[Sequence[Floats]] = []
    for start in range(0, len(images), size):
        piece = images[start : start + size]
        filled = np.resize(piece, (size, *piece.shape[1:])) if len(piece) < size else piece
        pieces.append([rows[: len(piece)] for rows in run(filled)])
    return [np.concatenate(rows) for rows in zip(*pieces, strict=True)]


@cache
def _workers(count: int, with_torch: bool, process: int) -> ThreadPoolExecutor:
    """Threads with a core each.

    Those that began before torch was loaded do not hold it to their core, and a forked process has none of its parent's
    threads: both need new ones.
    """
    return start_workers(count)


@contextmanager
def quietly(*loggers: str) -> Generator[None]:
    """Without the warnings, bars and advice of other people's tools: standard output belongs to our results."""
    levels = {logger: logger.level for logger in map(logging.getLogger, loggers)}
    try:
        for logger in levels:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What `vitrail.load` takes beside the source; its docstring explains each."""

    num_classes: int | None = None
    classes: Sequence[str] | None = None
    image_size: "int | Pair | None" = None
    channels: int | None = None
    drop_representation: bool | None = None
    resample: "Kernel | None" = None
    hints: "Hints | None" = None
    merge: int | Sequence[int] | None = None
    class_names: "ClassNames | None" = None
    preprocess: Preprocess | str | None = None
    precision: Precision = "float32"
    device: "str | torch.device" = "cpu"
    verify: bool = True

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        plain = LoadOptions()
        return {name: value for name, value in vars(self).items() if value != getattr(plain, name)}


class Backend(Protocol):
    """What the module of a runtime offers, beside its value in the registry."""

    def open_source(self, located: Located, options: LoadOptions) -> tuple[Runtime, Metadata]:
        """What runs a located checkpoint or export, and the facts that belong to the model."""
        ...

    def convert(self, own: "TorchRuntime", graph: "Callable[[], GraphFile]", precision: Precision) -> Runtime:
        """A model in torch on this runtime; `graph` makes the ONNX file of it, where that is needed."""
        ...

    def write_export(self, exported: "Exported", draft: Path) -> None:
        """Write an export to a draft, which is moved into place later."""
        ...

    def open_draft(self, draft: Path) -> Run:
        """What was just written, or an ONNX file of ours, as it is: to be proven, or measured."""
        ...

    def quantizer(self) -> "Quantizer":
        """What makes its exports in 8 bits, if the registry says that they can be."""
        ...


def backend_of(runtime: str) -> Backend:
    """The module of a registered runtime."""
    return cast("Backend", import_module(RUNTIMES[runtime].module))


def open_runtime(located: Located, options: LoadOptions) -> tuple[Runtime, Metadata]:
    """The runtime for a located source, and the facts that belong to the model."""
    if located.suffix in CHECKPOINT_SUFFIXES or not located.suffix:
        return backend_of("torch").open_source(located, options)
    kind = EXPORTS.get(located.suffix)
    if kind is None:
        names = ", ".join(kind.name for kind in RUNTIMES.values())
        raise WeightsError(f"{located.name} ends in {located.suffix}, which none of the runtimes opens ({names}).")
    if not kind.opens:
        raise WeightsError(
            f"{located.name} is {kind.what}, and reading one can run code that is hidden in it, so we never load it; "
            "if you trust it: torch.export.load(path).module(). Or load the checkpoint itself."
        )
    return backend_of(kind.key).open_source(located, options)


def check_wanted(located: Located, runtime: str | None, precision: str, device: object = "auto") -> None:
    """Refuse a runtime or a precision that a located source cannot have, before it is opened."""
    for name, value, known in (
        ("runtime", runtime, (None, "auto", *RUNTIMES)),
        ("precision", precision, get_args(PrecisionChoice)),
    ):
        if value not in known:
            raise ConfigError(f"must be one of {', '.join(filter(None, known))}; got {value!r}.", field=name)
    if (kind := EXPORTS.get(located.suffix)) is not None:
        if kind.opens and runtime not in (None, "auto", kind.key):
            raise ConfigError(
                f"{located.name} is an export for {kind.name} and runs there: `runtime=` must be {kind.key} or auto; "
                f"got {runtime!r}. For another runtime, name the checkpoint."
            )
        if precision == "auto":
            raise ConfigError(f'{located.name} is an export: `precision="auto"` is for checkpoints.')
        return
    if not is_converted(runtime):
        return
    assert runtime is not None
    kind = RUNTIMES[runtime]
    if precision not in ("auto", *kind.precisions):
        others = [each.key for each in RUNTIMES.values() if precision in each.precisions]
        raise ConfigError(
            f"{kind.name} computes in {' or '.join(kind.precisions)}: `precision={precision!r}` goes with "
            f"{' and '.join(others)}."
        )
    if str(device) not in ("auto", "cpu"):
        raise ConfigError(
            f'`runtime={runtime!r}` runs on the processor: `device=` must be auto or cpu; got "{device}".'
        )
    from vitrail.runtimes.exporter import check_exportable

    check_exportable(runtime)


def is_converted(runtime: str | None) -> bool:
    """Whether a checkpoint is converted for this runtime, which then runs on the processor."""
    return runtime not in (None, "auto", "torch")


# The options that a finished export still takes when it is loaded.
FOR_EXPORTS = {"class_names", "preprocess", "precision", "device", "verify"}


def check_for_export(options: LoadOptions, path: Path) -> None:
    """Refuse options that would have to change a finished graph."""
    if wrong := sorted(options.given().keys() - FOR_EXPORTS):
        names = ", ".join(f"`{name}=`" for name in wrong)
        raise ConfigError(f"{names} cannot change {path}, which is an export; change the checkpoint and export it.")
    if str(options.device) not in ("auto", "cpu"):
        raise ConfigError(f'an export runs on the processor: device must be "auto" or "cpu"; got "{options.device}".')
