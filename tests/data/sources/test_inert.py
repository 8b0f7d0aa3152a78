"""CIFAR's pickles, and some that only look like them. Python's own pickle writes the honest ones."""

import pickle
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from vitrail.data import open_data
from vitrail.data.sources.inert import load_inert
from vitrail.errors import DataError

PICTURES = np.random.default_rng(0).integers(0, 256, (20, 3072), dtype=np.uint8)
BATCH = {b"data": PICTURES, b"labels": [n % 10 for n in range(20)], b"filenames": [b"a.png", b"\xff"] * 10}


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_protocol_gives_the_same(protocol: int, order: Literal["C", "F"]) -> None:
    batch = {**BATCH, b"data": np.array(PICTURES, order=order), b"n": [None, True, 300, -5, 2**40, (1, 2)]}
    read = load_inert(pickle.dumps(batch, protocol=protocol), "batch")
    assert np.array_equal(read["data"].array(), PICTURES)
    assert {name: value for name, value in read.items() if name != "data"} == {
        name.decode(): value for name, value in batch.items() if name != b"data"
    }


def doubled(count: int) -> bytes:
    """((((),()),((),())),…): 2**count tuples, of which each is one."""
    return b"\x80\x02)" + b"q\x00h\x00\x86" * count


ENCODE = b"c_codecs\nencode\nq\x00X" + struct.pack("<I", 10**6) + b"a" * 10**6 + b"q\x01\x85q\x02"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02Nr\xff\xff\xff\x1f.", "must hold a dictionary"),  # 9 bytes that name a memo of 4 GB
        (b"}" + doubled(26) + b"Ns.", "a key that is not text: tuple"),  # whose hash takes forever
        (b"}U\x01a" + doubled(2000) + b"s.", None),
        (b"(" * 100_000 + b".", "damaged"),
        (b"]" * 100_000 + b"a" * 99_999 + b".", "must hold a dictionary"),
        (ENCODE + b"h\x00h\x02R" * 10_000 + b".", "unpacks to more than its size"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "bytes in a .*, but only"),
        (b"T\xff\xff\xff\x7fabc.", "bytes in a .*, but only"),
        (b"N0", "the instruction POP"),
        (b"I" + b"9" * 100_000 + b"\n.", "damaged or truncated"),
        (b"\x8b\xff\xff\xff\x7f.", "damaged or truncated"),
        (b"\x8a\x09123456789.", "must hold a dictionary; got int"),
        (b"}(U\x01au.", "damaged"),
        (b"}q\x00(h\x00h\x00u.", "not text: dict"),
        (b"}(U\x02\xff\xfeNu.", "names in UTF-8"),
        (b"", "damaged or truncated"),
        (b"c" + b"a" * 10**6, "damaged or truncated"),
        (b"h\x05.", "damaged or truncated"),
        (b"t.", "damaged or truncated"),
    ],
    ids=range(19),
)
def test_small_pickles_stay_small_and_quick(data: bytes, message: str | None) -> None:
    tracemalloc.start()
    start = time.process_time()
    if message:
        with pytest.raises(DataError, match=message) as error:
            load_inert(data, "batch")
        assert len(str(error.value)) < 500
    else:
        load_inert(data, "batch")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60_000_000 + 2 * len(data)
    assert time.process_time() - start < 20


def test_endless_pickles_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.data.sources.inert.MAX_STEPS", 1000)
    with pytest.raises(DataError, match="more than 1,000 instructions"):
        load_inert(b"Nq\x00" * 1000, "batch")


def write(folder: Path, batch: object) -> Path:
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([2**62] * 20, "labels that do not fit"),
        ([-1] * 20, "labels that do not fit"),
        ([None] * 20, "labels that do not fit"),
        ([b"\xff"] * 20, "labels that do not fit"),
        ([True] * 20, "labels that do not fit"),
        (b"\x00" * 20, "not a batch"),
        (None, "not a batch"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, labels: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data(write(tmp_path / "cifar", {**BATCH, b"labels": labels}))


def test_class_names_that_are_not_utf8(tmp_path: Path) -> None:
    for name in ("train", "test"):
        batch = {b"data": PICTURES, b"fine_labels": [0] * 20}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=2))
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"\xff"] * 100}, protocol=2))
    with pytest.raises(DataError, match=r"the class names cannot be read .*UTF-8"):
        open_data(tmp_path)
    (tmp_path / "fine_label_names.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(DataError, match=r"the class names cannot be read .*UTF-8"):
        open_data(tmp_path)
