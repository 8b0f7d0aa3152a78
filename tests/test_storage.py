"""Stores: the same names, contents and errors on a disk, in memory and on S3."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from stores import contents, failing, failing_stores, put
from vitrail import storage
from vitrail.errors import ConfigError, DataError
from vitrail.storage import Span, hide_secrets, is_address, open_file_store, open_store, sort_names

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


def test_millions_of_names_are_sorted_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "RUN", 3)
    names = ["b", "é", "a\nb", "\udce4", "a", "c\\n", "Z", "a b", "10", "9"]
    with ExitStack() as files:
        assert list(sort_names(names, files)) == sorted(names)


def test_links_are_followed_once_and_come_last(tmp_path: Path) -> None:
    put(str(tmp_path), {"z/1": b"", "a/2": b""})
    (tmp_path / "b").symlink_to(tmp_path / "z")
    (tmp_path / "z" / "up").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [name for page in open_store(tmp_path).pages() for name in page] == ["a/2", "loop", "z/1"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("s3://b/x", True),
        ("S3://b", True),
        ("hf://datasets/o/n", True),
        ("memory://x", True),
        ("file:///x", False),
        ("https://x/y", False),
        ("C:/x", False),
        ("photos/x", False),
        (Path("s3://b"), False),
    ],
)
def test_what_is_an_address(where: str | Path, expected: bool) -> None:
    assert is_address(where) is expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a@b.jpg", "s3://bucket/a@b.jpg"),
        ("sftp://me:hush@host/x", "sftp://host/x"),
        ("sftp://me:h@sh@host/x", "sftp://host/x"),
        ("https://host/x?sig=hush", "https://host/x?…"),
        ("abfs://box@account.dfs.core.windows.net/x", "abfs://box@account.dfs.core.windows.net/x"),
        ("hf://datasets/o/n@main/x", "hf://datasets/o/n@main/x"),
        ("a path@x?y", "a path@x?y"),
        ("at https://a:b@c/d and s3://e:f@g/h?i=j now", "at https://c/d and s3://g/h?… now"),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown == hide_secrets(shown)


def test_the_store_of_one_file(tmp_path: Path) -> None:
    put("memory://one/folder", {"a": b"one"})
    store, name = open_file_store("memory://one/folder/a")
    assert (name, store.read([Span(name)])) == ("a", [b"one"])
    (tmp_path / "a").write_bytes(b"two")
    for where in (tmp_path / "a", str(tmp_path / "a"), f"file://{tmp_path}/a"):
        store, name = open_file_store(where)
        assert (name, store.read([Span(name)])) == ("a", [b"two"])
    for bad in ("s3://bucket", "s3://bucket/"):
        with pytest.raises(ConfigError, match="must be the address of a file"):
            open_file_store(bad)


def test_a_file_is_created_whole_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    store = open_store(tmp_path)
    assert store.create("deep/a", b"one")
    assert not store.create("deep/a", b"two")
    assert contents(str(tmp_path)) == {"deep/a": b"one"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a"]
