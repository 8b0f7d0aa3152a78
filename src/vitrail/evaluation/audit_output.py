"""What an audit writes to disk: each of its lists as a CSV file for `exclude`, and as a sheet of pictures."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from vitrail.data.sheet import Tile, draw_sheet, load_picture, wrap_tiles
from vitrail.evaluation.audit import Audit, Sample
from vitrail.files import Cell, atomic_path, open_csv
from vitrail.wording import counted

SAMPLE = ("key", "split", "class")  # the first columns of every file
COLUMNS = {
    "labels": ("suggested", "probability", "label_probability"),
    "duplicates": ("likeness", "similarity", "other", "other_split", "other_class"),
    "outliers": ("score", "nearest", "nearest_split", "nearest_class", "similarity"),
}
TILE = 144  # pixels
MOST_TILES = 48  # of a sheet


def write_audit(audit: Audit, folder: Path, *, raw: bool = False) -> list[Path]:
    """Write the CSV files, and sheets of the lists that are not empty; returns the paths."""
    written: list[Path] = []
    for name, rows in {"labels": _label_rows, "duplicates": _duplicate_rows, "outliers": _outlier_rows}.items():
        written.append(folder / f"{name}.csv")
        with atomic_path(written[-1]) as draft, open_csv(draft, (*SAMPLE, *COLUMNS[name]), raw=raw) as write:
            for row in rows(audit):
                write(row)
    for name, draw in {"labels": draw_labels, "duplicates": draw_duplicates, "outliers": draw_outliers}.items():
        if getattr(audit, name):
            written.append(folder / f"{name}.jpg")
            with atomic_path(written[-1]) as draft:
                draw(audit).save(draft, quality=92)
    return written


def _cells(sample: Sample) -> tuple[str, str, str]:
    return sample.key, sample.split, sample.label


def _label_rows(audit: Audit) -> Iterable[Sequence[Cell]]:
    for each in audit.labels:
        yield *_cells(each.sample), each.suggested, f"{each.probability:.6f}", f"{each.label_probability:.3g}"


def _duplicate_rows(audit: Audit) -> Iterable[Sequence[Cell]]:
    for each in audit.duplicates:
        yield *_cells(each.sample), each.likeness, f"{each.similarity:.4f}", *_cells(each.other)


def _outlier_rows(audit: Audit) -> Iterable[Sequence[Cell]]:
    for each in audit.outliers:
        yield *_cells(each.sample), f"{each.score:.3f}", *_cells(each.nearest), f"{each.similarity:.4f}"


def draw_labels(audit: Audit) -> Image.Image:
    """The most suspicious labels: what is suggested instead, and what they are."""
    tiles = [
        _tile(audit, each.sample, f"{each.probability:.0%} {each.suggested}", f"label: {each.sample.label}")
        for each in audit.labels[:MOST_TILES]
    ]
    return _draw(audit, f"{counted(len(audit.labels), 'label')} that may be wrong", tiles, len(audit.labels))


def draw_outliers(audit: Audit) -> Image.Image:
    """The pictures that are most unlike every class."""
    tiles = [
        _tile(audit, each.sample, f"{each.score:.1f} {each.sample.label}", each.sample.split)
        for each in audit.outliers[:MOST_TILES]
    ]
    return _draw(audit, counted(len(audit.outliers), "outlier"), tiles, len(audit.outliers))


def draw_duplicates(audit: Audit) -> Image.Image:
    """Duplicates, each followed by the picture that it repeats."""
    tiles: list[Tile] = []
    for each in audit.duplicates[: MOST_TILES // 2]:
        how = f"{each.likeness}, {each.similarity:.2f}"
        tiles.append(_tile(audit, each.sample, how, f"{each.sample.split} {each.sample.label}"))
        tiles.append(_tile(audit, each.other, "stays", f"{each.other.split} {each.other.label}"))
    return _draw(audit, counted(len(audit.duplicates), "duplicate"), tiles, 2 * len(audit.duplicates))


def _tile(audit: Audit, sample: Sample, *lines: str) -> Tile:
    name = sample.key.rsplit("/", 1)[-1]
    return Tile(load_picture(audit.dataset.splits[sample.split], sample.index), "\n".join([*lines, name]))


def _draw(audit: Audit, what: str, tiles: Sequence[Tile], total: int) -> Image.Image:
    shown = ", the worst of them" if len(tiles) < total else ", the worst first"
    heading = f"{audit.dataset.name}: {what} among {counted(audit.pictures, 'picture')}{shown}"
    return draw_sheet(heading, wrap_tiles("", tiles), smooth=False, tile=TILE)
