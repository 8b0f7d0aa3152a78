"""Oracle: the picture's tower of OpenAI's CLIP and of OpenCLIP, written out from their code."""

import json
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import randomize
from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.weights.adapt import adapt
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from weights_fixtures import check_features, check_written_back


def quick_gelu(hidden: Tensor) -> Tensor:
    return hidden * torch.sigmoid(1.702 * hidden)


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, branch: Tensor) -> Tensor:
        return branch * self.gamma


class Block(nn.Module):
    def __init__(self, width: int, heads: int, gelu: Callable[[Tensor], Tensor], scaled: bool) -> None:
        super().__init__()
        self.attn, self.gelu = nn.MultiheadAttention(width, heads, batch_first=True), gelu
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        layers = [("c_fc", nn.Linear(width, 3 * width)), ("c_proj", nn.Linear(3 * width, width))]
        self.mlp = nn.ModuleDict(OrderedDict(layers))
        self.ls_1, self.ls_2 = (Scale(width), Scale(width)) if scaled else (nn.Identity(), nn.Identity())

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.ln_1(tokens)
        tokens = tokens + self.ls_1(self.attn(normed, normed, normed, need_weights=False)[0])
        return tokens + self.ls_2(self.mlp["c_proj"](self.gelu(self.mlp["c_fc"](self.ln_2(tokens)))))


class Tower(nn.Module):
    """`averages`: CLIPA, which has no LayerNorm before its blocks, and normalises the mean of the patches."""

    def __init__(self, gelu: Callable[[Tensor], Tensor] = F.gelu, scaled: bool = False, averages: bool = False) -> None:
        super().__init__()
        width, heads, side = 64, 1, 4
        self.averages = averages
        self.conv1 = nn.Conv2d(3, width, 8, 8, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros(side**2 + 1, width))
        self.ln_pre = nn.Identity() if averages else nn.LayerNorm(width)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.Sequential(*(Block(width, heads, gelu, scaled) for _ in range(2)))
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.zeros(width, 24))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv1(images).flatten(2).mT
        tokens = torch.cat([self.class_embedding.expand(len(images), 1, -1), patches], dim=1)
        grid = (images.shape[2] // 8, images.shape[3] // 8)
        tokens = self.transformer.resblocks(self.ln_pre(tokens + self.positions_at(grid)))
        return self.ln_post(tokens[:, 1:].mean(1) if self.averages else tokens[:, 0]) @ self.proj

    def positions_at(self, grid: tuple[int, int]) -> Tensor:
        """As OpenCLIP resizes them when it loads weights into a model for pictures of another size."""
        if grid == (4, 4):
            return self.positional_embedding
        first, rest = self.positional_embedding[:1], self.positional_embedding[1:]
        picture = rest.reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
        picture = F.interpolate(picture, size=grid, mode="bicubic", antialias=True, align_corners=False)
        return torch.cat([first, picture.permute(0, 2, 3, 1).reshape(grid[0] * grid[1], -1)])


TEXT = {
    "token_embedding.weight": torch.ones(5, 8),
    "positional_embedding": torch.ones(7, 8),
    "transformer.resblocks.0.attn.in_proj_weight": torch.ones(24, 8),
    "ln_final.weight": torch.ones(8),
    "text_projection": torch.ones(8, 24),
}
SCALE = {"logit_scale": torch.tensor(4.6052)}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "erf": ({}, {}),
    "quick": ({"gelu": quick_gelu}, {"activation": "quick_gelu"}),
    "scaled": ({"scaled": True}, {}),
    "averages": ({"averages": True}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_tower_of_a_whole_clip(tmp_path: Path, case: str) -> None:
    options, hints = CASES[case]
    oracle = randomize(Tower(**options)).eval()
    visual = {f"visual.{name}": tensor for name, tensor in oracle.state_dict().items()}
    torch.save({**TEXT, **visual, **SCALE}, tmp_path / "a.pt")
    read = read_checkpoint(tmp_path / "a.pt", hints=Hints(**hints), allow_pickle=True)
    assert (read.file_format, read.config.heads, read.extras) == ("clip", 1, SCALE)
    assert read.remarks == ("left out 5 tensors of the tower that reads texts",)
    check_features(read, oracle, (32, 32), (64, 64), (24, 56))
    check_features(adapt(read, image_size=(48, 16)), oracle, (48, 16))
    torch.save({**visual, **SCALE}, tmp_path / "tower.pt")
    check_written_back(read, tmp_path / "tower.pt", tmp_path / "b.pt", "clip")


def test_a_tower_by_itself(tmp_path: Path) -> None:
    oracle = randomize(Tower()).eval()
    torch.save(oracle.half().state_dict(), tmp_path / "a.pt")
    read = read_checkpoint(tmp_path / "a.pt", allow_pickle=True)
    assert read.extras == {}
    check_features(read, oracle.float(), (32, 32))
    check_written_back(read, tmp_path / "a.pt", tmp_path / "b.pt", "clip")
    gelu = "assumed gelu, the erf form (OpenAI's, DFN's and MetaCLIP's weights were trained with quick_gelu)"
    assert any(gelu in note for note in read.notes)
    assert len(read.notes) == 3


@pytest.mark.parametrize("told", ["buffers", "name"])
def test_openais_own_files_have_its_gelu(tmp_path: Path, told: str) -> None:
    oracle = randomize(Tower(quick_gelu)).eval()
    state = {f"visual.{name}": tensor for name, tensor in oracle.state_dict().items()}
    buffers = {name: torch.tensor(32) for name in ("input_resolution", "context_length", "vocab_size")}
    path = tmp_path / ("a.pt" if told == "buffers" else "vit_b_32-quickgelu-laion400m.pt")
    torch.save({**state, **(buffers if told == "buffers" else {})}, path)
    read = read_checkpoint(path, hints=Hints(heads=1), allow_pickle=True)
    assert read.remarks == ()
    assert read.preprocess == preset("clip", 32)
    assert len(read.notes) == (0 if told == "buffers" else 1)  # the preprocessing of others may differ
    check_features(read, oracle, (32, 32))


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visual = randomize(Tower(quick_gelu))
        self.logit_scale = nn.Parameter(torch.tensor(4.6))
        for name in ("input_resolution", "context_length", "vocab_size"):
            self.register_buffer(name, torch.tensor(32))

    def forward(self, images: Tensor) -> Tensor:
        return self.visual(images) * self.logit_scale.exp() + 0 * self.input_resolution  # pyright: ignore


def test_openais_clip_comes_as_such_an_archive(tmp_path: Path) -> None:
    model = Clip().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its end, in newer versions
        traced: Any = torch.jit.trace(model, torch.randn(1, 3, 32, 32))
        traced.save(str(tmp_path / "ViT-B-32.pt"))
    read = read_checkpoint(tmp_path / "ViT-B-32.pt", allow_pickle=True)
    assert (read.file_format, read.config.block.activation) == ("clip", "quick_gelu")
    assert torch.equal(read.extras["logit_scale"], model.logit_scale)
    check_features(read, model.visual, (32, 32))


def with_config(folder: Path, oracle: Tower, vision: dict[str, Any], **model: Any) -> Path:
    state = {f"visual.{name}": tensor for name, tensor in oracle.state_dict().items()}
    torch.save({**state, **SCALE}, folder / "open_clip_pytorch_model.bin")
    vision = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, **vision}
    pictures = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "resize_mode": "squash"}
    facts = {"model_cfg": {"embed_dim": 24, "vision_cfg": vision, **model}, "preprocess_cfg": pictures}
    (folder / "open_clip_config.json").write_text(json.dumps(facts))
    return folder / "open_clip_pytorch_model.bin"


def test_open_clips_config_leaves_nothing_open(tmp_path: Path) -> None:
    oracle = Tower(quick_gelu)
    for block in oracle.transformer.resblocks:  # pyright: ignore
        block.attn = nn.MultiheadAttention(64, 2, batch_first=True)
    oracle = randomize(oracle).eval()
    path = with_config(tmp_path, oracle, {"head_width": 32}, quick_gelu=True)
    read = read_checkpoint(path, allow_pickle=True)
    assert read.notes == ()
    assert (read.preprocess.mean, read.preprocess.resize) == ((0.5, 0.5, 0.5), "squash")
    check_features(read, oracle, (32, 32))


@pytest.mark.parametrize(
    ("vision", "message"),
    [
        ({"qk_norm": True}, "qk_norm must be False; got True"),
        ({"surprise": 1}, "open_clip_config.json has surprise, which we do not know"),
        ({"norm_kwargs": {"eps": 0.1}}, "norm_kwargs must be"),
        ({"pool_type": "avg"}, "says pool_type 'avg', final_ln_after_pool False; a tower with ln_pre pools 'tok'"),
    ],
)
def test_open_clips_config_is_a_closed_world(tmp_path: Path, vision: dict[str, Any], message: str) -> None:
    path = with_config(tmp_path, randomize(Tower()), vision)
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(path, allow_pickle=True)
