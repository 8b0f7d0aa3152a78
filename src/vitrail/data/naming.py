"""The names of data sets: that of their folder, or of the one above if that is only a generic word for data."""

from pathlib import Path

# Names that reveal nothing about a folder or a table, and folders that are never named after data.
GENERIC = frozenset(
    {"data", "dataset", "datasets", "images", "imgs", "pictures", "photos", "train", "training", "test", "val"}
    | {"labels", "annotations", "metadata", "extracted", "unzipped", "download", "downloads"}
)
ELSEWHERE = frozenset({"", "tmp", "home", "root", "mnt", "media", "users", "content", "workspace", "work"})


def name_after(path: Path) -> str:
    """The name of data in a folder or a file: `flowers` for flowers/dataset and for flowers/labels.csv."""
    own = path.absolute()
    first = own.stem if own.is_file() else own.name
    if first.lower() not in GENERIC:
        return first
    for folder in own.parents:
        if folder.name.lower() in ELSEWHERE:
            break
        if folder.name.lower() not in GENERIC:
            return folder.name
    return first
