"""The explicit pass computes what the model computes, whatever the model is made of."""

from typing import Any

import pytest
import torch
from tests.explanation.conftest import SHAPES, eager, images_for
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.explanation import passes
from vitrail.explanation.paper_figures import attention_distance
from vitrail.explanation.passes import Groups, LayerInputs, probabilities, run
from vitrail.explanation.raw_attention import attention_maps
from vitrail.explanation.relevance import gradient_rollout, relevance, rollout
from vitrail.explanation.saliency import METHODS, explain_by
from vitrail.model import AttentionQuery, BlockConfig, PositionConfig


def only_fused(inputs: LayerInputs) -> Tensor:
    return inputs.output()


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
    inputs = LayerInputs(0, query, key, key, None, 0.5)
    mean = inputs.mean()
    monkeypatch.setattr(passes, "CHUNK", 2 * 2 * 7 * 9)
    assert [len(chunk[0]) for chunk in inputs.chunks()] == [2, 2, 1]
    assert torch.equal(torch.cat(list(inputs.chunks()), dim=1), whole)
    assert torch.allclose(inputs.mean(), mean)
    assert torch.allclose(mean, whole.mean(dim=1))


def test_a_model_in_training_is_refused(make_model) -> None:
    model = make_model().train()
    with pytest.raises(ConfigError, match=r"model\.eval\(\)"):
        run(model, images_for(model), only_fused)


READERS: list[dict[str, Any]] = [
    {},
    {"registers": 2},
    {"pooling": "mean", "class_token": False},
    {"pooling": "mean", "registers": 1, "pool_norm": "after"},
    {"pooling": "map"},
    {"pooling": "map", "registers": 2, "class_token": False},
]


@pytest.mark.parametrize("fields", READERS, ids=str)
@pytest.mark.parametrize("merge", [(3, 0, 0), (8, 4, 0)])
def test_where_equal_patches_merge_the_explanations_stay(
    fields: dict[str, Any], merge: tuple[int, ...], make_model
) -> None:
    plain = make_model(**fields, positions=PositionConfig(kind="none"))
    merging = make_model(**fields, positions=PositionConfig(kind="none"), merge=merge)
    rows = torch.randn(2, 3, 4, 1, 8, 8).expand(-1, -1, -1, 4, -1, -1)  # the four patches of a row are equal
    images = rows.permute(0, 1, 2, 4, 3, 5).reshape(2, 3, 32, 32)
    targets = torch.tensor([1, 4])
    for method in (relevance, gradient_rollout, lambda model, images, _: rollout(model, images)):
        expected, logits = method(plain, images, targets)
        maps, merged_logits = method(merging, images, targets)
        assert maps.shape == (2, 4, 4)
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(maps, expected, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(merged_logits, logits, rtol=1e-4, atol=1e-5)
    expected, found = attention_maps(plain, images), attention_maps(merging, images)
    assert found.names == expected.names
    torch.testing.assert_close(found.maps, expected.maps, rtol=1e-3, atol=1e-6)
    far = attention_distance(merging, images)
    torch.testing.assert_close(far, attention_distance(plain, images), rtol=1e-3, atol=1e-4)


def members(groups: Tensor, token: int) -> list[int]:
    return [patch for patch, group in enumerate(groups.tolist()) if group == token]


def merge_matrix(before: Tensor, after: Tensor, prefix: int) -> Tensor:
    """Token by token, from the patches in each."""
    old, new = int(before.max()) + 1, int(after.max()) + 1
    matrix = torch.zeros(new, old)
    for token in range(prefix):
        matrix[token, token] = 1
    for token in range(prefix, new):
        patches = members(after, token)
        for part in range(prefix, old):
            matrix[token, part] = len(set(patches) & set(members(before, part))) / len(patches)
    return matrix


@pytest.mark.parametrize("fields", READERS, ids=str)
def test_rollout_multiplies_what_merging_does(fields: dict[str, Any], make_model) -> None:
    model = make_model(**fields, merge=(5, 4, 2))
    config, images = model.config, images_for(model)
    trace = model.trace(images, attention=AttentionQuery())
    maps, logits = rollout(model, images)
    torch.testing.assert_close(logits, model(images), rtol=1e-4, atol=1e-5)
    probe = attention_maps(model, images).maps[:, -1].mean(dim=1).flatten(1)
    for picture in range(len(images)):
        total, before = torch.eye(config.tokens), torch.arange(config.prefix, config.tokens)
        for layer in range(config.depth):
            mean, after = trace.attention[layer][picture].mean(dim=0), trace.groups[layer][picture]
            half = 0.5 * mean + 0.5 * torch.eye(len(mean))
            total = merge_matrix(before, after, config.prefix) @ half @ total
            before = after
        if config.pooling == "cls":
            row = total[0]
        else:
            reads = torch.full((16,), 1 / 16) if config.pooling == "mean" else probe[picture]
            row = sum(share * total[token] for share, token in zip(reads, before, strict=True))
        torch.testing.assert_close(maps[picture].flatten(), row[config.prefix :], rtol=1e-4, atol=1e-6)  # pyright: ignore[reportIndexIssue]
        assert len(set(before.tolist())) == config.block_tokens[-1] - config.prefix


def test_attention_lies_on_the_patches_of_each_token(make_model) -> None:
    model = make_model(merge=(5, 4, 0))
    images = images_for(model, 1)
    trace = model.trace(images, attention=AttentionQuery(queries="class"))
    found = attention_maps(model, images).maps[0]
    for layer in range(3):
        groups = trace.groups[layer - 1][0] if layer else torch.arange(1, 17)
        for head in range(4):
            row = trace.attention[layer][0, head, 0]
            shares = torch.stack([row[token] / len(members(groups, token)) for token in groups.tolist()])
            torch.testing.assert_close(found[layer, head].flatten(), shares)


def test_every_method_explains_a_model_that_merges(make_loaded) -> None:
    loaded = make_loaded(merge=(5, 4, 0))
    picture = (torch.rand(40, 50, 3) * 255).byte().numpy()
    for method in METHODS:
        explanation = explain_by(loaded, picture, method)
        assert explanation.map.shape == (4, 4)


def test_half_precision(make_model) -> None:
    model = make_model(merge=(5, 4, 2), pooling="mean").bfloat16()
    images = images_for(model)
    for method in (rollout, relevance, gradient_rollout):
        assert method(model, images)[0].isfinite().all()


def test_nothing_is_done_where_nothing_merges() -> None:
    groups = Groups(1)
    groups.watch(0, torch.zeros(1, 5, 2), None)
    shares = torch.rand(1, 4)
    assert groups.spread(shares) is shares
    assert groups.collect(shares) is shares
    assert groups.repeat(shares) is shares
    assert groups.merged is None
    assert groups.sizes is None
