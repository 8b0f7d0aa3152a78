"""One process per run folder: a second one is told who has it, and a dead one leaves nothing behind. And what the
folder tells about figures that are measured later."""

import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from tests.training.test_curves import row

from processes import SECONDS, start, wait_for
from vitrail.cli.main import main
from vitrail.data.check.findings import RECORD, CheckRecord, write_record
from vitrail.errors import ConfigError
from vitrail.schema import to_dict
from vitrail.training import Listener, train
from vitrail.training.config import TrainConfig
from vitrail.training.curves import append_row
from vitrail.training.run_folder import LOCK, TASK, RunLock, chose_epoch, data_check, read_task, trained_on, write_start
from vitrail.training.setup import open_training_data, prepare_run

from .conftest import quick_config


def hold(folder: Path) -> None:
    lock = RunLock()
    lock.take(folder)
    (folder / "taken").touch()
    signal.pause()


def test_a_second_process_is_told_who_has_it_and_a_killed_one_leaves_nothing(tmp_path: Path) -> None:
    process = start(hold, tmp_path)
    wait_for(lambda: (tmp_path / "taken").exists() or not process.is_alive())
    with pytest.raises(ConfigError, match=f"in use by another process \\(pid {process.pid} on .*since"):
        RunLock().take(tmp_path)
    process.kill()
    process.join(SECONDS)
    mine = RunLock()
    mine.take(tmp_path)
    mine.release()
    assert not (tmp_path / LOCK).exists()


def test_a_run_in_use_is_neither_resumed_nor_begun_again_and_goes_on_unharmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    run = tmp_path / "run"

    class Intruder(Listener):
        def stepped(self, step: int, loss: float, images_per_second: float) -> None:
            if step == 3:
                codes.append(main(["train", "--resume", str(run)]))
                codes.append(main(["train", "digits", "--no-check", "--epochs", "1", "--out", str(run)]))

    outcome = train(quick_config(), run, Intruder())
    assert codes == [2, 2]
    errors = " ".join(capsys.readouterr().err.split())
    assert errors.count(f"is in use by another process (pid {os.getpid()}") == 2
    assert outcome.epochs == 2
    assert len((run / "results.csv").read_text().splitlines()) == 3
    assert not (run / LOCK).exists()


def test_of_two_starts_with_one_folder_the_first_wins(tmp_path: Path) -> None:
    """The second has looked at the folder before there was a run in it."""
    tried: list[str] = []

    class Second(Listener):
        def began(self, total_steps: int, done_steps: int, epochs: int) -> None:
            with pytest.raises(ConfigError, match="in use"):
                RunLock().take(tmp_path / "run")
            tried.append("yes")

    train(quick_config(epochs=1), tmp_path / "run", Second())
    assert tried == ["yes"]


def test_the_task_of_a_start_that_was_killed_is_not_that_of_the_next(tmp_path: Path) -> None:
    (tmp_path / TASK).write_text(json.dumps({"kind": "number"}))
    config = quick_config()
    write_start(prepare_run(config, open_training_data(config)), tmp_path)
    assert read_task(tmp_path) is None


def test_a_damaged_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(b"\xff[[[")
    one, other = RunLock(), RunLock()
    one.take(tmp_path)
    (tmp_path / LOCK).write_bytes(b"\xff[[[")
    with pytest.raises(ConfigError, match="in use by another process;"):
        other.take(tmp_path)
    one.release()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    settings = to_dict(TrainConfig(data="pictures"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for epoch in (1, 2):
        append_row(tmp_path / "results.csv", row(epoch))
    return tmp_path


def test_val_of_its_own_data_chose_the_epoch(run: Path) -> None:
    assert chose_epoch(run, "pictures", "val")
    assert chose_epoch(run, "pictures", "all")
    assert not chose_epoch(run, "pictures", "test")
    assert not chose_epoch(run, "others", "val")
    assert not chose_epoch(run / "nowhere", "pictures", "val")


def test_the_same_folder_by_another_path(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    (run / "pictures").mkdir()
    assert trained_on(run, "./pictures")
    assert trained_on(run, str(run / "pictures"))


def test_without_a_choice_nothing_was_chosen(run: Path) -> None:
    (run / "results.csv").unlink()
    append_row(run / "results.csv", row(1))
    assert not chose_epoch(run, "pictures", "val")
    append_row(run / "results.csv", row(2, judged=False))
    assert not chose_epoch(run, "pictures", "val")


def test_the_check_belongs_to_its_data(run: Path) -> None:
    assert data_check(run, "pictures") is None
    write_record(CheckRecord(data="pictures", pictures=9), run / RECORD)
    assert data_check(run, "pictures") == CheckRecord(data="pictures", pictures=9)
    assert data_check(run, "others") is None
