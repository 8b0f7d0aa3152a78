"""Honest data files, damaged at random in ways that mean something: the work of tests/data/test_mutation.py.

`python -m tests.data.mutation FORMAT COUNT [SEED]` reads COUNT damaged versions of a format's files in this process,
with 1 GB of memory beyond what the imports take and 10 seconds for each. The only errors may be VitrailErrors; the
first other one is printed with what made it, and the exit code is 1.
"""

import io
import json
import os
import pickle
import random
import resource
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tests.data.conftest import picture

from vitrail.data import open_data
from vitrail.data.check.scan import examine
from vitrail.errors import VitrailError
from vitrail.schema import from_dict, to_dict
from vitrail.training.config import TrainConfig, flatten
from vitrail.untrusted import read_yaml

MEMORY, SECONDS = 1 << 30, 10
NUMBERS = [0, 1, -1, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64]
TEXTS = ["", "\0", "²", "9" * 5000, "Infinity", "NaN", "[" * 3000, "/dev/zero", "../x", "\ud800", "é", "a\nb", "null"]
WORDS = [
    struct.pack(order + code, value)
    for order in "<>"
    for code, value in (("I", 2**32 - 1), ("I", 2**31), ("Q", 2**63), ("I", 10**9), ("H", 65535))
]
PICKLE_STEPS = [bytes([code]) for code in [*b"().0125aehjlopqrstuNRbcdgiBCIJKLMPQSTUVX}]", *range(0x80, 0x9A)]]


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    picture(seed).save(buffer, "JPEG")
    return buffer.getvalue()


def flip(data: bytes, draw: random.Random, extra: list[bytes]) -> bytes:
    """One to three changes of bytes: flips, cuts, splices, doubled pieces, words that are large numbers."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        place, other = (draw.randrange(len(changed) + 1) for _ in range(2))
        length = draw.choice([1, 1, 2, 4, 8, 16, 64, 512])
        match draw.randrange(7):
            case 0 if place < len(changed):
                changed[place] ^= 1 << draw.randrange(8)
            case 1:
                del changed[place : place + length]
            case 2:
                changed[place:place] = changed[other : other + length]
            case 3:
                changed[place : place + length] = changed[other : other + length]
            case 4:
                word = draw.choice([*WORDS, *extra])
                changed[place : place + len(word)] = word
            case 5:
                changed[place:place] = draw.choice([*WORDS, *extra]) * draw.choice([1, 1, 1, 2, 100])
            case _:
                del changed[place:]
    return bytes(changed)


def twist(value: object, draw: random.Random) -> object:
    """A tree of plain values with one of its leaves or branches replaced by something absurd."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        if draw.random() < 0.1:
            return {**{key: item for key, item in value.items() if key != name}, draw.choice(TEXTS[:3]): value[name]}
        return {**value, name: twist(value[name], draw)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        return [*value[:place], twist(value[place], draw), *value[place + 1 :]]
    absurd = [None, True, 1.5, float("inf"), float("nan"), [], {}, [[1]], {"a": 1}, 10**4000, *NUMBERS, *TEXTS]
    return draw.choice(absurd)


def parquet(folder: Path) -> Callable[[random.Random], Path]:
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
            footer = flip(data[-8 - length : -8], draw, [])
            data = data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"
        else:
            data = flip(data, draw, [])
        (folder / "t.parquet").write_bytes(data)
        return folder / "t.parquet"

    return make


def table(folder: Path) -> Callable[[random.Random], Path]:
    rows = [["path", "label", "split"], *([f"p{n}.jpg", "xy"[n % 2], ("train", "val")[n > 8]] for n in range(12))]

    def make(draw: random.Random) -> Path:
        cells = [list(row) for row in rows]
        for _ in range(draw.randint(0, 3)):
            row = draw.choice(cells)
            match draw.randrange(4):
                case 0 if row:
                    row[draw.randrange(len(row))] = draw.choice(
                        [*TEXTS, *map(str, NUMBERS), '"', "'", ",", "x" * 200_000]
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
            flip(data, draw, [b'"', b",", b"\xef\xbb\xbf", b"\0"]) if draw.random() < 0.6 else data
        )
        return folder / "t.csv"

    return make


def idx(folder: Path) -> Callable[[random.Random], Path]:
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
            data[place : place + 4] = struct.pack(">I", draw.choice(NUMBERS) % 2**32)
        (folder / name).write_bytes(flip(bytes(data), draw, []) if draw.random() < 0.7 else bytes(data))
        return folder

    return make


def repair(data: bytes, start: int) -> bytes:
    """A tar header at `start` with the checksum that its other fields have."""
    head = data[start : start + 148] + b" " * 8 + data[start + 156 : start + 512]
    return data[:start] + head[:148] + b"%06o\0 " % (sum(head) % 8**6) + head[156:] + data[start + 512 :]


def shards(folder: Path) -> Callable[[random.Random], Path]:
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
                flip(text, draw, [b"[", b"1e999", b"NaN"]) if draw.random() < 0.3 else text
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
            data = flip(
                data, draw, [b"LIBARCHIVE.xattr", b"30 size=99999999999999999999\n", b"20 GNU.sparse.major=1\n"]
            )
        (folder / f"{number}.tar").write_bytes(data)
        return folder

    return make


def cifar(folder: Path) -> Callable[[random.Random], Path]:
    pictures = np.random.default_rng(0).integers(0, 256, (10, 3072), dtype=np.uint8)
    batch = {b"data": pictures, b"labels": list(range(10)), b"filenames": [b"a.png"] * 10, b"batch_label": b"x"}
    honest = [pickle.dumps(batch, protocol=protocol) for protocol in (2, 3, 4)]
    for name in [*(f"data_batch_{number}" for number in range(2, 6)), "test_batch"]:
        (folder / name).write_bytes(honest[0])

    def make(draw: random.Random) -> Path:
        data = draw.choice(honest)
        if draw.random() < 0.2:
            wrong = {**batch, draw.choice(list(batch)): twist(draw.choice([[1, 2], 3, "x"]), draw)}
            data = pickle.dumps(wrong, protocol=draw.choice([2, 3, 4]))
        pixels = data.find(pictures.tobytes()[:64])
        if pixels > 0 and draw.random() < 0.7:  # what is around the pixels
            end = pixels + pictures.nbytes
            before, after = data[:pixels], data[end:]
            if draw.random() < 0.5:
                data = flip(before, draw, PICKLE_STEPS) + data[pixels:]
            else:
                data = data[:end] + flip(after, draw, PICKLE_STEPS)
        else:
            data = flip(data, draw, PICKLE_STEPS)
        (folder / "data_batch_1").write_bytes(data)
        return folder

    return make


def dump(tree: object) -> str:
    return yaml.safe_dump(tree, allow_unicode=True, width=10**6)


def config(folder: Path) -> Callable[[random.Random], Path]:
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
        (folder / "c.yaml").write_bytes(flip(text, draw, marks) if draw.random() < 0.7 else text)
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
            examine(source, split, index)


def main(name: str, count: int, seed: int) -> int:
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    memory = Path("/dev/shm")  # a disk can take ten times as long to write thousands of small files as we to read them
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        make = FORMATS[name](Path(folder))
        for case in (-2, -1):  # so that everything is imported before the memory is limited
            with suppress(VitrailError):
                read(make(random.Random(f"{name} {seed} {case}")))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        for case in range(count):
            path = make(random.Random(f"{name} {seed} {case}"))
            start = time.process_time()
            signal.alarm(6 * SECONDS)  # of a busy machine's time
            try:
                read(path)
                outcomes["read"] += 1
            except VitrailError as error:
                outcomes[type(error).__name__] += 1
                if len(str(error)) > 3000:
                    print(f"{name} {seed} {case}: a message of {len(str(error)):,} characters")
                    return 1
            except BaseException:
                print(f"{name} {seed} {case}:\n{traceback.format_exc()[-3000:]}")
                return 1
            signal.alarm(0)
            slowest = max(slowest, time.process_time() - start)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{name}: {count} cases, {dict(outcomes)}, slowest {slowest:.2f} s, {used} MB")
    return int(slowest > SECONDS)


def write_result(name: str, count: int, seed: int, file: Path) -> None:
    """As the command, with what it prints in a file."""
    with file.open("w", buffering=1) as output:
        sys.stdout = sys.stderr = output
        sys.exit(main(name, count, seed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
