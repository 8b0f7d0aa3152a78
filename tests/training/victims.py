"""What the processes of a test do: train, and at a given step kill themselves without a word; or run a command."""

import json
import os
import signal
import sys
from pathlib import Path

import vitrail
from shortcuts import skip_reports
from vitrail.cli.main import entry
from vitrail.errors import VitrailError
from vitrail.ranks import leave_ranks
from vitrail.training import Listener, TrainConfig, train


class Killer(Listener):
    """Ends its process at a step, on one of the ranks; at step 0: never."""

    def __init__(self, kill_at: int, rank: str) -> None:
        self.kill_at, self.rank = kill_at, rank

    def stepped(self, step: int, loss: float, images_per_second: float) -> None:
        if step == self.kill_at and os.environ.get("RANK", "0") == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed(config: TrainConfig, folder: Path, kill_at: int = 0, rank: str = "0") -> None:
    train(config, folder, Killer(kill_at, rank))
    leave_ranks()


def run_command(folder: Path, arguments: list[str], output: str = os.devnull, heeding: int = 0) -> None:
    """As `vitrail ARGUMENTS >>output` in a folder, without a report; it heeds a signal also below nohup."""
    os.chdir(folder)
    os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 1)
    if heeding:
        signal.signal(heeding, signal.default_int_handler if heeding == signal.SIGINT else signal.SIG_DFL)
    import pytest

    skip_reports(pytest.MonkeyPatch())
    sys.argv = ["vitrail", *arguments]
    entry()


def run_elastic(folder: Path, arguments: list[str]) -> None:
    """As `torchrun --standalone --nproc-per-node=2 --max-restarts=1`: torchrun's own agent, which forks its workers."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=1,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, _work_and_sign)(folder, arguments)


def _work_and_sign(folder: Path, arguments: list[str]) -> None:
    with (folder / "workers").open("a") as workers:
        workers.write(f"rank-{os.environ['RANK']} {os.getpid()}\n")
    run_command(folder, arguments, str(folder / "printed"))


def try_all(folder: Path, trials: list[tuple[str, str, str]]) -> None:
    """Each rank tries to train in a folder of its own, and writes down how that was refused: (data, out, resumed)."""
    rank = os.environ["RANK"]
    os.chdir(folder / f"rank-{rank}")
    answers: list[tuple[str, bool]] = []
    for data, out, resumed in trials:
        try:
            if resumed:
                vitrail.resume(resumed)
            else:
                vitrail.train(data, out=out, check=False, model="compact-64")
        except VitrailError as error:
            answers.append((str(error), getattr(error, "reported", False)))
        else:
            answers.append(("not refused", False))
    Path("answers.json").write_text(json.dumps(answers))
    leave_ranks()
