"""Object stores through fsspec: s3://, gs://, az://, hf://datasets/, memory:// and whatever else it knows.

Credentials are fsspec's business: it finds them where each store's own tools keep them. What a store refuses for a
moment is tried again; what it cannot give at all is an error of the store, not of the pictures in it, so that a lost
connection never looks like a million damaged pictures.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from errno import EDQUOT, EFBIG, EINVAL, ENOENT, ENOSPC, ENOTDIR
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import fsspec

from vitrail.errors import DataError, MissingExtraError
from vitrail.storage import FileState, Span, hide_secrets
from vitrail.wording import in_one_line

A = TypeVar("A")
T = TypeVar("T")
Facts: TypeAlias = dict[str, Any]  # what fsspec says of one file
# Scheme → the optional part of vitrail that opens it.
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
# What differs if the content does, the surest first: hashes, and times for stores that have none.
MARKS = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "last_modified", "updated", "mtime", "created")
AT_ONCE = 32  # requests to a store without an answer yet
WAITS = (0.1, 0.5, 2.0)  # seconds before another try
OWN = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
)  # what is wrong with one file, however often it is asked for
FULL = (ENOSPC, EDQUOT, EFBIG)  # what is wrong with this machine's disk


class ObjectStore:
    """The files below one address."""

    def __init__(self, address: str) -> None:
        self.root = hide_secrets(address).rstrip("/")
        if "::" in address:
            raise DataError(f"{self.root}: must be one address; chains of them (::) are not supported.")
        scheme = address.partition("://")[0].lower()
        try:
            # Listings are long, and may change while they are used: nothing of them is kept.
            self._files, self._base = fsspec.url_to_fs(address, use_listings_cache=False)
        except ImportError as error:
            if scheme in EXTRAS:
                raise MissingExtraError(f"{scheme}://", EXTRAS[scheme]) from None
            raise DataError(f"{self.root}: {in_one_line(error)}.") from None
        except Exception as error:  # a scheme that nobody knows, a region that does not exist, …
            raise DataError(f"{self.root}: cannot be opened ({hide_secrets(in_one_line(error))}).") from None
        self._base = str(self._base).rstrip("/")

    def pages(self, folder: str = "", *, after: str = "") -> Iterator[list[str]]:
        """In the order of the full names for S3, whose own listing has pages; of others, folder after folder."""
        for page in self._list(folder, after):
            yield [name for name, _ in page]

    def listing(self, folder: str = "") -> Iterator[list[tuple[str, FileState]]]:
        for page in self._list(folder, ""):
            yield [(name, _state(facts)) for name, facts in page]

    def _list(self, folder: str, after: str) -> Iterator[list[tuple[str, Facts]]]:
        whole = self._list_s3 if hasattr(self._files, "call_s3") else self._list_folders
        for page in whole(folder, after):
            visible = [entry for entry in page if not any(part.startswith(".") for part in entry[0].split("/"))]
            if visible:
                yield visible

    def _list_s3(self, folder: str, after: str) -> Iterator[list[tuple[str, Facts]]]:
        bucket, _, key = self._base.partition("/")
        start = f"{key}/" if key else ""
        request = {"Bucket": bucket, "Prefix": f"{start}{folder}/" if folder else start}
        request |= {"StartAfter": start + after} if after else {}
        while True:
            answer = self._call(lambda: self._files.call_s3("list_objects_v2", **request), folder)
            entries = [entry for entry in answer.get("Contents", ()) if not entry["Key"].endswith("/")]
            yield [(entry["Key"][len(start) :], entry | {"size": entry["Size"]}) for entry in entries]
            if not answer.get("IsTruncated"):
                return
            request["ContinuationToken"] = answer["NextContinuationToken"]

    def _list_folders(self, folder: str, after: str) -> Iterator[list[tuple[str, Facts]]]:
        done = after.split("/") if after else []
        files: list[tuple[str, Facts]] = []
        for name, facts in self._entries(folder).items():
            whole = f"{folder}/{name}" if folder else name
            parts = whole.split("/")
            is_folder = facts["type"] == "directory"
            if is_folder and parts >= done[: len(parts)]:
                if files:
                    yield files
                    files = []
                yield from self._list_folders(whole, after if parts == done[: len(parts)] else "")
            elif not is_folder and parts > done:
                files.append((whole, facts))
        if files:
            yield files

    def entries(self, folder: str = "") -> dict[str, bool]:
        return {name: facts["type"] == "directory" for name, facts in self._entries(folder).items()}

    def _entries(self, folder: str) -> dict[str, Facts]:
        self._files.invalidate_cache(self._full(folder))  # which the hub's has, whatever it is told
        found = self._call(lambda: self._files.ls(self._full(folder), detail=True), folder)
        full = self._full(folder).rstrip("/")
        names = {str(facts["name"]).rstrip("/"): facts for facts in found}
        if [facts["type"] for facts in names.values()] == ["file"] and full in names:
            raise NotADirectoryError(ENOTDIR, "not a folder", self.path(folder))
        own = {name.rpartition("/")[2]: facts for name, facts in names.items() if name != full}
        return {name: own[name] for name in sorted(own) if name and not name.startswith(".")}

    def state(self, name: str) -> FileState:
        state = self.states([name])[0]
        if isinstance(state, OSError):
            raise state
        return state

    def states(self, names: Sequence[str]) -> list[FileState | OSError]:
        found = self._together(
            lambda name: self._call(lambda: self._files.info(self._full(name)), name, own=PermissionError), names
        )
        self._refuse_lock_out(found, names)
        return [
            facts
            if isinstance(facts, OSError)
            else FileNotFoundError(ENOENT, "not a file", self.path(name))
            if facts["type"] == "directory"
            else _state(facts)
            for name, facts in zip(names, found, strict=True)
        ]

    def read(self, spans: Sequence[Span]) -> list[bytes | OSError]:
        found: list[Any] = [None] * len(spans)
        waiting = list(range(len(spans)))
        for wait in (*WAITS, None):
            for index, answer in zip(waiting, self._ask([spans[index] for index in waiting]), strict=True):
                found[index] = b"" if _is_behind_the_end(answer) else answer
            waiting = [index for index in waiting if _may_pass(found[index])]
            if waiting and wait is None:
                raise self._lost(found[waiting[0]], spans[waiting[0]].name)
            if not waiting:
                break
            time.sleep(wait or 0)
        self._refuse_lock_out(found, [span.name for span in spans])
        return [
            FileNotFoundError(ENOENT, "there is no such file")
            if isinstance(answer, FileNotFoundError)
            else answer
            if isinstance(answer, OSError)
            else bytes(answer)[: span.size]
            for answer, span in zip(found, spans, strict=True)
        ]

    def _ask(self, spans: Sequence[Span]) -> list[Any]:
        """What fsspec has for each: bytes or an error."""
        paths = [self._full(span.name) for span in spans]
        starts = [span.start if span.start or span.size is not None else None for span in spans]
        ends = [None if span.size is None else span.start + max(span.size, 1) for span in spans]
        if self._files.async_impl:
            return self._call(
                lambda: self._files.cat_ranges(paths, starts, ends, on_error="return"), spans[0].name if spans else ""
            )

        def ask(index: int) -> Any:
            try:
                return self._files.cat_file(paths[index], start=starts[index], end=ends[index])
            except Exception as error:  # each store raises its own kinds
                return error

        return self._together(ask, range(len(spans)))

    def _together(self, ask: Callable[[A], T], items: Sequence[A]) -> list[T | OSError]:
        """What is answered for each of many, or the error that is its own; they are asked for at once."""

        def answer(item: A) -> T | OSError:
            try:
                return ask(item)
            except OSError as error:
                return error

        if len(items) < 2:
            return [answer(item) for item in items]
        with ThreadPoolExecutor(min(len(items), AT_ONCE)) as pool:
            return list(pool.map(answer, items))

    def _refuse_lock_out(self, answers: Sequence[Any], names: Sequence[str]) -> None:
        """A permission that some files lack is theirs; if nothing can be read, a token may have expired."""
        if answers and all(isinstance(answer, PermissionError) for answer in answers):
            raise self._lost(answers[0], names[0])

    def open(self, name: str) -> IO[bytes]:
        return self._call(lambda: self._files.open(self._full(name), "rb"), name)

    def fetch(self, name: str, target: Path) -> None:
        self._call(lambda: self._files.get_file(self._full(name), str(target)), name)

    def create(self, name: str, content: bytes | Path) -> bool:
        def write() -> None:
            if isinstance(content, Path):
                self._files.put_file(str(content), self._full(name), mode="create")
            else:
                self._files.pipe_file(self._full(name), content, mode="create")

        try:
            self._call(write, name, once=True)
        except FileExistsError:
            return False
        except FileNotFoundError as error:  # no such bucket
            raise self._lost(error, name) from None
        return True

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _full(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _call(self, call: Callable[[], T], name: str, *, once: bool = False, own: type[OSError] = FileExistsError) -> T:
        """What the store answers; a failure that may pass is tried again, unless the first try may have succeeded."""
        for wait in (*(() if once else WAITS), None):
            try:
                return call()
            except (*OWN, own):
                raise
            except Exception as error:  # each store raises its own kinds
                if isinstance(error, OSError) and error.errno in FULL:
                    raise
                if wait is None or isinstance(error, PermissionError):
                    raise self._lost(error, name) from error
                time.sleep(wait)
        raise AssertionError

    def _lost(self, error: BaseException, name: str) -> DataError:
        why = hide_secrets(in_one_line(error))[:300]
        return DataError(f"{self.path(name)}: the store does not answer as it should ({why}).")


def _state(facts: Facts) -> FileState:
    """The first mark that a store gives, in a listing as well as for a single file."""
    mark = next((facts[mark] for mark in MARKS if facts.get(mark) is not None), "")
    text = str(mark.timestamp() if isinstance(mark, datetime) else mark)
    return FileState(int(facts["size"] or 0), f"{facts['size']}-{text.strip(chr(34))}")


def _may_pass(answer: Any) -> bool:
    """Whether an answer is a failure of the store, and not of one file: a bucket that is gone is the store's."""
    if isinstance(answer, FileNotFoundError) and "bucket does not exist" in str(answer):
        return True
    return isinstance(answer, BaseException) and not isinstance(answer, (*OWN, PermissionError))


def _is_behind_the_end(answer: Any) -> bool:
    return isinstance(answer, OSError) and answer.errno == EINVAL  # what S3 calls a range that cannot be satisfied
