"""Damaged checkpoints: named, set aside, and an older whole one used; stops that fall on an epoch's last step."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitrail.errors import VitrailError, WeightsError
from vitrail.files import MARK
from vitrail.training import Listener, snapshots
from vitrail.training.curves import read_rows
from vitrail.training.loop import Trainer
from vitrail.training.run_folder import sweep
from vitrail.training.signals import InterruptedRunError
from vitrail.training.snapshots import STATE, list_snapshots, verify

from .test_loop import Notes


def flip(path: Path, place: int = -100) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def shard(path: Path) -> Path:
    return next(path.glob("*.safetensors"))


@pytest.fixture
def begun(make_trainer: Callable[..., Trainer]) -> Trainer:
    """A run with checkpoints after its first and its second epoch."""
    trainer = make_trainer(epochs=2)
    trainer.run()
    return trainer


def test_a_flipped_bit_is_named_and_the_older_checkpoint_used(
    begun: Trainer, make_trainer: Callable[..., Trainer]
) -> None:
    newest = list_snapshots(begun.last)[-1]
    flip(shard(newest))
    with pytest.raises(WeightsError, match=rf"{shard(newest)} is damaged: its checksum does not match"):
        verify(newest)
    again = make_trainer(epochs=2)
    again.listener = notes = Notes()
    again.resume()
    assert "step-000000008" in notes.notes[0]
    assert "checksum" in notes.notes[0]
    assert again.state.step == 4
    assert (again.last / "damaged-step-000000008").is_dir()
    assert again.run().epoch == 2
    assert list_snapshots(again.last)[-1].name == "step-000000008"
    for name, tensor in begun.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), "from there it is the same run"


@pytest.mark.parametrize("damage", ["state", "missing", "extra"])
def test_other_damage(damage: str, begun: Trainer, make_trainer: Callable[..., Trainer]) -> None:
    newest = list_snapshots(begun.last)[-1]
    if damage == "state":
        text = (newest / STATE).read_text()
        (newest / STATE).write_text(text.replace('"lr_scale": 1.0', '"lr_scale": 0.5'))
    elif damage == "missing":
        shard(newest).unlink()
    else:
        (newest / "more.safetensors").write_bytes(b"")
    again = make_trainer(epochs=2)
    again.resume()
    assert again.state.step == 4


def test_without_a_whole_checkpoint_there_is_an_error(begun: Trainer, make_trainer: Callable[..., Trainer]) -> None:
    for path in list_snapshots(begun.last):
        flip(shard(path))
    with pytest.raises(WeightsError, match="none of the checkpoints in .* is whole"):
        make_trainer(epochs=2).resume()


def spoil(path: Path, part: str) -> None:
    """Write NaN where a tensor of that kind is, with checksums that say so."""
    tensors = load_file(shard(path))
    name = next(name for name in tensors if name.startswith(part) and tensors[name].numel() > 1)
    tensors[name].fill_(float("nan"))
    facts = json.loads((path / STATE).read_text())
    state = snapshots.read_state(path)
    metadata = None
    from safetensors import safe_open

    with safe_open(shard(path), framework="pt") as file:
        metadata = file.metadata()
    save_file(tensors, shard(path), metadata)
    (path / STATE).unlink()
    snapshots.write_state(path, state, facts["world_size"])


@pytest.mark.parametrize("part", ["model.", "optimizer."])
def test_a_checkpoint_with_nan_is_not_tried_three_times(
    part: str, begun: Trainer, make_trainer: Callable[..., Trainer]
) -> None:
    spoil(list_snapshots(begun.last)[-1], part)
    again = make_trainer(epochs=3)
    again.listener = notes = Notes()
    again.resume()
    assert again.state.step == 4
    assert ["not finite" in note for note in notes.notes] == [True]
    assert again.run().epoch == 3
    assert len(notes.notes) == 1, "no rescue was needed"


def test_a_rescue_without_another_checkpoint_says_so(make_trainer: Callable[..., Trainer], monkeypatch) -> None:
    trainer = make_trainer(epochs=2)
    trainer.save()
    again = make_trainer(epochs=2)
    again.resume()
    monkeypatch.setattr(again, "_clip", lambda _: float("nan"))
    with pytest.raises(VitrailError, match="no other whole checkpoint to go back to"):
        again.run()


def test_a_stop_at_an_epochs_last_step_leaves_a_whole_row(make_trainer: Callable[..., Trainer]) -> None:
    class Stop(Listener):
        def stepped(self, step: int, loss: float, images_per_second: float) -> None:
            if step == 4:
                trainer.save()
                raise InterruptedRunError(15, Path("run"))

    trainer = make_trainer(epochs=2)
    trainer.listener = Stop()
    with pytest.raises(InterruptedRunError):
        trainer.run()
    again = make_trainer(epochs=2)
    again.resume()
    again.run()
    whole = make_trainer("whole", epochs=2)
    whole.run()
    rows, expected = (read_rows(each.folder / "results.csv") for each in (again, whole))
    assert [row.lr for row in rows] == [row.lr for row in expected]
    assert all(row.lr > 0 and row.images_per_second > 1 for row in rows)


def test_lost_rows_are_reported(begun: Trainer) -> None:
    path = begun.folder / "results.csv"
    whole = path.read_text()
    begun.listener = notes = Notes()
    for text, lost in ((whole, 0), (whole[:-5], 1), ("", 2), (None, 2)):
        path.unlink(missing_ok=True) if text is None else path.write_text(text)
        begun.resume()
        begun._recovery.stepped()
        note = f"{path} has no row for {lost} of 2 epochs so far; the curves and the report go without"
        assert notes.notes == ([note] if lost else [])
        notes.notes.clear()
    path.symlink_to(begun.folder / "elsewhere.csv")
    with pytest.raises(WeightsError, match=r"results.csv must be the run's own; it is a link to .*elsewhere.csv"):
        sweep(begun.folder)


def test_links_are_refused(begun: Trainer, make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    other = make_trainer("other", epochs=2)
    other.last.parent.mkdir()
    other.last.symlink_to(begun.last)
    for action in (other.resume, other.run):
        with pytest.raises(WeightsError, match=r"weights/last must be the run's own; it is a link to"):
            action()
    other.last.unlink()
    other.last.mkdir()
    (other.last / "step-000000004").symlink_to(list_snapshots(begun.last)[0])
    with pytest.raises(WeightsError, match="it is a link to"):
        other.run()
    assert len(list_snapshots(begun.last)) == 2, "nothing of the other run was touched"


def test_leftover_drafts_are_removed_at_the_next_start(tmp_path: Path) -> None:
    drafts = [
        f"{MARK}ab12cd3_",
        "weights/.vitrail-00000000-abcdefgh",  # of another machine, which the run's lock keeps out
        f"features/{MARK}abcdefgh",
        "weights/last/.step-000000001.draft",
    ]
    kept = [".git", "weights/best.safetensors", ".notes.json.d"]
    for name in (*drafts, *kept):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    sweep(tmp_path)
    assert not any((tmp_path / name).exists() for name in drafts)
    assert all((tmp_path / name).exists() for name in kept)
