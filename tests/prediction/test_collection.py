"""Embeddings of jobs in every kind of store, and of files; what is not one is refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stores import put
from vitrail.errors import DataError, InputError
from vitrail.prediction.collection import open_collection
from vitrail.prediction.feature_files import write_features
from vitrail.prediction.job import DESCRIPTION, DONE, LISTED, JobSpec, Task, part_file

Array = np.ndarray[Any, Any]


def part(features: Array, start: int = 0, broken: tuple[int, ...] = ()) -> bytes:
    """A part of a job, whose rows `broken` have no features."""
    valid = np.ones(len(features), bool)
    valid[list(broken)] = False
    table = pa.table(
        {
            "picture": [f"photos/{start + row}.jpg" for row in range(len(features))],
            "features": pa.array(
                [row if fine else None for row, fine in zip(features.tolist(), valid, strict=True)],
                pa.list_(pa.float32(), features.shape[1]),
            ),
            "error": pa.array([None if fine else "no picture" for fine in valid], pa.string()),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def put_job(root: str, features: Array, size: int = 5, broken: tuple[int, ...] = (), task: Task = "embed") -> None:
    """A job with units of `size` rows."""
    resolved = {"width": features.shape[1]}
    spec = JobSpec(task=task, model={}, pictures=[], list_file=None, settings={}, resolved=resolved, unit=size)
    totals = {"pictures": len(features), "units": -(-len(features) // size)}
    files = {DESCRIPTION: spec.to_json(), LISTED: json.dumps(totals).encode(), DONE: b""}
    for unit, start in enumerate(range(0, len(features), size)):
        inside = tuple(row - start for row in broken if start <= row < start + size)
        files[part_file(unit)] = part(features[start : start + size], start, inside)
    put(root, files)


FEATURES = np.arange(1, 13 * 4 + 1, dtype=np.float32).reshape(13, 4)


def test_a_job_in_any_store(store_root: str) -> None:
    put_job(store_root, FEATURES, broken=(2, 12))
    collection = open_collection(store_root)
    assert collection.name == store_root
    assert collection.table.shape == (13, 4)
    blocks = list(collection.blocks())
    rows = np.concatenate([block.rows for block in blocks])
    assert rows.tolist() == [row for row in range(13) if row not in (2, 12)]
    np.testing.assert_array_equal(np.concatenate([block.features for block in blocks]), FEATURES[rows])
    assert list(collection.describe(np.array([0, 4, 5, 12]))) == [(f"photos/{row}.jpg", None) for row in (0, 4, 5, 12)]
    assert collection.table.texts("picture")[12] == "photos/12.jpg"
    same = open_collection(store_root).fingerprint
    assert collection.fingerprint == same
    put_job(store_root, FEATURES + 1)
    assert open_collection(store_root).fingerprint != same


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
@pytest.mark.parametrize("by_folder", [True, False], ids=["folder", "file"])
def test_a_file_of_embed(tmp_path: Path, suffix: str, by_folder: bool) -> None:
    path = tmp_path / f"features{suffix}"
    with write_features(path, ("picture", "label", "split"), 4) as write:
        for row, features in enumerate(FEATURES):
            write((f"{row}.jpg", f"class {row % 2}", "train"), features)
    collection = open_collection(tmp_path if by_folder else str(path))
    assert collection.name == str(path)
    np.testing.assert_array_equal(np.concatenate([block.features for block in collection.blocks()]), FEATURES)
    assert list(collection.describe(np.array([1, 8]))) == [("1.jpg", "class 1"), ("8.jpg", "class 0")]
    assert collection.job is None


def test_what_is_no_collection(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such folder"):
        open_collection(tmp_path / "none")
    with pytest.raises(InputError, match="no features can be read"):
        open_collection(tmp_path / "none.npz")
    with pytest.raises(DataError, match=r"must hold embeddings, job.json or one of features.npz, .*; it does not"):
        open_collection(tmp_path)
    put("memory://search-tests", {"features.npz": b""})
    with pytest.raises(DataError, match=r"must hold embeddings, job.json; it does not"):
        open_collection("memory://search-tests")
    for suffix in (".npz", ".parquet"):
        with write_features(tmp_path / f"features{suffix}", ("picture",), 4) as write:
            write(("0.jpg",), FEATURES[0])
    with pytest.raises(DataError, match=r"it has features.npz and features.parquet: name one of them"):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"_DONE": None}, "the job must have ended"),
        ({"manifest/_DONE": None}, "the job must have ended"),
        ({"job.json": b"{"}, "job.json: not the description of a job"),
        ({"parts/part-00000001.parquet": None}, "part-00000001.parquet: not a part of this job"),
        ({"parts/part-00000001.parquet": b"PAR1"}, "part-00000001.parquet: not a part of this job"),
        ({"parts/part-00000001.parquet": part(FEATURES[:4])}, "not a part of this job (must have 5 rows; got 4)"),
        ({"parts/part-00000001.parquet": part(FEATURES[:5, :3])}, "not a part of this job (cannot reshape"),
    ],
)
def test_a_damaged_job(tmp_path: Path, files: dict[str, bytes | None], why: str) -> None:
    put_job(str(tmp_path), FEATURES)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content) if content is not None else (tmp_path / name).unlink()
    with pytest.raises(DataError) as caught:
        list(open_collection(tmp_path).blocks())
    assert why in str(caught.value)


def test_labels_are_no_embeddings(tmp_path: Path) -> None:
    put_job(str(tmp_path), FEATURES, task="predict")
    with pytest.raises(DataError, match="must be a job of `vitrail embed`; it is one of `vitrail predict`"):
        open_collection(tmp_path)


def test_a_part_that_vanishes(tmp_path: Path) -> None:
    put_job(str(tmp_path), FEATURES)
    collection = open_collection(tmp_path)
    (tmp_path / "parts" / "part-00000001.parquet").unlink()
    with pytest.raises(DataError, match=r"part-00000001.parquet: cannot be read \(No such file"):
        _ = collection.fingerprint
