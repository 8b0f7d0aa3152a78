"""Oracle: timm's first ViTs, which write-ups copied with their `qk_scale`, `pre_logits` and hybrids (WZMIAOMIAO's too),
rebuilt from their facts: the same names, shapes and arithmetic."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import randomize
from vitrail.errors import WeightsError
from vitrail.weights.adapt import adapt
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, scale: float | None) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale or (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = (query @ key.transpose(-2, -1) * self.scale).softmax(dim=-1)
        return self.proj((scores @ value).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(tokens)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, scale: float | None, eps: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=eps) for _ in range(2))
        self.attn, self.mlp = Attention(width, heads, bias, scale), Mlp(width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class PatchEmbed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, 8, stride=8)


class Oracle(nn.Module):
    def __init__(
        self,
        *,
        image: tuple[int, int] = (32, 32),
        bias: bool = True,
        scale: float | None = None,
        eps: float = 1e-6,
        representation: int | None = None,
        distilled: bool = False,
        width: int = 32,
    ) -> None:
        super().__init__()
        count = (image[0] // 8) * (image[1] // 8)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.dist_token = nn.Parameter(torch.empty(1, 1, width)) if distilled else None
        self.pos_embed = nn.Parameter(torch.empty(1, count + (2 if distilled else 1), width))
        self.patch_embed = PatchEmbed(width)
        self.blocks = nn.Sequential(*(Block(width, 4, bias, scale, eps) for _ in range(2)))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.pre_logits = nn.Sequential()
        if representation:
            self.pre_logits.add_module("fc", nn.Linear(width, representation))
            self.pre_logits.add_module("act", nn.Tanh())
        self.head = nn.Linear(representation or width, 5)
        self.head_dist = nn.Linear(width, 5) if distilled else None

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed.proj(images).flatten(2).transpose(1, 2)
        first = [token.expand(len(images), -1, -1) for token in (self.cls_token, self.dist_token) if token is not None]
        tokens = self.norm(self.blocks(torch.cat([*first, patches], dim=1) + self.pos_embed))
        if self.head_dist is not None:
            return (self.head(tokens[:, 0]) + self.head_dist(tokens[:, 1])) / 2
        return self.head(self.pre_logits(tokens[:, 0]))


CASES: dict[str, tuple[Oracle, Hints]] = {
    "representation": (Oracle(representation=24), Hints(heads=4)),
    "distilled": (Oracle(distilled=True), Hints(heads=4)),
    "own scale": (Oracle(scale=32**-0.5), Hints(heads=4, attention_scale=32**-0.5)),
    "defaults of the class": (Oracle(bias=False, eps=1e-5), Hints(heads=4, norm_eps=1e-5)),
    "not square": (Oracle(image=(24, 40), representation=24), Hints(heads=4, image_size=(24, 40))),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_copy(tmp_path: Path, case: str) -> None:
    oracle, hints = CASES[case]
    randomize(oracle.eval())
    torch.save(oracle.state_dict(), tmp_path / "model-9.pth")
    checkpoint = read_checkpoint(tmp_path / "model-9.pth", hints=hints, allow_pickle=True)
    images = torch.randn(2, 3, *checkpoint.config.image_size)
    with torch.inference_mode():
        expected = oracle(images)
        assert (checkpoint.build()(images) - expected).abs().max() <= 1e-6 * expected.abs().max()


def test_a_representation_layer_is_read_and_kept_by_our_format_and_refused_by_todays_timm(tmp_path: Path) -> None:
    torch.save(randomize(Oracle(representation=24)).state_dict(), tmp_path / "a.pth")
    write_checkpoint(
        read_checkpoint(tmp_path / "a.pth", hints=Hints(heads=4), allow_pickle=True), tmp_path / "a.safetensors"
    )
    checkpoint = read_checkpoint(tmp_path / "a.safetensors")
    assert checkpoint.config.representation == 24
    with pytest.raises(WeightsError, match="timm cannot hold this model: it has no representation layer"):
        write_checkpoint(checkpoint, tmp_path / "b.pth", "timm")
    write_checkpoint(adapt(checkpoint, num_classes=3, drop_representation=True), tmp_path / "b.pth", "timm")
    plain = Oracle()
    plain.head = nn.Linear(32, 3)
    plain.load_state_dict(torch.load(tmp_path / "b.pth", weights_only=True))


@pytest.mark.parametrize("distilled", [False, True])
def test_a_copy_with_timms_keys_is_written_back_key_by_key(tmp_path: Path, distilled: bool) -> None:
    oracle = randomize(Oracle(distilled=distilled))
    torch.save(oracle.state_dict(), tmp_path / "a.pth")
    checkpoint = read_checkpoint(tmp_path / "a.pth", hints=Hints(heads=4), allow_pickle=True)
    write_checkpoint(checkpoint, tmp_path / "b.pth", "timm")
    written = torch.load(tmp_path / "b.pth", weights_only=True)
    assert written.keys() == oracle.state_dict().keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in oracle.state_dict().items())


def test_patches_that_were_cut_by_hand(tmp_path: Path) -> None:
    """As in the file of timm's first vit_small_patch16_224, with its own scale."""
    oracle = randomize(Oracle(bias=False, scale=32**-0.5, eps=1e-5)).eval()
    state = oracle.state_dict()
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].flatten(1)
    torch.save(state, tmp_path / "a.pth")
    hints = Hints(heads=4, attention_scale=32**-0.5, norm_eps=1e-5)
    checkpoint = read_checkpoint(tmp_path / "a.pth", hints=hints, allow_pickle=True)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = oracle(images)
        assert (checkpoint.build()(images) - expected).abs().max() <= 1e-6 * expected.abs().max()


@pytest.mark.parametrize("projection", [(32, 64, 1, 1), (32, 64)])
def test_a_hybrid_with_a_network_of_its_own_is_refused_by_name(tmp_path: Path, projection: tuple[int, ...]) -> None:
    state = randomize(Oracle()).state_dict()
    state |= {
        "patch_embed.proj.weight": torch.randn(projection),
        "patch_embed.backbone.conv1.0.weight": torch.randn(8, 3, 3, 3),
        "patch_embed.backbone.bn1.running_mean": torch.randn(8),
    }
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(
        WeightsError, match=r"network of its own \(patch_embed.backbone.conv1.0.weight\); .* ResNet of Goo"
    ):
        read_checkpoint(tmp_path / "a.pth", hints=Hints(heads=4), allow_pickle=True)
