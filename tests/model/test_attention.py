"""Oracles: torch's own multi-head attention, and the formula written out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import randomize
from vitrail.errors import InputError
from vitrail.model import BlockConfig, Rates, ViTConfig
from vitrail.model.attention import SHORT, Attention, fused, probabilities


def make_attention(tiny: ViTConfig, **block: Any) -> Attention:
    config = ViTConfig(image_size=tiny.image_size, patch_size=8, width=32, depth=1, heads=4, block=BlockConfig(**block))
    return randomize(Attention(config)).eval()


def explicit(attention: Attention, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """The paper's formulas A.5 to A.8 head by head, with nothing shared with the code under test."""
    width = tokens.shape[-1]
    size = width // attention.heads
    outputs: list[Tensor] = []
    projected = F.linear(tokens, attention.qkv.weight, attention.qkv.bias)
    for head in range(attention.heads):
        columns = slice(head * size, (head + 1) * size)
        q, k, v = (projected[..., part * width :][..., columns] for part in range(3))
        if attention.query_norm is not None and attention.key_norm is not None:
            q, k = attention.query_norm(q), attention.key_norm(k)
        scores = torch.einsum("bqd,bkd->bqk", q, k) * attention.scale
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
        outputs.append(torch.einsum("bqk,bkd->bqd", torch.softmax(scores, -1), v))
    return F.linear(torch.cat(outputs, -1), attention.proj.weight, attention.proj.bias)


@pytest.mark.parametrize("bias", [True, False])
def test_equals_torchs_multi_head_attention(tiny: ViTConfig, bias: bool) -> None:
    attention = make_attention(tiny, qkv_bias=bias)
    tokens = torch.randn(2, 17, 32)
    expected, _ = F.multi_head_attention_forward(
        tokens.transpose(0, 1),
        tokens.transpose(0, 1),
        tokens.transpose(0, 1),
        embed_dim_to_check=32,
        num_heads=4,
        in_proj_weight=attention.qkv.weight,
        in_proj_bias=attention.qkv.bias,
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=attention.proj.weight,
        out_proj_bias=attention.proj.bias,
        training=False,
        need_weights=False,
    )
    torch.testing.assert_close(attention(tokens), expected.transpose(0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", [{}, {"attention_scale": 0.7}, {"qk_norm": True}, {"qkv_bias": False}])
def test_fused_equals_explicit_in_values_and_gradients(tiny: ViTConfig, block: dict[str, Any]) -> None:
    attention = make_attention(tiny, **block).double()
    tokens = torch.randn(2, 9, 32, dtype=torch.double, requires_grad=True)
    weights = torch.randn(2, 9, 32, dtype=torch.double)
    gradients: list[tuple[Tensor, ...]] = []
    for run in (attention.forward, lambda tokens: explicit(attention, tokens)):
        inputs = [tokens, *attention.parameters()]
        gradients.append(torch.autograd.grad((run(tokens) * weights).sum(), inputs))
    torch.testing.assert_close(attention(tokens), explicit(attention, tokens))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_key_mask_equals_explicit_and_ignores_padding(tiny: ViTConfig) -> None:
    attention = make_attention(tiny)
    tokens = torch.randn(2, 9, 32)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    output = attention(tokens, mask[:, None, None])
    torch.testing.assert_close(output, explicit(attention, tokens, mask), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output[1, :5], attention(tokens[1:, :5])[0], rtol=1e-5, atol=1e-5)


def test_keep_computes_the_first_tokens_only(tiny: ViTConfig) -> None:
    attention = make_attention(tiny)
    tokens = torch.randn(2, 9, 32)
    kept = attention(tokens, keep=2)
    assert kept.shape == (2, 2, 32)
    torch.testing.assert_close(kept, attention(tokens)[:, :2], rtol=1e-5, atol=1e-5)


def test_scale_is_by_head_size_not_width(tiny: ViTConfig) -> None:
    assert make_attention(tiny).scale == (32 / 4) ** -0.5


def look(attention: Attention, tokens: Tensor, mask: Tensor | None = None, **choice: Any) -> Tensor:
    query, key, _ = attention.split(tokens)
    return probabilities(query, key, attention.scale, mask, **choice)


def test_probabilities_are_the_softmax_of_scaled_scores(tiny: ViTConfig) -> None:
    attention = make_attention(tiny)
    tokens = torch.randn(2, 9, 32)
    query, key = attention.qkv(tokens).view(2, 9, 3, 4, 8)[:, :, :2].unbind(2)
    expected = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", query, key) / 8**0.5, dim=-1)
    torch.testing.assert_close(look(attention, tokens), expected)
    chosen = look(attention, tokens, heads=(-1, 1), queries=(0, 3))
    torch.testing.assert_close(chosen, expected[:, [3, 1]][:, :, [0, 3]])


def test_probabilities_of_masked_keys_are_zero(tiny: ViTConfig) -> None:
    attention = make_attention(tiny)
    mask = torch.tensor([[True] * 6 + [False] * 3])
    maps = look(attention, torch.randn(1, 9, 32), mask[:, None, None], heads=(2,), queries=(0,))
    assert maps.shape == (1, 1, 1, 9)
    assert (maps[..., 6:] == 0).all()
    torch.testing.assert_close(maps.sum(-1), torch.ones(1, 1, 1))


@pytest.mark.parametrize("choice", [{"heads": (4,)}, {"queries": (9,)}, {"queries": (-10,)}])
def test_a_head_or_row_that_is_not_there(tiny: ViTConfig, choice: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be between"):
        look(make_attention(tiny), torch.randn(1, 9, 32), **choice)


def test_attention_dropout_only_in_training(make_model: Callable[..., Any]) -> None:
    attention = make_model(rates=Rates(attention=0.5)).blocks[0].attention
    tokens = torch.randn(1, 17, 32)
    torch.testing.assert_close(attention(tokens), attention(tokens), rtol=0, atol=0)
    attention.train()
    assert not torch.equal(attention(tokens), attention(tokens))


def test_a_mix_of_the_callers_takes_the_place_of_the_kernel(make_model: Callable[..., Any]) -> None:
    model = make_model(pooling="map")
    images, layers = torch.randn(2, 3, 16, 16), list[int]()

    def mix(
        layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout: float, *, scale: float
    ) -> Tensor:
        layers.append(layer)
        return probabilities(query, key, scale, mask) @ value

    features = model.summarize(*model.encode(model.embed_images(images), mix=mix), mix=mix)
    torch.testing.assert_close(features, model.features(images), rtol=1e-4, atol=1e-5)
    assert layers == list(range(model.config.depth + 1))  # attention pooling comes after the last block


@pytest.mark.parametrize("tokens", [6, SHORT + 1])
def test_bf16_gradients_on_a_cpu_are_those_of_float64(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[torch.dtype] = []
    kernel = F.scaled_dot_product_attention

    def watched(query: Tensor, *rest: Any, **named: Any) -> Tensor:
        kernels.append(query.dtype)
        return kernel(query, *rest, **named)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    exact = [torch.randn(1, 2, tokens, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    rounded = [some.detach().bfloat16().requires_grad_() for some in exact]
    direction = torch.randn(1, 2, tokens, 4)
    mixed = fused(*rounded, scale=0.5)
    expected = (exact[0] @ exact[1].mT * 0.5).softmax(-1) @ exact[2]
    torch.testing.assert_close(mixed.double(), expected, rtol=0.05, atol=0.05)
    gradients = torch.autograd.grad((mixed * direction).sum(), rounded)
    for own, other in zip(gradients, torch.autograd.grad((expected * direction).sum(), exact), strict=True):
        torch.testing.assert_close(own.double(), other, rtol=0.1, atol=0.1)
    assert kernels == ([torch.bfloat16] if tokens > SHORT else [])  # the kernel is slow there, and spares memory
