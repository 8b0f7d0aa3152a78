"""webdataset shards: ours, other people's, on disk and on a web server."""

import contextlib
import io
import json
import os
import signal
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from tests.data.conftest import picture
from webdataset import tariterators

from faults import check_every_failure
from vitrail.data import ArraySource, Augment, DataConfig, Dataset, Loader, LoaderConfig, Preprocess, open_data
from vitrail.data.download import Remote
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.shards import expand_braces
from vitrail.errors import DataError

SPEC = Preprocess(size=(16, 16))


@pytest.fixture
def folder(make_folder) -> Dataset:
    return open_data(make_folder("train/cat", "train/dog", "val/cat", "val/dog", count=15))


@pytest.fixture
def shards(folder: Dataset, tmp_path: Path) -> Path:
    write_shards(folder, tmp_path / "shards", max_bytes=12_000)
    return tmp_path / "shards"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    thread.join()
    web.server_close()


def contents(data: Dataset, split: str) -> list[tuple[bytes, str]]:
    source = data.split(split)
    found = []
    for index in range(len(source)):
        value = source.picture(index)
        content = value if isinstance(value, bytes) else Path(str(value)).read_bytes()
        found.append((content, data.classes[source.labels[index]]))
    return sorted(found)


def test_nothing_is_lost_or_changed(folder: Dataset, shards: Path) -> None:
    data = open_data(shards)
    assert data.classes == ("cat", "dog")
    assert len(list(shards.glob("train-*.tar"))) > 3
    assert all(path.stat().st_size <= 12_000 + 10_240 for path in shards.glob("*.tar"))
    for split in ("train", "val"):
        assert contents(data, split) == contents(folder, split)
    labels = data.split("train").labels
    assert 2 < np.count_nonzero(np.diff(labels)) < len(labels)  # classes are mixed, not one after the other


def test_webdataset_reads_what_we_write(folder: Dataset, shards: Path) -> None:
    with contextlib.ExitStack() as stack:  # opened here: webdataset itself leaves its files open
        paths = sorted(shards.glob("train-*.tar"))
        streams = [{"url": str(path), "stream": stack.enter_context(path.open("rb"))} for path in paths]
        samples = list(tariterators.group_by_keys(tariterators.tar_file_expander(streams)))
    found = sorted((sample["jpg"], ("cat", "dog")[int(sample["cls"])]) for sample in samples)
    assert found == contents(folder, "train")


def test_we_read_what_webdataset_writes(folder: Dataset, tmp_path: Path) -> None:
    for split in ("train", "val"):
        with webdataset.writer.ShardWriter(str(tmp_path / f"{split}-%03d.tar"), maxcount=8, verbose=0) as writer:
            for number, (data, name) in enumerate(contents(folder, split)):
                writer.write({"__key__": f"{number:04d}", "jpg": data, "cls": name})
    (tmp_path / "all").mkdir()
    for path in tmp_path.glob("*.tar"):
        path.rename(tmp_path / "all" / path.name)
    data = open_data(tmp_path / "all")
    for split in ("train", "val"):
        assert contents(data, split) == contents(folder, split)
    one = open_data(str(tmp_path / "all" / "train-{000..003}.tar"))
    assert sum(len(source) for source in one.splits.values()) == 30
    assert one.made_split


def test_same_data_same_shards(folder: Dataset, shards: Path, tmp_path: Path) -> None:
    write_shards(folder, tmp_path / "again", max_bytes=12_000)
    for path in shards.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_every_epoch_sees_all_in_another_order(shards: Path) -> None:
    data = open_data(shards)
    loader = Loader(data, "train", SPEC, LoaderConfig(batch_size=10), Augment())
    orders = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        orders.append([index for batch in loader for index in batch.indices.tolist()])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))
    assert orders[0] != orders[1]


def test_remote_shards_are_fetched_once_and_give_the_same(shards: Path, server: str, tmp_path: Path) -> None:
    local = Loader(open_data(shards), "train", SPEC, LoaderConfig(batch_size=10, workers=2), Augment(crop="resized"))
    config = DataConfig(data_dir=tmp_path / "cache")
    data = open_data(f"{server}/shards/shards.json", config)
    assert not list((tmp_path / "cache").rglob("*.tar"))  # nothing before it is needed
    remote = Loader(data, "train", SPEC, LoaderConfig(batch_size=10, workers=3), Augment(crop="resized"))
    for ours, theirs in zip(local, remote, strict=True):
        assert torch.equal(ours.images, theirs.images)
    assert len(list((tmp_path / "cache").rglob("train-*.tar"))) == len(list(shards.glob("train-*.tar")))
    assert not list((tmp_path / "cache").rglob("val-*.tar"))
    pattern = f"{server}/shards/train-{{000000..000002}}.tar"
    assert len(open_data(pattern, config).splits["train"]) > 3


def test_remote_trouble(server: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot download .*missing\.tar \(File not found\)"):
        open_data(f"{server}/missing.tar", DataConfig(data_dir=tmp_path / "cache"))


@pytest.mark.parametrize("cut", [700, 4_000, -10_240])
def test_truncated_shards(folder: Dataset, tmp_path: Path, cut: int) -> None:
    write_shards(folder, tmp_path / "s")
    path = tmp_path / "s" / "train-000000.tar"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"train-000000\.tar: must have [\d,]+ bytes"):
        list(Loader(open_data(tmp_path / "s"), "train", SPEC, LoaderConfig(batch_size=2), Augment()))
    (tmp_path / "s" / "shards.json").unlink()
    with pytest.raises(DataError, match=r"train-000000\.tar"):
        open_data(tmp_path / "s")


def write_tar(path: Path, members: dict[str, bytes], mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def test_labels_in_json_and_pictures_without_one(tmp_path: Path) -> None:
    members = {}
    for number in range(20):
        buffer = io.BytesIO()
        picture(number).save(buffer, "PNG")
        members[f"dir.v1/{number:03d}.seg.png"] = buffer.getvalue()
        members[f"dir.v1/{number:03d}.json"] = json.dumps({"label": number % 10}).encode()
    data = open_data(str(write_tar(tmp_path / "x.tar", members)))
    assert data.classes == tuple("0123456789")
    with pytest.raises(DataError, match="sample a has no label"):
        open_data(str(write_tar(tmp_path / "y.tar", {"a.png": members["dir.v1/000.seg.png"]})))


def test_compressed_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not an uncompressed tar"):
        open_data(str(write_tar(tmp_path / "z.tar", {"a.cls": b"1"}, "w:gz")))
    (tmp_path / "shards.json").write_text('{"classes": 3}')
    with pytest.raises(DataError, match="not a list of shards"):
        open_data(tmp_path)


def test_a_set_without_one_of_its_shards_is_refused(shards: Path) -> None:
    path = shards / "val-000001.tar"
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(DataError, match=r"val-000001\.tar: no such file"):
        open_data(shards)
    path.write_bytes(data[:-512])
    with pytest.raises(DataError, match=r"val-000001\.tar: must have [\d,]+ bytes; got"):
        open_data(shards)


def test_whatever_fails_a_set_is_whole_or_absent(folder: Dataset, tmp_path: Path) -> None:
    def write(place: Path) -> None:
        write_shards(folder, place / "s", max_bytes=60_000)

    assert check_every_failure(write, tmp_path / "new", together=True) > 10
    assert not (tmp_path / "new" / "10" / "s").exists()
    check_every_failure(write, tmp_path / "empty", lambda place: (place / "s").mkdir(), together=True)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_killed_set_is_absent_and_can_be_written_again(folder: Dataset, tmp_path: Path) -> None:
    seen: list[int] = []

    def die(_: int) -> None:
        seen.append(1)
        if len(seen) == 40:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        write_shards(folder, tmp_path / "s", max_bytes=12_000, progress=die)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with pytest.raises(DataError):
        open_data(tmp_path / "s")
    assert write_shards(folder, tmp_path / "s", max_bytes=12_000).num_samples == 60
    assert contents(open_data(tmp_path / "s"), "train") == contents(folder, "train")
    assert not list((tmp_path / "s").glob(".*"))


def test_writing_into_a_folder_that_is_not_empty(folder: Dataset, shards: Path) -> None:
    with pytest.raises(DataError, match="must be empty"):
        write_shards(folder, shards)


def test_arrays_and_broken_pictures(folder: Dataset, tmp_path: Path) -> None:
    written = write_shards(open_data("digits"), tmp_path / "digits", max_bytes=300_000)
    assert written.num_samples == 1797
    data = open_data(tmp_path / "digits")
    batch = next(iter(Loader(data, "test", Preprocess(size=(8, 8)), LoaderConfig(batch_size=269))))
    source = open_data("digits").split("test")
    assert isinstance(source, ArraySource)
    assert sorted(batch.images[:, 0].flatten(1).sum(1).tolist()) == pytest.approx(
        sorted((source.images.flatten(1) / 127.5 - 1).sum(1).tolist()), abs=1e-3
    )
    Path(str(folder.split("train").picture(4))).write_bytes(b"broken")
    written = write_shards(folder, tmp_path / "s")
    assert list(written.skipped) == ["train/cat/004.jpg"]
    assert written.num_samples == 59


def test_braces() -> None:
    assert expand_braces("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert expand_braces("{1..2}/{0..1}") == ["1/0", "1/1", "2/0", "2/1"]
    assert expand_braces("plain.tar") == ["plain.tar"]


@pytest.mark.parametrize("label", [b"{", b"3", b"null", b"\xff\xfe"])
def test_json_that_holds_no_label(tmp_path: Path, label: bytes) -> None:
    with pytest.raises(DataError, match=r"x\.tar: .*sample a "):
        open_data(str(write_tar(tmp_path / "x.tar", {"a.png": b"", "a.json": label})))


def test_a_label_that_claims_gigabytes(tmp_path: Path) -> None:
    """A sparse member holds any number of zeros in no space at all."""
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("a.png"))
        entry = tarfile.TarInfo("a.cls")
        entry.size = 2_000_000
        archive.addfile(entry, io.BytesIO(bytes(2_000_000)))
    with pytest.raises(DataError, match="the label of sample a has 2,000,000 bytes"):
        open_data(str(tmp_path / "x.tar"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index["splits"]["train"][0]["labels"].__setitem__(0, 7), "label 7"),
        (lambda index: index["splits"]["train"][0]["labels"].__setitem__(0, -1), "label -1"),
        (lambda index: index.update(splits=[1]), "not a list of shards"),
        (lambda index: index["splits"].update(vall=index["splits"].pop("val")), "split 'vall'"),
        (lambda index: index["splits"]["train"][0].update(file="../x.tar"), "'../x.tar'"),
    ],
)
def test_an_index_that_cannot_be(shards: Path, change, message: str) -> None:
    index = json.loads((shards / "shards.json").read_text())
    change(index)
    (shards / "shards.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=message):
        open_data(shards)


def test_an_index_with_a_name_that_no_file_can_have(shards: Path) -> None:
    index = json.loads((shards / "shards.json").read_text())
    index["splits"]["train"][0]["file"] = "\ud800.tar"
    (shards / "shards.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="no file can have this name"):
        open_data(shards).split("train").picture(0)


def test_an_index_with_more_labels_than_the_shard_has_samples(shards: Path) -> None:
    index = json.loads((shards / "shards.json").read_text())
    for entry in index["splits"]["train"]:
        entry["labels"].append(1)
    (shards / "shards.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"tar: must hold \d+ samples; got"):
        list(Loader(open_data(shards), "train", SPEC, LoaderConfig(batch_size=2), Augment()))


def test_the_index_is_fetched_anew_and_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of an old list and the end of a new one would make a third."""
    found: list[list[str]] = []

    def look(remote: Remote, folder: Path) -> Path:
        found.append(sorted(path.name for path in folder.iterdir()))
        for name in ("shards.json", "shards.json.part"):
            (folder / name).write_text("{}")
        raise DataError("no network")

    monkeypatch.setattr("vitrail.data.download.fetch", look)
    for _ in range(2):
        with pytest.raises(DataError, match="no network"):
            open_data("http://127.0.0.1/s/shards.json", DataConfig(data_dir=tmp_path))
    assert found == [["shards.json.lock"]] * 2


def test_addresses_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot download"):
        open_data("http://[x/a.tar", DataConfig(data_dir=tmp_path))


def test_class_names_that_are_not_unicode(make_folder, tmp_path: Path) -> None:
    root = make_folder("a", "b", count=4)
    (root / "a").rename(root / os.fsdecode(b"caf\xe9"))
    data = open_data(root)
    write_shards(data, tmp_path / "s")
    assert open_data(tmp_path / "s").classes == data.classes


def foreign(path: Path, *labels: bytes) -> Path:
    files = {
        f"{number}.{part}": data
        for number, label in enumerate(labels)
        for part, data in (("jpg", b"x"), ("cls", label))
    }
    return write_tar(path, files)


def test_labels_that_only_look_like_numbers(tmp_path: Path) -> None:
    labels = ["²", "10", "9", "٣", "cat", "1" * 900]
    data = open_data(str(foreign(tmp_path / "x.tar", *(label.encode() for label in labels * 4))))
    assert data.classes == ("1" * 900, "cat", "²", "٣", "9", "10")
    for label in (b"9" * 9000, b"", b" \n"):
        with pytest.raises(DataError, match=r"the label of sample 0 has [\d,]+ characters, not 1 to 1000"):
            open_data(str(foreign(tmp_path / "y.tar", label, b"1")))


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.replace('"bytes": ', '"bytes": Infinity, "x": '),
        lambda index: index.replace('"bytes": ', '"bytes": 1e400, "x": '),
        lambda index: index.replace('"bytes": ', '"bytes": -1, "x": '),
        lambda index: index.replace('"bytes": ', '"bytes": true, "x": '),
        lambda index: index.replace('"labels": [', '"labels": [NaN, '),
        lambda index: index.replace('"labels": [', '"labels": [1.5, '),
        lambda index: index.replace('"labels": [', '"labels": ["0", '),
        lambda index: index.replace('"labels": [', '"labels": [' + "9" * 9000 + ", "),
        lambda index: index.replace('"labels": [', '"labels": ' + "[" * 100_000),
        lambda index: index.replace('"file": "', '"file": "\\u0000'),
        lambda index: index.replace('"file": "', '"file": "../'),
        lambda index: index.replace('"classes": ["cat"', '"classes": [3'),
        lambda index: index.replace('"classes": [', '"classes": "ab", "x": ['),
        lambda index: index.replace('"splits": {', '"splits": [], "x": {'),
        lambda _: "[]",
        lambda _: "",
        lambda _: "\ud800",
    ],
    ids=range(17),
)
def test_lists_of_shards_that_cannot_be(shards: Path, change) -> None:
    index = (shards / "shards.json").read_text()
    assert change(index) != index
    (shards / "shards.json").write_text(change(index), errors="surrogatepass")
    with pytest.raises(DataError, match="not a list of shards") as error:
        open_data(shards)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("field", [slice(124, 136), slice(136, 148), slice(148, 156), slice(156, 157)])
@pytest.mark.parametrize("value", [b"\x80" + bytes(3) + b"\xff" * 8, b"\xff" * 12, b"777777777777", b"-1\0", b"9999x"])
def test_header_fields_that_lie(tmp_path: Path, field: slice, value: bytes) -> None:
    data = bytearray(foreign(tmp_path / "x.tar", b"1", b"2", b"1").read_bytes())
    size = field.stop - field.start
    for start in (0, 1024):
        data[start + field.start : start + field.stop] = value[:size].ljust(size, b"\0")
        whole = bytes(data[start : start + 148]) + b" " * 8 + bytes(data[start + 156 : start + 512])
        if field.start != 148:
            data[start + 148 : start + 156] = b"%06o\0 " % sum(whole)
    (tmp_path / "x.tar").write_bytes(data)
    with contextlib.suppress(DataError):
        open_data(str(tmp_path / "x.tar"))


@pytest.mark.parametrize(
    "pattern", ["t-{000..99999999999}.tar", "{0..999}{0..999}.tar", "{0..9}.tar" * 9, "{5..2}.tar"]
)
def test_patterns_for_too_many_shards(pattern: str) -> None:
    with pytest.raises(DataError, match="a pattern must stand for 1 to 100,000 shards"):
        open_data(pattern)
    with pytest.raises(DataError, match="a pattern must stand for"):
        expand_braces("{0.." + "9" * 9000 + "}")
    assert expand_braces("a{8..10}b{1..2}") == ["a8b1", "a8b2", "a9b1", "a9b2", "a10b1", "a10b2"]
