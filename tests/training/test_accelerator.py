"""Nothing computes in float64 on a device: a Mac's GPU has none, and a run there would end after its first epoch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from accelerator import DEVICE, NoFloat64, mark, pretending
from vitrail import load
from vitrail.data import open_data
from vitrail.evaluation.measurement import measure_split
from vitrail.explanation import METHODS, choose, explain_by, open_subject
from vitrail.explanation.paper_figures import attention_distance, patch_filters, position_similarity
from vitrail.tasks.one import One
from vitrail.training import gradients, train
from vitrail.training.gradients import Plain
from vitrail.training.loop import Trainer

from .conftest import quick_config


def test_the_pretence_refuses_what_a_device_refuses() -> None:
    with pretending():
        weight = torch.ones(3, device=DEVICE)
        assert weight.device == DEVICE
        assert (2 * weight).cpu().double().sum() == 6
        with pytest.raises(TypeError, match="float64"):
            weight.double()
        with pytest.raises(TypeError, match="float64"):
            torch.arange(3, dtype=torch.float64).to(DEVICE)
        with pytest.raises(TypeError, match="numpy"):
            weight.numpy()


def test_a_run_with_validation_and_what_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, validation, the final evaluation, then prediction, evaluation and explanation of the model."""
    monkeypatch.setattr(gradients, "suits_lanes", lambda *_: False)  # which are for CPUs
    with pretending() as pretence:
        outcome = train(quick_config(epochs=1, device=str(DEVICE)), tmp_path / "run")
        trained = pretence.seen
        assert trained > 1000, "the steps were on the device"
        assert outcome.test is not None
        predictor = load(tmp_path / "run", device=DEVICE)
        data = open_data("digits")
        picture = data.split("test").picture(0)
        assert len(predictor.predict(picture).labels)
        evaluation = measure_split(predictor, data, "test")
        assert evaluation.logits.shape == (len(data.split("test")), 10)
        assert pretence.seen > trained


def test_explanations() -> None:
    with pretending() as pretence:
        predictor = load(device=DEVICE)
        picture = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)
        for method in METHODS:
            explanation = explain_by(predictor, picture, method)
            explanation.over_picture()
        assert pretence.seen > 500
        assert choose(predictor, [open_subject(picture, predictor.preprocess)]).scores  # how faithful they are


def test_figures() -> None:
    with pretending():
        predictor = load(device=DEVICE)
        patch_filters(predictor.model)
        position_similarity(predictor.model)
        attention_distance(predictor.model, torch.rand(2, 3, 32, 32))


def test_steps_and_scores_make_no_float64_at_all_on_the_way(make_trainer: Callable[..., Trainer]) -> None:
    """Below torch's Python functions too: forward, backward, optimisers, average, clipping, restoring."""
    trainer = make_trainer(epochs=1, ema=0.9, drop_path=0.1)
    assert isinstance(trainer.engine, Plain)
    batch = next(iter(trainer.loader))
    with NoFloat64():
        trainer.step(batch)
        trainer.save()
        trainer.resume()
        logits = trainer.model(batch.images).detach()
    zeros = torch.zeros(len(logits), dtype=torch.long)
    with pretending():
        assert One().score(mark(logits), mark(zeros))[0][1].sum() == int((logits.argmax(dim=1) == 0).sum())
