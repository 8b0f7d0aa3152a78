from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuzzing import in_fuzz_only
from vitrail.errors import InputError, VitrailError
from vitrail.model import (
    AttentionQuery,
    BlockConfig,
    ConvStem,
    PositionConfig,
    Rates,
    ResNetStem,
    ViT,
    ViTConfig,
)
from vitrail.model.block import Block

POOLINGS: list[dict[str, Any]] = [
    {"pooling": "cls"},
    {"pooling": "cls", "representation": 24},
    {"pooling": "mean"},
    {"pooling": "mean", "class_token": False},
    {"pooling": "mean", "pool_norm": "after", "registers": 2},
    {"pooling": "map", "class_token": False},
    {"pooling": "map", "registers": 2},
]
STEMS: list[dict[str, Any]] = [
    {},
    {"stem": ConvStem(widths=(8, 16), strides=(2, 2)), "patch_size": 2},
    {"stem": ResNetStem(blocks=(1, 1), width_factor=0.5), "patch_size": 1},
]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5)


def test_the_five_steps_written_out(make_model: Callable[..., ViT]) -> None:
    model = make_model(representation=24)
    images = torch.randn(2, 3, 32, 32)
    embed = model.embed
    patches = embed.patches(images).flatten(2).transpose(1, 2)
    assert embed.class_token is not None
    assert embed.positions is not None
    assert model.representation is not None
    assert model.head is not None
    tokens = torch.cat([embed.class_token.expand(2, 1, 32), patches], dim=1) + embed.positions
    for block in model.blocks:
        tokens = block(tokens)
    expected = model.head(torch.tanh(model.representation(model.norm(tokens)[:, 0])))  # pyright: ignore
    close(model(images), expected)


@pytest.mark.parametrize("fields", POOLINGS, ids=str)
def test_all_ways_out_agree(make_model: Callable[..., ViT], fields: dict[str, Any]) -> None:
    model = make_model(**fields)
    images = torch.randn(2, 3, 32, 32)
    trace = model.trace(images, hidden=(0, -1))
    close(trace.logits, model(images))
    close(trace.features, model.features(images))
    close(trace.tokens, model.tokens(images))
    assert sorted(trace.hidden) == [0, 2]
    close(trace.hidden[2] if model.config.pool_norm == "after" else model.norm(trace.hidden[2]), trace.tokens)  # pyright: ignore


def test_without_classes_the_model_gives_features(make_model: Callable[..., ViT]) -> None:
    assert make_model(num_classes=0)(torch.randn(2, 3, 32, 32)).shape == (2, 32)


@pytest.mark.parametrize("fields", POOLINGS, ids=str)
@pytest.mark.parametrize("stem", STEMS, ids=str)
def test_pictures_of_different_sizes_share_a_batch(
    make_model: Callable[..., ViT], fields: dict[str, Any], stem: dict[str, Any]
) -> None:
    model = make_model(**fields, **stem)
    images = [torch.randn(3, *size) for size in ((32, 32), (16, 48), (8, 8))]
    together = model(images)
    for row, image in enumerate(images):
        close(together[row], model(image[None])[0])


@pytest.mark.parametrize("fields", POOLINGS, ids=str)
def test_a_mask_equals_running_the_smaller_picture_alone(
    make_model: Callable[..., ViT], fields: dict[str, Any]
) -> None:
    model = make_model(**fields, positions=PositionConfig(kind="none"))
    images = torch.randn(2, 3, 32, 32)
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[1, 2:] = False  # the second picture fills the upper half
    together = model(images, mask)
    close(together[0], model(images[:1])[0])
    close(together[1], model(images[1:, :, :16])[0])
    close(model.trace(images, mask).logits, together)


@pytest.mark.parametrize("size", [(16, 16), (48, 64), (64, 8)])
@pytest.mark.parametrize("kernel", ["google", "timm", "hf", "torchvision"])
def test_other_sizes_equal_a_model_whose_positions_were_resampled(
    make_model: Callable[..., ViT], size: tuple[int, int], kernel: str
) -> None:
    model = make_model(positions=PositionConfig(resample=kernel))  # pyright: ignore
    resized = make_model(image_size=size, positions=PositionConfig(resample=kernel))  # pyright: ignore
    state = model.state_dict()
    prefix, patches = model.embed.positions_at(resized.config.grid)
    assert prefix is not None
    assert patches is not None
    resized.load_state_dict({**state, "embed.positions": torch.cat([prefix, patches], dim=1)})
    images = torch.randn(2, 3, *size)
    close(model(images), resized(images))


def test_captured_attention_is_what_the_layers_used(make_model: Callable[..., ViT]) -> None:
    model = make_model()
    images = torch.randn(2, 3, 32, 32)
    trace = model.trace(images, hidden=range(3), attention=AttentionQuery())
    inputs = [model.embed(images)[0], trace.hidden[0], trace.hidden[1]]
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        normed = block.norm1(inputs[layer])
        q, k, v = block.attention.qkv(normed).view(2, 17, 3, 4, 8).unbind(2)
        expected = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5, dim=-1)
        close(trace.attention[layer], expected)
        mixed = torch.einsum("bhqk,bkhd->bqhd", trace.attention[layer], v).flatten(2)
        close(block.attention.proj(mixed), block.attention(normed))


def test_only_the_requested_attention_is_kept(make_model: Callable[..., ViT]) -> None:
    model = make_model()
    images = torch.randn(2, 3, 32, 32)
    everything = model.trace(images, attention=AttentionQuery()).attention
    few = model.trace(images, attention=AttentionQuery(layers=(-1,), heads=(1, 3), queries="class")).attention
    assert list(few) == [2]
    assert few[2].shape == (2, 2, 1, 17)
    close(few[2], everything[2][:, [1, 3], :1])


def test_attention_is_exact_under_autocast(make_model: Callable[..., ViT]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        maps = make_model().trace(torch.randn(1, 3, 32, 32), attention=AttentionQuery()).attention
    assert maps[0].dtype == torch.float32
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(1, 4, 17))


def test_nobody_looks_at_padding(make_model: Callable[..., ViT]) -> None:
    images = [torch.randn(3, 32, 32), torch.randn(3, 16, 16)]
    maps = make_model().trace(images, attention=AttentionQuery()).attention
    assert (maps[1][1, ..., 5:] == 0).all()


def test_bad_requests(make_model: Callable[..., ViT]) -> None:
    model, images = make_model(), torch.randn(1, 3, 32, 32)
    with pytest.raises(InputError, match="layer must be between -3 and 2; got 3"):
        model.trace(images, hidden=(3,))
    with pytest.raises(InputError, match="layer must be between -3 and 2; got -4"):
        model.trace(images, attention=AttentionQuery(layers=(-4,)))
    with pytest.raises(InputError, match="no \\[cls\\] token"):
        make_model(class_token=False, pooling="mean").trace(images, attention=AttentionQuery(queries="class"))
    with pytest.raises(VitrailError, match="queries must be"):
        AttentionQuery(queries="cls")  # pyright: ignore
    with pytest.raises(VitrailError, match="layers must be a list; got 3"):
        AttentionQuery(layers=3)  # pyright: ignore
    with pytest.raises(InputError, match="a tensor or a list of tensors; got ndarray"):
        model(images.numpy())  # pyright: ignore
    with pytest.raises(InputError, match="of the model's type torch.float32; got torch.float64"):
        model(images.double())
    with pytest.raises(InputError, match="must be a multiple of 8"):
        model(torch.zeros(1, 3, 0, 32))
    with pytest.raises(InputError, match="must not be empty"):
        model([])
    with pytest.raises(InputError, match="makes its own mask"):
        model([images[0]], torch.ones(1, 16, dtype=torch.bool))


@given(
    order=st.permutations(range(16)), heads=st.sampled_from([1, 2, 4]), pooling=st.sampled_from(["cls", "mean", "map"])
)
def test_without_positions_the_order_of_patches_is_invisible(order: list[int], heads: int, pooling: Any) -> None:
    from conftest import TINY, randomize

    fields = {"heads": heads, "pooling": pooling, "positions": PositionConfig(kind="none")}
    model = randomize(ViT(ViTConfig(**{**TINY.__dict__, **fields}))).eval()
    images = torch.randn(1, 3, 32, 32)
    cut = images.unfold(2, 8, 8).unfold(3, 8, 8).reshape(1, 3, 16, 8, 8)[:, :, order]  # patches in another order
    shuffled = cut.reshape(1, 3, 4, 4, 8, 8).permute(0, 1, 2, 4, 3, 5).reshape(1, 3, 32, 32)
    close(model(shuffled), model(images))
    close(model.tokens(shuffled)[:, 1:], model.tokens(images)[:, 1:][:, order])


@pytest.mark.parametrize("fields", [*POOLINGS, *STEMS], ids=str)
def test_gradient_checkpointing_changes_nothing(make_model: Callable[..., ViT], fields: dict[str, Any]) -> None:
    model = make_model(**fields, rates=Rates(dropout=0.1, path=0.2)).train()
    images = torch.randn(2, 3, 32, 32)
    gradients: list[list[Tensor]] = []
    for checkpointing in (False, True):
        model.gradient_checkpointing = checkpointing
        torch.manual_seed(3)
        model.zero_grad()
        model(images).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert gradients[0]
    for plain, checkpointed in zip(*gradients, strict=True):
        close(plain, checkpointed)


@pytest.mark.parametrize("fields", [*POOLINGS, *STEMS], ids=str)
def test_every_parameter_learns(make_model: Callable[..., ViT], fields: dict[str, Any]) -> None:
    block = BlockConfig(qk_norm=True, layer_scale=0.1)
    model = make_model(**fields, block=block).train()
    model(torch.randn(4, 3, 32, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("fields", [{}, {"pooling": "map", "registers": 1}, STEMS[2]], ids=str)
def test_export_with_a_free_batch_size(make_model: Callable[..., ViT], fields: dict[str, Any]) -> None:
    model = make_model(**fields)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (torch.randn(2, 3, 32, 32),), dynamic_shapes={"images": {0: batch}})
    for size in (1, 5):
        images = torch.randn(size, 3, 32, 32)
        close(program.module()(images), model(images))


@in_fuzz_only
def test_compiles_without_a_graph_break(make_model: Callable[..., ViT]) -> None:
    model = make_model(registers=1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in ((32, 32), (48, 32)):
        images = torch.randn(2, 3, *size)
        close(compiled(images), model(images))


def test_bfloat16_autocast_stays_near(make_model: Callable[..., ViT]) -> None:
    model, images = make_model(), torch.randn(4, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images)
    assert logits.dtype == torch.bfloat16
    scale = model(images).abs().max()
    assert (logits.float() - model(images)).abs().max() < 0.05 * scale


@pytest.mark.parametrize("stem", STEMS, ids=str)
def test_channels_last_changes_nothing(make_model: Callable[..., ViT], stem: dict[str, Any]) -> None:
    model, images = make_model(**stem), torch.randn(2, 3, 32, 32)
    expected = model(images)
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore
    close(model(images.to(memory_format=torch.channels_last)), expected)


def test_half_precision_model(make_model: Callable[..., ViT]) -> None:
    model = make_model(registers=1).to(torch.bfloat16)
    assert model(torch.randn(1, 3, 48, 32, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_made_on_meta_then_filled(tiny: ViTConfig) -> None:
    with torch.device("meta"):
        model = ViT(tiny)
    assert all(parameter.is_meta for parameter in model.parameters())
    torch.manual_seed(5)
    model.to_empty(device="cpu").init_weights()
    torch.manual_seed(5)
    reference = ViT(tiny)
    reference.init_weights()
    for name, value in model.state_dict().items():
        assert value.isfinite().all(), name
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 7)
