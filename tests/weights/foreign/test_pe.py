"""Oracle: the Perception Encoder of facebookresearch/perception_models, written out from its code."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import randomize
from vitrail.data.preprocess import preset
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from weights_fixtures import check_features, check_written_back

WIDTH, HEADS, SIDE = 64, 4, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * WIDTH, WIDTH))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * WIDTH))
        self.out_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor, angles: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in F.linear(tokens, self.in_proj_weight, self.in_proj_bias).split(WIDTH, dim=-1)
        )
        query, key = (rotate(each, angles) for each in (query, key))
        scores = (query @ key.mT / (WIDTH // HEADS) ** 0.5).softmax(-1)
        return self.out_proj((scores @ value).transpose(1, 2).flatten(2))


def rotate(tokens: Tensor, angles: Tensor) -> Tensor:
    """Each pair of neighbouring features as a complex number."""
    turned = torch.view_as_complex(tokens.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones(1), angles)
    return torch.view_as_real(turned).flatten(-2)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))


def mlp(width: int, hidden: int) -> nn.ModuleDict:
    return nn.ModuleDict({"c_fc": nn.Linear(width, hidden), "c_proj": nn.Linear(hidden, width)})


class Block(nn.Module):
    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(), mlp(WIDTH, 3 * WIDTH)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, eps=1e-5), nn.LayerNorm(WIDTH, eps=1e-5)
        if scaled:
            self.ls_1, self.ls_2 = Scale(), Scale()

    def forward(self, tokens: Tensor, angles: Tensor) -> Tensor:
        one, two = (self.ls_1.gamma, self.ls_2.gamma) if hasattr(self, "ls_1") else (1.0, 1.0)
        tokens = tokens + one * self.attn(self.ln_1(tokens), angles)
        return tokens + two * self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(tokens))))


class AttentionPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.attn = nn.MultiheadAttention(WIDTH, 8, batch_first=True)
        self.layernorm, self.mlp = nn.LayerNorm(WIDTH, eps=1e-5), mlp(WIDTH, 4 * WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        pooled = self.attn(self.probe.expand(len(tokens), -1, -1), tokens, tokens, need_weights=False)[0]
        return (pooled + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.layernorm(pooled)))))[:, 0]


class Encoder(nn.Module):
    """`core` pools by attention and projects; lang and spatial give all tokens, without a last LayerNorm."""

    def __init__(self, core: bool = True, class_token: bool = True, scaled: bool = False) -> None:
        super().__init__()
        self.core, self.shift = core, int(class_token)
        self.conv1 = nn.Conv2d(3, WIDTH, 8, 8, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(WIDTH)) if class_token else None
        self.positional_embedding = nn.Parameter(torch.zeros(SIDE**2 + self.shift, WIDTH))
        self.ln_pre = nn.LayerNorm(WIDTH, eps=1e-5)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList(Block(scaled) for _ in range(2))
        if core:
            self.ln_post, self.attn_pool = nn.LayerNorm(WIDTH, eps=1e-5), AttentionPool()
            self.proj = nn.Parameter(torch.zeros(WIDTH, 24))

    def forward(self, images: Tensor) -> Tensor:
        grid = (images.shape[2] // 8, images.shape[3] // 8)
        tokens = self.conv1(images).permute(0, 2, 3, 1).flatten(1, 2)
        if self.class_embedding is not None:
            tokens = torch.cat([self.class_embedding.expand(len(images), 1, -1), tokens], dim=1)
        tokens, angles = self.ln_pre(tokens + self.positions_at(grid)), self.angles_at(grid)
        for block in self.transformer.resblocks:  # pyright: ignore
            tokens = block(tokens, angles)
        return self.attn_pool(self.ln_post(tokens)) @ self.proj if self.core else tokens

    def positions_at(self, grid: tuple[int, int]) -> Tensor:
        if grid == (SIDE, SIDE):
            return self.positional_embedding
        first, rest = self.positional_embedding.split([self.shift, SIDE**2])
        picture = rest.reshape(1, SIDE, SIDE, WIDTH).permute(0, 3, 1, 2)
        picture = F.interpolate(picture, size=grid, mode="bilinear", align_corners=False)
        return torch.cat([first, picture.permute(0, 2, 3, 1).reshape(-1, WIDTH)])

    def angles_at(self, grid: tuple[int, int]) -> Tensor:
        """Those of the column, then those of the row, both from 1 where a [cls] token stands at 0."""
        bands = WIDTH // HEADS // 4
        frequencies = 10_000.0 ** -(torch.arange(bands) / bands)
        rows, columns = ((torch.arange(side) + self.shift)[:, None] * frequencies for side in grid)
        pair = [columns[None].expand(*grid, bands), rows[:, None].expand(*grid, bands)]
        return F.pad(torch.cat(pair, dim=-1).flatten(0, 1), (0, 0, self.shift, 0))


CASES: dict[str, dict[str, Any]] = {"core": {}, "core G": {"class_token": False}}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("prefix", ["visual.", ""])
def test_core(tmp_path: Path, case: str, prefix: str) -> None:
    oracle = randomize(Encoder(**CASES[case])).eval()
    state = {prefix + name: tensor for name, tensor in oracle.state_dict().items()}
    scale = {"logit_scale": torch.tensor(4.6)} if prefix else {}
    text = {"text_projection": torch.ones(8, 24)} if prefix else {}
    torch.save({**state, **scale, **text}, tmp_path / "a.pt")
    read = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=HEADS), allow_pickle=True)
    assert (read.file_format, read.notes, read.extras) == ("pe", (), scale)
    assert read.preprocess == preset("pe", 32)
    check_features(read, oracle, (32, 32), (64, 64), (24, 56))
    torch.save({**state, **scale}, tmp_path / "tower.pt")
    check_written_back(read, tmp_path / "tower.pt", tmp_path / "b.pt", "pe")


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_lang_and_spatial_give_tokens(tmp_path: Path, class_token: bool, scaled: bool) -> None:
    oracle = randomize(Encoder(core=False, class_token=class_token, scaled=scaled)).eval()
    torch.save(oracle.state_dict(), tmp_path / "a.pt")
    read = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=HEADS), allow_pickle=True)
    assert read.file_format == "pe"
    assert any("assumed the mean of the patches" in note for note in read.notes)
    images = torch.randn(2, 3, 24, 56)
    with torch.inference_mode():
        ours, theirs = read.build().tokens(images), oracle(images)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    check_features(read, lambda images: oracle(images)[:, int(class_token) :].mean(1), (32, 32))
    check_written_back(read, tmp_path / "a.pt", tmp_path / "b.pt", "pe")
