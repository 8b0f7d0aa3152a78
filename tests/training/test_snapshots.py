"""Resumable checkpoints: complete or absent, the last two kept."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitrail.errors import WeightsError
from vitrail.ranks import Ranks
from vitrail.training import snapshots
from vitrail.training.loop import Trainer
from vitrail.training.snapshots import RunState

ALONE = Ranks()


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {
        "model.a": torch.full((3, 2), value),
        "model.norm.num_batches_tracked": torch.tensor(int(value)),
        "optimizer.a.step": torch.tensor(value),
    }


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    loader = {"epoch": 2, "batch": 3, "broken": {"a": "b"}}
    state = RunState(step=7, epoch=2, loss_sum=0.1 + 0.2, best_loss=0.5, loader=loader)
    path = snapshots.save(tmp_path, tensors(5.0), state, ALONE)
    into = tensors(0.0)
    assert snapshots.restore(path, into, ALONE) == state
    assert all(torch.equal(into[name], tensor) for name, tensor in tensors(5.0).items())
    assert not list(path.glob("*.pt")), "no pickles"


def test_infinity_survives(tmp_path: Path) -> None:
    path = snapshots.save(tmp_path, tensors(1.0), RunState(step=1), ALONE)
    assert snapshots.read_state(path) == RunState(step=1)


def test_two_are_kept_and_drafts_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".step-000000001.draft").mkdir()
    (tmp_path / "step-000000000").mkdir()  # without its state: not complete
    for step in range(1, 5):
        snapshots.save(tmp_path, tensors(step), RunState(step=step), ALONE)
    assert [path.name for path in snapshots.list_snapshots(tmp_path)] == ["step-000000003", "step-000000004"]
    assert not list(tmp_path.glob(".*"))


def test_the_last_epochs_end_is_kept_too(tmp_path: Path) -> None:
    for step in range(1, 6):
        state = RunState(step=step, loss_count=0 if step == 2 else 1)
        snapshots.save(tmp_path, tensors(step), state, ALONE)
    names = [path.name[-1] for path in snapshots.list_snapshots(tmp_path)]
    assert names == ["2", "4", "5"]
    assert str(snapshots.pick_whole(tmp_path, whole_epochs=True, verified=False)[0]).endswith("2")
    assert str(snapshots.pick_whole(tmp_path, {"step-000000005"}, verified=False)[0]).endswith("4")
    assert snapshots.pick_whole(tmp_path / "nothing") == (None, {})


def test_the_same_step_again_replaces_it_without_a_gap(tmp_path: Path, monkeypatch) -> None:
    """Killed between the two renames, the run still has what it needs under one of the names."""
    snapshots.save(tmp_path, tensors(1.0), RunState(step=1), ALONE)
    snapshots.save(tmp_path, tensors(2.0), RunState(step=1, epoch=1), ALONE)
    assert snapshots.read_state(tmp_path / "step-000000001").epoch == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_what_was_half_removed_does_not_count_and_is_swept(tmp_path: Path) -> None:
    path = snapshots.save(tmp_path, tensors(1.0), RunState(step=1), ALONE)
    (path / "state.json").unlink()
    assert snapshots.list_snapshots(tmp_path) == []
    snapshots.save(tmp_path, tensors(2.0), RunState(step=2), ALONE)
    assert [each.name for each in tmp_path.iterdir()] == ["step-000000002"]


@pytest.mark.parametrize("damage", ["cut", "garbage", "version"])
def test_damage_is_said(damage: str, tmp_path: Path) -> None:
    snapshots.save(tmp_path, tensors(1.0), RunState(step=1), ALONE)
    path = snapshots.save(tmp_path, tensors(2.0), RunState(step=2), ALONE)
    shard = next(path.glob("*.safetensors"))
    if damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-9])
    elif damage == "garbage":
        (path / "state.json").write_text("{")
    else:
        (path / "state.json").write_text('{"version": 99}')
    with pytest.raises(WeightsError, match="damaged|version 99"):
        snapshots.restore(path, tensors(0.0), ALONE)


def test_every_tensor_of_a_run_is_in_it(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(ema=0.9)
    found = trainer._tensors()
    weights = dict(trainer.model.named_parameters())
    assert {f"model.{name}" for name in weights} <= set(found)
    assert {f"average.{name}" for name in weights} <= set(found)
    for name in weights:
        memory = [key for key in found if key.startswith(f"optimizer.{name}.")]
        assert [key.rsplit(".", 1)[1] for key in memory] in (["momentum"], ["step", "exp_avg", "exp_avg_sq"])


@pytest.mark.parametrize("signal", [KeyboardInterrupt(), SystemExit(143)])
def test_a_second_signal_ends_a_save_and_not_what_was_saved(
    signal: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshots.save(tmp_path, tensors(1.0), RunState(step=1), ALONE)

    def fail(*_: object) -> None:
        raise signal

    with monkeypatch.context() as patch:  # where torch waits for its writers, and wraps whatever it catches
        patch.setattr(snapshots.HuggingFaceStorageWriter, "write_data", fail)
        with pytest.raises(type(signal)) as raised:
            snapshots.save(tmp_path, tensors(2.0), RunState(step=2), ALONE)
    assert raised.value is signal
    assert snapshots.list_snapshots(tmp_path) == [before]
    snapshots.save(tmp_path, tensors(2.0), RunState(step=2), ALONE)
    assert not list(tmp_path.glob(".*")), "the draft is swept"
