"""Attention, rollout and relevance against the textbook: explicit matrices, and autograd through an eager model."""

from typing import Any

import pytest
import torch
from tests.explanation.conftest import SHAPES, eager, images_for
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.explanation.raw_attention import attention_maps
from vitrail.explanation.relevance import gradient_rollout, relevance, rollout


def textbook(model: Any, images: Tensor, matrices: list[Tensor], pool: Tensor | None, relevances: bool) -> Tensor:
    """The patches' share in what the pooling reads, from the N × N matrices of the layers, product by product."""
    config = model.config
    total = torch.eye(matrices[0].shape[-1]).expand(len(images), -1, -1)
    for matrix in matrices:
        total = total + matrix @ total if relevances else matrix @ total
    if config.pooling == "cls":
        row = total[:, 0]
    elif config.pooling == "mean":
        row = total[:, config.prefix :].mean(dim=1)
    else:
        row = torch.einsum("bp,bpn->bn", pool, total[:, config.prefix :])
    patches = row[:, config.prefix :]
    if relevances and config.pooling == "mean":
        patches = patches - 1 / patches.shape[1]  # the identity that R starts with
    return patches.unflatten(-1, config.grid)


def weighted(probabilities: list[Tensor]) -> Tensor:
    """E_h[(∇A ⊙ A)⁺]."""
    return torch.stack([(torch.as_tensor(a.grad) * a.detach()).clamp(min=0) for a in probabilities]).mean(dim=0)


def backward_from(model: Any, images: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor | None]:
    logits, kept, pool = eager(model, images)
    logits[torch.arange(len(images)), targets].sum().backward()
    return [weighted(layer) for layer in kept], None if pool is None else weighted(pool)


@pytest.mark.parametrize("shape", SHAPES)
def test_rollout_is_the_product_of_half_residuals(shape: str, make_model) -> None:
    model = make_model(**SHAPES[shape])
    images = images_for(model)
    _, kept, pool = eager(model, images)
    means = [torch.stack(layer).mean(dim=0).detach() for layer in kept]
    halves = [0.5 * mean + 0.5 * torch.eye(mean.shape[-1]) for mean in means]
    weights = None if pool is None else torch.stack(pool).mean(dim=0).detach()
    maps, logits = rollout(model, images)
    assert torch.allclose(maps, textbook(model, images, halves, weights, relevances=False), rtol=1e-4, atol=1e-6)
    assert torch.allclose(logits, model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_relevance_is_chefers(shape: str, make_model) -> None:
    model = make_model(**SHAPES[shape])
    images, targets = images_for(model), torch.tensor([5, 2])
    matrices, pool = backward_from(model, images, targets)
    expected = textbook(model, images, matrices, pool, relevances=True)
    maps, logits = relevance(model, images, targets)
    assert expected.abs().max() > 1e-4
    assert torch.allclose(maps, expected, rtol=1e-3, atol=1e-6)
    assert torch.allclose(logits, model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_rollout_is_rollout_of_what_speaks_for_the_class(shape: str, make_model) -> None:
    model = make_model(**SHAPES[shape])
    images, targets = images_for(model), torch.tensor([0, 6])
    matrices, pool = backward_from(model, images, targets)
    steps = []
    for matrix in matrices:
        step = torch.eye(matrix.shape[-1]).repeat(len(matrix), 1, 1)
        for picture in range(len(matrix)):
            for row in range(matrix.shape[1]):
                if (total := matrix[picture, row].sum()) > 0:
                    step[picture, row] = 0.5 * step[picture, row] + 0.5 * matrix[picture, row] / total
        steps.append(step)
    weights = None if pool is None else pool / pool.sum(dim=1, keepdim=True)
    expected = textbook(model, images, steps, weights, relevances=False)
    maps, _ = gradient_rollout(model, images, targets)
    assert torch.allclose(maps, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_that_of_the_tokens_that_are_read(shape: str, make_model) -> None:
    model = make_model(**SHAPES[shape])
    images = images_for(model)
    _, kept, pool = eager(model, images)
    found = attention_maps(model, images)
    prefix = model.config.prefix
    reads = None if pool is None else torch.stack(pool).mean(dim=0)
    for layer, probabilities in enumerate(kept):
        for head, matrix in enumerate(probabilities):
            if model.config.pooling == "cls":
                row = matrix[:, 0]
            elif reads is None:
                row = matrix[:, prefix:].mean(dim=1)
            else:
                row = torch.einsum("bp,bpn->bn", reads, matrix[:, prefix:])
            expected = row[:, prefix:].unflatten(-1, model.config.grid)
            assert torch.allclose(found.maps[:, layer, head], expected, rtol=1e-4, atol=1e-6)
    names = [str(layer) for layer in range(model.config.depth)]
    if pool is None:
        assert list(found.names) == names
    else:
        assert list(found.names) == [*names, "pool"]
        expected = torch.stack(pool, dim=1).unflatten(-1, model.config.grid)
        assert torch.allclose(found.maps[:, -1], expected, rtol=1e-4, atol=1e-6)


def test_layers_and_heads_are_chosen(make_model) -> None:
    model = make_model(pooling="map")
    found = attention_maps(model, images_for(model))
    chosen = found.select((0, -1), (3, -4))
    assert chosen.names == ("0", "2")
    assert torch.equal(chosen.maps, found.maps[:, [0, 2]][:, :, [3, 0]])
    assert found.select(None, None).names == ("pool",)
    with pytest.raises(Exception, match="layer must be between -3 and 2; got 3"):
        found.select((3,), None)
    with pytest.raises(Exception, match="head must be between -4 and 3; got 9"):
        found.select(None, (9,))


def test_the_target_is_the_predicted_class_unless_said(make_model) -> None:
    model = make_model()
    images = images_for(model)
    said = model(images).argmax(dim=1)
    for method in (relevance, gradient_rollout):
        assert torch.equal(method(model, images)[0], method(model, images, said)[0])
        assert not torch.allclose(method(model, images)[0], method(model, images, (said + 1) % 7)[0], rtol=1e-2)


def test_frozen_weights_and_inference_mode_are_no_hindrance(make_model) -> None:
    model = make_model()
    images = images_for(model)
    expected, _ = relevance(model, images)
    model.requires_grad_(False)
    with torch.inference_mode():
        found, _ = relevance(model, images + 0)
    assert torch.allclose(found, expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_half_precision(make_model) -> None:
    model = make_model()
    images = images_for(model)
    exact = [method(model, images)[0] for method in (rollout, relevance)]
    model.bfloat16()
    for method, expected in zip((rollout, relevance), exact, strict=True):
        found = method(model, images)[0].float()
        assert torch.corrcoef(torch.stack([found.flatten(), expected.flatten()]))[0, 1] > 0.95


def test_without_a_head_there_is_no_class(make_model) -> None:
    model = make_model(num_classes=0)
    with pytest.raises(ConfigError, match="no head.*attention or rollout"):
        relevance(model, images_for(model))
    assert rollout(model, images_for(model))[0].shape == (2, 4, 4)
