"""What the arguments of a call mean, decided once: the model, the pictures, the data and the runtime."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from vitrail.data.pixels import Picture, is_tensor
from vitrail.errors import ConfigError, InputError
from vitrail.prediction.inputs import (
    STDIN,
    check_pictures,
    count_pictures,
    find_pictures,
    first_pictures,
    name_paths,
    read_list,
    stands_for_several,
)
from vitrail.prediction.predictor import Named, Predictor, load, torch_runtime_of
from vitrail.prediction.results import is_one
from vitrail.progress import say_line, working
from vitrail.registry import EXPORTS, PrecisionChoice, RuntimeChoice
from vitrail.runtimes.runtime import check_wanted, is_converted
from vitrail.weights.metadata import ClassNames
from vitrail.weights.resolve import DEFAULT_MODEL, is_run, is_run_or_weights, locate, names_model

if TYPE_CHECKING:
    import torch


def tell_pictures(arguments: Sequence[str], model: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The model and the pictures: the first argument is the model if it looks like one, unless `model` names it."""
    pictures = tuple(arguments)
    if model is None:
        model = DEFAULT_MODEL
        if pictures and _is_model(pictures[0]):
            model, pictures = pictures[0], pictures[1:]
    for name in pictures:
        if is_run_or_weights(name):
            what = "training run" if is_run(Path(name)) else "checkpoint"
            raise InputError(f"{name} is a {what}, not a picture; the model comes first, and only one is used.")
    locate(model, allow_export=True)
    check_pictures(pictures)
    return model, pictures


def _is_model(text: str) -> bool:
    with suppress(OSError, ValueError):
        return names_model(text) or is_run(Path(text))
    return False


def tell_data(first: str, second: str | None) -> tuple[str, str]:
    """The model and the data from two arguments, or only the data, with the bundled model."""
    from vitrail.data.datasets import NAMES as DATA_NAMES  # which loads torch
    from vitrail.data.datasets import check_where

    if second is None:
        if first not in DATA_NAMES and is_run_or_weights(first):
            raise InputError(f"{first} is a model; also name the data to use it on: a folder, a table or a name.")
        model, data = DEFAULT_MODEL, first
    else:
        model, data = first, second
    if second is not None and data not in DATA_NAMES and is_run_or_weights(data) and not _is_model(model):
        raise InputError(f"the model comes first, then the data; got {model} and {data}, which is a model.")
    locate(model, allow_export=True)
    if data not in DATA_NAMES and is_run_or_weights(data):
        raise InputError(f"{data} is a model, not data; name a folder of pictures, a table or a data set.")
    check_where(data)
    return model, data


def check_standard_input(pictures: Sequence[str], list_file: str | None) -> None:
    """Standard input can be read only once."""
    if not pictures and list_file is None:
        raise InputError("name at least one picture, folder or pattern; - is a picture on standard input.")
    if list(pictures).count(STDIN) + (list_file == STDIN) > 1:
        raise InputError("standard input can be read only once: it is either one picture or a list of paths.")
    if list_file is not None and list_file != STDIN and not Path(list_file).is_file():
        raise InputError(f"{list_file}: there is no such list of pictures.")


@dataclass(frozen=True, kw_only=True)
class RuntimeRequest:
    """What a user asked a job to run on."""

    runtime: RuntimeChoice = "auto"
    precision: PrecisionChoice = "float32"
    merge: int | Sequence[int] | None = None
    preprocess: str | None = None  # of another tool's export, which does not say how its pictures are prepared

    def check(self, model: Predictor | str | Path, device: object = "auto") -> None:
        """Refuse what this model cannot have, before it is loaded; a loaded one is used as it is."""
        if not isinstance(model, Predictor):
            check_wanted(locate(model, allow_export=True), self.runtime, self.precision, device)
        elif names := self.given():
            raise ConfigError(
                f"{' and '.join(f'`{name}=`' for name in names)} cannot change a loaded model; pass it to vitrail.load "
                "instead."
            )

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, by name."""
        usual = RuntimeRequest()
        return {name: value for name, value in vars(self).items() if value != getattr(usual, name)}

    def unmeasured(self) -> "RuntimeRequest":
        """The same where nothing may be measured: instead of auto, torch and float32."""
        runtime: RuntimeChoice = "torch" if self.runtime == "auto" else self.runtime
        return replace(self, runtime=runtime, precision="float32" if self.precision == "auto" else self.precision)

    def open(
        self, source: str | Path, class_names: ClassNames | None = None, device: "str | torch.device" = "auto"
    ) -> Predictor:
        """The model before its job is known: a checkpoint on torch, an export as it will run."""
        opened = partial(load, source, class_names=class_names, merge=self.merge, preprocess=self.preprocess)
        if locate(source, allow_export=True).suffix in EXPORTS:
            return opened(runtime=self.runtime, precision=self.precision, device=device)
        device = "cpu" if is_converted(self.runtime) else device
        return opened(device=device)

    def put(
        self, predictor: Predictor, count: int | None, pictures: Iterable[Picture] = (), *, speaks: bool = False
    ) -> Predictor:
        """The model on what suits a job of `count` pictures, of which `pictures` are some; None: nobody knows."""
        if torch_runtime_of(predictor.runtime) is None:
            return predictor
        notes: list[str] = []
        with working("finding the fastest runtime", speaks=speaks):
            chosen = predictor.on(self.runtime, self.precision, count=count, pictures=pictures, say=notes.append)
        if notes and speaks:
            say_line(notes[0])
        return chosen


Pictures = Picture | Iterable[Picture]


def stream_pictures(pictures: Pictures | None, list_file: str | Path | None = None) -> Iterator[Named]:
    """Names and pictures, in order, then those of the list; a folder or a pattern stands for all its pictures.

    In a sequence, a name that stands for nothing is an error before the first picture is read. The list may name some
    that are not there.
    """
    given: Iterable[Picture] = ()
    alone = pictures is not None and is_one(pictures)
    if pictures is not None:
        given = [cast("Picture", pictures)] if alone else cast("Iterable[Picture]", pictures)
    file = None if list_file is None else str(list_file)
    if isinstance(given, Sequence):
        names = [str(picture) for picture in given if isinstance(picture, str | Path)]
        if len(names) == len(given):
            check_standard_input(names, file)
        check_pictures(names)

    def everything() -> Iterator[Named]:
        for place, picture in enumerate(given):
            if isinstance(picture, str | Path):
                yield from find_pictures([str(picture)])
            else:
                yield "picture" if alone else f"picture {place}", picture
        if file is not None:
            yield from name_paths(read_list(file))

    return everything()


def size_up(pictures: Pictures | None, list_file: str | Path | None) -> tuple[int | None, Iterable[Picture]]:
    """How many pictures there are, None for a stream, and the first of them."""
    file = None if list_file is None else str(list_file)
    several: Iterable[Picture] = ()
    if pictures is not None:
        several = [cast("Picture", pictures)] if is_one(pictures) else cast("Iterable[Picture]", pictures)
    if not isinstance(several, Sized):
        return None, ()
    names = [str(picture) for picture in several if isinstance(picture, str | Path)]
    others = [picture for picture in several if not isinstance(picture, str | Path)]
    count = count_pictures(names, file)
    return None if count is None else count + len(others), chain(others, first_pictures(names, file))


def gather_pictures(pictures: Pictures) -> dict[str, Picture]:
    """Name → picture, all of them at once; a path that is named twice counts once."""
    listed = pictures if is_one(pictures) else list(cast("Iterable[Picture]", pictures))
    gathered = dict(stream_pictures(listed))
    for name, picture in gathered.items():
        if not (isinstance(picture, str | Path | bytes | Image.Image | np.ndarray) or is_tensor(picture)):
            raise InputError(f"{name} must be a path, bytes, PIL, array or tensor; got {type(picture)}.")
    return gathered


def is_single(pictures: Pictures) -> bool:
    """Whether the argument is one picture, rather than several or a name that stands for several."""
    return is_one(pictures) and not (isinstance(pictures, str | Path) and stands_for_several(str(pictures)))
