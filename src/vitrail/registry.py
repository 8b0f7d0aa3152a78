"""The registry of runtimes and tasks: one value for each says what it can be asked for, and where it is.

It imports nothing, so that the choices of flags and the suffixes of files come from here. What a runtime or a task does
is in a module of its own, which is loaded when it is first needed: `Backend` in `runtimes/runtime.py` and `Task` in
`tasks/task.py` say what that offers. A new runtime is one file: the functions of a `Backend`, and
`register(RuntimeKind(…))`; a new task is one file: its classes, and `register_task(TaskKind(…))`.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

Precision = Literal["float32", "bf16"]
PrecisionChoice = Literal["float32", "bf16", "auto"]
NumberFormat = Literal["float32", "bf16", "int8"]  # in which a runtime computes; int8 is made by an export
GraphPrecision = Literal["float32", "int8"]  # of the numbers in an export


@dataclass(frozen=True, kw_only=True)
class RuntimeKind:
    """One way to compute.

    Attributes:
        key: as users ask for it, in `runtime=` and in `to=` of an export.
        name: for people.
        module: what opens, converts, writes and runs for it: a `Backend`.
        packages: that must be installed: the first runs a model, the others make one from a checkpoint.
        suffix: of the file of an export.
        what: such a file, in messages.
        folder: if an export is a folder, its files; the first is the one with the suffix.
        opens: whether `load` opens its exports; torch's own can run code, so that only checkpoints are opened.
        precisions: the number formats in which it computes a float32 model.
        int8: whether its exports can be in 8 bits.
    """

    key: str
    name: str
    module: str
    packages: tuple[str, ...]
    suffix: str
    what: str
    folder: tuple[str, ...] = ()
    opens: bool = True
    precisions: tuple[Precision, ...] = ("float32",)
    int8: bool = False

    @property
    def is_installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.packages)

    @property
    def path_suffix(self) -> str:
        """Of the path that an export is written to: none for a folder."""
        return "" if self.folder else self.suffix


RUNTIMES: dict[str, RuntimeKind] = {}  # by key, torch first
EXPORTS: dict[str, RuntimeKind] = {}  # by the suffix of exports, which hold a computation instead of weights


def register(kind: RuntimeKind) -> None:
    """Make a runtime known, to the library and, if it is done before the command is built, to the command."""
    RUNTIMES[kind.key] = EXPORTS[kind.suffix] = kind


register(
    RuntimeKind(
        key="torch",
        name="torch",
        module="vitrail.runtimes.torch_runtime",
        packages=("torch",),
        suffix=".pt2",
        what="a program of torch.export",
        opens=False,
        precisions=("float32", "bf16"),
    )
)
register(
    RuntimeKind(
        key="onnx",
        name="ONNX Runtime",
        module="vitrail.runtimes.onnx_runtime",
        packages=("onnxruntime", "onnx", "onnxscript"),
        suffix=".onnx",
        what="an ONNX model",
        int8=True,
    )
)
register(
    RuntimeKind(
        key="openvino",
        name="OpenVINO",
        module="vitrail.runtimes.openvino_runtime",
        packages=("openvino", "onnx", "onnxscript"),
        suffix=".xml",
        what="an OpenVINO model",
        folder=("model.xml", "model.bin"),
        precisions=("float32", "bf16"),
        int8=True,
    )
)


LabelKind = Literal["class", "set", "values", "none"]  # of a picture: an index, 0 or 1 for each label, numbers, nothing


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """One way to label pictures.

    Attributes:
        name: as users ask for it, in `task=`, and as checkpoints store it.
        labels: what the label of a picture is; several tasks may share a kind.
        module: has the task's classes: its `Task` as `TASK`, and its `Trust` as `TRUST`.
    """

    name: str
    labels: LabelKind
    module: str


TASKS: dict[str, TaskKind] = {}  # by name


def register_task(kind: TaskKind) -> None:
    """Make a task known, to the library and, if it is done before the command is built, to the command."""
    TASKS[kind.name] = kind


register_task(TaskKind(name="one", labels="class", module="vitrail.tasks.one"))
register_task(TaskKind(name="several", labels="set", module="vitrail.tasks.several"))
register_task(TaskKind(name="number", labels="values", module="vitrail.tasks.number"))


NO_TASK = "none"  # of pictures without labels, for what needs none; not among the tasks, since nothing answers for it


def labels_of(task: str) -> LabelKind:
    """What the label of a picture is for a task, or for none."""
    return "none" if task == NO_TASK else TASKS[task].labels


def task_of(labels: LabelKind) -> str:
    """The task that is meant by default for such labels: the first that was registered."""
    return next((name for name, kind in TASKS.items() if kind.labels == labels), NO_TASK)


def label_of(runtime: str, precision: NumberFormat) -> str:
    """What people call one way to compute."""
    name = RUNTIMES[runtime].name
    return name if precision == "float32" else f"{name} in {precision}"


def key_of(label: str) -> str:
    """The key of the runtime that has this label; empty for one that is not registered."""
    return next((kind.key for kind in RUNTIMES.values() if kind.name == label.split(" in ")[0]), "")


if TYPE_CHECKING:
    RuntimeName = RuntimeChoice = TaskChoice = str  # any that is registered; with auto
else:

    def __getattr__(name: str) -> Any:
        """Types that list what is registered when they are asked for: the choices of flags and of settings."""
        if name == "RuntimeName":
            return Literal[tuple(RUNTIMES)]
        if name == "RuntimeChoice":
            return Literal[("auto", *RUNTIMES)]
        if name == "TaskChoice":
            return Literal[("auto", *TASKS)]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
