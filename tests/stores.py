"""Places for files: a folder, the memory of the process, and an S3 on loopback; and a store whose n-th call fails."""

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from unittest import mock
from uuid import uuid4

import fsspec
import pytest

from vitrail.errors import DataError
from vitrail.storage import FileState, Span, Store, is_address, open_store

BUCKET = "vitrail-tests"
METHODS = ("pages", "listing", "entries", "states", "read", "open", "fetch", "create")  # `state` asks `states`
KINDS = ("disk", "memory", "s3")
# Every AWS library finds the server on loopback, and nothing else: no account of this machine, no metadata service.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "of-the-tests",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


@contextmanager
def serve_s3() -> Generator[str]:
    """An S3 with an empty bucket, which the environment points to while the block lasts; its address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (CREDENTIALS | {"AWS_ENDPOINT_URL": address}).items():
            patch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        fsspec.filesystem("s3").mkdir(BUCKET)
        yield address
    server.stop()


def make_root(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """An empty place of one kind, which no other test has."""
    if kind == "disk":
        return str(folder / "root")
    if kind == "memory":
        return f"memory://{uuid4().hex}"
    request.getfixturevalue("s3_server")
    return f"s3://{BUCKET}/{uuid4().hex}"


def put(root: str, files: Mapping[str, bytes]) -> None:
    """Write files below a root, in place of those that are there."""
    for name, content in files.items():
        if is_address(root):
            system, base = fsspec.url_to_fs(root)
            system.pipe_file(f"{base}/{name}", content)
        else:
            path = Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def upload(folder: Path, root: str) -> str:
    """Copy a folder of this machine to a root; the root."""
    put(root, {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()})
    return root


def remove(root: str, name: str) -> None:
    """Delete one file."""
    if is_address(root):
        system, base = fsspec.url_to_fs(root)
        system.rm_file(f"{base}/{name}")
    else:
        Path(root, name).unlink()


def contents(root: str) -> dict[str, bytes]:
    """Every visible file below a root, by its name."""
    store = open_store(root)
    if not is_address(root) and not Path(root).exists():
        return {}
    names = [name for page in store.pages() for name in page]
    answers = store.read([Span(name) for name in names]) if names else []
    assert all(isinstance(answer, bytes) for answer in answers)
    return dict(zip(names, answers, strict=True))  # type: ignore[arg-type]


class FailingStore:
    """A store whose n-th call fails, or all from that one on; every page of a listing is a call."""

    def __init__(
        self, store: Store, number: int, *, lasting: bool = False, late: bool = False, error: Exception | None = None
    ) -> None:
        self.root = store.root
        self._store, self._number, self._lasting, self._late = store, number, lasting, late
        self._error = error
        self.calls: list[str] = []  # all of them
        self.failed: list[str] = []  # those that failed

    def _count(self, call: str, name: str) -> bool:
        """Whether the call fails."""
        self.calls.append(f"{call} {name}")
        number = len(self.calls)
        fails = number == self._number or (self._lasting and number > self._number)
        if fails:
            self.failed.append(self.calls[-1])
        return fails

    def _fail(self, name: str) -> None:
        raise self._error or DataError(f"{self.path(name)}: the tests cut the connection.")

    def pages(self, folder: str = "", *, after: str = "") -> Iterator[list[str]]:
        pages = self._store.pages(folder, after=after)
        while True:
            if self._count("pages", folder):
                self._fail(folder)
            page = next(pages, None)
            if page is None:
                return
            yield page

    def listing(self, folder: str = "") -> Iterator[list[tuple[str, FileState]]]:
        pages = self._store.listing(folder)
        while True:
            if self._count("listing", folder):
                self._fail(folder)
            page = next(pages, None)
            if page is None:
                return
            yield page

    def entries(self, folder: str = "") -> dict[str, bool]:
        if self._count("entries", folder):
            self._fail(folder)
        return self._store.entries(folder)

    def state(self, name: str) -> FileState:
        if self._count("state", name):
            self._fail(name)
        return self._store.state(name)

    def states(self, names: Sequence[str]) -> list[FileState | OSError]:
        if self._count("states", ", ".join(names)):
            self._fail(names[0] if names else "")
        return self._store.states(names)

    def read(self, spans: Sequence[Span]) -> list[bytes | OSError]:
        if self._count("read", ", ".join(span.name for span in spans)):
            self._fail(spans[0].name)
        return self._store.read(spans)

    def open(self, name: str) -> IO[bytes]:
        if self._count("open", name):
            self._fail(name)
        return self._store.open(name)

    def fetch(self, name: str, target: Path) -> None:
        """A copy that fails has come half the way."""
        fails = self._count("fetch", name)
        self._store.fetch(name, target)
        if fails:
            content = target.read_bytes()
            target.write_bytes(content[: len(content) // 2])
            self._fail(name)

    def create(self, name: str, content: bytes) -> bool:
        """One that fails late has written the file, and only the answer is lost."""
        fails = self._count("create", name)
        if fails and not self._late:
            self._fail(name)
        created = self._store.create(name, content)
        if fails:
            self._fail(name)
        return created

    def path(self, name: str) -> str:
        return self._store.path(name)


def failing(store: Store, number: int, **options: Any) -> FailingStore:
    """A store whose `number`-th call raises a DataError, or `error=`.

    `lasting=True`: and every later call too. `late=True`: a `create` that fails has written its file. `failed` of the
    store names the calls that failed, so a test can count up `number` until none does.
    """
    return FailingStore(store, number, **options)


@contextmanager
def failing_stores(number: int, **options: Any) -> Generator[FailingStore]:
    """While this lasts, every `ObjectStore` that is opened shares one count of calls, of which the n-th fails."""
    shared = FailingStore(open_store("memory://none"), number, **options)
    calls = {name: _shared(name, shared) for name in METHODS}
    with mock.patch.multiple("vitrail.object_store.ObjectStore", **calls):
        yield shared


def _shared(method: str, shared: FailingStore) -> Any:
    from vitrail.object_store import ObjectStore

    real = getattr(ObjectStore, method)

    class Real:
        """The methods of one store as they are without failures."""

        def __init__(self, store: ObjectStore) -> None:
            self.path = store.path
            setattr(self, method, lambda *some, **more: real(store, *some, **more))

    def call(store: ObjectStore, *some: Any, **more: Any) -> Any:
        one = FailingStore.__new__(FailingStore)
        vars(one).update(vars(shared), _store=Real(store), root=store.root)
        return getattr(one, method)(*some, **more)

    return call
