"""Object stores through fsspec: s3://, gs://, az://, hf://datasets/, memory:// and whatever else it knows.

Credentials are fsspec's business: it finds them where each store's own tools keep them. What a store refuses for a
moment is tried again; what it cannot give at all is an error of the store, not of the pictures in it, so that a lost
connection never looks like a million damaged pictures.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from errno import EINVAL
from pathlib import Path
from typing import IO, Any, TypeVar

import fsspec

from vitrail.errors import DataError, MissingExtraError
from vitrail.storage import FileState, Span, hide_secrets
from vitrail.wording import in_one_line

T = TypeVar("T")
# Scheme → the optional part of vitrail that opens it.
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
WAITS = (0.1, 0.5, 2.0)  # seconds before another try
OWN = (FileNotFoundError, IsADirectoryError)  # what is wrong with one file, however often it is asked for


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
            raise DataError(f"{self.root}: cannot be opened ({in_one_line(error)}).") from None
        self._base = str(self._base).rstrip("/")

    def pages(self, folder: str = "", *, after: str = "") -> Iterator[list[str]]:
        """In the order of the full names for S3, whose own listing has pages; of others, folder after folder."""
        whole = self._pages_of_s3 if hasattr(self._files, "call_s3") else self._pages_of_folders
        for page in whole(folder, after):
            visible = [name for name in page if not any(part.startswith(".") for part in name.split("/"))]
            if visible:
                yield visible

    def _pages_of_s3(self, folder: str, after: str) -> Iterator[list[str]]:
        bucket, _, key = self._base.partition("/")
        start = f"{key}/" if key else ""
        request = {"Bucket": bucket, "Prefix": f"{start}{folder}/" if folder else start}
        request |= {"StartAfter": start + after} if after else {}
        while True:
            answer = self._call(lambda: self._files.call_s3("list_objects_v2", **request), folder)
            keys = [entry["Key"] for entry in answer.get("Contents", ())]
            yield [key[len(start) :] for key in keys if not key.endswith("/")]
            if not answer.get("IsTruncated"):
                return
            request["ContinuationToken"] = answer["NextContinuationToken"]

    def _pages_of_folders(self, folder: str, after: str) -> Iterator[list[str]]:
        done = after.split("/") if after else []
        files: list[str] = []
        for name, is_folder in self.entries(folder).items():
            whole = f"{folder}/{name}" if folder else name
            parts = whole.split("/")
            if is_folder and parts >= done[: len(parts)]:
                if files:
                    yield files
                    files = []
                yield from self._pages_of_folders(whole, after if parts == done[: len(parts)] else "")
            elif not is_folder and parts > done:
                files.append(whole)
        if files:
            yield files

    def entries(self, folder: str = "") -> dict[str, bool]:
        found = self._call(lambda: self._files.ls(self._full(folder), detail=True), folder)
        full = self._full(folder).rstrip("/")
        names = {str(entry["name"]).rstrip("/"): entry["type"] == "directory" for entry in found}
        own = {name.rpartition("/")[2]: is_folder for name, is_folder in names.items() if name != full}
        return {name: own[name] for name in sorted(own) if name and not name.startswith(".")}

    def state(self, name: str) -> FileState:
        facts = self._call(lambda: self._files.info(self._full(name)), name)
        if facts["type"] == "directory":
            raise FileNotFoundError(2, "not a file", self.path(name))
        marks = [facts.get(mark) for mark in ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "created")]
        return FileState(int(facts["size"]), repr([str(mark) for mark in marks if mark is not None]))

    def read(self, spans: Sequence[Span]) -> list[bytes | OSError]:
        if not spans:
            return []
        paths = [self._full(span.name) for span in spans]
        starts = [span.start if span.start or span.size is not None else None for span in spans]
        ends = [None if span.size is None else span.start + max(span.size, 1) for span in spans]
        found: list[Any] = [None] * len(spans)
        waiting = list(range(len(spans)))
        for wait in (*WAITS, None):
            some: list[Any] = [[part[index] for index in waiting] for part in (paths, starts, ends)]
            answers = self._call(lambda some=some: self._files.cat_ranges(*some, on_error="return"), spans[0].name)
            for index, answer in zip(waiting, answers, strict=True):
                found[index] = b"" if _is_behind_the_end(answer) else answer
            waiting = [index for index in waiting if _may_pass(found[index])]
            if waiting and wait is None:
                raise self._lost(found[waiting[0]], spans[waiting[0]].name)
            if not waiting:
                break
            time.sleep(wait or 0)
        # A permission that some files lack is theirs; if none can be read, a token may have expired.
        if found and all(isinstance(answer, PermissionError) for answer in found):
            raise self._lost(found[0], spans[0].name)
        return [
            answer if isinstance(answer, OSError) else bytes(answer)[: span.size]
            for answer, span in zip(found, spans, strict=True)
        ]

    def open(self, name: str) -> IO[bytes]:
        return self._call(lambda: self._files.open(self._full(name), "rb"), name)

    def fetch(self, name: str, target: Path) -> None:
        self._call(lambda: self._files.get_file(self._full(name), str(target)), name)

    def create(self, name: str, content: bytes) -> bool:
        try:
            self._call(lambda: self._files.pipe_file(self._full(name), content, mode="create"), name, once=True)
        except FileExistsError:
            return False
        return True

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _full(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _call(self, call: Callable[[], T], name: str, *, once: bool = False) -> T:
        """What the store answers; a failure that may pass is tried again, unless the first try may have succeeded."""
        for wait in (*(() if once else WAITS), None):
            try:
                return call()
            except (*OWN, FileExistsError):
                raise
            except Exception as error:  # each store raises its own kinds
                if wait is None or isinstance(error, PermissionError):
                    raise self._lost(error, name) from error
                time.sleep(wait)
        raise AssertionError

    def _lost(self, error: BaseException, name: str) -> DataError:
        return DataError(f"{self.path(name)}: the store does not answer as it should ({in_one_line(error)[:300]}).")


def _may_pass(answer: Any) -> bool:
    return isinstance(answer, BaseException) and not isinstance(answer, (*OWN, PermissionError))


def _is_behind_the_end(answer: Any) -> bool:
    return isinstance(answer, OSError) and answer.errno == EINVAL  # what S3 calls a range that cannot be satisfied
