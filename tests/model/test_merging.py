"""Token merging against the paper's description, step by step in plain loops, and against what it promises."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import TINY, randomize
from fuzzing import in_fuzz_only
from vitrail.errors import ConfigError, InputError
from vitrail.model import AttentionQuery, ConvStem, PositionConfig, Rates, ViT, ViTConfig, variant
from vitrail.model.merging import match, merge_schedule, merge_tokens, with_merging
from vitrail.schema import from_dict, to_dict

READERS: list[dict[str, Any]] = [
    {},
    {"registers": 3, "representation": 20},
    {"pooling": "mean"},
    {"pooling": "mean", "class_token": False, "registers": 1, "pool_norm": "after"},
    {"pooling": "map", "registers": 2},
    {"pooling": "map", "class_token": False, "pool_norm": "after"},
    {"pooling": "mean", "image_size": (40, 24)},  # 15 patches: one set is larger
    {"stem": ConvStem(widths=(8, 16), strides=(2, 2)), "patch_size": (2, 2)},
]


def pair_up(keys: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Bipartite soft matching of the patches' keys (patches, K), as the paper tells it: (merged away, into)."""
    edges = []
    for one in range(0, len(keys), 2):
        similar = []
        for other in range(1, len(keys), 2):
            lengths = np.linalg.norm(keys[one]) * np.linalg.norm(keys[other])
            similar.append((float(keys[one] @ keys[other] / lengths), other))
        edges.append((*max(similar), one))
    return [(one, other) for _, other, one in sorted(edges, reverse=True)[:count]]


def join(values: list[np.ndarray], members: list[list[int]], pairs: list[tuple[int, int]]) -> list[Any]:
    """The new tokens' values and members: what stays of the first set in its order, then the second."""
    away = dict(pairs)
    rows = []
    for index in [*range(0, len(values), 2), *range(1, len(values), 2)]:
        if index in away:
            continue
        parts = [index, *(one for one, other in pairs if other == index)]
        patches = [patch for part in parts for patch in members[part]]
        total = sum(len(members[part]) * values[part] for part in parts)
        rows.append((total / len(patches), patches))
    return [list(column) for column in zip(*rows, strict=True)]


@given(
    patches=st.integers(2, 19),
    prefix=st.integers(0, 3),
    share=st.floats(0, 1),
    batch=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_the_best_pairs_become_their_weighted_mean(
    patches: int, prefix: int, share: float, batch: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = round(share * (patches // 2))
    tokens = torch.randn(batch, prefix + patches, 6, generator=generator, dtype=torch.float64)
    keys = torch.randn(batch, 2, prefix + patches, 4, generator=generator, dtype=torch.float64)
    sizes = torch.randint(1, 9, (batch, prefix + patches), generator=generator).double()
    sizes[:, :prefix] = 1
    merged, new_sizes = merge_tokens(tokens, sizes, match(keys, count, prefix), prefix)
    for picture in range(batch):
        own = keys[picture].mean(dim=0)[prefix:].numpy()
        members = [[patch] * int(size) for patch, size in enumerate(sizes[picture, prefix:])]
        values, groups = join(list(tokens[picture, prefix:].numpy()), members, pair_up(own, count))
        expected = [*tokens[picture, :prefix].numpy(), *values]
        np.testing.assert_allclose(merged[picture].numpy(), np.stack(expected), rtol=1e-9)
        assert new_sizes[picture].tolist() == [1] * prefix + [len(group) for group in groups]


def slow(model: Any, image: Tensor) -> tuple[Tensor, list[list[list[int]]]]:
    """Logits of one picture and the patches in each token after each block; tokens, heads and keys one by one."""
    config = model.config
    tokens = [*model.embed(image[None])[0][0]]
    members = [[patch] for patch in range(len(tokens) - config.prefix)]
    history = []
    for block, count in zip(model.blocks, config.merge, strict=True):
        sizes = [1] * config.prefix + [len(group) for group in members]
        q, k, v = block.attention.qkv(block.norm1(torch.stack(tokens))).unflatten(-1, (3, config.heads, -1)).unbind(1)
        mixed = torch.zeros_like(v)
        for head in range(config.heads):
            for query in range(len(tokens)):
                weights = [
                    size * math.exp(float(q[query, head] @ key) / config.head_size**0.5)
                    for key, size in zip(k[:, head], sizes, strict=True)
                ]
                mixed[query, head] = (torch.tensor(weights)[:, None] * v[:, head]).sum(dim=0) / sum(weights)
        tokens = [*(torch.stack(tokens) + block.attention.proj(mixed.flatten(1)))]
        patches = [token.numpy() for token in tokens[config.prefix :]]
        if count:
            values, members = join(patches, members, pair_up(k.mean(dim=1)[config.prefix :].numpy(), count))
            tokens = [*tokens[: config.prefix], *map(torch.tensor, values)]
        tokens = [token + block.mlp(block.norm2(token)) for token in tokens]
        history.append(members)
    # To the head, every merged token is as many equal ones.
    whole = [*tokens[: config.prefix]]
    whole += [token for token, group in zip(tokens[config.prefix :], members, strict=True) for _ in group]
    return model.classify(model.summarize(torch.stack(whole)[None]))[0], history


@pytest.mark.parametrize("fields", READERS, ids=str)
@torch.no_grad()
def test_the_model_computes_what_the_paper_says(make_model: Callable[..., ViT], fields: dict[str, Any]) -> None:
    model = make_model(**fields, merge=(5, 3, 2))
    images = torch.randn(2, 3, *model.config.image_size)
    logits, trace = model(images), model.trace(images, hidden=(0, 1, 2), attention=AttentionQuery())
    torch.testing.assert_close(trace.logits, logits, rtol=1e-4, atol=1e-5)
    for picture, image in enumerate(images):
        expected, history = slow(model, image)
        torch.testing.assert_close(logits[picture], expected, rtol=1e-4, atol=1e-4)
        for layer, members in enumerate(history):
            assert trace.hidden[layer].shape[1] == model.config.block_tokens[layer + 1]
            assert trace.attention[layer].shape[-1] == model.config.block_tokens[layer]
            for token, patches in enumerate(members):
                assert (trace.groups[layer][picture, patches] == model.config.prefix + token).all()


@pytest.mark.parametrize("fields", READERS[:6], ids=str)
@pytest.mark.parametrize("merge", [(3, 0, 0), (8, 0, 0), (8, 4, 0), (0, 8, 4)])
def test_merging_equal_tokens_changes_nothing(
    make_model: Callable[..., ViT], fields: dict[str, Any], merge: tuple[int, ...]
) -> None:
    plain = make_model(**fields, positions=PositionConfig(kind="none"))
    merging = make_model(**fields, positions=PositionConfig(kind="none"), merge=merge)
    rows = torch.randn(2, 3, 4, 8, 8)
    images = rows.repeat_interleave(4, dim=2).unflatten(2, (4, 4)).permute(0, 1, 2, 4, 3, 5).reshape(2, 3, 32, 32)
    assert merging.config.block_tokens[-1] < plain.config.tokens
    torch.testing.assert_close(merging(images), plain(images), rtol=1e-4, atol=1e-5)


def test_a_schedule_is_made_for_any_model() -> None:
    assert merge_schedule(4, 3, 100) == (3, 3, 3, 3)
    assert merge_schedule(4, 3, 100, "decreasing") == (6, 4, 2, 0)
    assert merge_schedule(1, 3, 100, "decreasing") == (3,)
    assert merge_schedule(5, 3, 100, "alternating") == (0, 6, 0, 6, 0)
    assert merge_schedule(4, 30, 100, "alternating") == (0, 50, 0, 25), "at most half of what is there"
    assert merge_schedule(1, 3, 100, "alternating") == (3,)
    assert merge_schedule(5, 8, 25) == (8, 8, 4, 2, 1)
    mean = replace(TINY, pooling="mean")
    assert with_merging(mean, 2).merge == (2, 2, 2)
    assert with_merging(TINY, 2).merge == (2, 2, 0)  # nobody reads what the last block would merge
    assert with_merging(mean, [7, 0, 1]).block_tokens == (17, 10, 10, 9)
    assert with_merging(with_merging(TINY, 2), 0) == TINY == replace(TINY, merge=(0, 0, 0))
    decreasing = with_merging(variant("vit-b16"), 8, "decreasing")
    assert decreasing.merge[0] == 16
    assert decreasing.tokens == 197
    assert decreasing.block_tokens[-1] == 197 - sum(decreasing.merge)


def test_what_cannot_be_merged_is_refused(make_model: Callable[..., ViT]) -> None:
    with pytest.raises(ConfigError, match="one number for each of the 3 blocks; got 2"):
        replace(TINY, merge=(1, 1))
    with pytest.raises(ConfigError, match=r"merge\[1\] must be between 0 and 4, half of its patches; got 5"):
        replace(TINY, merge=(8, 5, 0))
    with pytest.raises(ConfigError, match=r"merge\[0\] must be between 0 and 8.* got -1"):
        replace(TINY, merge=(-1, 0, 0))
    with pytest.raises(ConfigError, match="0 or more patches per block; got -3"):
        with_merging(TINY, -3)
    with pytest.raises(ConfigError, match="constant, decreasing, alternating; got 'steep'"):
        with_merging(TINY, 3, "steep")  # pyright: ignore
    model = make_model(merge=(2, 2, 0))
    with pytest.raises(InputError, match="needs pictures of one size"):
        model([torch.randn(3, 32, 32), torch.randn(3, 16, 16)])
    with pytest.raises(InputError, match="without a mask"):
        model(torch.randn(1, 3, 32, 32), torch.ones(1, 4, 4, dtype=torch.bool))


def test_smaller_pictures_merge_what_they_can(make_model: Callable[..., ViT]) -> None:
    model = make_model(merge=(8, 4, 2), pooling="mean")
    assert model.tokens(torch.randn(1, 3, 16, 24)).shape[1] == 1 + 1  # 6 patches, then 3, 2 and 1
    assert model.tokens(torch.randn(1, 3, 8, 8)).shape[1] == 1 + 1
    assert model.tokens(torch.randn(1, 3, 64, 32)).shape[1] == 1 + 32 - 14


def test_a_picture_merges_as_it_does_alone(make_model: Callable[..., ViT]) -> None:
    model = make_model(merge=(4, 4, 2), pooling="map")
    images = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(model(images), torch.cat([model(image[None]) for image in images]))


def test_configs_that_do_not_merge_are_written_as_before() -> None:
    assert "merge" not in to_dict(TINY)
    merging = replace(TINY, merge=(2, 1, 0))
    assert to_dict(merging)["merge"] == [2, 1, 0]
    assert from_dict(ViTConfig, to_dict(merging)) == merging
    assert from_dict(ViTConfig, to_dict(TINY)) == TINY


@in_fuzz_only
def test_export_with_a_free_batch_size(make_model: Callable[..., ViT]) -> None:
    model = make_model(depth=2, merge=(4, 3), pooling="map", registers=1)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (torch.randn(2, 3, 32, 32),), dynamic_shapes={"images": {0: batch}})
    for size in (1, 5):
        images = torch.randn(size, 3, 32, 32)
        torch.testing.assert_close(program.module()(images), model(images))


@in_fuzz_only
def test_compiles_without_a_graph_break(make_model: Callable[..., ViT]) -> None:
    model = make_model(depth=2, merge=(4, 3), pooling="mean")
    images = torch.randn(2, 3, 32, 32)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))


def test_gradients_flow_with_and_without_checkpointing() -> None:
    gradients: list[list[Tensor]] = []
    for checkpointing in (False, True):
        torch.manual_seed(3)
        model = randomize(ViT(replace(TINY, merge=(4, 3, 2), pooling="map", rates=Rates(dropout=0.1)))).train()
        model.gradient_checkpointing = checkpointing
        model(torch.randn(2, 3, 32, 32)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert plain.abs().sum() > 0
        torch.testing.assert_close(plain, again)


@pytest.mark.parametrize("pooling", ["cls", "mean", "map"])
def test_half_precision_stays_near(make_model: Callable[..., ViT], pooling: str) -> None:
    model, images = make_model(merge=(4, 3, 2), pooling=pooling), torch.randn(4, 3, 32, 32)
    exact = model(images)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(images)
    half = model.bfloat16()(images.bfloat16())
    for logits in (mixed, half):
        assert logits.dtype == torch.bfloat16
        assert (logits.float() - exact).abs().mean() < 0.1 * exact.abs().mean()
