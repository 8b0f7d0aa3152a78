"""CIFAR, idx files and the bundled digits: sets that live in memory."""

import gzip
import os
import pickle
import struct
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data import ArraySource, DataConfig, Dataset, open_data
from vitrail.data.sources.cifar import CIFAR10_CLASSES
from vitrail.data.sources.inert import load_inert
from vitrail.errors import DataError

RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.integers(0, 256, (20, 3072), dtype=np.uint8)
LABELS = [number % 10 for number in range(20)]


def images_of(data: Dataset, split: str) -> torch.Tensor:
    """The pictures of a split that lies in memory."""
    source = data.split(split)
    assert isinstance(source, ArraySource)
    return source.images


def write_binary(folder: Path, fine: bool = False) -> Path:
    folder.mkdir()
    header = [[7, label * 10] if fine else [label] for label in LABELS]
    content = b"".join(bytes(start) + pixels.tobytes() for start, pixels in zip(header, PICTURES, strict=True))
    names = ["train.bin", "test.bin"] if fine else [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for name in names:
        (folder / name).write_bytes(content)
    if fine:
        (folder / "fine_label_names.txt").write_text("\n".join(f"fine{number}" for number in range(100)) + "\n")
    return folder


def python2_pickle(batch: dict) -> bytes:
    """As the original files are: protocol 2 with numpy's old module name."""
    data = pickle.dumps(batch, protocol=2)
    return data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_pickled(folder: Path, batch: bytes) -> Path:
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(batch)
    return folder


def test_cifar10_binary(tmp_path: Path) -> None:
    data = open_data(write_binary(tmp_path / "cifar-10-batches-bin"))
    assert data.classes == CIFAR10_CLASSES
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 100, "test": 20}
    assert torch.equal(images_of(data, "test")[3].flatten(), torch.from_numpy(PICTURES[3]))
    assert data.splits["test"].labels.tolist() == LABELS
    assert open_data(tmp_path).name == "cifar10"  # the folder above it
    assert open_data("cifar10", DataConfig(data_dir=tmp_path)).name == "cifar10"


def test_cifar100_binary_has_the_fine_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training pictures of fine1, fine2"):  # 10 of the 100 classes are there
        open_data(write_binary(tmp_path / "cifar-100-binary", fine=True))


def test_cifar10_pickled_equals_binary(tmp_path: Path) -> None:
    batch = python2_pickle({b"data": PICTURES, b"labels": LABELS, b"batch_label": b"x", b"filenames": [b"a"] * 20})
    pickled = open_data(write_pickled(tmp_path / "cifar-10-batches-py", batch))
    binary = open_data(write_binary(tmp_path / "bin"))
    for split in ("train", "test"):
        assert torch.equal(images_of(pickled, split), images_of(binary, split))
        assert np.array_equal(pickled.splits[split].labels, binary.splits[split].labels)


def test_cifar_archive_is_read_as_downloaded(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin")
    archive = tmp_path / "sub" / "cifar-10-binary.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    assert len(open_data(archive).splits["train"]) == 100
    assert len(open_data("cifar10", DataConfig(data_dir=archive.parent)).splits["train"]) == 100
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(DataError, match="damaged or truncated, or not a tar file"):
        open_data(archive)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("place", ["value", "key", "array"])
def test_a_malicious_pickle_runs_nothing(tmp_path: Path, place: str) -> None:
    target = tmp_path / "executed"
    bad = Malicious(target)
    batches = {
        "value": {b"data": PICTURES, b"labels": bad},
        "key": {b"data": PICTURES, b"labels": LABELS, b"more": [bad]},
        "array": {b"data": np.array([bad], dtype=object), b"labels": LABELS},
    }
    folder = write_pickled(tmp_path / "cifar-10-batches-py", pickle.dumps(batches[place], protocol=2))
    with pytest.raises(DataError, match=r"refused, nothing was run"):
        open_data(folder)
    assert not target.exists()
    pickle.loads((folder / "test_batch").read_bytes())  # the attack is real
    assert target.exists()


@pytest.mark.parametrize(
    "attack",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02\x82\x01.",  # a code of the extension registry
        b"Pid\n.",  # a persistent id
    ],
)
def test_other_ways_to_run_code(attack: bytes) -> None:
    with pytest.raises(DataError):
        load_inert(attack, "batch")


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"data": PICTURES}, "not a batch"),
        ({b"data": PICTURES, b"labels": LABELS[:-1]}, "do not fit"),
        ({b"data": PICTURES, b"labels": [10] * 20}, "do not fit"),
        ({b"data": PICTURES.astype(np.float32), b"labels": LABELS}, "unsigned bytes"),
        ({b"data": [1, 2], b"labels": LABELS}, "not a batch"),
        ([1, 2], "must hold a dictionary"),
    ],
)
def test_pickles_that_are_no_batch(tmp_path: Path, batch: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data(write_pickled(tmp_path / "x", pickle.dumps(batch, protocol=2)))


def test_truncated_cifar(tmp_path: Path) -> None:
    folder = write_binary(tmp_path / "bin")
    (folder / "data_batch_3.bin").write_bytes((folder / "data_batch_3.bin").read_bytes()[:-5])
    with pytest.raises(DataError, match=r"data_batch_3\.bin: must hold records of 3073 bytes"):
        open_data(folder)
    batch = python2_pickle({b"data": PICTURES, b"labels": LABELS})
    folder = write_pickled(tmp_path / "py", batch)
    (folder / "test_batch").write_bytes(batch[:-500])
    with pytest.raises(DataError, match="test_batch: damaged or truncated"):
        open_data(folder)


def idx(array: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, zipped: bool = False) -> Path:
    folder.mkdir()
    pictures = RANDOM.integers(0, 256, (10, 28, 28), dtype=np.uint8)
    for prefix in ("train", "t10k"):
        for name, array in (("images-idx3", pictures), ("labels-idx1", np.arange(10, dtype=np.uint8))):
            path = folder / f"{prefix}-{name}-ubyte"
            if zipped:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                path.write_bytes(idx(array))
    return folder


@pytest.mark.parametrize("zipped", [False, True])
def test_idx(tmp_path: Path, zipped: bool) -> None:
    data = open_data(write_idx(tmp_path / "x", zipped))
    assert data.classes == tuple("0123456789")
    assert images_of(data, "train").shape == (10, 1, 28, 28)
    assert data.splits["test"].key(4) == "x/test/4"


def test_fashion_mnist_has_names(tmp_path: Path) -> None:
    write_idx(tmp_path / "fashion-mnist", zipped=True)
    by_path = open_data(tmp_path / "fashion-mnist")
    by_name = open_data("fashion-mnist", DataConfig(data_dir=tmp_path))
    assert by_path.classes == by_name.classes
    assert by_name.classes[9] == "Ankle boot"


@pytest.mark.parametrize("cut", [2, 6, 14, 500])
@pytest.mark.parametrize("zipped", [False, True])
def test_truncated_idx(tmp_path: Path, cut: int, zipped: bool) -> None:
    folder = write_idx(tmp_path / "x", zipped)
    path = folder / ("t10k-images-idx3-ubyte" + (".gz" if zipped else ""))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="t10k-images"):
        open_data(folder)


def test_other_bad_idx(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "x")
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(b"\x00\x00\x08\x03" + struct.pack(">3I", 2**31, 2**31, 1))  # claims 4 exabytes
    with pytest.raises(DataError, match="needs"):
        open_data(folder)
    path.write_bytes(b"GIF89a")
    with pytest.raises(DataError, match="not an idx file"):
        open_data(folder)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    write_idx(tmp_path / "y")
    (tmp_path / "y" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte .* is missing"):
        open_data(tmp_path / "y")


def test_digits() -> None:
    data = open_data("digits")
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 1259, "val": 269, "test": 269}
    images = images_of(data, "train")
    assert images.shape[1:] == (1, 8, 8)
    assert (int(images.min()), int(images.max()), len(images.unique())) == (0, 255, 17)
    counts = np.bincount(data.splits["test"].labels)
    assert counts.min() >= 26
    assert counts.max() <= 28
    assert data.splits["train"].key(0) == open_data("digits").splits["train"].key(0)


@pytest.mark.parametrize("moved", [False, True], ids=["its file", "a file elsewhere"])
def test_digits_match_scikit_learn(moved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    if moved:
        monkeypatch.setattr("vitrail.data.sources.mnist.find_spec", lambda _: None)
    digits = open_data("digits")
    for name, source in digits.splits.items():
        images = images_of(digits, name)
        for index in range(0, len(source), 37):
            row = int(source.key(index).split("/")[1])
            assert source.labels[index] == bunch.target[row]
            assert np.array_equal(np.round(images[index, 0].numpy() * (16 / 255)), bunch.images[row])


def test_unknown_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean cifar1"):
        open_data("cifar11")
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(DataError, match="a data file must be"):
        open_data(tmp_path / "x.zip")


def test_wrong_cifar_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-100-binary")  # CIFAR-10's files in it
    with pytest.raises(DataError, match="holds cifar10, not cifar100"):
        open_data("cifar100", DataConfig(data_dir=tmp_path))


def test_validation_is_carved_out_when_there_is_none(tmp_path: Path) -> None:
    data = open_data(write_binary(tmp_path / "bin"))
    with_val = data.with_validation(0.2)
    assert {name: len(source) for name, source in with_val.splits.items()} == {"train": 80, "test": 20, "val": 20}
    assert set(np.bincount(with_val.splits["val"].labels)) == {2}
    assert with_val.made_split
    assert with_val.with_validation(0.5) is with_val


def zipped_zeros(path: Path, name: str, size: int) -> Path:
    """A small archive with a large file of zeros in it."""

    class Zeros:
        def read(self, count: int) -> bytes:
            return bytes(count)

    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        entry = tarfile.TarInfo(name)
        entry.size = size
        archive.addfile(entry, Zeros())
    return path


@pytest.mark.parametrize("name", ["data_batch_1.bin", "unknown"])
def test_a_cifar_archive_that_unpacks_to_gigabytes(tmp_path: Path, name: str) -> None:
    path = zipped_zeros(tmp_path / "cifar-10-binary.tar.gz", name, 600_000_000)
    tracemalloc.start()
    with pytest.raises(DataError, match="holds no CIFAR batches" if name == "unknown" else "600,000,000 bytes"):
        open_data(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000_000


def test_an_idx_file_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "x", zipped=True)
    path = folder / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"\x00\x00\x08\x03" + struct.pack(">3I", 300_000, 32, 32))
        for _ in range(300):
            file.write(bytes(1024 * 1000))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"train-images.*unpacks to 307,200,000 bytes"):
        open_data(folder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000_000
