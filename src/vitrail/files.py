"""Files written whole or not at all."""

import hashlib
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """A temporary path beside `path` for a new file or folder, which replaces `path` in one step if all goes well.

    A file never replaces a folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        draft = workshop / path.name
        yield draft
        if path.is_dir():  # only files can be replaced in one step; a folder is moved away first
            if not draft.is_dir():
                raise IsADirectoryError(EISDIR, "a file would replace a folder", str(path))
            path.replace(workshop / "old")
        try:
            draft.replace(path)
        except OSError:
            if (workshop / "old").exists():
                (workshop / "old").replace(path)
            raise
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
