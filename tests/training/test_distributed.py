"""Several ranks with gloo, in real processes: the result of one process, other numbers of ranks, a lost worker."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fuzzing import in_fuzz_only
from processes import SECONDS, run_ranks, start, wait_for
from vitrail.evaluation.measurement import measure_split
from vitrail.prediction import load
from vitrail.training import train
from vitrail.training.curves import read_rows
from vitrail.training.setup import open_training_data

from .conftest import quick_config
from .victims import run_command, run_elastic, train_until_killed, try_all

pytestmark = pytest.mark.slow


def best(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights" / "best.safetensors")


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Up to the order of float32 sums: after some steps, far below what a wrong average would leave."""
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=2e-5)


PLAIN = {"optimizer": "sgd", "lr": 0.05, "epochs": 2, "ema": 0.9, "mixup": 0.5, "micro_batch": 16}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process that others are compared with."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    train(quick_config(**PLAIN), folder)
    return folder


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_equal_one(strategy: str, one: Path, tmp_path: Path) -> None:
    assert run_ranks(train_until_killed, quick_config(strategy=strategy, **PLAIN), tmp_path / "two") == [0, 0]
    assert_close(best(one), best(tmp_path / "two"))
    alone, together = (json.loads((folder / "metrics.json").read_text()) for folder in (one, tmp_path / "two"))
    for split in ("val", "test"):
        assert alone[split]["count"] == together[split]["count"] == 269
        assert together[split]["loss"] == pytest.approx(alone[split]["loss"], rel=1e-3)


@in_fuzz_only
def test_ranks_validate_the_statistics_of_batch_norms_that_are_saved(tmp_path: Path) -> None:
    """Each rank has statistics of its own pictures; the file has the first's."""
    plain = {"epochs": 1, "ema": 0.9, "mixup": 0.0, "precision": "float32"}
    config = quick_config(model="hybrid-32", image_size=(32, 32), **plain)
    assert run_ranks(train_until_killed, config, tmp_path / "two") == [0, 0]
    (row,) = read_rows(tmp_path / "two" / "results.csv")
    measured = measure_split(load(tmp_path / "two"), open_training_data(config), "val")
    assert row.val_loss == pytest.approx(measured.uncalibrated.nll, rel=1e-4)


def test_ranks_share_the_features_of_the_head_alone(one: Path, tmp_path: Path) -> None:
    head = {"model": None, "weights": str(one), "train": "head", "optimizer": "sgd", "lr": 0.05}
    train(quick_config(**head), tmp_path / "one")
    assert run_ranks(train_until_killed, quick_config(**head), tmp_path / "two") == [0, 0]
    assert_close(best(tmp_path / "one"), best(tmp_path / "two"))


@in_fuzz_only
def test_a_run_continues_on_another_number_of_ranks(one: Path, tmp_path: Path) -> None:
    """Two ranks with shards, one of them killed in the middle; then one process; against one process all the way."""
    folder = tmp_path / "moved"
    config = quick_config(strategy="fsdp", save_minutes=1e-4, **PLAIN)
    assert run_ranks(train_until_killed, config, folder, 25, "1")[1] == -signal.SIGKILL
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("strategy: fsdp", "strategy: ddp"))
    assert train(quick_config(**PLAIN), folder).epochs == 2
    assert_close(best(one), best(folder))


@in_fuzz_only
def test_torchrun_trains_one_model_and_one_rank_prints(tmp_path: Path) -> None:
    """The command line as users type it, with processes of its own from beginning to end."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vitrail"]
    train_digits = shlex.split("train digits --epochs 1 --no-check --no-report --out run")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*torchrun, *train_digits], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert "on cpu × 2, batch 128" in result.stdout
    assert result.stdout.count("writing to run") == 1
    assert result.stdout.count("next: vitrail predict run PICTURES") == 1
    assert (tmp_path / "run" / "weights" / "best.safetensors").is_file()


@in_fuzz_only
def test_a_lost_worker_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    """As on a cluster: torchrun starts the workers of a command again, and they find their run by themselves."""
    command = shlex.split("train digits --epochs 3 --batch-size 64 --optimizer sgd --lr 0.05 --no-check")
    assert run_ranks(run_command, tmp_path, command) == [0, 0]
    launcher = start(run_elastic, tmp_path, command)
    rows = tmp_path / "runs" / "train-2" / "results.csv"
    wait_for(lambda: (rows.exists() and len(rows.read_text().splitlines()) > 1) or launcher.exitcode is not None)
    first = (tmp_path / "workers").read_text().splitlines()
    os.kill(next(int(worker.split()[1]) for worker in first if worker.startswith("rank-1 ")), signal.SIGKILL)
    launcher.join(SECONDS)
    assert launcher.exitcode == 0, (tmp_path / "printed").read_text()[-4000:]
    assert len((tmp_path / "workers").read_text().splitlines()) == 4, "both were started again"
    assert sorted(path.name for path in (tmp_path / "runs").glob("train-*")) == ["train-1", "train-2"]
    whole, lost = (best(tmp_path / "runs" / name) for name in ("train-1", "train-2"))
    assert all(torch.equal(whole[name], lost[name]) for name in whole)


@in_fuzz_only
def test_ranks_share_weights_that_stay_beside_those_that_are_trained(one: Path, tmp_path: Path) -> None:
    lora = {"model": None, "weights": str(one), "train": "lora", **PLAIN, "ema": None, "lora_targets": "all"}
    train(quick_config(**lora), tmp_path / "one")
    assert run_ranks(train_until_killed, quick_config(strategy="fsdp", **lora), tmp_path / "two") == [0, 0]
    assert_close(best(tmp_path / "one"), best(tmp_path / "two"))


def test_ranks_that_differ_are_refused_on_all_before_anything_is_written(tmp_path: Path) -> None:
    """Two machines, which are folders here: other names, a renamed class, no data at all; and no shared run folder."""
    for rank in range(2):
        for data, names in (("names", "ab"), ("classes", "ab" if rank else "ac"), ("same", "ab")):
            for name in names:
                folder = tmp_path / f"rank-{rank}" / data / name
                folder.mkdir(parents=True)
                for number in range(20):
                    other = data == "names" and rank and number >= 15 and name == "a"
                    Image.new("L", (8, 8), 9 * number).save(folder / f"{number + 100 * other}.png")
    (tmp_path / "rank-0" / "only").symlink_to(tmp_path / "rank-0" / "same")
    begun = tmp_path / "rank-0" / "begun"
    begun.mkdir()
    (begun / "config.yaml").write_text("data: same\n")
    shared = tmp_path / "shared"
    trials = [(data, str(shared / "run"), "") for data in ("names", "classes", "only")]
    trials += [("same", "mine/run", ""), ("", "", "begun")]
    assert run_ranks(try_all, tmp_path, trials) == [0, 0]
    first, second = (json.loads((tmp_path / f"rank-{rank}" / "answers.json").read_text()) for rank in range(2))
    assert [text for text, _ in first] == [text for text, _ in second]
    assert {reported for _, reported in first} == {False}
    assert {reported for _, reported in second} == {True}
    names, classes, only, mine, resumed = (text for text, _ in first)
    assert "5 pictures are only there: a/115.png, a/116.png, a/117.png and 2 more; 5 pictures are missing" in names
    assert "20 pictures are only there: b/0.png" in classes
    assert "rank 1 on" in only
    assert "no such file or folder" in only
    for text, folder in ((mine, "mine/run"), (resumed, "begun")):
        assert "rank 1 on" in text
        assert f"does not see the {folder} of rank 0" in text
    assert not shared.exists()
    for rank in range(2):
        assert not (tmp_path / f"rank-{rank}" / "mine").exists()
        assert not list((tmp_path / f"rank-{rank}").rglob(".ranks-*"))
