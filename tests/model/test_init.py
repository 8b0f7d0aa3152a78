"""First values as in google-research/vision_transformer."""

from math import sqrt

import pytest
import torch

from vitrail.model import ResNetStem, ViT, ViTConfig


def test_first_values_follow_the_release() -> None:
    model = ViT(ViTConfig(width=192, depth=1, heads=3, mlp_width=384, representation=192, registers=2))
    state = model.state_dict()
    bound = sqrt(6 / (192 + 192))
    for matrix in (*state["blocks.0.attention.qkv.weight"].chunk(3), state["blocks.0.attention.proj.weight"]):
        assert bound * 0.99 < matrix.abs().max() <= bound
    assert state["blocks.0.mlp.fc1.weight"].abs().max() == pytest.approx(sqrt(6 / (192 + 384)), rel=0.01)
    assert state["blocks.0.mlp.fc1.bias"].std().item() == pytest.approx(1e-6, rel=0.3)
    assert state["embed.positions"].std().item() == pytest.approx(0.02, rel=0.05)
    assert state["embed.patches.weight"].std().item() == pytest.approx(sqrt(1 / (3 * 16 * 16)), rel=0.05)
    assert state["representation.weight"].std().item() == pytest.approx(sqrt(1 / 192), rel=0.05)
    for name in ("embed.class_token", "embed.patches.bias", "head.weight", "head.bias", "blocks.0.attention.qkv.bias"):
        assert (state[name] == 0).all(), name
    assert (state["norm.weight"] == 1).all()
    assert not torch.equal(state["embed.registers"][0, 0], state["embed.registers"][0, 1])


def test_a_bottleneck_starts_as_its_shortcut() -> None:
    model = ViT(ViTConfig(image_size=32, patch_size=1, width=32, depth=1, heads=2, stem=ResNetStem(blocks=(1,))))
    assert (model.state_dict()["embed.stem.stages.0.0.norm3.weight"] == 0).all()
