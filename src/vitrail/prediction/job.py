"""A job: pictures in, rows out, each exactly once, however often and wherever its processes end.

    OUT/job.json                        what is computed: the model and its checksums, the settings, the pictures
    OUT/manifest/names-00000.parquet    where every picture is, almost a million in a file; a row group is a unit
    OUT/manifest/_DONE                  how many there are, once all are listed
    OUT/parts/part-00000000.parquet     the rows of one unit
    OUT/_DONE                           the totals, once every part is there and they add up

Nothing is ever changed: a file is created whole by whoever is first. A unit whose part exists is finished; any other is
computed by whoever finds it, on whatever machine. So no process has to know of another.
"""

import io
import json
import os
import re
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

from vitrail.errors import ConfigError, DataError, shorten
from vitrail.files import as_utf8, load_pyarrow
from vitrail.prediction.feature_files import FEATURES
from vitrail.prediction.listing import Cursor, Item, list_items
from vitrail.storage import Span, Store, is_address, open_store, refuse_secrets
from vitrail.untrusted import parse_json
from vitrail.wording import counted

UNIT = 4096  # pictures
UNITS_PER_FILE = 244  # of the manifest: 999,424 names
DESCRIPTION, DONE, LISTED = "job.json", "_DONE", "manifest/_DONE"
CURSOR = b"vitrail.cursor"
ERRORS = b"vitrail.errors"
CHECKS = 16  # parts whose ends are read at once
FORMAT = 1

Task = Literal["predict", "embed"]


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What a job computes; equal on all its machines, and when it is resumed."""

    task: Task
    model: Mapping[str, Any]  # where it is, and the checksums of its files
    pictures: Sequence[str]  # files, folders, patterns, archives
    list_file: str | None
    settings: Mapping[str, Any]  # as they were asked for
    resolved: Mapping[str, Any] = field(default_factory=dict[str, Any])  # as they were chosen where the job began
    unit: int = field(default_factory=lambda: UNIT)

    def to_json(self) -> bytes:
        """The content of job.json."""
        return json.dumps({"format": FORMAT, **vars(self)}, indent=2).encode()

    @classmethod
    def from_json(cls, content: bytes, where: str) -> "JobSpec":
        """What a job.json says."""
        try:
            facts = dict(cast("dict[str, Any]", parse_json(content)))
            if facts.pop("format") != FORMAT:
                raise ValueError("it was written by another version of vitrail")
            return cls(**facts)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{where}: not the description of a job ({str(error)[:200]}).") from None

    def check_same(self, other: "JobSpec", where: str) -> None:
        """Refuse to continue a job with another model, other settings or other pictures."""
        for name in ("task", "model", "pictures", "list_file", "settings"):
            theirs, ours = ({name: getattr(spec, name)} for spec in (self, other))
            if name in ("model", "settings"):
                theirs, ours = theirs[name], ours[name]
            for key in {**theirs, **ours}:
                if theirs.get(key) != ours.get(key):
                    what = "the files of the model" if key == "files" else f"`{'model' if key == 'source' else key}=`"
                    before, now = (each.get(key) for each in (theirs, ours))
                    raise ConfigError(
                        f"{where} is a job with other settings: {what} must be "
                        f"{'omitted' if before is None else shorten(before)}, as when it began; got "
                        f"{'nothing' if now is None else shorten(now)}. Repeat its settings, or write to another place."
                    )


@dataclass(frozen=True)
class Totals:
    """How much a job has done."""

    pictures: int
    units: int
    errors: int  # pictures that could not be read


class Job:
    """The files of a job."""

    def __init__(self, out: str | Path, spec: JobSpec, store: Store | None = None) -> None:
        self.out, self.spec = str(out), spec
        self.store = store or open_store(out)
        self._known: dict[int, Any] = {}  # the end of the file of the manifest that was read last

    @classmethod
    def begin(cls, out: str | Path, spec: JobSpec) -> "Job | None":
        """A new job; None if another process has begun one there."""
        job = cls(out, spec)
        if (job.finished() or job.num_manifests()) and not job.has_begun():
            raise ConfigError(
                f"{job.store.root} holds rows of a job, but not its {DESCRIPTION}; delete them, or name another place."
            )
        return job if job.store.create(DESCRIPTION, spec.to_json()) else None

    def has_begun(self) -> bool:
        """Whether the job is described."""
        try:
            self.store.state(DESCRIPTION)
        except FileNotFoundError:
            return False
        return True

    @classmethod
    def open(cls, out: str | Path) -> "Job":
        """A job that has begun; FileNotFoundError if none has."""
        store = open_store(out)
        content = store.read([Span(DESCRIPTION)])[0]
        if isinstance(content, OSError):
            raise content
        return cls(out, JobSpec.from_json(content, store.path(DESCRIPTION)), store)

    # The manifest: which picture is in which unit.

    def list_pictures(self) -> Iterator[int]:
        """List the pictures to the end, file after file of the manifest, from where an earlier listing stopped.

        Yields how many units can be computed so far.
        """
        if (listed := self.listed()) is not None:
            yield listed.units
            return
        full = self.spec.unit * UNITS_PER_FILE
        number = self.num_manifests()
        last, after = self._end(number - 1) if number else (full, None)
        pictures = full * (number - 1) + last if number else 0
        if number:
            yield -(-pictures // self.spec.unit)
        found = self._found(after)
        while last == full:  # the last file is the only one that is not full
            last = self._write_manifest(number, found)
            if last < 0:  # another process was faster: what it has listed counts
                last, after = self._end(number)
                found = self._found(after)
            pictures, number = pictures + last, number + 1
            if last == full:
                yield number * UNITS_PER_FILE
        units = -(-pictures // self.spec.unit)
        self.store.create(LISTED, json.dumps({"pictures": pictures, "units": units}).encode())
        yield units

    def num_manifests(self) -> int:
        """How many files the manifest has so far."""
        return sum(1 for _ in self._names("manifest", r"names-(\d{5})\.parquet"))

    def _found(self, after: Cursor | None) -> Iterator[tuple[Cursor, Item]]:
        """The pictures; the relative paths of a list are those of the folder where the job began."""
        folder = self.spec.resolved["folder"]
        for cursor, item in list_items(self.spec.pictures, self.spec.list_file, after):
            refuse_secrets(item.file)
            yield cursor, item if is_address(item.file) else item._replace(file=str(Path(folder, item.file)))

    def _write_manifest(self, number: int, found: Iterator[tuple[Cursor, Item]]) -> int:
        """The next file of the manifest, and how many pictures are in it; for none, no file; -1 if it is there."""
        pa, pq = load_pyarrow("A job")
        schema = pa.schema({"name": pa.string(), "file": pa.binary(), "start": pa.int64(), "size": pa.int64()})
        count, cursor = 0, None
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder) / "names"
            with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
                for _ in range(UNITS_PER_FILE):
                    some = list(islice(found, self.spec.unit))
                    if not some:
                        break
                    rows = [(as_utf8(item.name), os.fsencode(item.file), item.start, item.size) for _, item in some]
                    columns = (list(column) for column in zip(*rows, strict=True))
                    writer.write_table(pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema))
                    count, cursor = count + len(some), some[-1][0]
                writer.add_key_value_metadata({CURSOR: json.dumps(cursor)})
            if count and not self.store.create(_manifest_file(number), draft):
                return -1
        return count

    def _end(self, number: int) -> tuple[int, Cursor]:
        """How many pictures are in a file of the manifest, and where the listing was at its end."""
        with self._manifest(number) as file:
            return file.metadata.num_rows, Cursor(*json.loads(file.metadata.metadata[CURSOR]))

    def listed(self) -> Totals | None:
        """How many pictures and units there are; None while they are being listed."""
        content = self.store.read([Span(LISTED)])[0]
        if isinstance(content, FileNotFoundError):
            return None
        try:
            if isinstance(content, OSError):
                raise content
            facts = cast("dict[str, Any]", parse_json(content))
            return Totals(int(facts["pictures"]), int(facts["units"]), 0)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(LISTED, error) from None

    def is_listed(self, unit: int) -> bool:
        """Whether the pictures of a unit are known."""
        try:
            with self._manifest(unit // UNITS_PER_FILE) as file:
                return unit % UNITS_PER_FILE < file.num_row_groups
        except FileNotFoundError:
            return False

    @contextmanager
    def _manifest(self, number: int) -> Generator[Any]:
        """A file of the manifest, which never changes once it is there: its ends are read once."""
        _, pq = load_pyarrow("A job")
        try:
            with self.store.open(_manifest_file(number)) as file:
                opened = pq.ParquetFile(file, metadata=self._known.get(number))
                self._known = {number: opened.metadata}
                yield opened
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(_manifest_file(number), error) from None

    def _damaged(self, name: str, error: Exception) -> DataError:
        return DataError(f"{self.store.path(name)}: cannot be read ({error}); restore it, or begin a new job.")

    def items(self, unit: int) -> list[Item]:
        """The pictures of a unit."""
        with self._manifest(unit // UNITS_PER_FILE) as file:
            table = file.read_row_group(unit % UNITS_PER_FILE)
        rows = zip(*(table.column(name).to_pylist() for name in ("name", "file", "start", "size")), strict=True)
        return [Item(name, os.fsdecode(file), start, size) for name, file, start, size in rows]

    def size_of(self, unit: int, pictures: int) -> int:
        """How many of all pictures a unit has: the last one may have fewer than the others."""
        return min(self.spec.unit, pictures - unit * self.spec.unit)

    # The parts: what was computed.

    def finished(self) -> set[int]:
        """The units whose parts exist."""
        return {int(number) for number in self._names("parts", r"part-(\d{8})\.parquet")}

    def is_finished(self, unit: int) -> bool:
        """Whether somebody has computed a unit."""
        try:
            self.store.state(part_file(unit))
        except FileNotFoundError:
            return False
        return True

    def write_part(self, unit: int, table: Any) -> bool:
        """Keep the rows of a unit; False if somebody else has."""
        _, pq = load_pyarrow("A job")
        errors = len(table) - table.column("error").null_count
        content = io.BytesIO()
        floats = [f"{FEATURES}.list.element"] if FEATURES in table.column_names else []  # read three times as fast
        pq.write_table(
            table.replace_schema_metadata({ERRORS: str(errors)}),
            content,
            compression="zstd",
            use_dictionary=not floats,
            use_byte_stream_split=floats,
        )
        return self.store.create(part_file(unit), content.getvalue())

    def finish(self) -> Totals | None:
        """The totals, written to `_DONE`, if every part is there; None if some are missing. Damage is an error."""
        listed = self.listed()
        if listed is None:
            return None
        finished, units = self.finished(), set(range(listed.units))
        if finished - units:
            foreign = self.store.path(part_file(min(finished - units)))
            raise DataError(f"{foreign}: not of this job, which has {counted(listed.units, 'part')}; delete it.")
        if finished != units:
            return None
        with ThreadPoolExecutor(CHECKS) as pool:
            counts = list(pool.map(self._count, range(listed.units)))
        pictures, errors = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        if pictures != listed.pictures:
            raise DataError(
                f"{self.store.root}: the parts must hold {counted(listed.pictures, 'row')}; got {pictures:,}. "
                "Files of the job have been changed; delete those parts that are damaged, and resume it."
            )
        totals = Totals(pictures, listed.units, errors)
        self.store.create(DONE, json.dumps(vars(totals)).encode())
        return totals

    def _count(self, unit: int) -> tuple[int, int]:
        """The rows of a part, and how many of them are errors."""
        _, pq = load_pyarrow("A job")
        try:
            with self.store.open(part_file(unit)) as file:
                metadata = pq.ParquetFile(file).metadata
                return metadata.num_rows, int(metadata.metadata[ERRORS])
        except (OSError, ValueError, KeyError, TypeError) as error:
            where = self.store.path(part_file(unit))
            raise DataError(f"{where}: damaged ({error}); delete it, and resume the job.") from None

    def _names(self, folder: str, pattern: str) -> Iterator[str]:
        """What a pattern finds in the names of the files in a folder."""
        try:
            for page in self.store.pages(folder):
                yield from (match[1] for name in page if (match := re.fullmatch(f"{folder}/{pattern}", name)))
        except FileNotFoundError:
            return


def _manifest_file(number: int) -> str:
    return f"manifest/names-{number:05d}.parquet"


def part_file(unit: int) -> str:
    """Where the rows of a unit are."""
    return f"parts/part-{unit:08d}.parquet"
