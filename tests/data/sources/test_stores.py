"""Data in object stores: opened, ordered, read and named as on a disk; fetched once, many at a time."""

import csv
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.conftest import MakeFolder

from stores import failing_stores, make_root, put, remove, upload
from vitrail.data import DataConfig, Dataset, Loader, LoaderConfig, open_data, write_split_file
from vitrail.data.copies import Copies
from vitrail.data.datasets import check_where
from vitrail.data.preprocess import Preprocess
from vitrail.data.shard_writer import write_shards
from vitrail.errors import DataError
from vitrail.storage import open_store


@pytest.fixture(params=["memory", "s3"])
def far_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_root(request.param, tmp_path, request)


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    return DataConfig(data_dir=tmp_path / "cache")


def same(one: Dataset, other: Dataset) -> bool:
    """Whether two data sets have the same samples in the same order, with the same contents."""
    assert one.classes == other.classes
    assert one.ignored == other.ignored
    assert one.made_split == other.made_split
    assert list(one.splits) == list(other.splits)
    for name, source in one.splits.items():
        another = other.splits[name]
        assert source.keys() == another.keys()
        assert source.labels.tolist() == another.labels.tolist()
        for index in range(len(source)):
            assert content(source.picture(index)) == content(another.picture(index))
    return True


def content(picture: Any) -> bytes:
    return picture if isinstance(picture, bytes) else Path(picture).read_bytes()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, no content of a store's files can be read."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("fetched again")

    def cut() -> None:
        for name in ("read", "fetch", "open"):
            monkeypatch.setattr(f"vitrail.object_store.ObjectStore.{name}", refuse)

    return cut


def test_class_folders_with_splits(make_folder: MakeFolder, far_root: str, config: DataConfig) -> None:
    root = make_folder("train/cat", "train/dog", "val/cat", "val/dog")
    (root / "README.md").write_text("about")
    (root / "train" / "cat" / "notes.txt").write_text("about")
    assert same(open_data(upload(root, far_root), config), open_data(root))


def test_the_order_is_that_of_a_disk(make_folder: MakeFolder, far_root: str, config: DataConfig) -> None:
    """S3 sorts whole names, so that a-b/ comes before a/; a disk's folders are sorted one by one."""
    root = make_folder("a", "a-b", "a b", "a/deep-er", "a/deep", "a/deep er", "B", "é", count=2)
    far = open_data(upload(root, far_root), config)
    assert same(far, open_data(root))
    for source in far.splits.values():
        assert source.keys() == sorted(source.keys(), key=lambda key: key.split("/"))


def test_flat_folders_and_their_split_file(
    make_folder: MakeFolder, far_root: str, config: DataConfig, tmp_path: Path
) -> None:
    root = make_folder("cat", "dog", count=10)
    far = open_data(upload(root, far_root), config)
    assert same(far, open_data(root))
    write_split_file(open_data(root, DataConfig(split_seed=3)), tmp_path / "split.csv")
    put(far_root, {"../split/split.csv".removeprefix("../"): (tmp_path / "split.csv").read_bytes()})
    elsewhere = f"{far_root}/split/split.csv"
    split = open_data(root, DataConfig(split_file=elsewhere))
    assert same(split, open_data(root, DataConfig(split_file=tmp_path / "split.csv")))
    with pytest.raises(DataError, match=r"cannot read the split file .*none.csv"):
        open_data(root, DataConfig(split_file=f"{far_root}/none.csv"))


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_tables_name_files_beside_them(
    make_folder: MakeFolder, far_root: str, config: DataConfig, kind: str, tmp_path: Path
) -> None:
    root = make_folder("pictures/cat", "pictures/dog", count=4)
    names = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.jpg"))]
    rows = [(f"./{name}" if number % 2 else name, name.split("/")[1]) for number, name in enumerate(names)]
    write_table(root / "tables" / f"list.{kind}", [(f"../{name}", label) for name, label in rows])
    write_table(root / f"list.{kind}", rows)
    upload(root, far_root)
    for table in (f"list.{kind}", f"tables/list.{kind}"):
        far = open_data(f"{far_root}/{table}", config)
        assert same(far, open_data(root / table))
        assert far.name == "list"


def write_table(path: Path, rows: list[tuple[str, str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"path": [name for name, _ in rows], "label": [label for _, label in rows]}), path)
        return
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="," if path.suffix == ".csv" else "\t")
        writer.writerows([("path", "label"), *rows])


def test_a_table_of_encoded_pictures(make_folder: MakeFolder, far_root: str, config: DataConfig) -> None:
    root = make_folder("cat", "dog", count=4)
    files = sorted(root.rglob("*.jpg"))
    values = [{"bytes": path.read_bytes(), "path": path.name} for path in files[:-2]]
    values += [{"bytes": None, "path": path.relative_to(root).as_posix()} for path in files[-2:]]
    pq.write_table(pa.table({"image": values, "label": [path.parent.name for path in files]}), root / "t.parquet")
    assert same(open_data(f"{upload(root, far_root)}/t.parquet", config), open_data(root / "t.parquet"))


def test_addresses_in_a_table(make_folder: MakeFolder, far_root: str, config: DataConfig) -> None:
    root = make_folder("cat", "dog", count=4)
    upload(root, far_root)
    names = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.jpg"))]
    mixed = [(f"{far_root}/{name}" if number % 2 else name, name[:3]) for number, name in enumerate(names)]
    write_table(root / "mixed.csv", [*mixed, (f"{far_root}/none.jpg", "cat")])
    data = open_data(root / "mixed.csv", config)
    seen = 0
    for source in data.splits.values():
        for index, key in enumerate(source.keys()):
            if "none" not in key:
                seen += content(source.picture(index)) == (root / key.removeprefix(f"{far_root}/")).read_bytes()
            else:
                with pytest.raises(FileNotFoundError, match="no such file"):
                    source.picture(index)
    assert seen == len(names)


def test_what_a_table_in_a_store_must_not_name(far_root: str, config: DataConfig) -> None:
    put(far_root, {"a.csv": b"path,label\n/etc/passwd,a\n", "b.csv": b"path,label\ns3://me:hush@b/1.jpg,a\n"})
    with pytest.raises(DataError, match="row 1 must name a path from the table's folder"):
        open_data(f"{far_root}/a.csv", config)
    with pytest.raises(DataError, match=r"row 1: s3://b/1.jpg: an address of data must not hold a password") as error:
        open_data(f"{far_root}/b.csv", config)
    assert "hush" not in str(error.value)


def test_shards(
    make_folder: MakeFolder, far_root: str, config: DataConfig, tmp_path: Path, no_network: Callable[[], None]
) -> None:
    data = open_data(make_folder("train/cat", "train/dog", "val/cat", "val/dog", count=6))
    write_shards(data, tmp_path / "shards", max_bytes=10_000)
    upload(tmp_path / "shards", far_root)
    near = open_data(tmp_path / "shards")
    far = open_data(far_root, config)
    assert not list((tmp_path / "cache").rglob("*.tar"))
    assert same(far, near)
    no_network()
    assert same(open_data(f"{far_root}/shards.json", config), near)


def test_shards_without_a_list(make_folder: MakeFolder, far_root: str, config: DataConfig, tmp_path: Path) -> None:
    data = open_data(make_folder("train/cat", "train/dog", count=6))
    write_shards(data, tmp_path / "shards", max_bytes=6_000)
    (tmp_path / "shards" / "shards.json").unlink()
    count = len(list((tmp_path / "shards").iterdir()))
    upload(tmp_path / "shards", far_root)
    assert count > 1
    assert same(open_data(far_root, config), open_data(tmp_path / "shards"))
    for name in (f"train-{{000000..{count - 1:06d}}}.tar", "train-000000.tar"):
        assert same(open_data(f"{far_root}/{name}", config), open_data(str(tmp_path / "shards" / name)))
    with pytest.raises(DataError, match=rf"train-{count:06d}.tar: no such file"):
        open_data(f"{far_root}/train-{{000000..000099}}.tar", config)


def test_a_set_that_lacks_a_shard(make_folder: MakeFolder, far_root: str, config: DataConfig, tmp_path: Path) -> None:
    write_shards(open_data(make_folder("train/cat", "train/dog", count=6)), tmp_path / "shards", max_bytes=6_000)
    upload(tmp_path / "shards", far_root)
    put(far_root, {"train-000001.tar": b"short"})
    with pytest.raises(DataError, match=r"train-000001.tar: must have .* bytes; got 5"):
        open_data(far_root, config)
    remove(far_root, "train-000001.tar")
    with pytest.raises(DataError, match=r"train-000001.tar: no such file"):
        open_data(far_root, config)


def test_nothing_is_fetched_twice_and_much_at_once(
    make_folder: MakeFolder, far_root: str, config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(make_folder("train/cat", "train/dog", "val/cat", "val/dog", count=16), far_root)
    with failing_stores(0) as calls:
        for workers in (0, 2):  # a second data set, as another run would open it
            data = open_data(far_root, config)
            loader = Loader(data, "train", Preprocess(size=(16, 16)), LoaderConfig(batch_size=32, workers=workers))
            for _ in range(2):
                assert len(list(loader)) == 1
    assert sorted(name for call in calls.calls if call.startswith("read") for name in call[5:].split(", ")) == [
        f"train/{name}/{number:03d}.jpg" for name in ("cat", "dog") for number in range(16)
    ]
    assert sum(call.startswith("read") for call in calls.calls) == 1
    assert not any(call.startswith("state") for call in calls.calls)


def test_a_changed_picture_is_fetched_again(make_folder: MakeFolder, far_root: str, config: DataConfig) -> None:
    upload(make_folder("train/cat", "train/dog"), far_root)
    before = open_data(far_root, config).splits["train"].picture(0)
    another = bytes(len(before))
    put(far_root, {"train/cat/000.jpg": another})
    assert open_data(far_root, config).splits["train"].picture(0) == another


def test_a_damaged_copy_is_fetched_again(make_folder: MakeFolder, far_root: str, config: DataConfig) -> None:
    upload(make_folder("train/cat", "train/dog"), far_root)
    source = open_data(far_root, config).splits["train"]
    whole = source.picture(0)
    (copy,) = (path for path in config.cache.rglob("*") if path.is_file())
    copy.write_bytes(copy.read_bytes()[:-1])
    assert source.picture(0) == whole


def test_threads_share_what_they_fetch(make_folder: MakeFolder, far_root: str, config: DataConfig) -> None:
    upload(make_folder("train/cat", "train/dog", count=8), far_root)
    source = open_data(far_root, config).splits["train"]
    with failing_stores(0) as calls, ThreadPoolExecutor(8) as pool:
        list(pool.map(source.prefetch, [range(start, start + 8) for start in (0, 2, 4, 8)] * 4))
    names = [name for call in calls.calls for name in call.removeprefix("read ").split(", ")]
    assert len(names) == len(set(names)) == 16


def test_every_failure_is_an_error_that_leaves_nothing_half_done(
    make_folder: MakeFolder, config: DataConfig, tmp_path: Path
) -> None:
    near = open_data(make_folder("train/cat", "train/dog"))
    write_shards(near, tmp_path / "shards")
    far_folder = upload(tmp_path / "pictures", "memory://failures/folder")
    far_shards = upload(tmp_path / "shards", "memory://failures/shards")
    for far, whole in ((far_folder, near), (far_shards, open_data(tmp_path / "shards"))):
        number = 0
        for number in range(1, 100):
            with failing_stores(number) as calls, suppress(DataError):
                data = open_data(far, config)
                data.splits["train"].prefetch([0, 1, 2])
                data.splits["train"].picture(5)
            if not calls.failed:
                break
            assert not list(config.cache.rglob(".vitrail*"))
            assert same(open_data(far, config), whole)
            shutil.rmtree(config.cache)
        assert number > 3


def test_a_lost_connection_does_not_look_like_damaged_pictures(make_folder: MakeFolder, config: DataConfig) -> None:
    far = upload(make_folder("train/cat", "train/dog"), "memory://lost")
    loader = Loader(open_data(far, config), "train", Preprocess(size=(16, 16)), LoaderConfig(batch_size=2, workers=0))
    with failing_stores(1), pytest.raises(DataError, match="cut the connection"):
        list(loader)


def test_a_missing_picture_is_left_out(make_folder: MakeFolder, far_root: str, config: DataConfig) -> None:
    upload(make_folder("train/cat", "train/dog", count=8), far_root)
    data = open_data(far_root, config)
    remove(far_root, "train/dog/003.jpg")
    settings = LoaderConfig(batch_size=16, workers=0, max_broken_rate=0.5)
    loader = Loader(data, "train", Preprocess(size=(16, 16)), settings)
    assert sum(len(batch.images) for batch in loader) == 15
    assert loader.broken == {"train/dog/003.jpg": f"{far_root}/train/dog/003.jpg: no such file"}
    streamed = dict(data.splits["train"].stream(range(16)))
    assert streamed["train/dog/003.jpg"] == f"{far_root}/train/dog/003.jpg"


def test_a_full_disk_is_said_before_anything_is_fetched(
    make_folder: MakeFolder, far_root: str, config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(make_folder("train/cat", "train/dog"), far_root)
    data = open_data(far_root, config)
    monkeypatch.setattr("vitrail.data.copies.RESERVE", 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2_000))
    message = r"copies of its files take \d MB.* make room, or keep them on another disk with data_dir="
    with failing_stores(0) as calls, pytest.raises(DataError, match=message):
        Loader(data, "train", Preprocess(size=(16, 16)), LoaderConfig(batch_size=2))
    assert not calls.calls


def test_a_copy_that_cannot_be_written_is_no_damaged_picture(
    make_folder: MakeFolder, config: DataConfig, tmp_path: Path
) -> None:
    data = open_data(upload(make_folder("train/cat", "train/dog"), "memory://unwritable"), config)
    (tmp_path / "cache").write_text("a file, where a folder should be")
    with pytest.raises(DataError, match="a copy of memory://unwritable cannot be kept there"):
        data.splits["train"].picture(0)


def test_a_file_that_changes_while_it_is_fetched(
    far_root: str, config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(far_root, {"a.tar": b"one"})
    copies = Copies(open_store(far_root), config.cache)
    fetch = copies.store.fetch

    def fetch_late(name: str, target: Path) -> None:
        put(far_root, {"a.tar": b"longer"})
        fetch(name, target)

    monkeypatch.setattr(copies.store, "fetch", fetch_late)
    with pytest.raises(DataError, match=r"a.tar: changed while it was fetched; run again"):
        copies.get("a.tar")
    assert Copies(open_store(far_root), config.cache).get("a.tar").read_bytes() == b"longer"


def test_a_disk_that_fills_up_is_no_fault_of_the_store(
    far_root: str, config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(far_root, {"a.csv": b"path,label\n1.jpg,a\n"})
    copies = Copies(open_store(far_root), config.cache)

    def fill_up(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies.store._files, "get_file", fill_up)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"cannot be kept there \(No space left on device\)"):
        copies.get("a.csv")
    assert not [path for path in config.cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("where", ["", "/none", "/none.csv", "/none.tar", "/none/shards.json"])
def test_what_is_not_there(far_root: str, config: DataConfig, where: str) -> None:
    for call in (check_where, lambda address: open_data(address, config)):
        with pytest.raises(DataError, match=rf"{far_root}{where}: no such (file|folder)\."):
            call(far_root + where)


def test_a_file_that_is_no_data(far_root: str, config: DataConfig) -> None:
    put(far_root, {"a.jpg": b"x"})
    with pytest.raises(DataError, match=r"a.jpg: a data file must be .csv, .tsv, .parquet or .tar shards"):
        open_data(f"{far_root}/a.jpg", config)


def test_a_bucket_that_is_not_there(s3_server: str, config: DataConfig) -> None:
    with pytest.raises(DataError, match=r"s3://no-such-bucket/x: no such folder\."):
        open_data("s3://no-such-bucket/x", config)


@pytest.mark.parametrize(
    "address",
    [
        "sftp://me:hush@host/photos",
        "s3://hush@bucket/photos",
        "https://me:hush@host/t.tar",
        "https://host/t.tar?X-Amz-Signature=hush",
        "az://box/t.tar?sv=1&sig=hush",
    ],
)
def test_addresses_with_secrets_are_refused(address: str, config: DataConfig) -> None:
    """They would be written into run folders, reports and histories."""
    for call in (check_where, lambda address: open_data(address, config), lambda a: DataConfig(split_file=a)):
        with pytest.raises(DataError, match="must not hold a password or a signature") as error:
            call(address)
        assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    "names", [["data_batch_1.bin"], ["cifar-10-batches-bin/data_batch_1.bin"], ["train-images-idx3-ubyte.gz"]]
)
def test_files_that_must_be_local(far_root: str, config: DataConfig, names: list[str]) -> None:
    put(far_root, dict.fromkeys(names, b"x"))
    with pytest.raises(DataError, match="must be on this machine; copy them to a folder"):
        open_data(far_root, config)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("s3://flowers", "flowers"),
        ("s3://bucket/flowers/dataset", "flowers"),
        ("s3://bucket/flowers/labels.csv", "flowers"),
        ("hf://datasets/owner/flowers/data", "flowers"),
        ("s3://bucket/v1.5", "v1.5"),
        ("s3://data/train", "train"),
    ],
)
def test_names_of_data_in_stores(address: str, name: str) -> None:
    from vitrail.data.source import name_after

    assert name_after(address) == name
