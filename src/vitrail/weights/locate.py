"""Where a model is: a path, a run folder, a bundled name, `hf://owner/name[@revision]`, or `google://NAME`.

A source is parsed once, by `locate`; its result is passed on. This reads and downloads nothing.
"""

from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import WeightsError
from vitrail.weights import bundled
from vitrail.weights.hub import check_address, download, find_path
from vitrail.weights.layout import (
    CHECKPOINT_SUFFIXES,
    EXPORTS,
    WEIGHTS_IN_FOLDERS,
    check_suffix,
    find_export,
    find_files,
)

RUN_CONFIG = "config.yaml"  # in the folder of a training run


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
    if isinstance(source, str) and text in bundled.NAMES:  # for a folder of that name, write ./cifar10
        return Located(name=text, path=bundled.bundled_path(text))
    path = find_path(text)
    if path.is_dir() and is_run(path) and not (path / "weights" / "best.safetensors").is_file():
        raise WeightsError(f"the training run {text} has no weights yet: its first epoch has not ended.")
    if allow_export and (export := find_export(path)):
        return Located(name=text, path=export)
    for file in find_files(path):
        check_suffix(file, allow_pickle)
    return Located(name=text, path=path)


def names_model(text: str) -> bool:
    """Whether a text is a model's by its looks: an address, a bundled name, a suffix, or a folder that holds one."""
    if text in bundled.NAMES or text.startswith(("hf://", "google://")):
        return True
    if Path(text).suffix.lower() in CHECKPOINT_SUFFIXES | EXPORTS.keys():
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
