"""The verbs on data in an object store: the same bits as on a disk, and nothing is fetched twice."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitrail
from stores import failing_stores, make_root, put, remove, upload
from vitrail.cli.main import main
from vitrail.data import write_split_file
from vitrail.data.shard_writer import write_shards
from vitrail.errors import MissingExtraError
from vitrail.training.run_data import keep_own, read_split_rows, report_replaced, write_contents

pytestmark = pytest.mark.usefixtures("no_report")
SMALL: dict[str, Any] = {"model": "cifar-tiny", "batch_size": 8, "device": "cpu"}
TIMES = {"images_per_second", "seconds"}


def make_pictures(folder: Path, count: int = 12) -> Path:
    """Class folders of PNGs without splits."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("cat", "dog", "a-b")):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = rng.integers(0, 150, (8, 8, 3), dtype=np.uint8) + np.uint8(50 * number)
            Image.fromarray(pixels).resize((32, 32)).save(folder / name / f"{index:03d}.png")
    return folder


@pytest.fixture
def s3_root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path / "cache"))
    return make_root("s3", tmp_path, request)


def read_results(run: Path) -> list[dict[str, str]]:
    with (run / "results.csv").open(newline="") as file:
        return [{name: row[name] for name in row.keys() - TIMES} for row in csv.DictReader(file)]


def check_same_runs(one: Path, other: Path) -> None:
    """The same weights, bit for bit, from the same samples, with the same metrics."""
    weights, others = (load_file(run / "weights" / "best.safetensors") for run in (one, other))
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert read_results(one) == read_results(other)
    facts, other_facts = (json.loads((run / "metrics.json").read_text()) | {"seconds": 0} for run in (one, other))
    assert facts == other_facts
    files = [run / "split.csv" for run in (one, other)]
    assert [file.exists() for file in files] in ([True, True], [False, False])
    assert not files[0].exists() or files[0].read_bytes() == files[1].read_bytes()


def test_training_evaluating_and_embedding_give_the_same_bits(s3_root: str, tmp_path: Path) -> None:
    near = make_pictures(tmp_path / "pictures")
    far = upload(near, s3_root)
    for name, where in (("near", near), ("far", far)):
        vitrail.train(where, out=tmp_path / name, epochs=2, **SMALL)
    check_same_runs(tmp_path / "near", tmp_path / "far")
    with failing_stores(0) as calls:
        scores = [
            vitrail.evaluate(tmp_path / "near", where, device="cpu", robustness=False, out=None)
            for where in (near, far)
        ]
        embedded = [vitrail.embed("cifar10", data=where, device="cpu", out=None, map="none") for where in (near, far)]
        checked = [vitrail.check_data(where) for where in (near, far)]
    assert not [call for call in calls.calls if not call.startswith(("pages", "listing", "entries"))]
    assert scores[0].predictions == scores[1].predictions
    assert np.array_equal(embedded[0].features, embedded[1].features)
    assert embedded[0].pictures == embedded[1].pictures
    assert checked[0].findings == checked[1].findings


def test_training_on_shards_gives_the_same_bits(s3_root: str, tmp_path: Path) -> None:
    data = vitrail.open_data(make_pictures(tmp_path / "pictures"))
    write_shards(data, tmp_path / "shards", max_bytes=20_000)
    upload(tmp_path / "shards", s3_root)
    for name, where in (("near", tmp_path / "shards"), ("far", s3_root)):
        vitrail.train(where, out=tmp_path / name, epochs=1, check=False, **SMALL)
    check_same_runs(tmp_path / "near", tmp_path / "far")
    assert len(list((tmp_path / "shards").glob("*.tar"))) > 3


def test_a_resumed_run_knows_its_pictures(s3_root: str, tmp_path: Path) -> None:
    """Those that were replaced are named, without fetching any; one that is gone keeps its place."""
    near = make_pictures(tmp_path / "pictures")
    upload(near, s3_root)
    data = vitrail.open_data(s3_root)
    write_contents(data, tmp_path)
    write_split_file(data, tmp_path / "split.csv")
    said: list[str] = []
    report_replaced(vitrail.open_data(s3_root), tmp_path, said.append)
    assert not said
    (first, gone, *_) = data.splits["train"].keys()
    put(s3_root, {first: b"another"})
    remove(s3_root, gone)
    now = vitrail.open_data(s3_root, val_rate=0, test_rate=0, max_broken_rate=0.5)
    again = keep_own(now, read_split_rows(tmp_path / "split.csv"), said.append)
    report_replaced(again, tmp_path, said.append)
    assert f"1 of the run's 24 train pictures has been replaced since the run began: {first}" in " ".join(said)
    assert again.splits["train"].keys() == data.splits["train"].keys()
    assert again.splits["train"].picture(0) == b"another"


def test_sheets_and_shards_are_written_of_data_in_a_store(s3_root: str, tmp_path: Path) -> None:
    near = make_pictures(tmp_path / "pictures")
    upload(near, s3_root)
    for name, where in (("near", near), ("far", s3_root)):
        vitrail.shard_data(where, tmp_path / name / "shards")
        vitrail.show_data(where, out=tmp_path / name / "sheet")
    for part in ("shards", "sheet"):
        one, other = (
            {path.name: path.read_bytes() for path in (tmp_path / name / part).iterdir()} for name in ("near", "far")
        )
        assert one == other if part == "shards" else one.keys() == other.keys()


FETCH = """
import sys
from pathlib import Path
from vitrail.data.copies import Copies
from vitrail.storage import open_store
root, cache, *names = sys.argv[1:]
copies = Copies(open_store(root), Path(cache))
assert all(copies.get(name).stat().st_size for name in names)
states = copies.states(names)
copies.bring(names, states)
assert all(copies.read(name, state) for name, state in zip(names, states))
"""


def test_processes_share_the_copies_of_their_machine(s3_root: str, tmp_path: Path) -> None:
    near = make_pictures(tmp_path / "pictures")
    upload(near, s3_root)
    names = [path.relative_to(near).as_posix() for path in near.glob("*/*.png")]
    ranks = [
        subprocess.Popen([sys.executable, "-c", FETCH, s3_root, str(tmp_path / "cache"), *names]) for _ in range(2)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    copies = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert sorted(path.read_bytes() for path in copies) == sorted((near / name).read_bytes() for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "check", "s3://none-such/photos"], "s3://none-such/photos: no such folder."),
        (["eval", "cifar10", "{root}/none"], "{root}/none: no such folder."),
        (["train", "{root}/none.csv"], "{root}/none.csv: no such file."),
        (["embed", "cifar10", "--data", "s3://me:hush@b/x"], "s3://b/x: an address of data must not hold a password"),
        (["eval", "{root}/model.safetensors", "digits"], "model.safetensors"),
        (["eval", "cifar10", "hf://owner/name"], "hf://owner/name is a model, not data"),
        (["data", "check", "hf://owner/name"], "data on the hub are hf://datasets/OWNER/NAME"),
    ],
)
def test_addresses_that_cannot_work_end_with_2(
    s3_root: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(root=s3_root) for argument in arguments]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert message.format(root=s3_root) in said
    assert "hush" not in said
    assert "Traceback" not in said


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match=r'pip install "vitrail\[gs\]"'):
        vitrail.open_data("gs://bucket/photos")
