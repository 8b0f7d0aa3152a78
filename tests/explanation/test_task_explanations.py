"""Maps of one of several labels, and of a value: every method, its target, and how faithful it is."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from tests.data.conftest import picture
from tests.task_models import KINDS, MEAN, OFFSETS, SLOPES, STD, make_checkpoint_of

from vitrail.errors import ConfigError
from vitrail.explanation import METHODS, explain_by, measure, open_subject
from vitrail.explanation.faithfulness import choose
from vitrail.explanation.heatmap import draw_pair
from vitrail.explanation.occlusion import mean_colour, occlude
from vitrail.explanation.relevance import relevance
from vitrail.prediction import Predictor
from vitrail.runtimes.torch_runtime import TorchRuntime

PICTURE = picture(2, (40, 40))


def predictor_of(kind: str) -> Predictor:
    checkpoint = make_checkpoint_of(kind)
    facts = checkpoint.facts()
    return Predictor(runtime=TorchRuntime(checkpoint.build()), **facts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_explains_it(kind: str, method: str) -> None:
    predictor = predictor_of(kind)
    subject = open_subject(PICTURE, predictor.preprocess)
    logits = predictor.model(subject.image[None])[0].detach().double().numpy()
    meanings = expit(logits * SLOPES + OFFSETS) if kind == "several" else logits * STD + MEAN
    usual = explain_by(predictor, subject, method)
    assert usual.target == (int(meanings.argmax()) if kind == "several" else 0)
    named = explain_by(predictor, subject, method, predictor.label(1))
    assert (named.target, named.probability) == (1, pytest.approx(meanings[1], rel=1e-4))
    if method not in ("attention", "rollout"):
        assert not torch.equal(usual.map, named.map)


def test_occlusion_is_what_covering_a_patch_changes() -> None:
    for kind in KINDS:
        predictor = predictor_of(kind)
        image = open_subject(PICTURE, predictor.preprocess).image
        maps, _ = occlude(
            predictor.model, predictor.num_classes, (4, 4), image[None], torch.tensor([1]), predictor.task
        )
        covered = image.clone()
        covered[:, 8:16, 16:24] = mean_colour(image)
        with torch.inference_mode():
            change = (predictor.model(image[None]) - predictor.model(covered[None]))[0, 1].item()
        assert maps[0, 1, 2].item() == pytest.approx(abs(change) if kind == "number" else change, abs=1e-5)


def test_a_value_below_the_mean_is_explained_by_what_lowers_it() -> None:
    predictor = predictor_of("number")
    head = predictor.model.head
    assert head is not None
    image = open_subject(PICTURE, predictor.preprocess).image[None]
    maps, logits = relevance(predictor.model, image, torch.tensor([0]), predictor.task)
    with torch.no_grad():
        head.weight.neg_()
        head.bias.neg_()
    turned, negated = relevance(predictor.model, image, torch.tensor([0]), predictor.task)
    torch.testing.assert_close(negated, -logits)
    torch.testing.assert_close(turned, maps)


def test_faithfulness_of_a_value_is_how_close_it_stays() -> None:
    predictor = predictor_of("number")
    image = open_subject(PICTURE, predictor.preprocess).image
    order = torch.arange(16.0).flip(0).view(4, 4)
    found = measure(predictor.model, image, 1, order, steps=16, task=predictor.task)
    whole, curve = predictor.model(image[None])[0, 1].item(), list[float]()
    for count in range(17):
        changed = image.clone()
        for cell in range(count):
            row, column = divmod(cell, 4)
            changed[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = mean_colour(image)
        curve.append(np.exp(-abs(predictor.model(changed[None])[0, 1].item() - whole)))
    assert found.deletion == pytest.approx(np.trapezoid(curve, dx=1 / 16), rel=1e-4)


def test_the_best_method_is_chosen_by_the_tasks_own_measure() -> None:
    for kind in KINDS:
        predictor = predictor_of(kind)
        subject = open_subject(PICTURE, predictor.preprocess)
        choice = choose(predictor, [subject], candidates=("relevance", "rollout"), steps=4)
        found = explain_by(predictor, subject, "rollout")
        assert found.target is not None
        measured = measure(predictor.model, subject.image, found.target, found.map, 4, predictor.task)
        assert choice.scores["rollout"] == measured
        if kind == "several":  # one label by itself, whatever the others are
            alone = measure(predictor.model, subject.image, found.target, found.map, 4)
            assert alone != measured


def test_captions_and_mistakes_use_the_tasks_words() -> None:
    predictor = predictor_of("number")
    subject = open_subject(PICTURE, predictor.preprocess)
    explanation = explain_by(predictor, subject, "rollout", "height")
    left, right = draw_pair(subject, explanation, PICTURE)
    assert left.caption.startswith(f"age  {explanation.confidence:.4g}\n")
    assert right.caption.startswith(f"why height ({explanation.probability:.4g})?")
    with pytest.raises(ConfigError, match="unknown value 'hight'; did you mean height"):
        explain_by(predictor, subject, "rollout", "hight")
    with pytest.raises(ConfigError, match="unknown label 'seal'"):
        explain_by(predictor_of("several"), subject, "rollout", "seal")
