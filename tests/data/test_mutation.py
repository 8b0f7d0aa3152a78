"""Damaged data files of each kind: read, or refused with a clear error; no crash, no hang, no full memory."""

import io
import json
import os
import pickle
import random
import struct
import tarfile
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tests.data.conftest import picture

from fuzzing import INTEGERS, TEXTS, attack, cases, mutate, twist
from processes import run
from vitrail.data import open_data
from vitrail.data.check.scan import examine
from vitrail.schema import from_dict, to_dict
from vitrail.training.changes import flatten
from vitrail.training.config import TrainConfig
from vitrail.untrusted import read_yaml

pytestmark = pytest.mark.fuzz

CASES = cases(50)
PICKLE_STEPS = [bytes([code]) for code in [*b"().0125aehjlopqrstuNRbcdgiBCIJKLMPQSTUVX}]", *range(0x80, 0x9A)]]
Maker = Callable[[random.Random], Path]


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    picture(seed).save(buffer, "JPEG")
    return buffer.getvalue()


def parquet(folder: Path) -> Maker:
    honest: list[bytes] = []
    label = {"names": ["x", "y"], "_type": "ClassLabel"}
    metadata = {"info": {"features": {"label": label}}}
    image = pa.array(
        [{"bytes": jpeg(n), "path": None} for n in range(8)], pa.struct({"bytes": pa.binary(), "path": pa.string()})
    )
    tables = [
        pa.table({"image": image, "label": [0, 1] * 4}).replace_schema_metadata({"huggingface": json.dumps(metadata)}),
        pa.table(
            {"path": [f"p{n}.jpg" for n in range(8)], "label": ["x", "y"] * 4, "split": ["train"] * 6 + ["val"] * 2}
        ),
    ]
    for table in tables:
        for options in (
            {},
            {"compression": "none", "use_dictionary": False},
            {"compression": "zstd", "row_group_size": 3},
            {"data_page_version": "2.0", "use_dictionary": False, "column_encoding": None},
        ):
            buffer = io.BytesIO()
            pq.write_table(table, buffer, **options)
            honest.append(buffer.getvalue())

    def make(draw: random.Random) -> Path:
        if draw.random() < 0.2:
            twisted = json.dumps(twist(metadata, draw)).encode("utf-8", "surrogatepass")
            pq.write_table(tables[0].replace_schema_metadata({b"huggingface": twisted}), folder / "t.parquet")
            return folder / "t.parquet"
        data = draw.choice(honest)
        if draw.random() < 0.5:  # the header at the end, which everything follows from
            length = struct.unpack("<I", data[-8:-4])[0]
            footer = mutate(data[-8 - length : -8], draw)
            data = data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"
        else:
            data = mutate(data, draw)
        (folder / "t.parquet").write_bytes(data)
        return folder / "t.parquet"

    return make


def table(folder: Path) -> Maker:
    rows = [["path", "label", "split"], *([f"p{n}.jpg", "xy"[n % 2], ("train", "val")[n > 8]] for n in range(12))]

    def make(draw: random.Random) -> Path:
        cells = [list(row) for row in rows]
        for _ in range(draw.randint(0, 3)):
            row = draw.choice(cells)
            match draw.randrange(4):
                case 0 if row:
                    row[draw.randrange(len(row))] = draw.choice(
                        [*TEXTS, *map(str, INTEGERS), '"', "'", ",", "x" * 200_000]
                    )
                case 1:
                    row += [draw.choice(TEXTS)] * draw.choice([1, 50])
                case 2 if row:
                    del row[draw.randrange(len(row))]
                case _:
                    cells.insert(draw.randrange(len(cells)), list(row))
        text = draw.choice(["\n", "\r\n", "\n\n", "\r"]).join(",".join(row) for row in cells)
        data = text.encode("utf-8", "surrogatepass")
        (folder / "t.csv").write_bytes(
            mutate(data, draw, [b'"', b",", b"\xef\xbb\xbf", b"\0"]) if draw.random() < 0.6 else data
        )
        return folder / "t.csv"

    return make


def idx(folder: Path) -> Maker:
    pictures = np.random.default_rng(0).integers(0, 256, (20, 9, 7), dtype=np.uint8)
    labels = (np.arange(20) % 3).astype(np.uint8)
    honest = {
        f"{split}-{kind}": bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
        for split in ("train", "t10k")
        for kind, array in (("images-idx3-ubyte", pictures), ("labels-idx1-ubyte", labels))
    }

    def make(draw: random.Random) -> Path:
        for name, data in honest.items():
            (folder / name).write_bytes(data)
        name = draw.choice(list(honest))
        data = bytearray(honest[name])
        if draw.random() < 0.6:
            place = 4 * draw.randrange(4)
            data[place : place + 4] = struct.pack(">I", draw.choice(INTEGERS) % 2**32)
        (folder / name).write_bytes(mutate(bytes(data), draw) if draw.random() < 0.7 else bytes(data))
        return folder

    return make


def repair(data: bytes, start: int) -> bytes:
    """A tar header at `start` with the checksum that its other fields have."""
    head = data[start : start + 148] + b" " * 8 + data[start + 156 : start + 512]
    return data[:start] + head[:148] + b"%06o\0 " % (sum(head) % 8**6) + head[156:] + data[start + 512 :]


def shards(folder: Path) -> Maker:
    archives: list[bytes] = []
    for form in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
            for number in range(4):
                label = json.dumps({"label": number % 2}).encode()
                for name, content in (("jpg", jpeg(number)), ("json", label) if number % 2 else ("cls", b"1")):
                    entry = tarfile.TarInfo(
                        f"{'long' * 40 if number == 3 and form != tarfile.USTAR_FORMAT else ''}é{number}.{name}"
                    )
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
        archives.append(buffer.getvalue().rstrip(b"\0") + bytes(2048))
    sizes = [len(data) // 512 * 512 for data in archives]
    index = {
        "format": 1,
        "classes": ["a", "b"],
        "splits": {"train": [{"file": f"{n}.tar", "bytes": sizes[n], "labels": [0, 1, 0, 1]} for n in range(3)]},
    }

    def make(draw: random.Random) -> Path:
        whole = [data[:size] for data, size in zip(archives, sizes, strict=True)]
        for number, data in enumerate(whole):
            (folder / f"{number}.tar").write_bytes(data)
        if draw.random() < 0.4:
            text = json.dumps(twist(index, draw)).encode("utf-8", "surrogatepass")
            (folder / "shards.json").write_bytes(
                mutate(text, draw, [b"[", b"1e999", b"NaN"]) if draw.random() < 0.3 else text
            )
            return folder
        (folder / "shards.json").unlink(missing_ok=True)
        number = draw.randrange(3)
        data = whole[number]
        if draw.random() < 0.7:
            starts = [start for start in range(0, len(data), 512) if data[start + 257 : start + 262] == b"ustar"]
            start = draw.choice(starts)
            field = draw.choice(
                [(0, 100), (100, 108), (124, 136), (124, 136), (136, 148), (156, 157), (257, 265), (345, 500)]
            )
            value = draw.choice(
                [
                    b"\x80" + bytes(10) + b"\xff",
                    b"\xff" * 12,
                    b"777777777777",
                    b"-1",
                    b"x",
                    b"\0",
                    b"L",
                    b"x",
                    b"g",
                    b"S",
                    b"1",
                    bytes(12),
                    struct.pack(">IQ", 0x80000000, 2**62),
                ]
            )
            size = field[1] - field[0]
            data = data[: start + field[0]] + value[:size].ljust(size, b"\0") + data[start + field[1] :]
            data = repair(data, start)
        else:
            data = mutate(
                data, draw, [b"LIBARCHIVE.xattr", b"30 size=99999999999999999999\n", b"20 GNU.sparse.major=1\n"]
            )
        (folder / f"{number}.tar").write_bytes(data)
        return folder

    return make


def cifar(folder: Path) -> Maker:
    pictures = np.random.default_rng(0).integers(0, 256, (10, 3072), dtype=np.uint8)
    batch = {b"data": pictures, b"labels": list(range(10)), b"filenames": [b"a.png"] * 10, b"batch_label": b"x"}
    honest = [pickle.dumps(batch, protocol=protocol) for protocol in (2, 3, 4)]
    for name in [*(f"data_batch_{number}" for number in range(2, 6)), "test_batch"]:
        (folder / name).write_bytes(honest[0])

    def make(draw: random.Random) -> Path:
        data = draw.choice(honest)
        if draw.random() < 0.2:
            wrong = {**batch, draw.choice(list(batch)): twist(draw.choice([[1, 2], 3, "x"]), draw)}
            with suppress(RecursionError):  # nesting that cannot be pickled
                data = pickle.dumps(wrong, protocol=draw.choice([2, 3, 4]))
        pixels = data.find(pictures.tobytes()[:64])
        if pixels > 0 and draw.random() < 0.7:  # what is around the pixels
            end = pixels + pictures.nbytes
            before, after = data[:pixels], data[end:]
            if draw.random() < 0.5:
                data = mutate(before, draw, PICKLE_STEPS) + data[pixels:]
            else:
                data = data[:end] + mutate(after, draw, PICKLE_STEPS)
        else:
            data = mutate(data, draw, PICKLE_STEPS)
        (folder / "data_batch_1").write_bytes(data)
        return folder

    return make


def dump(tree: object) -> str:
    try:
        return yaml.safe_dump(tree, allow_unicode=True, width=10**6)
    except RecursionError:  # nesting that YAML's reader accepts, and its writer does not
        return f"{json.dumps(tree)}\n"


def config(folder: Path) -> Maker:
    honest = to_dict(TrainConfig())
    parts = {name: dump({name: value}) for name, value in honest.items()}  # what is not twisted is written once

    def write(tree: object) -> str:
        if not isinstance(tree, dict) or not tree:
            return dump(tree)
        whole = {name for name in tree if name in honest and tree[name] is honest[name]}
        return "".join(parts[name] if name in whole else dump({name: tree[name]}) for name in sorted(tree))

    def make(draw: random.Random) -> Path:
        tree = twist(honest, draw) if draw.random() < 0.8 else honest
        text = write(tree).encode("utf-8", "surrogatepass")
        marks = [
            b"&a ",
            b"*a",
            b"!!int ",
            b"!!timestamp ",
            b"<<: ",
            b"2020-99-99",
            b"? ",
            b"[",
            b"{",
            b"- ",
            b"0x",
            b"1:2:3",
            b"---\n",
        ]
        (folder / "c.yaml").write_bytes(mutate(text, draw, marks) if draw.random() < 0.7 else text)
        return folder / "c.yaml"

    return make


FORMATS = {"parquet": parquet, "csv": table, "idx": idx, "tar": shards, "cifar": cifar, "yaml": config}


def read(path: Path) -> None:
    """What a user does with such a file: the config is checked, the data are opened and looked at."""
    if path.suffix == ".yaml":
        settings = read_yaml(path)
        try:
            flatten(settings, str(path))
        finally:
            from_dict(TrainConfig, settings)
        return
    dataset = open_data(path)
    for split, source in dataset.splits.items():
        for index in range(min(len(source), 8)):
            examine(source, split, dataset.labelling, index)


def read_all(name: str, count: int, result: Path) -> None:
    """What a process of its own does, so that one that crashes is noticed; what came of it is written into a file."""
    memory = Path("/dev/shm")  # a disk can take ten times as long to write thousands of small files as we to read them
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        try:
            outcomes: dict[str, Any] = dict(attack(read, FORMATS[name](Path(folder)), count))
        except AssertionError:
            outcomes = {"error": traceback.format_exc()}
    result.write_text(json.dumps(outcomes))


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    assert run(read_all, name, CASES, tmp_path / "result") == 0
    outcomes = json.loads((tmp_path / "result").read_text())
    assert "error" not in outcomes, outcomes["error"]
    assert outcomes["read"] + outcomes["refused"] == CASES
    assert outcomes["refused"] > CASES / 10
