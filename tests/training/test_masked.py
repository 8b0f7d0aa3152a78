"""Masked pre-training: which patches are hidden, what is learned, and that no hidden pixel is seen."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fuzzing import in_fuzz_only
from processes import run, run_ranks
from vitrail.data import Batch
from vitrail.errors import ConfigError
from vitrail.model import ConvStem, RelativeBias, Rope, ViT, ViTConfig
from vitrail.model.mae_decoder import Decoder, DecoderConfig, cut_patches, decoder_for, join_patches
from vitrail.model.variants import variant
from vitrail.ranks import Ranks
from vitrail.training import TrainConfig, recipe, train
from vitrail.training.changes import apply_changes
from vitrail.training.config import Pretraining
from vitrail.training.curves import read_rows
from vitrail.training.loop import Trainer
from vitrail.training.masked import (
    Probe,
    build_decoder,
    check_model,
    draw_patches,
    masked_loss,
    plan_probe,
    reconstruct,
)
from vitrail.training.objectives import Masked, make_objective
from vitrail.training.result import read_run
from vitrail.training.setup import Setup, open_training_data, prepare_run, training_loader
from vitrail.weights.native import read_native

from .victims import train_until_killed

TINY = ViTConfig(image_size=16, patch_size=4, width=32, depth=2, heads=2, num_classes=0)
CONV = replace(
    TINY, patch_size=1, stem=ConvStem(widths=(8, 16), strides=(2, 2), norm="group"), class_token=False, pooling="mean"
)


def config_of(**changes: Any) -> TrainConfig:
    usual = {"model": "compact-8", "epochs": 2, "batch_size": 64, "device": "cpu"}
    return apply_changes(replace(recipe("mae-small"), data="digits"), usual | changes)


@pytest.fixture
def make_setup() -> Callable[..., Setup]:
    def make(**changes: Any) -> Setup:
        config = config_of(**changes)
        dataset = open_training_data(config)
        train = dataset.split("train").select(range(192))
        return prepare_run(config, replace(dataset, splits={**dataset.splits, "train": train}))

    return make


@pytest.fixture
def make_trainer(make_setup: Callable[..., Setup], tmp_path: Path) -> Callable[..., Trainer]:
    def make(folder: str = "run", **changes: Any) -> Trainer:
        (tmp_path / folder).mkdir(exist_ok=True)
        return Trainer(make_setup(**changes), Ranks(), tmp_path / folder)

    return make


# Which patches are hidden -------------------------------------------------------------------------------------------


def test_three_quarters_are_hidden_and_every_patch_is_one_or_the_other() -> None:
    visible, hidden = draw_patches(torch.arange(5), (4, 6), 0.75, seed=1, epoch=2)
    assert (visible.shape, hidden.shape) == ((5, 6), (5, 18))
    assert torch.equal(torch.cat([visible, hidden], dim=1).sort().values, torch.arange(24).expand(5, 24))


def test_masks_follow_from_seed_epoch_and_sample_only() -> None:
    def hidden(*samples: int, seed: int = 0, epoch: int | None = 3) -> torch.Tensor:
        return draw_patches(torch.tensor(samples), (8, 8), 0.75, seed, epoch)[1]

    assert torch.equal(hidden(7, 9)[1], hidden(9, 4)[0])  # whatever it is batched with
    for other in (hidden(8), hidden(7, seed=1), hidden(7, epoch=4), hidden(7, epoch=None)):
        assert not torch.equal(hidden(7), other)
    assert torch.equal(hidden(7, epoch=None), hidden(7, epoch=None))


def test_every_patch_is_hidden_equally_often() -> None:
    visible, _ = draw_patches(torch.arange(4000), (4, 4), 0.75, seed=0, epoch=0)
    counts = np.bincount(visible.flatten().numpy(), minlength=16)
    assert abs(counts / 4000 - 0.25).max() < 0.03


def test_each_repetition_of_a_picture_hides_other_patches(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup(repeats=2)
    count = len(setup.dataset.split("train"))
    indices = next(iter(training_loader(setup, Ranks()))).indices
    first, second = indices.chunk(2)
    assert torch.equal(second, first + count)
    hidden = draw_patches(indices, (8, 8), 0.75, 0, 0)[1]
    assert not any(torch.equal(*pair) for pair in zip(*hidden.chunk(2), strict=True))


# The model and the decoder ------------------------------------------------------------------------------------------


def test_pictures_are_cut_and_joined() -> None:
    images = torch.randn(2, 3, 8, 12)
    patches = cut_patches(images, (4, 2))
    assert torch.equal(patches[1, 7].view(4, 2, 3)[3, 1], images[1, :, 7, 3])  # the second row of patches, its second
    assert torch.equal(join_patches(patches, (2, 6), (4, 2)), images)


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        replace(TINY, relative=Rope()),
        replace(TINY, relative=RelativeBias()),
        replace(TINY, class_token=False, pooling="mean", pool_norm="after", registers=2),
    ],
    ids=["plain", "rope", "bias", "registers"],
)
def test_all_patches_visible_in_any_order_is_the_whole_picture(config: ViTConfig) -> None:
    model = ViT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    images, order = torch.randn(2, 3, 16, 16), torch.stack([torch.randperm(16), torch.randperm(16)])
    seen = model.visible_tokens(images, order)
    tokens = model.encode(model.embed_images(images))[0]
    expected = tokens if model.norm is None else model.norm(tokens)
    for row in range(2):
        torch.testing.assert_close(seen[row, config.prefix :], expected[row, config.prefix :][order[row]])
        torch.testing.assert_close(seen[row, : config.prefix], expected[row, : config.prefix])


@pytest.mark.parametrize("config", [TINY, CONV], ids=["patches", "stem"])
def test_hidden_pixels_play_no_part_in_what_is_predicted(config: ViTConfig) -> None:
    model, decoder = ViT(config).eval(), Decoder(config, DecoderConfig(width=32, depth=1)).eval()
    images = torch.randn(2, 3, 16, 16)
    visible, hidden = draw_patches(torch.arange(2), (4, 4), 0.75, 0, 0)
    pixels = cut_patches(images, (4, 4))
    noise = pixels.scatter(1, hidden[..., None].expand(-1, -1, 48), torch.randn(2, 12, 48))
    others = join_patches(noise, (4, 4), (4, 4))
    one, other = (reconstruct(model, decoder, some, visible, hidden, "raw") for some in (images, others))
    assert torch.equal(one, other)
    shown = cut_patches(one, (4, 4)).gather(1, visible[..., None].expand(-1, -1, 48))
    assert torch.equal(shown, pixels.gather(1, visible[..., None].expand(-1, -1, 48)))  # what is seen stays as it is


def test_without_hiding_the_pixels_a_stem_would_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.training.masked.hide_pixels", lambda images, *_: images)
    with pytest.raises(AssertionError):
        test_hidden_pixels_play_no_part_in_what_is_predicted(CONV)


def test_the_loss_is_zero_for_the_true_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randn(2, 3, 16, 16)
    visible, hidden = draw_patches(torch.arange(2), (4, 4), 0.75, 0, 0)
    true = cut_patches(images, (4, 4)).gather(1, hidden[..., None].expand(-1, -1, 48))
    standard = (true - true.mean(-1, keepdim=True)) / true.std(-1, keepdim=True)
    model, decoder = ViT(TINY), Decoder(TINY, DecoderConfig(width=32, depth=1))
    for pixels, predicted in (("raw", true), ("normalized", standard)):
        monkeypatch.setattr("vitrail.training.masked.predict_pixels", lambda *_, predicted=predicted: predicted)
        assert float(masked_loss(model, decoder, images, visible, hidden, pixels)) < 1e-9
        torch.testing.assert_close(reconstruct(model, decoder, images, visible, hidden, pixels), images)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit-b16", (512, 8)),
        ("vit-l16", (512, 8)),
        ("vit-ti16", (128, 8)),
        ("compact-32", (96, 2)),
        ("cifar-tiny", (32, 3)),
    ],
)
def test_decoders_scale_with_the_encoder(name: str, expected: tuple[int, int]) -> None:
    size = decoder_for(variant(name))
    assert (size.width, size.depth) == expected


def test_what_cannot_be_masked_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="merges tokens"):
        check_model(replace(TINY, merge=(2, 0)))
    with pytest.raises(ConfigError, match="at least 4 patches"):
        check_model(replace(TINY, patch_size=16))
    with pytest.raises(ConfigError, match="multiple of 32"):
        decoder_for(TINY, width=48)


# The run ------------------------------------------------------------------------------------------------------------


def test_a_decoder_beside_the_weights_is_used_unless_another_is_asked_for() -> None:
    first = build_decoder(TINY, Pretraining(), {}, seed=3)
    again = build_decoder(TINY, Pretraining(), {}, seed=3)
    assert all(torch.equal(one, again.state_dict()[name]) for name, one in first.state_dict().items())
    beside = {f"decoder.{name}": tensor + 1 for name, tensor in first.state_dict().items()}
    kept = build_decoder(TINY, Pretraining(), beside, seed=3)
    assert torch.equal(kept.mask_token, first.mask_token + 1)
    assert build_decoder(TINY, Pretraining(decoder_depth=3), beside, seed=3).mask_token.abs().max() < 0.5
    assert len(build_decoder(TINY, Pretraining(decoder_depth=3), beside, seed=3).blocks) == 3


def test_training_and_validation_have_masks_of_their_own(make_setup: Callable[..., Setup]) -> None:
    objective = make_objective(make_setup())
    assert isinstance(objective, Masked)
    images = torch.randn(4, 1, 8, 8)
    batch = Batch(images, torch.zeros(4, dtype=torch.long), torch.arange(4))

    def loss() -> float:
        return objective(batch).loss.item()

    objective.train()
    first = loss()
    objective.begin_epoch(1)
    assert loss() != first
    objective.begin_epoch(0)
    assert loss() == first
    objective.eval()
    held_out = loss()
    objective.begin_epoch(1)
    assert loss() == held_out


def test_the_last_epoch_is_kept_with_its_decoder(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(epochs=2, probe_every=1)
    state = trainer.run()
    assert state.best_epoch == 2
    assert "knn_accuracy" in state.best_metrics
    checkpoint = read_native(trainer.folder / "weights" / "best.safetensors")
    assert (checkpoint.config.num_classes, checkpoint.classes) == (0, None)
    objective = trainer.objective
    assert isinstance(objective, Masked)
    for name, tensor in objective.decoder.state_dict().items():
        assert torch.equal(checkpoint.extras[f"decoder.{name}"], tensor)
    assert state.lowest_train_loss < 1.2


def test_the_metric_chooses_if_that_is_asked_for(make_setup: Callable[..., Setup]) -> None:
    assert make_objective(make_setup()).choice == ("knn_accuracy", True, True)
    assert make_objective(make_setup(best="loss")).choice == ("loss", False, False)
    assert make_objective(make_setup(best="knn")).choice == ("knn_accuracy", True, False)
    assert make_objective(make_setup(probe_every=0)).choice == ("loss", False, True)
    with pytest.raises(ConfigError, match="best"):
        make_objective(make_setup(best="accuracy"))
    with pytest.raises(ConfigError, match="best= needs pictures with classes for its kNN probe"):
        make_objective(make_setup(best="knn", probe_every=0))


def test_the_probe_classifies_by_neighbours(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup()
    probe = plan_probe(setup)
    assert probe is not None
    assert probe.bank == 192
    assert [epoch for epoch in range(1, 41) if probe.is_due(epoch, 40)] == [1, *range(4, 41, 4)]
    small = Probe(dataset=setup.dataset, bank=3, every=1)
    features = np.array([[1, 0], [0, 1], [1, 0.1], [1, 0.05], [0.1, 1]], dtype=np.float32)
    labels = np.array([4, 7, 4, 4, 7])
    parts = [
        (np.array([4, 0]), features[[4, 0]], labels[[4, 0]]),
        (np.array([2, 1, 3]), features[[2, 1, 3]], labels[[2, 1, 3]]),
    ]
    assert small.accuracy(parts) == 1.0
    labels[3] = 7
    assert small.accuracy([(np.arange(5), features, labels)]) == 0.5


def test_pictures_without_labels_need_no_probe(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup(task="none")
    assert setup.dataset.classes == ()
    assert plan_probe(setup) is None
    objective = make_objective(setup)
    assert objective(objective.blank(torch.device("cpu"))).loss.item() > 0


@pytest.mark.parametrize("middle", [False, True], ids=["between epochs", "within an epoch"])
def test_a_run_continues_to_the_same_bits(make_trainer: Callable[..., Trainer], middle: bool) -> None:
    whole = make_trainer("whole", epochs=2, ema=0.9)
    whole.run()
    stopped = make_trainer("stopped", epochs=2, ema=0.9)
    stopped.save()
    stopped.loader.set_epoch(0)
    stopped.objective.begin_epoch(0)
    stopped.module.train()
    with stopped.one_thread():
        for number, batch in enumerate(stopped.loader):
            stopped.step(batch)
            if middle and number == 0:
                break
        else:
            stopped._end_epoch()
    stopped.save()
    resumed = make_trainer("stopped", epochs=2, ema=0.9)
    resumed.resume()
    resumed.run()
    for name, tensor in whole._tensors().items():
        assert torch.equal(tensor, resumed._tensors()[name]), name


def test_what_the_decoder_does_not_read_is_not_trained(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup()
    pooled = replace(setup.model.config, pooling="map")
    objective = make_objective(replace(setup, model=ViT(pooled)))
    frozen = {name.split(".")[1] for name, weight in objective.named_parameters() if not weight.requires_grad}
    assert frozen == {"pool"}
    loss = objective(objective.blank(torch.device("cpu"))).loss
    loss.backward()
    assert all(weight.grad is not None for weight in objective.trained())


# In processes of their own ------------------------------------------------------------------------------------------

PLAIN = {"optimizer": "sgd", "lr": 0.05, "epochs": 2, "ema": 0.9, "micro_batch": 16, "batch_size": 128, "clip": 1.0}


def best_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights" / "best.safetensors")


@in_fuzz_only
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_equal_one(strategy: str, tmp_path: Path) -> None:
    alone = train(config_of(**PLAIN), tmp_path / "one")
    assert run_ranks(train_until_killed, config_of(strategy=strategy, **PLAIN), tmp_path / "two") == [0, 0]
    one, two = best_of(tmp_path / "one"), best_of(tmp_path / "two")
    assert one.keys() == two.keys()
    assert any(name.startswith("extra.decoder.") for name in one)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-3, atol=2e-5)
    together = read_run(tmp_path / "two")
    assert alone.val is not None
    assert together.val is not None
    assert together.val.loss == pytest.approx(alone.val.loss, rel=1e-3)
    assert together.val.metrics["knn_accuracy"] == pytest.approx(alone.val.metrics["knn_accuracy"], abs=0.02)


@in_fuzz_only
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    config = config_of(epochs=3, batch_size=128, save_minutes=1e-4, ema=0.9)
    assert run(train_until_killed, config, tmp_path / "whole") == 0
    assert run(train_until_killed, config, tmp_path / "killed", 13) == -signal.SIGKILL
    assert run(train_until_killed, config, tmp_path / "killed") == 0
    whole, killed = best_of(tmp_path / "whole"), best_of(tmp_path / "killed")
    assert all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())
    rows, others = (read_rows(tmp_path / name / "results.csv") for name in ("whole", "killed"))
    assert [(row.train_loss, row.val_loss, row.metrics) for row in rows] == [
        (row.train_loss, row.val_loss, row.metrics) for row in others
    ]
