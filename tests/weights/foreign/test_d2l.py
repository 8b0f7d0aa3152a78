"""Oracle: the ViT of "Dive into Deep Learning", rebuilt from its chapter: the same names, shapes and arithmetic."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import randomize
from vitrail.errors import WeightsError
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import convert, write_checkpoint


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        parts = (layer(tokens) for layer in (self.W_q, self.W_k, self.W_v))
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).softmax(dim=-1)
        return self.W_o((scores @ value).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.dense1, self.gelu, self.dense2 = nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dense2(self.gelu(self.dense1(tokens)))


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.ln1, self.attention = nn.LayerNorm(width), Attention(width, heads, bias)
        self.ln2, self.mlp = nn.LayerNorm(width), Mlp(width, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.ln1(tokens))
        return tokens + self.mlp(self.ln2(tokens))


class Patches(nn.Module):
    def __init__(self, channels: int, width: int, patch: tuple[int, int]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, patch, stride=patch)


class Oracle(nn.Module):
    def __init__(
        self,
        *,
        image: tuple[int, int] = (32, 32),
        patch: tuple[int, int] = (8, 8),
        channels: int = 1,
        width: int = 32,
        heads: int = 4,
        depth: int = 2,
        bias: bool = False,
    ) -> None:
        super().__init__()
        count = (image[0] // patch[0]) * (image[1] // patch[1])
        self.patch_embedding = Patches(channels, width, patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.empty(1, count + 1, width))
        self.blks = nn.Sequential(*(Block(width, 48, heads, bias) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embedding.conv(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1) + self.pos_embedding
        return self.head(self.blks(tokens)[:, 0])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("image", [(32, 32), (24, 40)])
def test_it_gives_its_own_logits_and_is_written_back_key_by_key(
    tmp_path: Path, bias: bool, image: tuple[int, int]
) -> None:
    oracle = randomize(Oracle(bias=bias, image=image)).eval()
    torch.save(oracle.state_dict(), tmp_path / "vit.params")
    hints = Hints(heads=4, image_size=image)
    checkpoint = read_checkpoint(tmp_path / "vit.params", hints=hints, allow_pickle=True)
    images = torch.randn(2, 1, *image)
    with torch.inference_mode():
        expected = oracle(images)
        assert (checkpoint.build()(images) - expected).abs().max() <= 1e-6 * expected.abs().max()
    write_checkpoint(checkpoint, tmp_path / "ours.safetensors")
    write_checkpoint(read_checkpoint(tmp_path / "ours.safetensors"), tmp_path / "again.params", "d2l")
    written = torch.load(tmp_path / "again.params", weights_only=True)
    assert written.keys() == oracle.state_dict().keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in oracle.state_dict().items())


def test_the_heads_of_the_books_own_model_are_known(tmp_path: Path) -> None:
    torch.save(Oracle(width=512, heads=8).state_dict(), tmp_path / "book.params")
    checkpoint = read_checkpoint(tmp_path / "book.params", allow_pickle=True)
    assert checkpoint.config.heads == 8
    assert "heads: assumed 8, as in the book's model" in checkpoint.notes[0]
    torch.save(Oracle().state_dict(), tmp_path / "own.params")
    with pytest.raises(WeightsError, match="how many heads it has, .* one of 1, 2, 4"):
        read_checkpoint(tmp_path / "own.params", allow_pickle=True)


@pytest.mark.filterwarnings("ignore::vitrail.errors.AssumptionWarning")
def test_convert_proves_it(tmp_path: Path) -> None:
    torch.save(randomize(Oracle(patch=(8, 4), channels=3)).state_dict(), tmp_path / "vit.pt")
    convert(tmp_path / "vit.pt", tmp_path / "ours.safetensors", hints=Hints(heads=4, image_size=(32, 32)))
    conversion = convert(tmp_path / "ours.safetensors", tmp_path / "again.pt", "d2l")
    assert conversion.agreement.difference == 0
    assert "ViT((32, 32), (8, 4), 32, 48, 4, 2, 0.1, 0.1, use_bias=False, num_classes=10)" in conversion.how_to_load
