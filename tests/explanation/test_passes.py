"""The explicit pass computes what the model computes, whatever the model is made of."""

import pytest
import torch
from tests.explanation.conftest import SHAPES, eager, images_for

from vitrail.errors import ConfigError
from vitrail.explanation import passes
from vitrail.explanation.passes import fused, head_chunks, head_mean, probabilities, run
from vitrail.model import BlockConfig


def only_fused(layer, query, key, value, mask, scale):
    return fused(query, key, value, mask, scale)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_answers_as_the_model_does(shape: str, make_model) -> None:
    model = make_model(**SHAPES[shape])
    images = images_for(model)
    assert torch.allclose(run(model, images, only_fused), model(images), rtol=1e-4, atol=1e-5)
    assert torch.allclose(eager(model, images)[0], model(images), rtol=1e-4, atol=1e-4)  # the oracle is the model too


def test_choices_of_the_block_are_kept(make_model) -> None:
    model = make_model(block=BlockConfig(qk_norm=True, layer_scale=0.5, attention_scale=0.3, activation="gelu_tanh"))
    images = images_for(model)
    assert torch.allclose(run(model, images, only_fused), model(images), rtol=1e-4, atol=1e-5)


def test_heads_can_be_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = torch.randn(2, 5, 7, 4), torch.randn(2, 5, 9, 4)
    whole = probabilities(query, key, 0.5)
    assert torch.allclose(whole.sum(dim=-1), torch.ones(2, 5, 7))
    mean = head_mean(query, key, None, 0.5)
    monkeypatch.setattr(passes, "CHUNK", 2 * 2 * 7 * 9)
    assert [len(chunk[0]) for chunk in head_chunks(query, key, None, 0.5)] == [2, 2, 1]
    assert torch.equal(torch.cat(list(head_chunks(query, key, None, 0.5)), dim=1), whole)
    assert torch.allclose(head_mean(query, key, None, 0.5), mean)
    assert torch.allclose(mean, whole.mean(dim=1))


def test_a_model_in_training_is_refused(make_model) -> None:
    model = make_model().train()
    with pytest.raises(ConfigError, match=r"model\.eval\(\)"):
        run(model, images_for(model), only_fused)
