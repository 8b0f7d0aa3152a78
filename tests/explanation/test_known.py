"""A model whose behaviour is known because its weights are set by hand: every method must find the evidence.

Two kinds of patches are evidence, red ones for class 0 and green ones for class 1. The last layer's tokens look for
evidence and copy it, the pooling hands it to the head, and nothing else in the model does anything. Without evidence
the answer is class 2.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.explanation import METHODS, choose, explain_by, open_subject
from vitrail.explanation.faithfulness import measure
from vitrail.model import PositionConfig, ViT, ViTConfig
from vitrail.prediction import Predictor
from vitrail.runtimes.torch_runtime import TorchRuntime

PATCH, GRID = 4, (3, 5)
RED, GREEN, PLAIN = 0, 1, 15  # what the dimensions of a token mean


def build(pooling: str) -> ViT:
    config = ViTConfig(
        image_size=(GRID[0] * PATCH, GRID[1] * PATCH),
        patch_size=(PATCH, PATCH),
        width=16,
        depth=2,
        heads=2,
        mlp_width=16,
        num_classes=3,
        pooling=pooling,
        class_token=pooling == "cls",
        registers=1,
        positions=PositionConfig(kind="none"),
    )
    model: Any = ViT(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        model.embed.patches.weight[RED, 0] = 4 / PATCH**2  # the mean of the red pixels, and so on
        model.embed.patches.weight[GREEN, 1] = 4 / PATCH**2
        model.embed.patches.bias[PLAIN] = 2.0
        for token in (model.embed.class_token, model.embed.registers):
            if token is not None:
                token[..., PLAIN] = 2.0
        reader = model.pool if pooling == "map" else model.blocks[1].attention
        copy = torch.zeros(16, 16)
        copy[RED, RED] = copy[GREEN, GREEN] = 1.0
        copy[8 + RED, RED] = copy[8 + GREEN, GREEN] = 1.0  # the second head copies too
        look = torch.zeros(16, 16)
        look[0, RED] = look[0, GREEN] = look[8, RED] = look[8, GREEN] = 1.0  # first number of each head's key: evidence
        if pooling == "map":
            reader.query.bias[[0, 8]] = 3.0
            reader.key_value.weight.copy_(torch.cat([look, copy]))
        else:
            reader.qkv.weight.copy_(torch.cat([torch.zeros(16, 16), look, copy]))
            reader.qkv.bias[[0, 8]] = 3.0
        reader.proj.weight[RED, [RED, 8 + RED]] = 0.5
        reader.proj.weight[GREEN, [GREEN, 8 + GREEN]] = 0.5
        model.head.weight[0, RED] = model.head.weight[1, GREEN] = 3.0
        model.head.weight[0, GREEN] = model.head.weight[1, RED] = -1.0
        model.head.bias[2] = 4.0  # a trace of colour is not enough
    return model


def loaded_with(pooling: str) -> Predictor:
    model = build(pooling)
    spec = Preprocess(size=model.config.image_size)
    return Predictor(runtime=TorchRuntime(model), preprocess=spec, classes=("red", "green", "none"))


def picture(red: int | None = None, green: int | None = None) -> Tensor:
    pixels = torch.full((3, GRID[0] * PATCH, GRID[1] * PATCH), 127, dtype=torch.uint8)
    for channel, place in ((0, red), (1, green)):
        if place is not None:
            row, column = divmod(place, GRID[1])
            pixels[channel, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] = 255
    return pixels


@pytest.mark.parametrize("pooling", ["cls", "mean", "map"])
@pytest.mark.parametrize("method", METHODS)
def test_the_only_evidence_is_found(method: str, pooling: str) -> None:
    loaded = loaded_with(pooling)
    for place in range(GRID[0] * GRID[1]):
        found = explain_by(loaded, picture(red=place), method)
        assert (found.label, found.predicted) == ("red", "red")
        assert found.probability > 0.9
        assert int(found.map.argmax()) == place
        others = found.map.flatten()[torch.arange(15) != place]
        assert found.map.max() > 1.5 * others.max()


@pytest.mark.parametrize("pooling", ["cls", "mean", "map"])
@pytest.mark.parametrize("method", ["relevance", "gradient-rollout", "occlusion"])
def test_each_class_has_its_own_evidence(method: str, pooling: str) -> None:
    loaded = loaded_with(pooling)
    both = picture(red=3, green=11)
    assert int(explain_by(loaded, both, method, target="red").map.argmax()) == 3
    assert int(explain_by(loaded, both, method, target="green").map.argmax()) == 11


def test_the_judge_prefers_the_evidence() -> None:
    loaded = loaded_with("cls")
    subject = open_subject(picture(red=7), loaded.preprocess)
    right, wrong = torch.zeros(GRID), torch.ones(GRID)
    right.view(-1)[7], wrong.view(-1)[7] = 1.0, 0.0
    good, bad = (measure(loaded.model, subject.image, 0, cells, steps=15) for cells in (right, wrong))
    assert good.deletion < bad.deletion
    assert good.insertion > bad.insertion
    # The evidence goes with the first, or with the last, of 15 patches: from certain to nothing in one step.
    assert good.deletion == pytest.approx(0.5 / 15, abs=0.1)
    assert bad.deletion == pytest.approx(14.5 / 15, abs=0.1)


def test_auto_takes_the_best_and_says_why() -> None:
    loaded = loaded_with("cls")
    subjects = [open_subject(picture(red=place, green=14 - place), loaded.preprocess) for place in (1, 5)]
    choice = choose(loaded, subjects, target="red")
    assert choice.scores[choice.method].score == max(score.score for score in choice.scores.values())
    assert choice.method in ("relevance", "gradient-rollout")  # the others cannot tell red from green
    assert choice.scores[choice.method].score > choice.scores["random"].score + 0.05
    assert f"{choice.method}, the most faithful" in choice.reason
    assert "on 2 pictures" in choice.reason
    assert len(choice.each["random"]) == 2
