"""Stores: the same names, contents and errors on a disk, in memory and on S3."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stores import contents, failing, failing_stores, put
from vitrail.errors import DataError
from vitrail.storage import Span, open_store

FILES = {
    "b.txt": b"b",
    "a/1.jpg": b"one",
    "a/10.jpg": b"ten",
    "a-b/1.jpg": b"dash",
    "a/deep/er/x y é.png": b"spaces",
    ".hidden": b"",
    "a/.hidden/2.jpg": b"",
}
VISIBLE = {name: content for name, content in FILES.items() if "hidden" not in name}


def test_every_store_lists_the_same_names(store_root: str) -> None:
    put(store_root, FILES)
    store = open_store(store_root)
    assert contents(store_root) == VISIBLE
    assert store.entries() == {"a": True, "a-b": True, "b.txt": False}
    assert store.entries("a") == {"1.jpg": False, "10.jpg": False, "deep": True}
    assert [name for page in store.pages("a") for name in page] == ["a/1.jpg", "a/10.jpg", "a/deep/er/x y é.png"]


def test_a_listing_goes_on_after_any_of_its_names(store_root: str) -> None:
    put(store_root, FILES)
    store = open_store(store_root)
    names = [name for page in store.pages() for name in page]
    for number, name in enumerate(names):
        assert [each for page in store.pages(after=name) for each in page] == names[number + 1 :]


def test_files_and_parts_of_files_are_read_together(store_root: str) -> None:
    put(store_root, FILES)
    store = open_store(store_root)
    spans = [Span("a/10.jpg"), Span("none.jpg"), Span("a/10.jpg", 1), Span("a-b/1.jpg", 1, 2), Span("b.txt", 0, 0)]
    spans += [Span("b.txt", 1), Span("b.txt", 5, 2)]
    answers = store.read(spans)
    assert isinstance(answers[1], FileNotFoundError)
    assert [answers[0], *answers[2:]] == [b"ten", b"en", b"as", b"", b"", b""]
    assert store.read([]) == []
    with store.open("a/10.jpg") as file:
        file.seek(1)
        assert file.read() == b"en"


def test_a_changed_file_has_another_version(store_root: str) -> None:
    put(store_root, {"a": b"one"})
    store = open_store(store_root)
    first = store.state("a")
    assert first == open_store(store_root).state("a")
    assert first.size == 3
    put(store_root, {"a": b"two"})
    assert store.state("a").version != first.version


def test_a_listing_has_the_states_of_its_files(store_root: str) -> None:
    put(store_root, FILES)
    store = open_store(store_root)
    listed = dict(entry for page in store.listing() for entry in page)
    assert list(listed) == [name for page in store.pages() for name in page]
    assert list(listed.values()) == store.states(list(listed)) == [store.state(name) for name in listed]
    assert [name for page in store.listing("a-b") for name, _ in page] == ["a-b/1.jpg"]
    none, one = store.states(["none", "b.txt"])
    assert isinstance(none, FileNotFoundError)
    assert one == listed["b.txt"]
    assert store.states([]) == []


def test_what_is_not_there(store_root: str, tmp_path: Path) -> None:
    put(store_root, {"folder/a": b"one"})
    store = open_store(store_root)
    for call in (store.state, lambda name: store.open(name).read(), lambda name: store.fetch(name, tmp_path / "copy")):
        with pytest.raises(FileNotFoundError):
            call("none")
    with pytest.raises(FileNotFoundError):
        store.state("folder")
    with pytest.raises(FileNotFoundError):
        store.entries("none")
    with pytest.raises(NotADirectoryError):
        store.entries("folder/a")


def test_a_file_is_created_once(store_root: str) -> None:
    store = open_store(store_root)
    assert store.create("deep/a", b"one")
    assert not store.create("deep/a", b"two")
    assert contents(store_root) == {"deep/a": b"one"}
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: store.create("b", b"%d" % number), range(8)))
    assert sum(made) == 1
    assert contents(store_root)["b"] == b"%d" % made.index(True)


def test_fetch_copies_a_file(store_root: str, tmp_path: Path) -> None:
    put(store_root, {"a": b"one" * 1_000_000})
    open_store(store_root).fetch("a", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"one" * 1_000_000


def test_the_failing_store(store_root: str, tmp_path: Path) -> None:
    put(store_root, {"a": b"one!"})
    store = failing(open_store(store_root), 2)
    assert store.state("a").size == 4
    with pytest.raises(DataError, match="cut the connection"):
        store.fetch("a", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"on"
    assert store.read([Span("a")]) == [b"one!"]
    assert (store.calls, store.failed) == (["state a", "fetch a", "read a"], ["fetch a"])
    late = failing(open_store(store_root), 1, late=True, lasting=True)
    for _ in range(2):
        with pytest.raises(DataError):
            late.create("b", b"two")
    assert contents(store_root) == {"a": b"one!", "b": b"two"}
    with failing_stores(2) as shared:
        put("memory://failing-stores", {"a": b"one"})
        assert open_store("memory://failing-stores").state("a").size == 3
        with pytest.raises(DataError):
            list(open_store("memory://failing-stores").pages())
    assert shared.failed == ["pages "]
