"""Which of several arguments is the model and which are pictures or data; anything else is an error at once."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vitrail.errors import InputError
from vitrail.prediction.pictures import STDIN, check_pictures
from vitrail.weights.bundled import DEFAULT
from vitrail.weights.locate import is_run, is_run_or_weights, locate, names_model


def tell_pictures(arguments: Sequence[str], model: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The model and the pictures: the first argument is the model if it looks like one, unless `model` names it."""
    pictures = tuple(arguments)
    if model is None:
        model = DEFAULT
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
    from vitrail.data.opening import NAMES as DATA_NAMES  # which loads torch
    from vitrail.data.opening import check_where

    if second is None:
        if first not in DATA_NAMES and is_run_or_weights(first):
            raise InputError(f"{first} is a model; also name the data to use it on: a folder, a table or a name.")
        model, data = DEFAULT, first
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
