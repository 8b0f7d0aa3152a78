"""Files and folders of other kinds than checkpoints that we read: what each is, and what to do about it.

They are known by their suffix, by their first bytes, or by what a folder holds. Needs no torch.
"""

import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any

from vitrail.errors import WeightsError

_ORIGINAL = "name the PyTorch or safetensors checkpoint that it was made from"
_KERAS = (
    "Keras weights (HDF5)",
    "name the PyTorch or safetensors version of the model, which the hub usually has beside it",
)
_FLAX = ("Flax weights", "name the PyTorch or safetensors version of the model, or its .npz")
_PADDLE = ("PaddlePaddle weights", "name the PyTorch or safetensors version of the model")
_TENSORFLOW = ("a TensorFlow checkpoint", "name the PyTorch, safetensors or .npz version of the model")
_GGUF = ("a GGUF file, quantised weights for llama.cpp", _ORIGINAL)
_SHARDS = (
    "a checkpoint of torch.distributed in shards",
    "join them: python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pth",
)
_PICKLE = ("a pickle that may hold anything", "if torch.save wrote it, give it the suffix .pth and convert that")

SUFFIXES: Mapping[str, tuple[str, str]] = {
    ".gguf": _GGUF,
    ".ggml": _GGUF,
    ".h5": _KERAS,
    ".hdf5": _KERAS,
    ".keras": _KERAS,
    ".msgpack": _FLAX,
    ".pdparams": _PADDLE,
    ".pdmodel": _PADDLE,
    ".pdiparams": _PADDLE,
    ".pb": ("a TensorFlow graph", "name the PyTorch, safetensors or .npz version of the model"),
    ".tflite": ("a TensorFlow Lite model", _ORIGINAL),
    ".mlmodel": ("a Core ML model", _ORIGINAL),
    ".mlpackage": ("a Core ML model", _ORIGINAL),
    ".engine": ("a TensorRT engine, made for one GPU", _ORIGINAL),
    ".plan": ("a TensorRT engine, made for one GPU", _ORIGINAL),
    ".distcp": _SHARDS,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
}
STARTS: Mapping[bytes, tuple[str, str]] = {
    b"GGUF": _GGUF,
    b"\x89HDF\r\n\x1a\n": _KERAS,
    b"version https://git-lfs": ("a pointer of Git LFS, not the file itself", "fetch the file with git lfs pull"),
    b"<!DOCTYPE": ("a web page, not the file itself", "download the file behind the page's download button"),
    b"<!doctype": ("a web page, not the file itself", "download the file behind the page's download button"),
    b"<html": ("a web page, not the file itself", "download the file behind the page's download button"),
}
# What a folder without weights that we read may hold, as patterns.
FOLDERS: Mapping[str, tuple[str, str]] = {
    "saved_model.pb": ("a TensorFlow SavedModel", "name the PyTorch, safetensors or .npz version of the model"),
    "adapter_model.*": (
        "a LoRA adapter of PEFT",
        "convert the model that it belongs to, with `adapter=` for this folder",
    ),
    "*.distcp": _SHARDS,
    "zero_to_fp32.py": ("a checkpoint of DeepSpeed in shards", "join them with the zero_to_fp32.py in it"),
    "*/manifest.ocdbt": ("an Orbax checkpoint of JAX", "save its arrays with numpy.savez, as Google's .npz files"),
    "manifest.ocdbt": ("an Orbax checkpoint of JAX", "save its arrays with numpy.savez, as Google's .npz files"),
    "tf_model.h5": _KERAS,
    "*.h5": _KERAS,
    "flax_model.msgpack": _FLAX,
    "*.pdparams": _PADDLE,
    "*.ckpt.index": _TENSORFLOW,
    "*.gguf": _GGUF,
    "optimizer.*": ("the state of a training run without its model's weights", "name the folder of the model"),
}


def refuse_suffix(path: Path) -> None:
    """Raise for a file whose suffix is that of something else than a checkpoint."""
    if path.name.endswith(".index.json"):
        raise WeightsError(f"{path} lists the files of a checkpoint; name the folder with all of them: {path.parent}")
    if path.suffix in (".index", ".meta") or ".data-0000" in path.suffix:
        _refuse(path, *_TENSORFLOW)
    if kind := SUFFIXES.get(path.suffix.lower()):
        _refuse(path, *kind)


def refuse_start(path: Path) -> None:
    """Raise for a file whose first bytes are those of something else than its suffix says."""
    with path.open("rb") as file:
        start = file.read(max(map(len, STARTS)))
    for beginning, kind in STARTS.items():
        if start.startswith(beginning):
            _refuse(path, *kind)


def refuse_folder(folder: Path) -> None:
    """Raise for a folder that holds weights of another kind."""
    for pattern, kind in FOLDERS.items():
        if next(folder.glob(pattern), None) is not None:
            _refuse(folder, *kind)


def _refuse(path: Path, what: str, advice: str) -> None:
    raise WeightsError(f"{path} is {what}, which we do not read; {advice}.")


MAX_STEPS = 1_000_000  # of a pickle that are looked at
_STRINGS = {"BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING"}


def describe_pickle(path: Path) -> str:
    """What a file of torch.save holds instead of weights, and what to do; its instructions are read, and none runs."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                member = next(name for name in archive.namelist() if name.endswith("data.pkl"))
                with archive.open(member) as stream:
                    root, is_model = _outline(stream)
        else:
            with path.open("rb") as stream:
                for _ in range(3):  # what torch wrote before the object itself, until 2020
                    list(pickletools.genops(stream))
                root, is_model = _outline(stream)
    except (ValueError, StopIteration, OSError, zipfile.BadZipFile, NotImplementedError):
        root, is_model = "", False
    if not is_model:
        held = f"an object of {root}" if root else "Python objects"
        return f"it is damaged, or holds {held}, which we never load; save only its state_dict."
    whole = f"a whole model, an object of {root}" if root else "a dictionary with a whole model in it"
    taken = "" if root else "  # then take the model out of it"
    return (
        f"it holds {whole}, and loading that runs code, which we never do. In the code that the model comes from, and "
        "if you trust the file, save its weights by themselves:\n"
        f'    model = torch.load("{path.name}", weights_only=False){taken}\n'
        '    torch.save(model.state_dict(), "weights.pth")'
    )


def _outline(stream: IO[bytes]) -> tuple[str, bool]:
    """The class of a pickled object, "" for a container, and whether a module of torch is in it."""
    steps = islice(pickletools.genops(stream), MAX_STEPS)
    root, steps = _root(steps)
    return root, any(step.name in _STRINGS and argument == "_modules" for step, argument, _ in steps)


def _root(steps: Iterator[tuple[Any, Any, Any]]) -> tuple[str, Iterator[tuple[Any, Any, Any]]]:
    """The class that a pickle begins with, and the rest of its instructions."""
    names: list[str] = []
    for step, argument, _ in steps:
        if step.name == "GLOBAL":
            name = str(argument).replace(" ", ".")
            return "" if name == "collections.OrderedDict" else name, steps
        if step.name == "STACK_GLOBAL":
            return ".".join(names), steps
        if step.name in _STRINGS:
            names.append(str(argument))
        elif step.name not in ("PROTO", "FRAME", "MEMOIZE", "MARK", "BINPUT", "LONG_BINPUT"):
            break
    return "", steps
