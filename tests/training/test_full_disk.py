"""A disk that fills up while the run writes, a real one of a few megabytes; and one whose n-th call fails."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from PIL import Image

from faults import Disk, check_every_failure, contents, failing
from vitrail.training import run_folder, snapshots
from vitrail.training.loop import Trainer
from vitrail.training.setup import Setup
from vitrail.training.snapshots import list_snapshots


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_the_last_good_checkpoint_survives(make_trainer: Callable[..., Trainer], small_disk: Path) -> None:
    trainer = make_trainer(epochs=3)
    trainer.folder = small_disk
    trainer.save()
    size = sum(path.stat().st_size for path in small_disk.rglob("*"))
    free = shutil.disk_usage(small_disk).free
    (small_disk / "other").write_bytes(b"x" * (free - size // 2))  # somebody else fills the disk
    with pytest.raises(OSError, match="cannot write the checkpoint.*No space left|No space left"):
        trainer.run()
    last = small_disk / "weights" / "last"
    kept = list_snapshots(last)
    assert kept, "the last good one is still there"
    assert not list(last.glob(".*")), "nothing half-written is left"
    (small_disk / "other").unlink()
    again = make_trainer(epochs=3)
    again.folder = small_disk
    again.resume()
    assert again.run().epoch == 3
    assert all(torch.isfinite(tensor).all() for tensor in again.model.state_dict().values())


def test_every_file_that_describes_a_run_is_whole(
    make_setup: Callable[..., Setup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "environment", lambda: {"vitrail": "1"})
    monkeypatch.setattr(run_folder, "augmentation_sheet", lambda *_, **__: Image.new("RGB", (8, 8)))
    setup = make_setup()
    setup = replace(setup, dataset=replace(setup.dataset, made_split=True))
    assert check_every_failure(lambda folder: run_folder.write_start(setup, folder), tmp_path) > 15


def test_whichever_call_fails_the_older_checkpoint_stays(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.save()
    last = trainer.last
    old = contents(last)
    number = 0
    for turn in count(2):
        number, trainer.state.step = divmod(turn, 2)  # the same step again, and the next
        with failing(Disk(last, number)) as disk, suppress(OSError):
            trainer.save()
        assert set(old) <= set(contents(last)), disk.failed
        assert not list(last.glob(".*")), f"litter after {disk.failed}"
        for path in list_snapshots(last):
            snapshots.verify(path)
        shutil.rmtree(last / "step-000000001", ignore_errors=True)
        if not disk.failed and trainer.state.step:
            break
    assert number > 4
