"""Oracle: microsoft/unilm's BEiT, written out from its code: tables of biases and their indices, keys without bias."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import randomize
from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from weights_fixtures import check_features, check_written_back

WIDTH, HEADS = 48, 3


class Table(nn.Module):
    """A row for each offset of two patches, and three for pairs with [cls]."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        offsets = (2 * rows - 1) * (2 * columns - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(offsets + 3, HEADS))
        places = list(product(range(rows), range(columns)))
        index = torch.zeros(len(places) + 1, len(places) + 1, dtype=torch.long)
        for one, (y, x) in enumerate(places):
            for other, (v, u) in enumerate(places):
                index[one + 1, other + 1] = (y - v + rows - 1) * (2 * columns - 1) + x - u + columns - 1
        index[0, 1:], index[1:, 0], index[0, 0] = offsets, offsets + 1, offsets + 2
        self.register_buffer("relative_position_index", index)

    def biases(self) -> Tensor:  # (H, N, N)
        return self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)


class Attention(nn.Module):
    def __init__(self, table: Table | None) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.proj = nn.Linear(WIDTH, WIDTH)
        if table is not None:
            self.relative_position_bias_table = table.relative_position_bias_table
            self.register_buffer("relative_position_index", table.relative_position_index)

    def forward(self, tokens: Tensor, biases: Tensor | None) -> Tensor:
        query, key, value = self.qkv(tokens).chunk(3, dim=-1)
        parts = (query + self.q_bias, key, value + self.v_bias)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        if biases is None:
            biases = self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        scores = (query @ key.mT / (WIDTH // HEADS) ** 0.5 + biases).softmax(-1)
        return self.proj((scores @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, table: Table | None, scaled: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.attn = Attention(table)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(WIDTH, 72), "fc2": nn.Linear(72, WIDTH)})
        if scaled:
            self.gamma_1, self.gamma_2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, tokens: Tensor, biases: Tensor | None) -> Tensor:
        one, two = (self.gamma_1, self.gamma_2) if hasattr(self, "gamma_1") else (1.0, 1.0)
        tokens = tokens + one * self.attn(self.norm1(tokens), biases)
        return tokens + two * self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(tokens))))


class Beit(nn.Module):
    def __init__(
        self,
        *,
        grid: tuple[int, int] = (4, 4),
        shared: bool = False,
        averages: bool = True,
        learned: bool = False,
        scaled: bool = True,
        classes: int = 5,
    ) -> None:
        super().__init__()
        self.averages, self.classes = averages, classes
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, grid[0] * grid[1] + 1, WIDTH)) if learned else None
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, WIDTH, 8, 8)})
        self.rel_pos_bias = Table(*grid) if shared else None
        self.blocks = nn.ModuleList(Block(None if shared else Table(*grid), scaled) for _ in range(2))
        norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.norm, self.fc_norm = (nn.Identity(), norm) if averages else (norm, None)
        if classes:
            self.head = nn.Linear(WIDTH, classes)
        else:  # as pre-trained
            self.mask_token, self.lm_head = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Linear(WIDTH, 11)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed["proj"](images).flatten(2).mT
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1)
        if self.pos_embed is not None:
            tokens = tokens + self.pos_embed
        biases = None if self.rel_pos_bias is None else self.rel_pos_bias.biases()
        for block in self.blocks:
            tokens = block(tokens, biases)
        tokens = self.norm(tokens)
        pooled = self.fc_norm(tokens[:, 1:].mean(1)) if self.averages else tokens[:, 0]  # pyright: ignore
        return self.head(pooled) if self.classes else pooled


CASES: dict[str, dict[str, Any]] = {
    "fine-tuned": {},
    "shared": {"shared": True, "averages": False, "learned": True},
    "unscaled": {"scaled": False, "learned": True},
    "not square": {"grid": (3, 5)},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_and_every_key_back(tmp_path: Path, case: str) -> None:
    oracle = randomize(Beit(**CASES[case])).eval()
    torch.save({"model": oracle.state_dict()}, tmp_path / "beit_a.pth")
    size = (24, 40) if case == "not square" else (32, 32)
    hints = Hints(image_size=size) if case == "not square" else Hints()
    read = read_checkpoint(tmp_path / "beit_a.pth", hints=hints, allow_pickle=True)
    assert (read.file_format, read.notes, read.config.heads) == ("beit", (), HEADS)
    check_features(read, oracle, size)
    check_written_back(read, tmp_path / "beit_a.pth", tmp_path / "b.pth", "beit")


def test_a_pre_trained_one(tmp_path: Path) -> None:
    oracle = randomize(Beit(classes=0, shared=True, averages=False)).eval()
    torch.save(oracle.state_dict(), tmp_path / "beitv2_a.pth")
    read = read_checkpoint(tmp_path / "beitv2_a.pth", allow_pickle=True)
    assert read.remarks == ("left out 2 tensors of heads of the pre-training",)
    assert [note for note in read.notes if "pooling" in note] == list(read.notes)
    assert read.preprocess.mean != preset("beit").mean
    check_features(read, oracle, (32, 32))
    state = {name: tensor for name, tensor in oracle.state_dict().items() if not name.startswith("lm_head")}
    torch.save(state, tmp_path / "c.pth")
    check_written_back(read, tmp_path / "c.pth", tmp_path / "b.pth", "beit")


def test_another_index_is_refused(tmp_path: Path) -> None:
    oracle = Beit()
    oracle.blocks[1].attn.relative_position_index[2, 3] += 1  # pyright: ignore
    torch.save(oracle.state_dict(), tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=r"blocks.1.attn.relative_position_index is not the one .* grid of 4×4"):
        read_checkpoint(tmp_path / "a.pth", allow_pickle=True)
