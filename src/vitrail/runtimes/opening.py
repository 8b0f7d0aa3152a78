"""The table of runtimes: which one runs a located source. A new one is a file of its own, and its line here.

Needs no torch: a runtime is imported when a source asks for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, WeightsError
from vitrail.runtimes.runtime import Runtime
from vitrail.weights.facts import Facts
from vitrail.weights.layout import CHECKPOINT_SUFFIXES, EXPORTS
from vitrail.weights.locate import Located

if TYPE_CHECKING:
    import torch

    from vitrail.model.config import Pair
    from vitrail.weights.adapt import Kernel
    from vitrail.weights.class_names import ClassNames
    from vitrail.weights.infer import Hints

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
    def open(self) -> Callable[[Located, LoadOptions], tuple[Runtime, Facts]]:
        return import_module(self.module).open_source


RUNTIMES = (
    RuntimeKind(
        key="torch", name="torch", suffixes=CHECKPOINT_SUFFIXES | {""}, module="vitrail.runtimes.torch_opening"
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


def open_runtime(located: Located, options: LoadOptions) -> tuple[Runtime, Facts]:
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
            raise ConfigError(f"{name}= must be one of {', '.join(filter(None, known))}; got {value!r}.")
    if located.suffix in EXPORTS:
        kind = next((kind for kind in RUNTIMES if located.suffix in kind.suffixes), None)
        if kind is not None and runtime not in (None, "auto", kind.key):
            raise ConfigError(
                f"{located.name} is an export for {kind.name} and runs there: runtime= must be {kind.key} or auto; "
                f"got {runtime!r}. For another runtime, name the checkpoint."
            )
        if precision == "auto":
            raise ConfigError(f'{located.name} is an export: precision="auto" is for checkpoints.')
        return
    if runtime not in ("onnx", "openvino"):
        return
    if runtime == "onnx" and precision == "bf16":
        raise ConfigError('ONNX Runtime computes in float32: precision="bf16" goes with torch and openvino.')
    if str(device) not in ("auto", "cpu"):
        raise ConfigError(f'runtime={runtime!r} runs on the processor: device= must be auto or cpu; got "{device}".')
    from vitrail.runtimes.exporting import check_exportable

    check_exportable(runtime)


# What an export can still be told when it is loaded; everything else is settled inside it.
FOR_EXPORTS = {"class_names", "preprocess", "precision", "device", "verify"}


def check_for_export(options: LoadOptions, path: Path) -> None:
    """Refuse options that would have to change a finished graph."""
    if wrong := sorted(options.given().keys() - FOR_EXPORTS):
        names = ", ".join(f"{name}=" for name in wrong)
        raise ConfigError(f"{names} cannot change {path}, which is an export; change the checkpoint and export it.")
    if str(options.device) not in ("auto", "cpu"):
        raise ConfigError(f'an export runs on the processor: device must be "auto" or "cpu"; got "{options.device}".')
