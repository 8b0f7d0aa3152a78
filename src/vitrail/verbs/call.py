"""What the arguments of a call mean, decided once: the model and its runtime, the pictures, the data, the folder.

A verb resolves its arguments first, so that a mistake is an error before anything runs, and passes the result on. Needs
no torch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, cast

from vitrail.data.config import DataConfig
from vitrail.errors import ConfigError, InputError
from vitrail.files import check_run_folder, new_run_folder
from vitrail.machine import check_device, pick_device
from vitrail.progress import say_line, working
from vitrail.registry import EXPORTS, PrecisionChoice, RuntimeChoice
from vitrail.runtimes.runtime import check_wanted
from vitrail.storage import is_address
from vitrail.weights.resolve import DEFAULT_MODEL, Located, is_run, is_run_or_weights, locate, names_model

if TYPE_CHECKING:
    import torch

    from vitrail.data.pixels import Picture
    from vitrail.data.source import Dataset
    from vitrail.prediction import Predictor
    from vitrail.prediction.results import Named
    from vitrail.weights.metadata import ClassNames

Pictures = Union["Picture", "Iterable[Picture]"]
Out = str | Path | bool | None  # the folder to write to; True: the next free runs/VERB-N; None: nothing is written


@dataclass(frozen=True, kw_only=True)
class RuntimeRequest:
    """What a user asked a job to run on."""

    runtime: RuntimeChoice = "auto"
    precision: PrecisionChoice = "float32"
    merge: int | Sequence[int] | None = None
    preprocess: str | None = None  # of another tool's export, which does not say how its pictures are prepared

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, by name."""
        return {name: value for name, value in vars(self).items() if value != getattr(USUAL, name)}

    def unmeasured(self) -> "RuntimeRequest":
        """The same where nothing may be measured: instead of auto, torch and float32."""
        runtime: RuntimeChoice = "torch" if self.runtime == "auto" else self.runtime
        return replace(self, runtime=runtime, precision="float32" if self.precision == "auto" else self.precision)

    def put(
        self, predictor: "Predictor", count: int | None, pictures: "Iterable[Picture]" = (), *, speaks: bool = False
    ) -> "Predictor":
        """The model on what suits a job of `count` pictures, of which `pictures` are some; None: it is not known."""
        if not predictor.in_torch:
            return predictor
        notes: list[str] = []
        with working("finding the fastest runtime", speaks=speaks):
            chosen = predictor.on(self.runtime, self.precision, count=count, pictures=pictures, say=notes.append)
        if notes and speaks:
            say_line(notes[0])
        return chosen


USUAL = RuntimeRequest()


@dataclass(frozen=True, kw_only=True)
class ModelArgument:
    """The model of a call: one that its user has loaded, or a source that was located."""

    loaded: "Predictor | None" = None
    located: Located | None = None
    request: RuntimeRequest = USUAL
    class_names: "ClassNames | None" = None
    device: "str | torch.device" = "auto"

    @property
    def source(self) -> str:
        """Where it is from, as its user named it; "" if that is not known."""
        return self.loaded.source if self.located is None and self.loaded is not None else self.place.name

    @property
    def name(self) -> str:
        """Its name in figures: the last part of its source; of a loaded one, where its weights are from."""
        return (Path(self.place.name).name if self.loaded is None else self.loaded.origin.source) or "model"

    @property
    def place(self) -> Located:
        """Where it is; of a loaded one, where it was when it was loaded."""
        if self.located is None:
            assert self.loaded is not None
            return locate(self.loaded.source, allow_export=True)
        return self.located

    def open(self, *, speaks: bool = False) -> "Predictor":
        """The model before its job is known: a checkpoint on torch, an export as it will run."""
        if self.loaded is not None:
            return self.loaded
        from vitrail.prediction import load

        request = self.request
        how: dict[str, Any] = {"class_names": self.class_names, "merge": request.merge, "device": self.device}
        if self.place.suffix in EXPORTS:
            how |= {"runtime": request.runtime, "precision": request.precision}
        elif request.runtime not in ("auto", "torch"):  # which run on the processor
            how["device"] = "cpu"
        with working(f"loading {self.source}", speaks=speaks):
            return load(self.place, preprocess=request.preprocess, **how)

    def put(
        self, predictor: "Predictor", count: int | None, pictures: "Iterable[Picture]" = (), *, speaks: bool = False
    ) -> "Predictor":
        """The opened model on what suits a job; one that was loaded by its user stays where it is."""
        return predictor if self.loaded is not None else self.request.put(predictor, count, pictures, speaks=speaks)


def resolve_model(
    model: "Predictor | str | Path | None",
    *,
    device: "str | torch.device" = "auto",
    class_names: "ClassNames | None" = None,
    request: RuntimeRequest = USUAL,
    allow_export: bool = True,
) -> ModelArgument:
    """The model of a call, None for the bundled one; what it cannot have, or comes too late for it, is an error."""
    check_device(device)
    if class_names is not None:
        from vitrail.weights.metadata import read_class_names

        read_class_names(class_names)
    if model is None or isinstance(model, str | Path):
        located = locate(DEFAULT_MODEL if model is None else model, allow_export=allow_export)
        if request.given():
            check_wanted(located, request.runtime, request.precision, device)
        return ModelArgument(located=located, request=request, class_names=class_names, device=device)
    own = getattr(model.runtime, "device", None)
    moves = device != "auto" and not (own is not None and own == pick_device(device))
    given = [name for name, changes in (("class_names", class_names is not None), ("device", moves)) if changes]
    if names := [f"`{name}=`" for name in (*given, *request.given())]:
        raise ConfigError(f"{' and '.join(names)} cannot change a loaded model; pass it to vitrail.load instead.")
    return ModelArgument(loaded=model)


@dataclass(frozen=True, kw_only=True)
class PictureArgument:
    """The pictures of a call: any kind of picture, and names that stand for several."""

    given: "Iterable[Picture]" = ()
    alone: bool = False  # the argument was one picture, or one name
    list_file: str | None = None  # a file that names more of them

    @property
    def is_single(self) -> bool:
        """Whether the argument was one picture, rather than several or a name that stands for several."""
        from vitrail.prediction.inputs import stands_for_several

        if not self.alone or self.list_file is not None:
            return False
        (picture,) = self.given
        return not (isinstance(picture, str | Path) and stands_for_several(str(picture)))

    @property
    def is_stream(self) -> bool:
        """Whether they can be read only once: those of a generator, or of a list on standard input."""
        return not isinstance(self.given, Sized) or self.list_file == "-"

    def stream(self) -> "Iterator[Named]":
        """Names and pictures, in order, then those of the list; a folder or a pattern stands for all its pictures."""
        from vitrail.prediction.inputs import find_pictures, name_paths, stream_names
        from vitrail.prediction.listing import read_list

        find = stream_names if isinstance(self.given, Sequence) else find_pictures  # what is checked already, or not
        for place, picture in enumerate(self.given):
            if isinstance(picture, str | Path):
                yield from find([str(picture)])
            else:
                yield "picture" if self.alone else f"picture {place}", picture
        if self.list_file is not None:
            yield from name_paths(read_list(self.list_file))

    def gather(self) -> "dict[str, Picture]":
        """Name → picture, all of them at once; a path that is named twice counts once."""
        import numpy as np
        from PIL import Image

        from vitrail.data.pixels import is_tensor

        gathered = dict(self.stream())
        for name, picture in gathered.items():
            if not (isinstance(picture, str | Path | bytes | Image.Image | np.ndarray) or is_tensor(picture)):
                raise InputError(f"{name} must be a path, bytes, PIL, array or tensor; got {type(picture)}.")
        return gathered

    def size_up(self) -> "tuple[int | None, Iterable[Picture]]":
        """How many pictures there are, None for a stream, and the first of them."""
        from vitrail.prediction.inputs import count_pictures, first_pictures

        if not isinstance(self.given, Sized):
            return None, ()
        names = [str(picture) for picture in self.given if isinstance(picture, str | Path)]
        others = [picture for picture in self.given if not isinstance(picture, str | Path)]
        count = count_pictures(names, self.list_file)
        return None if count is None else count + len(others), chain(others, first_pictures(names, self.list_file))


def resolve_pictures(pictures: Pictures | None, list_file: str | Path | None = None) -> PictureArgument:
    """The pictures of a call; in a sequence, a name that stands for nothing is an error. A list may name such."""
    from vitrail.data.pixels import is_one
    from vitrail.prediction.inputs import check_pictures

    alone = pictures is not None and is_one(pictures)
    file = None if list_file is None else str(list_file)
    given = [cast("Picture", pictures)] if alone else cast("Iterable[Picture]", () if pictures is None else pictures)
    if isinstance(given, Sequence):
        names = [str(picture) for picture in given if isinstance(picture, str | Path)]
        if len(names) == len(given):
            check_standard_input(names, file)
        for name in names:
            if is_run_or_weights(name):
                what = "training run" if is_run(Path(name)) else "checkpoint"
                raise InputError(f"{name} is a {what}, not a picture; the model comes first, and only one is used.")
        check_pictures(names)
    return PictureArgument(given=given, alone=alone, list_file=file)


def check_standard_input(pictures: Sequence[str], list_file: str | None) -> None:
    """Standard input can be read only once."""
    if not pictures and list_file is None:
        raise InputError("name at least one picture, folder or pattern; - is a picture on standard input.")
    if list(pictures).count("-") + (list_file == "-") > 1:
        raise InputError("standard input can be read only once: it is either one picture or a list of paths.")
    if list_file is not None and list_file != "-" and not (is_address(list_file) or Path(list_file).is_file()):
        raise InputError(f"{list_file}: there is no such list of pictures.")


def tell_pictures(arguments: Sequence[str], model: str | None = None) -> tuple[str | None, tuple[str, ...]]:
    """The model and the pictures: the first argument is the model if it looks like one, unless `model` names it."""
    if model is None and arguments and _is_model(arguments[0]):
        return arguments[0], tuple(arguments[1:])
    return model, tuple(arguments)


def _is_model(text: str) -> bool:
    with suppress(OSError, ValueError):
        return names_model(text) or is_run(Path(text))
    return False


@dataclass(frozen=True, kw_only=True)
class DataArgument:
    """The data of a call: a data set that its user has opened, or where one is and how it is opened."""

    config: DataConfig
    opened: "Dataset | None" = None
    where: str | Path = ""

    @property
    def name(self) -> str:
        """As its user named it."""
        return str(self.where) if self.opened is None else self.opened.name

    def open(self, *, speaks: bool = False) -> "Dataset":
        """The data set."""
        if self.opened is not None:
            return self.opened
        from vitrail.data.datasets import open_data

        with working(f"opening {self.where}", speaks=speaks):
            return open_data(self.where, self.config)


def resolve_dataset(data: "Dataset | str | Path", config: DataConfig | None = None) -> DataArgument:
    """The data of a call; a path that does not exist is an error."""
    from vitrail.data.datasets import check_where

    config = config or DataConfig()
    if not isinstance(data, str | Path):
        return DataArgument(opened=data, config=config)
    check_where(data)
    return DataArgument(where=data, config=config)


def refuse_settings(data: object, settings: Mapping[str, Any]) -> None:
    """Refuse settings that come too late for a data set which is open already."""
    if settings and data is not None and not isinstance(data, str | Path):
        names = ", ".join(f"`{name}=`" for name in settings)
        raise ConfigError(f"{names} cannot change an open data set; pass it to vitrail.open_data instead.")


def resolve_data(
    model: "Predictor | str | Path",
    data: "Dataset | str | Path | None",
    config: DataConfig,
    *,
    device: "str | torch.device" = "auto",
    class_names: "ClassNames | None" = None,
    request: RuntimeRequest = USUAL,
) -> tuple[ModelArgument, DataArgument]:
    """The model and the data of a call; a single argument is the data, and the model is then the bundled one."""
    from vitrail.data.datasets import NAMES

    def is_weights(argument: object) -> bool:
        text = str(argument)
        return isinstance(argument, str | Path) and text not in NAMES and is_run_or_weights(text)

    if data is None:
        if is_weights(model) or not isinstance(model, str | Path):
            raise InputError(f"{model} is a model; also name the data to use it on: a folder, a table or a name.")
        model, data = DEFAULT_MODEL, model
    elif is_weights(data) and isinstance(model, str | Path) and not _is_model(str(model)):
        raise InputError(f"the model comes first, then the data; got {model} and {data}, which is a model.")
    argument = resolve_model(model, device=device, class_names=class_names, request=request)
    if is_weights(data):
        raise InputError(f"{data} is a model, not data; name a folder of pictures, a table or a data set.")
    return argument, resolve_dataset(str(data) if isinstance(data, Path) else data, config)


def check_out(out: Out) -> None:
    """Refuse a folder that cannot be written to, before there is work to lose."""
    if out is not None and out is not False:
        check_run_folder(None if out is True else Path(out))


def make_out(out: Out, verb: str) -> Path | None:
    """The folder to write to, if there is one."""
    return None if out is None or out is False else new_run_folder(verb, None if out is True else Path(out))
