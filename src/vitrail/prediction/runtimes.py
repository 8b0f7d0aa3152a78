"""The table of runtimes: which one runs a located source. A new one is a file of its own, and a line here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vitrail.device import pick_device
from vitrail.errors import WeightsError
from vitrail.model.config import Pair
from vitrail.prediction.runtime import Runtime, TorchRuntime
from vitrail.weights.adapt import Kernel, adapt
from vitrail.weights.checkpoint import Facts
from vitrail.weights.class_names import ClassNames
from vitrail.weights.infer import Hints
from vitrail.weights.locate import CHECKPOINT_SUFFIXES, Located
from vitrail.weights.opening import open_checkpoint


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What `vitrail.load` takes beside the source; its docstring explains each."""

    num_classes: int | None = None
    classes: Sequence[str] | None = None
    image_size: int | Pair | None = None
    channels: int | None = None
    drop_representation: bool | None = None
    resample: Kernel | None = None
    hints: Hints | None = None
    class_names: ClassNames | None = None
    dtype: torch.dtype | None = torch.float32
    device: str | torch.device = "cpu"
    verify: bool = True


@dataclass(frozen=True, kw_only=True)
class RuntimeKind:
    """One way to compute: the sources that it runs, and how it opens one."""

    name: str
    suffixes: frozenset[str]  # of files; "" is a folder or an address
    open: Callable[[Located, LoadOptions], tuple[Runtime, Facts]]


def open_torch(located: Located, options: LoadOptions) -> tuple[Runtime, Facts]:
    """A checkpoint of any format, adapted and built in torch."""
    device = pick_device(options.device)
    checkpoint = open_checkpoint(located, hints=options.hints, class_names=options.class_names, verify=options.verify)
    classes = options.classes
    asked = options.num_classes if classes is None else len(classes)
    new_head = asked not in (None, checkpoint.config.num_classes)
    if classes is not None and checkpoint.classes is not None:
        new_head = set(classes) != set(checkpoint.classes)
    checkpoint = adapt(
        checkpoint,
        num_classes=options.num_classes,
        classes=classes,
        image_size=options.image_size,
        channels=options.channels,
        drop_representation=new_head if options.drop_representation is None else options.drop_representation,
        resample=options.resample,
    )
    model = checkpoint.build(options.dtype).to(device)
    return TorchRuntime(model, checkpoint.extras), Facts(**checkpoint.facts())


RUNTIMES = (RuntimeKind(name="torch", suffixes=CHECKPOINT_SUFFIXES | {""}, open=open_torch),)


def open_runtime(located: Located, options: LoadOptions) -> tuple[Runtime, Facts]:
    """The runtime for a located source, and the facts that belong to the model."""
    for kind in RUNTIMES:
        if located.suffix in kind.suffixes:
            return kind.open(located, options)
    names = ", ".join(kind.name for kind in RUNTIMES)
    raise WeightsError(f"{located.name} ends in {located.suffix}, which no runtime of this version opens ({names}).")
