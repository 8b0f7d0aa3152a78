"""Pictures inside .tar and .parquet files, found without reading them all, and read by where they are.

Such files are not trusted: what a header claims is checked before it is believed.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import PurePosixPath
from threading import Lock
from typing import Any, cast

from vitrail.data.pixels import is_picture_name
from vitrail.data.sources.parquet import FREE_BYTES, FREE_ROWS, MAX_RATIO, ROWS_PER_BYTE
from vitrail.data.sources.table import COLUMNS
from vitrail.errors import DataError, VitrailError, list_names
from vitrail.files import load_pyarrow
from vitrail.storage import Store, open_file_store
from vitrail.untrusted import files_of, open_tar

BLOCK = 512  # bytes of a tar file's
TABLES_KEPT = 4  # open at a time
ENCODED = ("binary", "large_binary", "struct", "dictionary<values=binary")  # types of columns that hold pictures


def tar_pictures(store: Store, name: str) -> Iterator[tuple[str, int, int]]:
    """The name, first byte and size of each visible picture in an uncompressed tar file."""
    size, where = store.state(name).size, store.path(name)
    with store.open(name) as file, open_tar(file, where, 2 * size + BLOCK) as archive:
        for entry in files_of(archive):
            hidden = any(part.startswith(".") and part != ".." for part in PurePosixPath(entry.name).parts)
            if is_picture_name(entry.name) and not hidden:
                if entry.offset_data + entry.size > size:
                    raise DataError(f"{where}: truncated at {size:,} bytes; fetch or write it again.")
                yield entry.name, entry.offset_data, entry.size


@lru_cache(maxsize=TABLES_KEPT)
def open_table(file: str) -> "PictureTable":
    """A Parquet table by its path or address."""
    return PictureTable(*open_file_store(file))


class PictureTable:
    """A Parquet table with a column of encoded pictures, or of paths to them; several threads may read it."""

    def __init__(self, store: Store, name: str) -> None:
        self.where = store.path(name)
        self._store, self._name = store, name
        _, self._parquet = load_pyarrow("A Parquet table")
        size = store.state(name).size
        with self._opened() as file:
            schema, self._metadata = file.schema_arrow, file.metadata
        groups = [self._metadata.row_group(index) for index in range(self._metadata.num_row_groups)]
        kinds = {name: str(schema.field(name).type) for name in COLUMNS["picture"] if name in schema.names}
        if not kinds:
            has, known = list_names(schema.names, 20), ", ".join(COLUMNS["picture"])
            raise DataError(f"{self.where}: the column of pictures must be one of {known}; the table has {has}.")
        encoded = [name for name, kind in kinds.items() if kind.startswith(ENCODED)]
        self._column = next(iter(encoded or kinds))
        if not encoded:
            kind = kinds[self._column]
            hint = "pass its paths with `list_file=`" if "string" in kind else "encode them"
            raise DataError(f"{self.where}: {self._column} must hold encoded pictures; it holds {kind[:100]}: {hint}.")
        self.num_rows = sum(group.num_rows for group in groups)
        if not 0 <= self.num_rows <= FREE_ROWS + ROWS_PER_BYTE * size:
            raise DataError(f"{self.where}: {self.num_rows:,} rows cannot be in {size:,} bytes: refused.")
        if any(group.total_byte_size > max(FREE_BYTES, MAX_RATIO * size) for group in groups):
            raise DataError(f"{self.where}: unpacks to far more than its {size:,} bytes: refused.")
        self._ends = list(accumulate(group.num_rows for group in groups))
        self._lock = Lock()
        self._group: tuple[int, Any] = (-1, None)

    def pictures(self, rows: Sequence[int]) -> list[bytes | OSError]:
        """The pictures in some rows, which are read one after the other: threads that alternate would read in vain."""
        with self._lock:
            return [self._picture(row) for row in rows]

    def _picture(self, row: int) -> bytes | OSError:
        group = bisect_right(self._ends, row)
        if self._group[0] != group:
            self._group = group, self._read(group)
        value = self._group[1][row - (self._ends[group - 1] if group else 0)].as_py()
        if isinstance(value, dict):  # a struct of bytes and path, as the `datasets` library writes pictures
            value = cast("dict[str, Any]", value).get("bytes")
        return value if isinstance(value, bytes) else OSError("the row has no picture")

    def _read(self, group: int) -> Any:
        with self._opened(metadata=self._metadata) as file:
            return file.read_row_group(group, columns=[self._column]).column(0)

    @contextmanager
    def _opened(self, **options: Any) -> Generator[Any]:
        """The file, which is not kept open."""
        try:
            with self._store.open(self._name) as file:
                yield self._parquet.ParquetFile(file, **options)
        except (VitrailError, FileNotFoundError):
            raise
        except Exception as error:  # a hostile file can make pyarrow raise anything
            raise DataError(f"{self.where}: not a readable Parquet table ({str(error)[:300]}).") from None
