"""Oracle: baaivision/EVA's EVA-02, written out from its code: stored angles, a norm in the MLP, its two spellings."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import randomize
from vitrail.errors import WeightsError
from vitrail.weights.adapt import adapt
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from weights_fixtures import check_features, check_written_back

WIDTH, HEADS, HIDDEN = 48, 3, 40


class Angles(nn.Module):
    """Rows and columns of any grid span those of the pre-training, 16 × 16."""

    def __init__(self, side: int) -> None:
        super().__init__()
        dim = WIDTH // HEADS // 2
        frequencies = 1.0 / (10_000 ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
        along = torch.einsum("t,f->tf", torch.arange(side) / side * 16, frequencies).repeat_interleave(2, dim=-1)
        both = torch.cat([along[:, None].expand(side, side, dim), along[None].expand(side, side, dim)], dim=-1)
        self.register_buffer("freqs_cos", both.flatten(0, 1).cos())
        self.register_buffer("freqs_sin", both.flatten(0, 1).sin())

    def forward(self, patches: Tensor) -> Tensor:
        even, odd = patches[..., ::2], patches[..., 1::2]
        return patches * self.freqs_cos + torch.stack([-odd, even], dim=-1).flatten(-2) * self.freqs_sin  # pyright: ignore


class Attention(nn.Module):
    def __init__(self, rope: Angles | None, separate: bool, inner: bool) -> None:
        super().__init__()
        self.rope = rope
        if separate:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        else:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.inner_attn_ln = norm(WIDTH) if inner else nn.Identity()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        if hasattr(self, "qkv"):
            query, key, value = self.qkv(tokens).chunk(3, dim=-1)
        else:
            query, key, value = self.q_proj(tokens), self.k_proj(tokens), self.v_proj(tokens)
        parts = (query + self.q_bias, key, value + self.v_bias)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        if self.rope is not None:
            query, key = (torch.cat([x[:, :, :1], self.rope(x[:, :, 1:])], dim=2) for x in (query, key))
        scores = (query @ key.mT / (WIDTH // HEADS) ** 0.5).softmax(-1)
        return self.proj(self.inner_attn_ln((scores @ value).transpose(1, 2).flatten(2)))


class Mlp(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "packed":  # as in xformers' SwiGLU
            self.w12 = nn.Linear(WIDTH, 2 * HIDDEN)
        elif kind == "normed":
            self.w1, self.w2, self.ffn_ln = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN), norm(HIDDEN)
        if kind == "plain":
            self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        else:
            self.w3 = nn.Linear(HIDDEN, WIDTH)
        self.kind = kind

    def forward(self, tokens: Tensor) -> Tensor:
        if self.kind == "plain":
            return self.fc2(F.gelu(self.fc1(tokens)))
        gate, up = self.w12(tokens).chunk(2, dim=-1) if self.kind == "packed" else (self.w1(tokens), self.w2(tokens))
        hidden = F.silu(gate) * up
        return self.w3(self.ffn_ln(hidden) if self.kind == "normed" else hidden)


def norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=1e-6)


class Block(nn.Module):
    def __init__(self, rope: Angles | None, kind: str, inner: bool) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp = norm(WIDTH), norm(WIDTH), Mlp(kind)
        self.attn = Attention(rope, separate=kind == "normed", inner=inner)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class Eva(nn.Module):
    """`clip`: the tower of an EVA-CLIP, which also has a norm in its attention, and pools [cls]."""

    def __init__(
        self, *, kind: str = "normed", side: int = 4, classes: int = 5, rotates: bool = True, clip: bool = False
    ) -> None:
        super().__init__()
        self.classes, self.clip = classes, clip
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, side**2 + 1, WIDTH))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, WIDTH, 8, 8)})
        self.rope = Angles(side) if rotates else None
        self.blocks = nn.ModuleList(Block(self.rope, kind, clip) for _ in range(2))
        if clip:
            self.norm, self.head = norm(WIDTH), nn.Linear(WIDTH, classes)
        elif classes:
            self.fc_norm, self.head = norm(WIDTH), nn.Linear(WIDTH, classes)
        else:
            self.norm, self.lm_head = norm(WIDTH), nn.Linear(WIDTH, 11)
            self.mask_token = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed["proj"](images).flatten(2).mT
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1) + self.pos_embed
        for block in self.blocks:
            tokens = block(tokens)
        if self.clip:
            return self.head(self.norm(tokens)[:, 0])
        return self.head(self.fc_norm(tokens[:, 1:].mean(1))) if self.classes else self.norm(tokens)[:, 0]


def resized(oracle: Eva, side: int, **options: Any) -> Eva:
    """The same weights in a model for other pictures; positions are resized as by EVA's fine-tuning script."""
    state = {name: tensor for name, tensor in oracle.state_dict().items() if "rope" not in name}
    first, rest = state["pos_embed"][:, :1], state["pos_embed"][:, 1:]
    picture = rest.reshape(1, 4, 4, WIDTH).permute(0, 3, 1, 2)
    picture = F.interpolate(picture, size=(side, side), mode="bicubic", align_corners=False)
    state["pos_embed"] = torch.cat([first, picture.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)
    larger = Eva(side=side, **options)
    larger.load_state_dict(state, strict=False)
    return larger.eval()


@pytest.mark.parametrize("kind", ["normed", "packed"])
def test_logits_and_every_key_back(tmp_path: Path, kind: str) -> None:
    oracle = randomize(Eva(kind=kind)).eval()
    torch.save({"model": oracle.state_dict()}, tmp_path / "a.pt")
    read = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=HEADS), allow_pickle=True)
    assert (read.file_format, read.notes) == ("eva", ())
    assert "blocks.1.attn.rope.freqs_sin" in oracle.state_dict()
    check_features(read, oracle, (32, 32))
    check_features(read, resized(oracle, 7, kind=kind), (56, 56))
    check_features(adapt(read, image_size=56), resized(oracle, 7, kind=kind), (56, 56))
    check_written_back(read, tmp_path / "a.pt", tmp_path / "b.pt", "eva")


@pytest.mark.parametrize(("kind", "rotates"), [("normed", True), ("plain", False)])
def test_pre_trained_ones(tmp_path: Path, kind: str, rotates: bool) -> None:
    """EVA-02's, and that of EVA itself, which has no rotary positions."""
    oracle = randomize(Eva(kind=kind, classes=0, rotates=rotates)).eval()
    torch.save(oracle.state_dict(), tmp_path / "a.pt")
    read = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=HEADS), allow_pickle=True)
    assert read.file_format == "eva"
    assert read.remarks == ("left out 2 tensors of heads of the pre-training",)
    check_features(read, oracle, (32, 32))
    torch.save({name: each for name, each in oracle.state_dict().items() if "lm_head" not in name}, tmp_path / "c.pt")
    check_written_back(read, tmp_path / "c.pt", tmp_path / "b.pt", "eva")


def test_the_tower_of_an_eva_clip(tmp_path: Path) -> None:
    oracle = randomize(Eva(clip=True, classes=24)).eval()
    tower = {f"visual.{name}": tensor for name, tensor in oracle.state_dict().items()}
    scale = {"logit_scale": torch.tensor(4.6)}
    torch.save({**tower, **scale, "text.token_embedding.weight": torch.ones(3, 4)}, tmp_path / "a.pt")
    read = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=HEADS), allow_pickle=True)
    assert (read.file_format, read.config.num_classes, read.notes, read.extras) == ("eva", 24, (), scale)
    assert read.remarks[0] == "left out 1 tensor of the tower that reads texts"
    assert "is read as a head" in read.remarks[1]
    check_features(read, oracle, (32, 32))
    torch.save({**tower, **scale}, tmp_path / "c.pt")
    check_written_back(read, tmp_path / "c.pt", tmp_path / "b.pt", "eva")


def test_other_angles_are_refused(tmp_path: Path) -> None:
    oracle = randomize(Eva())
    oracle.rope.freqs_cos[3, 1] += 0.01
    torch.save(oracle.state_dict(), tmp_path / "a.pt")
    with pytest.raises(
        WeightsError, match=r"rope.freqs_cos are not the angles of a grid of 4×4 with coordinates up to 16"
    ):
        read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=HEADS), allow_pickle=True)
