"""Oracle: facebookresearch/dinov3's backbone, written out from its code: names, rotary positions, masked biases."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import randomize
from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.model import Rope
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from weights_fixtures import check_features, check_written_back


class Qkv(nn.Linear):
    """A mask of zeros for the keys multiplies the biases."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width)
        self.register_buffer("bias_mask", torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(width))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(tokens, self.weight, self.bias * self.bias_mask)  # pyright: ignore


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, biases: str) -> None:
        super().__init__()
        self.heads = heads
        kinds = {"masked": Qkv(width), "all": nn.Linear(width, 3 * width), "none": nn.Linear(width, 3 * width, False)}
        self.qkv = kinds[biases]
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        query, key, value = self.qkv(tokens).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = (rotate(each, sin, cos) for each in (query, key))
        scores = (query @ key.mT / (width // self.heads) ** 0.5).softmax(-1)
        return self.proj((scores @ value).transpose(1, 2).reshape(batch, count, width))


def rotate(tokens: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """The last tokens, those of the patches; the first half of the features with the second."""
    prefix = tokens.shape[2] - len(sin)
    first, second = tokens.chunk(2, dim=-1)
    turned = tokens[:, :, prefix:] * cos + torch.cat([-second, first], dim=-1)[:, :, prefix:] * sin
    return torch.cat([tokens[:, :, :prefix], turned], dim=2)


class Mlp(nn.Module):
    def __init__(self, width: int, gated: bool) -> None:
        super().__init__()
        if gated:
            self.w1, self.w2, self.w3 = nn.Linear(width, 40), nn.Linear(width, 40), nn.Linear(40, width)
        else:
            self.fc1, self.fc2 = nn.Linear(width, 72), nn.Linear(72, width)

    def forward(self, tokens: Tensor) -> Tensor:
        if hasattr(self, "fc1"):
            return self.fc2(F.gelu(self.fc1(tokens)))
        return self.w3(F.silu(self.w1(tokens)) * self.w2(tokens))


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, gated: bool, biases: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)
        self.attn, self.mlp = Attention(width, heads, biases), Mlp(width, gated)
        self.ls1, self.ls2 = Scale(width), Scale(width)

    def forward(self, tokens: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens), sin, cos) * self.ls1.gamma
        return tokens + self.mlp(self.norm2(tokens)) * self.ls2.gamma


class Dinov3(nn.Module):
    def __init__(self, *, gated: bool = False, biases: str = "masked", local: bool = False, patch: int = 8) -> None:
        super().__init__()
        width, heads = 48, 3
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.storage_tokens = nn.Parameter(torch.zeros(1, 2, width))
        self.mask_token = nn.Parameter(torch.zeros(1, width))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, patch, patch)
        self.rope_embed = nn.Module()
        periods = 100 ** (torch.arange(width // heads // 4) / (width // heads / 4))
        self.rope_embed.register_buffer("periods", periods.bfloat16().float())
        self.blocks = nn.ModuleList(Block(width, heads, gated, biases) for _ in range(2))
        self.norm = nn.LayerNorm(width, eps=1e-5)
        if local:
            self.local_cls_norm = nn.LayerNorm(width, eps=1e-5)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed.proj(images)
        rows, columns = ((torch.arange(side) + 0.5) / side * 2 - 1 for side in patches.shape[-2:])
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).flatten(0, 1)
        angles = (2 * math.pi * places[..., None] / self.rope_embed.periods).flatten(1).tile(2)  # pyright: ignore
        prefix = torch.cat([self.cls_token, self.storage_tokens], dim=1).expand(len(images), -1, -1)
        tokens = torch.cat([prefix, patches.flatten(2).mT], dim=1)
        for block in self.blocks:
            tokens = block(tokens, angles.sin(), angles.cos())
        return self.norm(tokens)[:, 0]


def saved(path: Path, **options: Any) -> Dinov3:
    oracle = randomize(Dinov3(**options)).eval()
    for name, parameter in oracle.named_parameters():
        if name.endswith("qkv.bias") and options.get("biases", "masked") == "masked":
            parameter.data.chunk(3)[1].zero_()
    torch.save(oracle.state_dict(), path)
    return oracle


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gated": {"gated": True, "local": True},
    "unmasked": {"biases": "all"},
    "7b": {"gated": True, "biases": "none", "local": True},
}


@pytest.mark.parametrize("case", CASES)
def test_features_of_any_size_and_every_key_back(tmp_path: Path, case: str) -> None:
    oracle = saved(tmp_path / "dinov3_pretrain_lvd1689m.pth", **CASES[case])
    read = read_checkpoint(tmp_path / "dinov3_pretrain_lvd1689m.pth", allow_pickle=True)
    assert (read.file_format, read.notes, read.config.heads) == ("dinov3", (), 3)
    assert read.config.block.key_bias == (case != "plain" and case != "gated")
    check_features(read, oracle, (32, 32), (64, 64), (24, 56))
    check_written_back(read, tmp_path / "dinov3_pretrain_lvd1689m.pth", tmp_path / "b.pth", "dinov3")


def test_a_masked_bias_is_never_added(tmp_path: Path) -> None:
    oracle = randomize(Dinov3()).eval()
    assert oracle.blocks[0].attn.qkv.bias.chunk(3)[1].any()
    torch.save(oracle.state_dict(), tmp_path / "a.pth")
    read = read_checkpoint(tmp_path / "a.pth", allow_pickle=True)
    assert not read.tensors["blocks.0.attention.qkv.bias"].chunk(3)[1].any()
    check_features(read, oracle, (32, 32))


def test_another_mask_is_refused(tmp_path: Path) -> None:
    oracle = randomize(Dinov3())
    oracle.blocks[1].attn.qkv.bias_mask.fill_(torch.nan)
    torch.save(oracle.state_dict(), tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=r"blocks.1.attn.qkv.bias_mask must hide the keys' third of the biases"):
        read_checkpoint(tmp_path / "a.pth", allow_pickle=True)


def test_without_periods_they_are_computed_and_heads_assumed(tmp_path: Path) -> None:
    oracle = randomize(Dinov3()).eval()
    oracle.rope_embed.periods.copy_(100 ** (torch.arange(4) / 4))
    state = oracle.state_dict()
    del state["rope_embed.periods"]
    torch.save({**state, "projectors.0.weight": torch.zeros(2, 2)}, tmp_path / "sat493m.pth")
    read = read_checkpoint(tmp_path / "sat493m.pth", hints=Hints(heads=3), allow_pickle=True)
    assert read.config.relative == Rope()
    assert read.remarks == ("left out 1 tensor of the distillation's projectors",)
    assert read.preprocess == preset("dinov3-sat", 256)
    check_features(read, oracle, (32, 32))


def test_periods_that_are_not_rounded_need_not_be_stored(tmp_path: Path) -> None:
    """So that what other libraries compute can be written, read and handed back to them."""
    oracle = randomize(Dinov3(biases="all")).eval()
    oracle.rope_embed.periods.copy_(100 ** (2 * torch.arange(4, dtype=torch.float32) / 8))
    torch.save(oracle.state_dict(), tmp_path / "a.pth")
    read = read_checkpoint(tmp_path / "a.pth", allow_pickle=True)
    assert (read.config.relative, read.config.heads) == (Rope(), 3)
    check_features(read, oracle, (32, 32))
    check_written_back(read, tmp_path / "a.pth", tmp_path / "b.pth", "dinov3")


def test_the_usual_size_is_one_of_whole_patches(tmp_path: Path) -> None:
    oracle = saved(tmp_path / "lvd1689m.pth", patch=14)
    read = read_checkpoint(tmp_path / "lvd1689m.pth", allow_pickle=True)
    assert read.config.image_size == read.preprocess.size == (252, 252)
    check_features(read, oracle, (56, 28))


def test_the_pictures_it_learned_from_are_known_by_the_files_name(tmp_path: Path) -> None:
    saved(tmp_path / "mine.pth")
    read = read_checkpoint(tmp_path / "mine.pth", allow_pickle=True)
    assert read.preprocess == preset("dinov3", 256)
    assert any("assumed those of photographs" in note for note in read.notes)
