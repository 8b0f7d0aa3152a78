"""Where a model is: a path, a run folder, a bundled name, `hf://owner/name[@revision]`, or `google://NAME`.

A source is parsed once, by `locate`, and its result is passed on. This reads and downloads nothing, and needs no
torch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from vitrail.errors import WeightsError
from vitrail.files import sha256_of
from vitrail.registry import EXPORTS
from vitrail.storage import is_address
from vitrail.weights.addresses import OURS, check_address, download, find_path
from vitrail.weights.filetypes import SUFFIXES, refuse_folder, refuse_suffix
from vitrail.weights.sidecars import read_json

# A new format is a file that defines a `ForeignFormat`, its name here, and its module in `read.py`.
FormatName = Literal[
    "vitrail",
    "google",
    "big_vision",
    "timm",
    "hf",
    "torchvision",
    "dinov2",
    "dinov3",
    "tips",
    "clip",
    "pe",
    "eva",
    "beit",
    "aimv2",
    "lucidrains",
    "tintn",
    "d2l",
]

PICKLES = {".pth", ".pt", ".bin", ".ckpt", ".params"}
CHECKPOINT_SUFFIXES = frozenset({".safetensors", ".npz"} | PICKLES)
EXPERIMENT = "model_final.pt"  # of the from-scratch write-up, whose folder holds its config too
WEIGHTS_IN_FOLDERS = (OURS, "model.safetensors", "pytorch_model.bin", "weights/best.safetensors", EXPERIMENT)
RUN_CONFIG = "config.yaml"  # in the folder of a training run
BUNDLED_FOLDER = Path(__file__).parent / "bundled"
BUNDLED = ("cifar10",)
DEFAULT_MODEL = "cifar10"


def bundled_path(name: str) -> Path:
    """The file of a bundled checkpoint."""
    path = BUNDLED_FOLDER / f"{name}.safetensors"
    if not path.is_file():
        raise WeightsError(
            f"the bundled model {name} is missing from this installation ({path}); reinstall vitrail, "
            "or name a checkpoint: a file, a run folder, hf://owner/name or google://NAME."
        )
    return path


def find_files(source: Path) -> list[Path]:
    """The weight files of a path: itself, or what a folder (of a run, or of the hub) holds."""
    if not source.is_dir():
        if re.search(r"-\d{5}-of-(?!00001)\d{5}\.\w+$", source.name):
            raise WeightsError(
                f"{source} is one of several files of a checkpoint; name the folder with all of them and their index "
                f"(…index.json): {source.parent}"
            )
        return [source]
    for name in WEIGHTS_IN_FOLDERS:
        if (source / name).is_file():
            return [source / name]
        index = source / f"{name}.index.json"
        if index.is_file():
            return _read_index(index)
    arrays = sorted(source.glob("*.npz")) or sorted(source.glob("*.safetensors"))
    if len(arrays) == 1:
        return arrays
    if not arrays:
        refuse_folder(source)
    count = f"{len(arrays)} of them" if arrays else "none"
    raise WeightsError(f"{source} must hold one checkpoint ({', '.join(WEIGHTS_IN_FOLDERS)}); found {count}.")


def _read_index(index: Path) -> list[Path]:
    """The files of a sharded checkpoint, all of which must be beside their index."""
    facts = read_json(index)
    weights: Any = facts.get("weight_map")
    if not isinstance(weights, Mapping) or not weights:
        raise WeightsError(f"{index} must have a weight_map from tensor names to files.")
    names = sorted({str(name) for name in cast("Mapping[Any, Any]", weights).values()})
    for name in names:
        if Path(name).name != name or name.startswith("."):
            raise WeightsError(f"{index} points outside its own folder: {name!r}; we do not follow that.")
    return [index.parent / name for name in names]


def checksums_of(path: str | Path) -> dict[str, str]:
    """File name → sha256 of the weight files of a path."""
    return {file.name: sha256_of(file) for file in find_files(Path(path))}


def find_export(source: Path) -> Path | None:
    """The export that a path means: itself by its suffix, or the one that a folder holds."""
    if source.is_dir():
        files = (source / kind.folder[0] for kind in EXPORTS.values() if kind.folder)
        return next((file for file in files if file.is_file()), None)
    return source if source.suffix.lower() in EXPORTS else None


def files_of(path: Path) -> list[Path]:
    """The files of a checkpoint or an export that decide its answers."""
    export = find_export(path)
    if export is None:
        return find_files(path)
    kind = EXPORTS[export.suffix.lower()]
    return [export.with_suffix(Path(name).suffix) for name in kind.folder or (export.name,)]


def stamps_of(path: Path) -> tuple[tuple[str, int, int, int, int], ...]:
    """When those files last changed; whoever writes to one changes this."""
    stats = [(str(file), file.stat()) for file in files_of(path)]
    return tuple((name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino) for name, stat in stats)


def check_suffix(path: Path, allow_pickle: bool) -> None:
    """Raise unless the name is that of a checkpoint which may be read."""
    if path.suffix in (".safetensors", ".npz"):
        return
    if path.suffix.lower() in EXPORTS:
        raise WeightsError(
            f"{path} is {EXPORTS[path.suffix.lower()].what}, an export that can predict, embed and be evaluated; for "
            "anything else name the checkpoint that it was exported from."
        )
    if path.suffix not in PICKLES:
        refuse_suffix(path)
        raise WeightsError(
            f"{path} must end in .safetensors, .npz, .pth, .pt, .ckpt, .params or .bin to be read as a checkpoint."
        )
    if not allow_pickle:
        raise WeightsError(
            f"{path} is a pickle, which we do not load directly; convert it once: "
            f"vitrail convert {path} {path.with_suffix('.safetensors')}"
        )


@dataclass(frozen=True, kw_only=True)
class Located:
    """A checkpoint or an export that lies on this machine, or a checkpoint that has an address on the hub."""

    name: str  # as the user named it
    path: Path | None  # None: on the hub
    address: str = ""  # owner/name[@revision] on the hub

    @property
    def suffix(self) -> str:
        """Of the file; "" for a folder or an address."""
        return "" if self.path is None or self.path.is_dir() else self.path.suffix.lower()

    @property
    def is_google(self) -> bool:
        """Whether it was named as one of Google's releases, of which the hub has mirrors."""
        return self.name.startswith("google://")

    def fetch(self, allow_pickle: bool = False) -> Path:
        """The path on this machine, downloaded to the hub's own cache if necessary."""
        return download(self.address, allow_pickle) if self.path is None else self.path


def locate(source: str | Path | Located, *, allow_pickle: bool = False, allow_export: bool = False) -> Located:
    """What a source stands for; an error if opening it could only fail."""
    if isinstance(source, Located):
        return source
    text = str(source)
    if address := check_address(text):
        return Located(name=text, path=None, address=address)
    if isinstance(source, str) and text in BUNDLED:  # for a folder of that name, write ./cifar10
        return Located(name=text, path=bundled_path(text))
    path = find_path(text, BUNDLED)
    if path.is_dir() and is_run(path) and not (path / "weights" / "best.safetensors").is_file():
        raise WeightsError(f"the training run {text} has no weights yet: its first epoch has not ended.")
    if allow_export and (export := find_export(path)):
        return Located(name=text, path=export)
    for file in find_files(path):
        check_suffix(file, allow_pickle)
    return Located(name=text, path=path)


def names_model(text: str) -> bool:
    """Whether a text is a model's by its looks: an address, a bundled name, a suffix, or a folder that holds one."""
    if text in BUNDLED or (text.startswith(("hf://", "google://")) and not text.startswith("hf://datasets/")):
        return True
    if is_address(text):  # data in an object store
        return False
    if Path(text).suffix.lower() in CHECKPOINT_SUFFIXES | EXPORTS.keys() | SUFFIXES.keys():
        return True
    try:
        return Path(text).is_dir() and bool(find_export(Path(text)) or find_files(Path(text)))
    except (WeightsError, OSError, ValueError):
        return False


def is_run_or_weights(text: str) -> bool:
    """Whether a text can only be a model, or a training run, and never a picture or a folder of them."""
    path = Path(text)
    if not path.is_dir():
        return names_model(text)
    files = (*WEIGHTS_IN_FOLDERS, *(f"{name}.index.json" for name in WEIGHTS_IN_FOLDERS))
    return any((path / name).is_file() for name in files) or find_export(path) is not None or is_run(path)


def is_run(folder: Path) -> bool:
    """Whether a folder is a training run, with or without weights to use."""
    return (folder / RUN_CONFIG).is_file() and (folder / "weights").is_dir()
