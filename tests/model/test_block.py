from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from conftest import randomize
from vitrail.model import BlockConfig, Rates, ViT, ViTConfig
from vitrail.model.block import Block, drop_path


def test_a_block_is_equations_2_and_3(tiny: ViTConfig) -> None:
    block = randomize(Block(tiny)).eval()
    tokens = torch.randn(2, 17, 32)
    middle = tokens + block.attention(F.layer_norm(tokens, (32,), block.norm1.weight, block.norm1.bias, 1e-6))
    hidden = F.linear(
        F.layer_norm(middle, (32,), block.norm2.weight, block.norm2.bias, 1e-6), *block.mlp.fc1.parameters()
    )
    expected = middle + F.linear(F.gelu(hidden), *block.mlp.fc2.parameters())
    torch.testing.assert_close(block(tokens), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(block(tokens, keep=1), expected[:, :1], rtol=1e-5, atol=1e-5)


def test_the_two_gelus_differ(tiny: ViTConfig) -> None:
    erf = randomize(Block(tiny)).eval()
    tanh = Block(replace(tiny, block=BlockConfig(activation="gelu_tanh"))).eval()
    tanh.load_state_dict(erf.state_dict())
    tokens = torch.randn(1, 17, 32)
    difference = (erf(tokens) - tanh(tokens)).abs().max()
    assert 1e-6 < difference < 1e-2


def test_swiglu_by_its_formula(tiny: ViTConfig) -> None:
    mlp = randomize(Block(replace(tiny, block=BlockConfig(mlp="swiglu"))).mlp).eval()
    tokens = torch.randn(2, 17, 32, dtype=torch.float64)
    gate, up, down = ([tensor.double() for tensor in layer.parameters()] for layer in (mlp.gate, mlp.up, mlp.down))
    first = tokens @ gate[0].T + gate[1]
    expected = (first / (1 + (-first).exp()) * (tokens @ up[0].T + up[1])) @ down[0].T + down[1]
    torch.testing.assert_close(mlp(tokens.float()).double(), expected, rtol=1e-5, atol=1e-5)


def test_layer_scale_starts_at_its_value(tiny: ViTConfig) -> None:
    block = Block(replace(tiny, block=BlockConfig(layer_scale=1e-5))).eval()
    randomize(block)
    assert block.branch1.scale is not None
    assert block.branch2.scale is not None
    with torch.no_grad():
        block.branch1.scale.zero_()
        block.branch2.scale.zero_()
    tokens = torch.randn(1, 17, 32)
    torch.testing.assert_close(block(tokens), tokens)  # a scale of 0 closes both branches
    fresh = ViT(replace(tiny, block=BlockConfig(layer_scale=1e-5)))
    scales = [weight for name, weight in fresh.named_parameters() if name.endswith("branch1.scale")]
    assert len(scales) == tiny.depth
    assert all((scale == 1e-5).all() for scale in scales)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_drop_path_drops_whole_samples_and_keeps_the_mean(rate: float) -> None:
    branch = torch.ones(20_000, 2, 3)
    dropped = drop_path(branch, rate)
    per_sample = dropped.flatten(1)
    assert ((per_sample == 0).all(1) | (per_sample == per_sample[:, :1]).all(1)).all()
    share = (per_sample[:, 0] == 0).float().mean().item()
    assert share == pytest.approx(rate, abs=5 * (rate * (1 - rate) / 20_000) ** 0.5)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.05)


def test_drop_path_rises_linearly_and_rests_at_inference(tiny: ViTConfig) -> None:
    model = randomize(ViT(replace(tiny, depth=5, rates=Rates(path=0.4))))
    assert [block.branch1.path_rate for block in model.blocks] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    images = torch.randn(4, 3, 32, 32)
    assert not torch.equal(model(images), model(images))
    model.eval()
    torch.testing.assert_close(model(images), model(images), rtol=0, atol=0)
