"""Relative positions against their formulas, written out patch by patch."""

import cmath
from dataclasses import replace
from itertools import product
from math import pi
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from conftest import TINY, randomize
from vitrail.data.preprocess import preset
from vitrail.errors import ConfigError
from vitrail.model import NoRelative, PositionConfig, Rates, RelativeBias, Rope, ViT, ViTConfig
from vitrail.model.attention import fused, relate
from vitrail.model.merging import Merging, own_groups
from vitrail.model.relative import Layout, build_relative, resample_table
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint

ROPES = {
    "dinov3": Rope(),
    "eva02": Rope(base=10_000.0, coordinates="reference", reference=(4, 4), pairing="interleaved"),
    "pe": Rope(base=10_000.0, coordinates="index", offset=1.0, order="xy", pairing="interleaved"),
    "stored": Rope(frequencies="stored"),
    "mixed": Rope(base=10.0, coordinates="index", order="xy", pairing="interleaved", frequencies="mixed"),
}


@torch.no_grad()
def fresh(config: ViTConfig) -> Any:
    kind: Any = build_relative(config)
    kind.fill()
    return kind


def coordinate(rope: Rope, index: int, side: int, axis: int) -> float:
    if rope.coordinates == "unit":
        return 2 * pi * (2 * (index + 0.5) / side - 1)
    scale = 1.0 if rope.reference is None else rope.reference[axis] / side
    return (index + rope.offset) * scale


def turn(rope: Rope, features: list[float], angles: list[float]) -> list[float]:
    """Each pair of features as a complex number, times e to the i times its angle."""
    half, turned = len(angles), [0.0] * len(features)
    for number, angle in enumerate(angles):
        one, other = (number, number + half) if rope.pairing == "half" else (2 * number, 2 * number + 1)
        rotated = complex(features[one], features[other]) * cmath.exp(1j * angle)
        turned[one], turned[other] = rotated.real, rotated.imag
    return turned


@pytest.mark.parametrize("grid", [(4, 4), (2, 5)])
@pytest.mark.parametrize("name", ROPES)
def test_every_patch_is_turned_by_its_angles(name: str, grid: tuple[int, int]) -> None:
    rope = ROPES[name]
    config = replace(TINY, registers=1, relative=rope)
    kind = fresh(config)
    size, depth, heads = config.head_size, config.depth, config.heads
    if rope.frequencies == "stored":
        kind.periods.copy_(torch.tensor([1.5, 7.0]))
    given = {"stored": [1 / 1.5, 1 / 7.0]}.get(rope.frequencies)
    bands = given or [rope.base ** (-band / (size / 4)) for band in range(size // 4)]
    tokens = torch.randn(1, heads, 2 + grid[0] * grid[1], size)
    relations = kind.at(Layout(grid), tokens)
    for block, head in product(range(depth), range(heads)):
        rotation = relations(block).rotation
        assert rotation is not None
        turned = rotation.turn(tokens)
        assert torch.equal(turned[:, :, :2], tokens[:, :, :2])  # [cls] and the register
        for patch, (row, column) in enumerate(product(range(grid[0]), range(grid[1]))):
            places = [coordinate(rope, row, grid[0], 0), coordinate(rope, column, grid[1], 1)]
            first, second = places if rope.order == "yx" else places[::-1]
            if rope.frequencies == "mixed":
                learned = kind.frequencies[:, block, head].tolist()
                angles = [first * x + second * y for x, y in zip(*learned, strict=True)]
            else:
                angles = [place * band for place in (first, second) for band in bands]
            expected = turn(rope, tokens[0, head, 2 + patch].tolist(), angles)
            torch.testing.assert_close(turned[0, head, 2 + patch], torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dinov3", "pe", "mixed"])
def test_scores_depend_on_the_offset_of_two_patches_only(name: str) -> None:
    kind = fresh(replace(TINY, relative=ROPES[name]))
    tokens = torch.randn(1, 1, 1, 8).expand(1, 4, 17, 8)  # all queries and keys are equal
    query, key, _ = relate(tokens, tokens, None, kind.at(Layout((4, 4)), tokens)(1))
    scores = (
        (query @ key.mT)[:, :, 1:, 1:].unflatten(-1, (4, 4)).unflatten(2, (4, 4))
    )  # (1, H, row, column, row, column)
    torch.testing.assert_close(scores[:, :, 0, 0, 1, 2], scores[:, :, 2, 1, 3, 3], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores[:, :, 3, 0, 1, 1], scores[:, :, 2, 2, 0, 3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("class_token", [True, False])
def test_every_pair_gets_the_bias_of_its_offset(class_token: bool, shared: bool) -> None:
    grid = (2, 3)
    config = replace(
        TINY, image_size=(16, 24), class_token=class_token, pooling="mean", relative=RelativeBias(shared=shared)
    )
    kind: Any = build_relative(config)
    table = torch.randn_like(kind.table)
    kind.table.data = table
    assert table.shape == (1 if shared else 3, 3 * 5 + 3 * class_token, 4)
    bias = kind.at(Layout(grid), table)(2).bias[0]  # (H, N, N)
    own = table[0 if shared else 2]
    places = list(product(range(grid[0]), range(grid[1])))
    for (one, (row, column)), (other, (to_row, to_column)) in product(enumerate(places), enumerate(places)):
        offset = (row - to_row + grid[0] - 1) * (2 * grid[1] - 1) + column - to_column + grid[1] - 1
        assert torch.equal(bias[:, one + class_token, other + class_token], own[offset])
    if class_token:
        assert torch.equal(bias[:, 0, 4], own[15])  # [cls] looks at a patch
        assert torch.equal(bias[:, 4, 0], own[16])  # a patch looks at [cls]
        assert torch.equal(bias[:, 0, 0], own[17])


def test_another_size_is_that_of_a_resized_checkpoint() -> None:
    config = replace(TINY, relative=RelativeBias(), positions=PositionConfig(kind="none"))
    model = randomize(ViT(config)).eval()
    checkpoint = Checkpoint(config=config, tensors=model.state_dict(), preprocess=preset("timm", config.image_size, 3))
    images = torch.randn(2, 3, 40, 24)
    with torch.no_grad():
        resized = adapt(checkpoint, image_size=(40, 24)).build()
        assert resized.config.grid == (5, 3)
        torch.testing.assert_close(resized(images), model(images))
    table = cast("Tensor", model.relative.table)
    assert torch.equal(resample_table(table, (4, 4), (4, 4)), table)


def test_dropped_patches_keep_their_places() -> None:
    """The patches that stay attend as they would in the whole picture, if all others were masked."""
    config = replace(TINY, relative=Rope(), positions=PositionConfig(kind="none"), pooling="mean")
    model = randomize(ViT(config)).eval()
    images = torch.randn(1, 3, 32, 32)
    embedded = model.embed_images(images)
    kept = torch.tensor([[3, 7, 8, 14]])
    places = embedded.layouts[0].where(images.device)[0][kept]
    few = embedded._replace(
        tokens=torch.cat([embedded.tokens[:, :1], embedded.tokens[:, 1:][:, kept[0]]], dim=1),
        layouts=(Layout((4, 4), places),),
    )
    mask = torch.zeros(1, 16, dtype=torch.bool)
    mask[0, kept[0]] = True
    with torch.no_grad():
        torch.testing.assert_close(model.summarize(*model.encode(few)), model.features(images, mask))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rope(base=0.0), "relative.base must be positive"),
        (lambda: Rope(coordinates="reference"), "relative.reference, a grid, belongs to"),
        (lambda: Rope(reference=(4, 4)), "relative.reference, a grid, belongs to"),
        (lambda: Rope(offset=1.0), "relative.offset must be 0"),
        (lambda: replace(TINY, width=24, relative=Rope()), "multiple of 4; got 24 / 4"),
        (lambda: replace(TINY, relative="spiral"), "relative.kind must be one of none, rope, bias; got 'spiral'"),
        (lambda: replace(TINY, summary_tokens=2), "summary_tokens must be between 1 and 1"),
        (lambda: replace(TINY, registers=1, summary_tokens=2, distilled=True, num_classes=0), "distilled needs"),
        (lambda: replace(TINY, projection=8, representation=8), "not both"),
        (lambda: replace(TINY, pooling="map", pool_heads=5), "pool_heads must divide width 32; got 5"),
    ],
)
def test_bad_options(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_equal_models_have_equal_configs() -> None:
    assert replace(TINY, pool_heads=2, pool_mlp_width=9, pool_prefix=True) == TINY  # they belong to attention pooling
    assert replace(TINY, pooling="map", pool_heads=4, pool_mlp_width=64) == replace(TINY, pooling="map")
    assert replace(TINY, relative="none") == replace(TINY, relative=NoRelative()) == TINY
    assert ViTConfig(relative={"kind": "rope", "base": 100}).relative == Rope()  # pyright: ignore


def test_a_merged_token_is_where_the_mean_of_its_patches_is() -> None:
    prefix, grid = 1, (4, 4)
    tokens, layout, groups, sizes = torch.randn(2, 17, 8), Layout(grid), None, None
    for count in (5, 3):  # the second merges tokens that stand for several patches
        merging = Merging(fused, count, prefix, sizes)
        heads = torch.randn(3, 2, 4, tokens.shape[1], 8).unbind(0)
        merging(*heads, None, 0.0, scale=1.0)
        before = own_groups(tokens, prefix) if groups is None else groups
        tokens, layout, groups, sizes = (
            merging.merge(tokens),
            merging.move(layout),
            merging.regroup(before),
            merging.sizes,
        )
    places = Layout(grid).where(tokens.device)[0]
    assert layout.places is not None
    for picture in range(2):
        for token in range(layout.places.shape[1]):
            members = places[groups[picture] == token + prefix]
            torch.testing.assert_close(layout.places[picture, token], members.mean(dim=0))


def test_patch_dropout_tells_where_the_kept_patches_are() -> None:
    config = replace(TINY, rates=Rates(patch=0.5), relative=Rope(), positions=PositionConfig(kind="none"))
    model = randomize(ViT(config)).train()
    images = torch.arange(16.0).reshape(1, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3).expand(2, 3, 32, 32)
    embedded = model.embed(images)
    whole = model.eval().embed(images).tokens[0, 1:]  # no two patches are equal
    places = embedded.layouts[0].places
    assert places is not None
    for token, (row, column) in zip(
        embedded.tokens[:, 1:].flatten(0, 1), places.flatten(0, 1).int().tolist(), strict=True
    ):
        torch.testing.assert_close(token, whole[4 * row + column])
