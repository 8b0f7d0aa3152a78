"""Which files of class folders are the same file: hard links, and symbolic links to one place."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrail.rng import Integers
from vitrail.storage import Disk


def find_links(tree: object, names: Sequence[str]) -> Integers:
    """For each file, the first among all that is the same; itself if there is none, as always in an object store."""
    own = np.arange(len(names))
    if not isinstance(tree, Disk) or not _may_be_linked(tree.folder, names):
        return own
    first: dict[tuple[int, int], int] = {}
    for index, name in enumerate(names):
        try:
            status = (tree.folder / name).stat()
        except OSError:  # a broken link, which is reported when the picture is read
            continue
        own[index] = first.setdefault((status.st_dev, status.st_ino), index)
    return own


def _may_be_linked(folder: Path, names: Sequence[str]) -> bool:
    """Whether there is a symbolic link, or a file's number twice: listings tell both, without a look at each file."""
    numbers: set[int] = set()
    for inside in dict.fromkeys(name.rpartition("/")[0] for name in names):
        with os.scandir(folder / inside) as entries:
            for entry in entries:
                if entry.is_symlink() or entry.inode() in numbers:
                    return True
                numbers.add(entry.inode())
    return False
