"""Oracle: apple/ml-aim's AIMv2, written out from its code: RMSNorm, no biases but the patches', gated MLPs."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from conftest import randomize
from vitrail.errors import WeightsError
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from weights_fixtures import check_features, check_written_back

WIDTH, HEADS = 48, 3


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * (tokens.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = Norm(), Norm()
        self.attn = nn.ModuleDict({"qkv": linear(WIDTH, 3 * WIDTH), "proj": linear(WIDTH, WIDTH)})
        self.mlp = nn.ModuleDict({"fc1": linear(WIDTH, 40), "fc2": linear(40, WIDTH), "fc3": linear(WIDTH, 40)})

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.attn["qkv"](self.norm_1(tokens)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        scores = (query @ key.mT / (WIDTH // HEADS) ** 0.5).softmax(-1)
        tokens = tokens + self.attn["proj"]((scores @ value).transpose(1, 2).flatten(2))
        normed, mlp = self.norm_2(tokens), self.mlp
        return tokens + mlp["fc2"](F.silu(mlp["fc1"](normed)) * mlp["fc3"](normed))


class Aimv2(nn.Module):
    def __init__(self, rows: int = 4, columns: int = 4) -> None:
        super().__init__()
        self.preprocessor, self.trunk = nn.Module(), nn.Module()
        self.preprocessor.patchifier = nn.ModuleDict({"proj": nn.Conv2d(3, WIDTH, 8, 8), "norm": Norm()})
        self.preprocessor.pos_embed = nn.Parameter(torch.zeros(1, rows * columns, WIDTH))
        self.trunk.blocks = nn.ModuleList(Block() for _ in range(2))
        self.trunk.post_trunk_norm = Norm()

    def forward(self, images: Tensor) -> Tensor:
        """All tokens."""
        patchifier = self.preprocessor.patchifier
        tokens = patchifier["norm"](patchifier["proj"](images).flatten(2).mT) + self.preprocessor.pos_embed  # pyright: ignore
        for block in self.trunk.blocks:  # pyright: ignore
            tokens = block(tokens)
        return self.trunk.post_trunk_norm(tokens)


@pytest.mark.parametrize("grid", [(4, 4), (3, 5)])
def test_tokens_and_every_key_back(tmp_path: Path, grid: tuple[int, int]) -> None:
    oracle, size = randomize(Aimv2(*grid)).eval(), (8 * grid[0], 8 * grid[1])
    save_file(oracle.state_dict(), tmp_path / "a.safetensors")
    hints = Hints(heads=HEADS, image_size=None if grid[0] == grid[1] else size)
    read = read_checkpoint(tmp_path / "a.safetensors", hints=hints)
    assert read.file_format == "aimv2"
    assert [note for note in read.notes if "assumed the mean of the patches" in note] == list(read.notes)
    images = torch.randn(2, 3, *size)
    with torch.inference_mode():
        ours, theirs = read.build().tokens(images), oracle(images)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    check_features(read, lambda images: oracle(images).mean(1), size)
    check_written_back(read, tmp_path / "a.safetensors", tmp_path / "b.safetensors", "aimv2")


def test_the_native_one_is_refused_by_name(tmp_path: Path) -> None:
    state = Aimv2().state_dict()
    del state["preprocessor.pos_embed"]
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="no learned positions: the native AIMv2 computes sines and cosines"):
        read_checkpoint(tmp_path / "a.safetensors")
