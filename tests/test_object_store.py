"""Object stores through fsspec: what fails for a moment, what is wrong with one file only, and what is never said."""

import sys
from collections.abc import Generator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stores import BUCKET, make_root, put
from vitrail import object_store
from vitrail.errors import DataError, MissingExtraError
from vitrail.object_store import ObjectStore
from vitrail.storage import Span, open_store

REGISTRY = sys.modules["fsspec.registry"]._registry


class FlakyFileSystem(MemoryFileSystem):
    """Files in memory; what each call on a file raises comes from a list, as long as there is something in it."""

    protocol = "flaky"
    troubles: list[Exception]
    refused: set[str]  # names that nobody may read
    asked = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("flaky://", "memory://"))

    def _fail(self, path: str) -> None:
        type(self).asked += 1
        if path.rpartition("/")[2] in self.refused:
            raise PermissionError(13, "Forbidden", path)
        if self.troubles:
            raise self.troubles.pop(0)

    def cat_file(self, path: str, *some: Any, **more: Any) -> bytes:
        self._fail(path)
        return super().cat_file(path, *some, **more)

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        self._fail(path)
        return super().info(path, **more)

    def ls(self, path: str, *some: Any, **more: Any) -> Any:
        self._fail(path)
        return super().ls(path, *some, **more)

    def pipe_file(self, path: str, *some: Any, **more: Any) -> None:
        self._fail(path)
        super().pipe_file(path, *some, **more)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Generator[ObjectStore]:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    monkeypatch.setattr(object_store, "WAITS", (0.0, 0.0))
    FlakyFileSystem.troubles, FlakyFileSystem.refused, FlakyFileSystem.asked = [], set(), 0
    put("memory://flaky", {"a": b"one", "b": b"two"})
    FlakyFileSystem.clear_instance_cache()
    yield ObjectStore("flaky://flaky")
    del REGISTRY["flaky"]


def test_what_fails_for_a_moment_is_tried_again(flaky: ObjectStore) -> None:
    FlakyFileSystem.troubles = [ConnectionResetError("reset"), TimeoutError("slow")]
    assert flaky.read([Span("a"), Span("b")]) == [b"one", b"two"]
    FlakyFileSystem.troubles = [RuntimeError("a store's own kind")]
    assert flaky.state("a").size == 3
    FlakyFileSystem.troubles = [ConnectionResetError("reset"), TimeoutError("slow")]
    assert flaky.entries() == {"a": False, "b": False}


def test_what_fails_every_time_is_an_error_of_the_store(flaky: ObjectStore) -> None:
    for call in (lambda: flaky.read([Span("a")]), lambda: flaky.state("a"), lambda: list(flaky.pages())):
        FlakyFileSystem.troubles = [ConnectionResetError("reset")] * 10
        with pytest.raises(DataError, match=r"flaky://flaky.*the store does not answer as it should \(reset\)"):
            call()


def test_a_write_is_tried_once(flaky: ObjectStore) -> None:
    """The first try may have succeeded, so that a second one would find a file that is there already: its own."""
    FlakyFileSystem.troubles = [ConnectionResetError("reset")]
    with pytest.raises(DataError, match="does not answer"):
        flaky.create("c", b"three")
    assert FlakyFileSystem.asked == 1


def test_a_file_that_nobody_may_read_is_its_own_trouble_unless_all_are(flaky: ObjectStore) -> None:
    FlakyFileSystem.refused = {"b"}
    assert [type(answer) for answer in flaky.read([Span("a"), Span("b")])] == [bytes, PermissionError]
    assert isinstance(flaky.states(["a", "b"])[1], PermissionError)
    FlakyFileSystem.refused = {"a", "b"}
    for call in (flaky.states, lambda names: flaky.read([Span(name) for name in names])):
        with pytest.raises(DataError, match="Forbidden"):
            call(["a", "b"])


def test_errors_show_no_secrets(flaky: ObjectStore) -> None:
    FlakyFileSystem.troubles = [RuntimeError("GET https://me:hush@host/a?X-Amz-Signature=hush failed")] * 10
    with pytest.raises(DataError, match="does not answer") as error:
        flaky.state("a")
    assert "hush" not in str(error.value)
    assert ObjectStore("flaky://me:hush@flaky?sig=hush").root == "flaky://flaky?…"


def test_pages_of_s3(request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_root("s3", tmp_path, request)
    names = [f"{folder}/{number}" for folder in ("a", "a-b") for number in range(3)]
    put(root, dict.fromkeys([*names, "a/.hidden", "folder/"], b""))
    store = ObjectStore(root)
    call = store._files.call_s3

    def call_small(method: str, **request: Any) -> Any:
        return call(method, **request, MaxKeys=2)

    monkeypatch.setattr(store._files, "call_s3", call_small)
    pages = list(store.pages())
    assert len(pages) > 3
    assert [name for page in pages for name in page] == sorted(names)
    assert [name for page in store.pages(after="a-b/1") for name in page] == ["a-b/2", "a/0", "a/1", "a/2"]
    assert [name for page in store.listing("a") for name, _ in page] == ["a/0", "a/1", "a/2"]


def test_a_whole_bucket(s3_server: str, tmp_path: Any) -> None:
    fsspec.filesystem("s3").mkdir("whole-bucket")
    put("s3://whole-bucket", {"a/1": b"one"})
    for address in ("s3://whole-bucket", "s3://whole-bucket/"):
        store = open_store(address)
        assert list(store.pages()) == [["a/1"]]
        assert store.entries() == {"a": True}
        assert store.read([Span("a/1")]) == [b"one"]
        assert store.path("a/1") == "s3://whole-bucket/a/1"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense://x/y", "nonsense://x/y: cannot be opened"),
        ("zip://a.jpg::s3://b/c.zip", "chains of them"),
    ],
)
def test_addresses_that_cannot_be(s3_server: str, address: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(ObjectStore(address).pages())


@pytest.mark.parametrize(("scheme", "module"), [("s3", "s3fs"), ("gs", "gcsfs"), ("az", "adlfs"), ("abfs", "adlfs")])
def test_missing_packages_are_named(scheme: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for name in (scheme, "gcs"):
        monkeypatch.delitem(REGISTRY, name, raising=False)
    with pytest.raises(
        MissingExtraError, match=rf'{scheme}://.*pip install "vitrail\[{object_store.EXTRAS[scheme]}\]"'
    ):
        ObjectStore(f"{scheme}://{BUCKET}/x")
