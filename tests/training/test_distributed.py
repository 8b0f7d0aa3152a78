"""Real processes under torchrun, with gloo: the same result as one process, other numbers of ranks, a lost worker."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vitrail.schema import to_dict
from vitrail.training import train

from .conftest import quick_config

pytestmark = pytest.mark.slow

# Trains; where told so, rank 1 kills itself at a step, once.
WORKER = """
import json, os, signal, sys
from pathlib import Path
from vitrail.schema import from_dict
from vitrail.training import Listener, TrainConfig, train
from vitrail.ranks import leave_ranks

class Victim(Listener):
    def stepped(self, step, loss, images_per_second):
        if step == int(sys.argv[3]) and os.environ.get("RANK") == "1" and not Path(sys.argv[4]).exists():
            Path(sys.argv[4]).touch()
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    train(from_dict(TrainConfig, json.loads(Path(sys.argv[1]).read_text())), sys.argv[2], Victim())
    leave_ranks()
"""


def torchrun(tmp_path: Path, folder: Path, *, ranks: int = 2, kill_at: int = 0, restarts: int = 0, **changes) -> str:
    script, config = tmp_path / "worker.py", tmp_path / "config.json"
    script.write_text(WORKER)
    config.write_text(json.dumps(to_dict(quick_config(**changes))))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    launcher += [f"--max-restarts={restarts}", "--monitor-interval=0.2"]
    command = [*launcher, str(script), str(config), str(folder), str(kill_at), str(tmp_path / "killed")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def best(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights" / "best.safetensors")


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Up to the order of float32 sums: after some steps, far below what a wrong average would leave."""
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=2e-5)


PLAIN = {"optimizer": "sgd", "lr": 0.05, "epochs": 2, "ema": 0.9, "mixup": 0.5, "micro_batch": 16}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_equal_one(strategy: str, tmp_path: Path) -> None:
    train(quick_config(**PLAIN), tmp_path / "one")
    torchrun(tmp_path, tmp_path / "two", strategy=strategy, **PLAIN)
    assert_close(best(tmp_path / "one"), best(tmp_path / "two"))
    one, two = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two"))
    for split in ("val", "test"):
        assert one[split]["count"] == two[split]["count"] == 269
        assert two[split]["loss"] == pytest.approx(one[split]["loss"], rel=1e-3)


def test_ranks_share_the_features_of_the_head_alone(tmp_path: Path) -> None:
    train(quick_config(epochs=1), tmp_path / "first")
    head = {"model": None, "weights": str(tmp_path / "first"), "train": "head", "optimizer": "sgd", "lr": 0.05}
    train(quick_config(**head), tmp_path / "one")
    torchrun(tmp_path, tmp_path / "two", **head)
    assert_close(best(tmp_path / "one"), best(tmp_path / "two"))


def test_a_run_continues_on_another_number_of_ranks(tmp_path: Path) -> None:
    """Two ranks with shards, stopped in the middle; then one process; against one process all the way."""
    settings = {"optimizer": "sgd", "lr": 0.05, "epochs": 2, "ema": 0.9}
    train(quick_config(**settings), tmp_path / "whole")
    folder = tmp_path / "moved"
    with pytest.raises(AssertionError, match="exitcode: -9"):  # a killed worker ends a run without restarts
        torchrun(tmp_path, folder, kill_at=25, strategy="fsdp", save_minutes=1e-4, **settings)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("strategy: fsdp", "strategy: ddp"))
    outcome = train(quick_config(**settings), folder)
    assert outcome.epochs == 2
    assert_close(best(tmp_path / "whole"), best(folder))


def test_a_lost_worker_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    """The command as a cluster runs it: torchrun starts the workers again, and they find their run by themselves."""
    flags = [
        "train",
        "digits",
        "--epochs",
        "4",
        "--batch-size",
        "64",
        "--optimizer",
        "sgd",
        "--lr",
        "0.05",
        "--no-check",
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launcher, "--monitor-interval=0.2", "-m", "vitrail", *flags]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True, timeout=300)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    rows = tmp_path / "runs" / "train-2" / "results.csv"
    deadline = time.monotonic() + 120
    while not rows.exists() or len(rows.read_text().splitlines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(_worker_of(process.pid), signal.SIGKILL)
    assert process.wait(timeout=300) == 0, (tmp_path / "log").read_text()[-4000:]
    assert "exitcode: -9" in (tmp_path / "log").read_text(), "a worker was really lost"
    assert sorted(path.name for path in (tmp_path / "runs").glob("train-*")) == ["train-1", "train-2"]
    whole, lost = (best(tmp_path / "runs" / name) for name in ("train-1", "train-2"))
    assert all(torch.equal(whole[name], lost[name]) for name in whole)


def _worker_of(launcher: int) -> int:
    """The process of rank 1 below a launcher."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == launcher and b"\0RANK=1\0" in path.joinpath("environ").read_bytes():
                return int(path.name)
        except (OSError, ValueError):
            continue
    raise AssertionError("no worker found")
