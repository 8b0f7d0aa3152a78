"""What the processes of a test do: train, and at a given step kill themselves without a word; or run a command."""

import os
import signal
import sys
from pathlib import Path

from vitrail.cli.main import entry
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


def run_command(folder: Path, arguments: list[str]) -> None:
    """As `vitrail ARGUMENTS` in a folder."""
    os.chdir(folder)
    sys.argv = ["vitrail", *arguments]
    entry()
