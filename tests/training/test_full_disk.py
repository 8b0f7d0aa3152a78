"""A disk that fills up while the run writes: a real one, in memory, of a few megabytes."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from vitrail.training.loop import Trainer
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
