"""Parquet files, read without trusting them: two kilobytes may claim a million rows of a million zeros each.

Texts and bytes are read as dictionaries, so that a value that is written once is held once. What is still too much for
the size of its file is refused: by the number of rows before anything is read, and by the bytes while it is read.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

from vitrail.errors import DataError, shorten
from vitrail.files import load_pyarrow
from vitrail.untrusted import check_regular, parse_json

FREE_ROWS, ROWS_PER_BYTE = 100_000, 8  # a row takes at least a bit
FREE_BYTES, MAX_RATIO = 1 << 26, 100  # pictures do not shrink a hundredfold; a few blank ones may
BATCH_ROWS, BATCH_BYTES = 1 << 16, 1 << 26
METADATA = b"huggingface"


class ParquetTable:
    """The columns of one file, read when they are asked for."""

    def __init__(self, path: Path, where: str) -> None:
        self._path = path
        self._where = where  # as users write it
        self._size = check_regular(path)
        self._pa, self._pq = load_pyarrow("A Parquet table")
        self._limit = max(FREE_BYTES, MAX_RATIO * self._size)
        with self._clear_errors():
            file = self._open()
            self.num_rows: int = file.metadata.num_rows
            self._schema: Any = file.schema_arrow
            self.names: list[str] = list(self._schema.names)
        if not 0 <= self.num_rows <= FREE_ROWS + ROWS_PER_BYTE * self._size:
            raise DataError(f"{where}: {self.num_rows:,} rows cannot be in {self._size:,} bytes: refused.")

    def _open(self, **options: Any) -> Any:
        return self._pq.ParquetFile(self._path, **options)

    @contextmanager
    def _clear_errors(self) -> Generator[None]:
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # a hostile file can make pyarrow raise anything
            raise DataError(f"{self._where}: not a readable Parquet table ({str(error)[:300]}).") from None

    def values(self, name: str) -> list[Any]:
        """A column of texts or numbers, or of lists of them; equal texts are one object."""
        types = self._pa.types
        kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_null, _is_text, self._is_list)
        kind = self._check_type(name, kinds, "texts, numbers or lists of texts or whole numbers")
        if self._is_list(kind):
            return self._lists(name)
        with self._clear_errors():
            values = [value for chunk in self._read([name]).chunks for value in _chunk_values(chunk)]
        self._limit_text(name, values)
        return values

    def _is_list(self, kind: Any) -> bool:
        types = self._pa.types
        if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
            return False
        return types.is_integer(kind.value_type) or _is_text(kind.value_type)

    def _lists(self, name: str) -> list[Any]:
        """A column of lists."""
        rows: list[Any] = []
        with self._clear_errors():
            schema = self._open().schema
            paths: list[str] = [schema.column(index).path for index in range(len(schema))]
            leaf = next(path for path in paths if path.startswith(f"{name}."))
            for chunk in self._read([leaf]).chunks:
                if len(chunk.flatten()) > FREE_ROWS + ROWS_PER_BYTE * self._size:
                    raise DataError(f"{self._where}: {name} lists more than {self._size:,} bytes can hold: refused.")
                items = _chunk_values(chunk.flatten())
                self._limit_text(name, items)
                starts = iter(items)
                lengths: list[int | None] = chunk.value_lengths().to_pylist()
                rows += [None if size is None else list(islice(starts, size)) for size in lengths]
        return rows

    def _limit_text(self, name: str, values: list[Any]) -> None:
        total = sum(len(value) for value in values if isinstance(value, str))
        if total > self._limit:
            what = f"{name} unpacks to {total:,} characters"
            raise DataError(f"{self._where}: {what}, too many for {self._size:,} bytes.")

    def pictures(self, name: str) -> Any:
        """A column of encoded pictures, or of structs of bytes and path: an Arrow array, one value per row."""
        types = self._pa.types
        kind = self._check_type(name, (_is_bytes, types.is_struct), "paths or encoded bytes")
        leaves = [name]
        if types.is_struct(kind):
            fields = {field.name: field.type for field in kind}
            leaves = [f"{name}.{part}" for part in ("bytes", "path") if part in fields]
            fitting = all(_is_bytes(fields.get(part)) or _is_text(fields.get(part)) for part in ("bytes", "path"))
            if not leaves or not fitting:
                raise DataError(f"{self._where}: {name} must be a struct of bytes and path; its type is {kind}.")
        with self._clear_errors():
            return self._read(leaves)

    def holds_texts(self, name: str) -> bool:
        """Whether a column holds text."""
        return _is_text(self._type(name))

    def _type(self, name: str) -> Any:
        indices: list[int] = self._schema.get_all_field_indices(name)
        if len(indices) != 1:
            raise DataError(f"{self._where}: has {len(indices)} columns called {shorten(name)}; keep one.")
        return self._schema.field(indices[0]).type

    def _check_type(self, name: str, kinds: Sequence[Callable[[Any], bool]], wanted: str) -> Any:
        kind = self._type(name)
        if not any(is_kind(kind) for is_kind in kinds):
            raise DataError(f"{self._where}: the column {name} must hold {wanted}; its type is {str(kind)[:200]}.")
        return kind

    def _read(self, leaves: list[str]) -> Any:
        """One top-level column of the file, of which only these leaves are read."""
        prefixed = _prefixed(self._open(), leaves)
        file = self._open(read_dictionary=[leaf for leaf in leaves if leaf not in prefixed])
        num_rows = max(min(BATCH_BYTES // max(*prefixed.values(), 1), BATCH_ROWS), 1) if prefixed else BATCH_ROWS
        batches: list[Any] = []
        rows = total = 0
        for batch in file.iter_batches(batch_size=num_rows, columns=leaves):
            batch.validate(full=True)
            batches.append(batch.column(0))
            rows += batch.num_rows
            total += batch.nbytes
            if total > self._limit or rows > self.num_rows:
                raise DataError(f"{self._where}: unpacks to over {total:,} bytes from {self._size:,}: refused.")
        if rows != self.num_rows:
            raise DataError(f"{self._where}: must have {self.num_rows:,} rows; got {rows:,}.")
        return self._pa.chunked_array(batches)

    def class_names(self, name: str) -> list[str] | None:
        """The class names of a column, as the Hugging Face `datasets` library stores them in a Parquet header."""
        text = (self._schema.metadata or {}).get(METADATA)
        if text is None:
            return None
        try:
            value = parse_json(text)
            for key in ("info", "features", name):
                value = cast("dict[str, Any]", value).get(key)
                if value is None:
                    return None
            value = value[0] if isinstance(value, list) and value else value  # pyright: ignore[reportUnknownVariableType]
            fields = cast("dict[str, Any]", value)  # of a list, those of its items
            value = cast("dict[str, Any]", fields.get("feature", fields)).get("names")
            if value is None:
                return None
            names = cast("list[Any]", value)
            if not isinstance(value, list) or not all(isinstance(item, str) for item in names):
                raise ValueError(f"the class names must be a list of texts; got {shorten(value)}")
        except (ValueError, AttributeError) as error:
            reason = f"the header `huggingface` does not say which classes {name} has ({str(error)[:200]})"
            raise DataError(f"{self._where}: {reason}; write the table again, with texts as labels.") from None
        return names


def _is_text(kind: Any) -> bool:
    return _value_name(kind) in ("string", "large_string", "string_view", "null")


def _is_bytes(kind: Any) -> bool:
    return _value_name(kind) in ("binary", "large_binary", "binary_view", "null")


def _value_name(kind: Any) -> str:
    """The name of a type; for a dictionary, that of its values; nothing for a missing field."""
    if kind is None:
        return "null"
    return str(kind.value_type if hasattr(kind, "index_type") else kind)


def _prefixed(file: Any, leaves: list[str]) -> dict[str, int]:
    """The leaves where a text may be stored as a suffix to the one before it → the longest that one may be.

    pyarrow cannot read them as dictionaries, so the rows that are read at once must be few.
    """
    metadata = file.metadata
    places = {index: metadata.schema.column(index).path for index in range(metadata.num_columns)}
    longest: dict[str, int] = {}
    prefixed: set[str] = set()
    for group in range(metadata.num_row_groups):
        # Asking for the damaged statistics of a column would end the whole process; reading a row raises.
        next(file.iter_batches(batch_size=1, row_groups=[group], columns=leaves), None)
        for index, name in places.items():
            if name in leaves:
                column = metadata.row_group(group).column(index)
                longest[name] = max(longest.get(name, 0), column.total_uncompressed_size)
                if any(encoding.startswith("DELTA") for encoding in column.encodings):
                    prefixed.add(name)
    return {name: longest[name] for name in prefixed}


def _chunk_values(chunk: Any) -> list[Any]:
    if not hasattr(chunk, "dictionary"):
        return chunk.to_pylist()
    values: list[Any] = chunk.dictionary.to_pylist()
    return [None if index is None else values[index] for index in chunk.indices.to_pylist()]
