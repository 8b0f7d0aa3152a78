"""What computes: prepared pictures in, logits or features out, as arrays; and what opens a source. Needs no torch."""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np

from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, WeightsError
from vitrail.threads import cores_of_this_thread, start_workers
from vitrail.weights.metadata import Metadata
from vitrail.weights.resolve import CHECKPOINT_SUFFIXES, EXPORTS, Located

if TYPE_CHECKING:
    import torch

    from vitrail.model.config import Pair
    from vitrail.weights.adapt import Kernel
    from vitrail.weights.infer import Hints
    from vitrail.weights.metadata import ClassNames


Floats = np.ndarray[Any, np.dtype[np.float32]]

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


def batch_for(tokens: int) -> int:
    """How many pictures of so many tokens suit one call on one core."""
    return max(1, min(LARGEST_BATCH, TOKENS_PER_CALL // max(tokens, 1)))


TOKENS_PER_SHARE = 512  # at least: with fewer, waking the threads costs more than it gains


def compute_divided(compute: Callable[[Floats], Sequence[Floats]], images: Floats, tokens: int) -> Sequence[Floats]:
    """The outputs of `compute` for pictures of so many tokens, (B, …) each."""
    count = cores_of_this_thread()
    if count < 2 or len(images) < count or len(images) * tokens < count * TOKENS_PER_SHARE:
        return compute(images)
    workers = _workers(count, "torch" in sys.modules, os.getpid())
    shares = list(workers.map(compute, np.array_split(images, count)))
    return [np.concatenate(rows) for rows in zip(*shares, strict=True)]


@cache
def _workers(count: int, with_torch: bool, process: int) -> ThreadPoolExecutor:
    """Threads with a core each.

    Those that began before torch was loaded do not hold it to their core, and a forked process has none of its parent's
    threads: both need new ones.
    """
    return start_workers(count)


Precision = Literal["float32", "bf16"]
Numbers = Literal["float32", "bf16", "int8"]  # in which a runtime computes; int8 is made by an export
PrecisionChoice = Literal["float32", "bf16", "auto"]
RuntimeName = Literal["torch", "onnx", "openvino"]
RuntimeChoice = Literal["auto", "torch", "onnx", "openvino"]


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


@dataclass(frozen=True, kw_only=True)
class RuntimeKind:
    """One way to compute: the sources that it runs, and what opens one: a function `open_source` in its module."""

    key: RuntimeName  # as users ask for it
    name: str
    suffixes: frozenset[str]  # of files; "" is a folder or an address
    module: str

    @property
    def open(self) -> Callable[[Located, LoadOptions], tuple[Runtime, Metadata]]:
        return import_module(self.module).open_source


RUNTIMES = (
    RuntimeKind(
        key="torch", name="torch", suffixes=CHECKPOINT_SUFFIXES | {""}, module="vitrail.runtimes.torch_runtime"
    ),
    RuntimeKind(key="onnx", name="ONNX Runtime", suffixes=frozenset({".onnx"}), module="vitrail.runtimes.onnx_runtime"),
    RuntimeKind(
        key="openvino", name="OpenVINO", suffixes=frozenset({".xml"}), module="vitrail.runtimes.openvino_runtime"
    ),
)


def label_of(runtime: RuntimeName, precision: Numbers) -> str:
    """What people call one way to compute."""
    name = next(kind.name for kind in RUNTIMES if kind.key == runtime)
    return name if precision == "float32" else f"{name} in {precision}"


def open_runtime(located: Located, options: LoadOptions) -> tuple[Runtime, Metadata]:
    """The runtime for a located source, and the facts that belong to the model."""
    if located.suffix == ".pt2":
        raise WeightsError(
            f"{located.name} is a program of torch.export, and reading one can run code that is hidden in it, so we "
            "never load it; if you trust it: torch.export.load(path).module(). Or load the checkpoint itself."
        )
    for kind in RUNTIMES:
        if located.suffix in kind.suffixes:
            return kind.open(located, options)
    names = ", ".join(kind.name for kind in RUNTIMES)
    raise WeightsError(f"{located.name} ends in {located.suffix}, which no runtime of this version opens ({names}).")


def check_wanted(located: Located, runtime: str | None, precision: str, device: object = "auto") -> None:
    """Refuse a runtime or a precision that a located source cannot have, before it is opened."""
    for name, value, known in (
        ("runtime", runtime, (None, *get_args(RuntimeChoice))),
        ("precision", precision, get_args(PrecisionChoice)),
    ):
        if value not in known:
            raise ConfigError(f"must be one of {', '.join(filter(None, known))}; got {value!r}.", field=name)
    if located.suffix in EXPORTS:
        kind = next((kind for kind in RUNTIMES if located.suffix in kind.suffixes), None)
        if kind is not None and runtime not in (None, "auto", kind.key):
            raise ConfigError(
                f"{located.name} is an export for {kind.name} and runs there: `runtime=` must be {kind.key} or auto; "
                f"got {runtime!r}. For another runtime, name the checkpoint."
            )
        if precision == "auto":
            raise ConfigError(f'{located.name} is an export: `precision="auto"` is for checkpoints.')
        return
    if runtime not in ("onnx", "openvino"):
        return
    if runtime == "onnx" and precision == "bf16":
        raise ConfigError('ONNX Runtime computes in float32: `precision="bf16"` goes with torch and openvino.')
    if str(device) not in ("auto", "cpu"):
        raise ConfigError(
            f'`runtime={runtime!r}` runs on the processor: `device=` must be auto or cpu; got "{device}".'
        )
    from vitrail.runtimes.exporter import check_exportable

    check_exportable(runtime)


# What an export can still be told when it is loaded; everything else is settled inside it.
FOR_EXPORTS = {"class_names", "preprocess", "precision", "device", "verify"}


def check_for_export(options: LoadOptions, path: Path) -> None:
    """Refuse options that would have to change a finished graph."""
    if wrong := sorted(options.given().keys() - FOR_EXPORTS):
        names = ", ".join(f"`{name}=`" for name in wrong)
        raise ConfigError(f"{names} cannot change {path}, which is an export; change the checkpoint and export it.")
    if str(options.device) not in ("auto", "cpu"):
        raise ConfigError(f'an export runs on the processor: device must be "auto" or "cpu"; got "{options.device}".')
