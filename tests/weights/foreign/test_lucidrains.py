"""Oracle: lucidrains/vit-pytorch, rebuilt from its releases: the same names, shapes and arithmetic, in few lines."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from conftest import randomize
from vitrail.errors import WeightsError
from vitrail.weights.foreign.lucidrains import releases
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import convert, write_checkpoint

Era = Literal["residual", "prenorm", "inside"]  # releases to 0.9, to 1.3, and since


class Wrap(nn.Module):
    """`Residual` and `PreNorm`, which name what they wrap `fn`."""

    def __init__(self, fn: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.fn = norm, fn

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fn(tokens if self.norm is None else self.norm(tokens))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, dim_head: int, *, norm: bool, simple: bool, scale: float | None) -> None:
        super().__init__()
        inner = heads * dim_head
        self.heads, self.scale = heads, scale or dim_head**-0.5
        self.norm = nn.LayerNorm(dim) if norm else None
        self.to_qkv = nn.Linear(dim, 3 * inner, bias=False)
        out = nn.Linear(inner, dim, bias=not simple)
        self.to_out = out if simple else nn.Sequential(out, nn.Dropout(0.0))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens if self.norm is None else self.norm(tokens)
        parts = self.to_qkv(tokens).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = (query @ key.transpose(-1, -2) * self.scale).softmax(dim=-1)
        return self.to_out((scores @ value).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int, *, norm: bool, simple: bool) -> None:
        super().__init__()
        dropout = [] if simple else [nn.Dropout(0.0)]
        layers = [nn.Linear(dim, hidden), nn.GELU(), *dropout, nn.Linear(hidden, dim), *dropout]
        self.net = nn.Sequential(*([nn.LayerNorm(dim)] if norm else []), *layers)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.net(tokens)


class Transformer(nn.Module):
    def __init__(self, sizes: dict[str, int], era: Era, *, simple: bool, norm: bool, scale: float | None) -> None:
        super().__init__()
        dim = sizes["dim"]
        self.norm = nn.LayerNorm(dim) if norm else None
        self.layers = nn.ModuleList()
        for _ in range(sizes["depth"]):
            inside = era == "inside"
            parts: list[nn.Module] = [
                Attention(dim, sizes["heads"], sizes["dim_head"], norm=inside, simple=simple, scale=scale),
                FeedForward(dim, sizes["mlp_dim"], norm=inside, simple=simple),
            ]
            if not inside:
                parts = [Wrap(part, nn.LayerNorm(dim)) for part in parts]
            if era == "residual":
                parts = [Wrap(part) for part in parts]
            self.layers.append(nn.ModuleList(parts))

    def forward(self, tokens: Tensor) -> Tensor:
        for layer in self.layers:
            for part in layer.children():
                tokens = part(tokens) + tokens
        return tokens if self.norm is None else self.norm(tokens)


class Cut(nn.Module):
    """`Rearrange`: a picture as patches, (B, h·w, p1·p2·c)."""

    def __init__(self, patch: tuple[int, int]) -> None:
        super().__init__()
        self.patch = patch

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = self.patch
        cells = images.unfold(2, rows, rows).unfold(3, columns, columns)  # (B, c, h, w, p1, p2)
        return cells.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)


def sincos(rows: int, columns: int, dim: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    omega = 1.0 / 10_000 ** (torch.arange(dim // 4) / (dim // 4 - 1))
    angles = [axis.flatten()[:, None] * omega[None] for axis in (x, y)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)


class Oracle(nn.Module):
    """`ViT` and `SimpleViT` of any release.

    Args:
        dual: a LayerNorm before and after the patch projection (since 1.0).
        last: a LayerNorm after the last block, instead of one in the head (since 1.4).
        flat: [cls] and positions without a dimension for the batch (since 1.16.1).
        bare_mean: pooling the mean goes without a [cls] token (since 1.16).
        registers: `simple_vit_with_register_tokens`.
        patch_dropout: `vit_with_patch_dropout`: positions of the patches only.
    """

    def __init__(
        self,
        *,
        era: Era = "inside",
        simple: bool = False,
        dual: bool = True,
        last: bool = True,
        flat: bool = False,
        pool: str = "cls",
        bare_mean: bool = False,
        registers: int = 0,
        patch_dropout: bool = False,
        scale: float | None = None,
        oldest: bool = False,
        image: tuple[int, int] = (32, 32),
        patch: tuple[int, int] = (8, 8),
        channels: int = 3,
        classes: int = 5,
        **sizes: int,
    ) -> None:
        super().__init__()
        sizes = {"dim": 32, "depth": 2, "heads": 4, "dim_head": 8, "mlp_dim": 48, **sizes}
        dim, self.pool, self.patch = sizes["dim"], pool, patch
        pixels, count = channels * patch[0] * patch[1], (image[0] // patch[0]) * (image[1] // patch[1])
        norms = [[nn.LayerNorm(pixels)], [nn.LayerNorm(dim)]] if dual else [[], []]
        linear = nn.Linear(pixels, dim)
        self.cut = Cut(patch) if oldest else None
        if oldest:
            self.patch_to_embedding = linear
        else:
            self.to_patch_embedding = nn.Sequential(Cut(patch), *norms[0], linear, *norms[1])
        self.simple, self.covered = simple, not patch_dropout
        self.register_tokens = nn.Parameter(torch.empty(registers, dim)) if registers else None
        if not simple:
            tokens = 0 if pool == "mean" and bare_mean else 1
            batch = () if flat else (1,)
            self.cls_token = nn.Parameter(torch.empty(*batch, tokens, dim))
            positions = (count, dim) if patch_dropout else (*batch, count + tokens, dim)
            self.pos_embedding = nn.Parameter(torch.empty(positions))
        self.transformer = Transformer(sizes, era, simple=simple, norm=last, scale=scale)
        head = nn.Linear(dim, classes)
        head = head if last else nn.Sequential(nn.LayerNorm(dim), head)
        if simple:
            self.linear_head = head
        else:
            self.mlp_head = head

    def forward(self, images: Tensor) -> Tensor:
        embed = self.to_patch_embedding if self.cut is None else nn.Sequential(self.cut, self.patch_to_embedding)
        tokens = embed(images)
        batch, count, dim = tokens.shape
        if self.simple:
            tokens = tokens + sincos(images.shape[2] // self.patch[0], images.shape[3] // self.patch[1], dim)
            if self.register_tokens is not None:
                tokens = torch.cat([tokens, self.register_tokens.expand(batch, -1, -1)], dim=1)
            return self.linear_head(self.transformer(tokens)[:, :count].mean(dim=1))
        if not self.covered:
            tokens = tokens + self.pos_embedding
        tokens = torch.cat([self.cls_token.reshape(1, -1, dim).expand(batch, -1, -1), tokens], dim=1)
        if self.covered:
            tokens = tokens + self.pos_embedding.reshape(1, -1, dim)
        tokens = self.transformer(tokens)
        return self.mlp_head(tokens.mean(dim=1) if self.pool == "mean" else tokens[:, 0])


PLAIN: dict[str, Any] = {"dual": False, "last": False}
WIDE = {"heads": 2, "dim_head": 64, "dim": 128}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the oracle's settings, and hints
    "0.7": ({"era": "residual", **PLAIN}, {}),
    "0.10": ({"era": "prenorm", **PLAIN}, {}),
    "0.10, mean": ({"era": "prenorm", "pool": "mean", **PLAIN}, {"pooling": "mean"}),
    "0.10, not square": (
        {"era": "prenorm", "image": (32, 48), "patch": (8, 4), **PLAIN},
        {"image_size": (32, 48), "patch_size": (8, 4)},
    ),
    "1.0": ({"era": "prenorm", "last": False}, {}),
    "1.0, mean": ({"era": "prenorm", "last": False, "pool": "mean"}, {"pooling": "mean"}),
    "1.4": ({}, {}),
    "1.4, heads wider than the tokens": ({"dim_head": 12}, {}),
    "1.4, mean": ({"pool": "mean"}, {"pooling": "mean"}),
    "1.16, mean": ({"pool": "mean", "bare_mean": True}, {}),
    "1.23": ({"flat": True}, {}),
    "1.23, mean": ({"flat": True, "pool": "mean", "bare_mean": True}, {}),
    "1.23, 1 channel, not square": (
        {"flat": True, "channels": 1, "image": (24, 40), "patch": (8, 4)},
        {"image_size": (24, 40), "patch_size": (8, 4)},
    ),
    "1.23, 4 channels": ({"flat": True, "channels": 4}, {"patch_size": (8, 8)}),
    "SimpleViT 0.35": ({"simple": True, **PLAIN}, {"image_size": (32, 32)}),
    "SimpleViT 1.0": ({"simple": True, "last": False}, {"image_size": (32, 32)}),
    "SimpleViT 1.23, not square": ({"simple": True, "image": (24, 40)}, {"image_size": (24, 40)}),
    "SimpleViT 1.23, heads narrower than the tokens": ({"simple": True, "dim_head": 4}, {"image_size": (32, 32)}),
    "SimpleViT with registers": ({"simple": True, "registers": 3}, {"image_size": (32, 32)}),
}
READ_ONLY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "0.3": ({"era": "residual", "oldest": True, "scale": 32**-0.5, **PLAIN}, {"attention_scale": 32**-0.5}),
    "0.6.7": ({"era": "residual", "oldest": True, **PLAIN}, {"attention_scale": 8**-0.5}),
    "patch dropout": ({"patch_dropout": True, **PLAIN}, {}),
}


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.1
    assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()


@pytest.mark.parametrize("case", [*CASES, *READ_ONLY])
def test_every_release_gives_its_own_logits(tmp_path: Path, case: str) -> None:
    settings, hints = {**CASES, **READ_ONLY}[case]
    oracle = randomize(Oracle(**settings)).eval()
    torch.save(oracle.state_dict(), tmp_path / "vit.pt")
    checkpoint = read_checkpoint(tmp_path / "vit.pt", hints=Hints(heads=4, **hints), allow_pickle=True)
    images = torch.randn(2, settings.get("channels", 3), *settings.get("image", (32, 32)))
    with torch.inference_mode():
        assert_same(checkpoint.build()(images), oracle(images))


@pytest.mark.parametrize("case", CASES)
def test_every_release_is_written_back_key_by_key(tmp_path: Path, case: str) -> None:
    settings, hints = CASES[case]
    oracle = randomize(Oracle(**settings))
    torch.save(oracle.state_dict(), tmp_path / "a.pt")
    checkpoint = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=4, **hints), allow_pickle=True)
    write_checkpoint(checkpoint, tmp_path / "a.safetensors")
    write_checkpoint(read_checkpoint(tmp_path / "a.safetensors"), tmp_path / "b.pt", "lucidrains")
    written = torch.load(tmp_path / "b.pt", weights_only=True)
    assert written.keys() == oracle.state_dict().keys()
    for name, tensor in oracle.state_dict().items():
        assert torch.equal(written[name], tensor), name


def test_simple_vit_takes_pictures_of_any_size(tmp_path: Path) -> None:
    oracle = randomize(Oracle(simple=True)).eval()
    torch.save(oracle.state_dict(), tmp_path / "a.pt")
    model = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=4), allow_pickle=True).build()
    for size in ((32, 32), (16, 40)):
        images = torch.randn(2, 3, *size)
        with torch.inference_mode():
            assert_same(model(images), oracle(images))


def test_heads_of_64_features_are_assumed_with_notes_on_all_that_is(tmp_path: Path) -> None:
    torch.save(randomize(Oracle(**WIDE)).state_dict(), tmp_path / "a.pt")
    checkpoint = read_checkpoint(tmp_path / "a.pt", allow_pickle=True)
    assert checkpoint.config.heads == 2
    assert [note.partition(";")[0].removeprefix("the file does not state its ") for note in checkpoint.notes] == [
        "heads: assumed 2, as in vit-pytorch's default, 64 features each",
        "patches: assumed 8×8 pixels of 3 channels",
        "pooling: assumed cls",
        "preprocessing: assumed pixels from 0 to 1, squashed to the size",
    ]
    hints = Hints(heads=2, patch_size=(8, 8), pooling="cls")
    assert len(read_checkpoint(tmp_path / "a.pt", hints=hints, allow_pickle=True).notes) == 1


def test_what_has_the_same_keys_is_named(tmp_path: Path) -> None:
    torch.save(randomize(Oracle(era="prenorm", **PLAIN)).state_dict(), tmp_path / "a.pt")
    notes = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=4), allow_pickle=True).notes
    assert any("ats_vit, vit_1d and vit_3d have the same keys, and compute something else" in note for note in notes)


def test_its_other_models_are_recognised(tmp_path: Path) -> None:
    torch.save({"transformer.layers.0.0.fns.0.to_qkv.weight": torch.zeros(96, 32)}, tmp_path / "a.pt")
    with pytest.raises(WeightsError, match="another model of lucidrains/vit-pytorch than its ViT and SimpleViT"):
        read_checkpoint(tmp_path / "a.pt", allow_pickle=True)


def drop(state: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if part not in name}


REFUSED: dict[str, tuple[dict[str, Tensor], str]] = {
    "no projection": (drop(Oracle().state_dict(), "to_out"), "no projection after it"),
    "head with GELU": (
        {**Oracle(era="prenorm", last=False).state_dict(), "mlp_head.4.weight": torch.zeros(5, 48)},
        r"an MLP with GELU \(vit-pytorch before 0.3\)",
    ),
    "head without classes": (
        {**Oracle(simple=True).state_dict(), "linear_head.weight": torch.zeros(32)},
        "only a LayerNorm .* 1.4.0",
    ),
    "scale": (
        Oracle(era="residual", oldest=True, **PLAIN).state_dict(),
        "1 / √32, later ones 1 / √8; pass `?attention_scale=0.1767",
    ),
    "5 channels": (Oracle(channels=5).state_dict(), "320 numbers each, .* pass `?patch_size="),
    "another model": (
        {**drop(Oracle().state_dict(), ".1.net."), "transformer.layers.0.1.norm.weight": torch.zeros(32)},
        "of another model there",
    ),
    "token sampling": (Oracle(last=False).state_dict(), "ats_vit, vit_1d, vit_3d or a DeepViT"),
    "one norm": (
        {**Oracle(dual=False).state_dict(), "to_patch_embedding.2.weight": torch.zeros(32)},
        "unknown to_patch_embedding.2.weight",
    ),
    "reattention": (
        {**Oracle().state_dict(), "transformer.layers.0.0.reattn_weights": torch.zeros(4, 4)},
        "reattn_weights",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_our_model_does_not_compute_is_refused_by_name(tmp_path: Path, case: str) -> None:
    state, message = REFUSED[case]
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=4), allow_pickle=True)


def test_a_patch_size_that_does_not_fit(tmp_path: Path) -> None:
    torch.save(randomize(Oracle()).state_dict(), tmp_path / "a.pt")
    with pytest.raises(WeightsError, match="192 numbers each; patch_size must divide them, 25 does not"):
        read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=4, patch_size=(5, 5)), allow_pickle=True)


@pytest.mark.filterwarnings("ignore::vitrail.errors.AssumptionWarning")
def test_the_proof_passes_where_the_file_leaves_things_open(tmp_path: Path) -> None:
    torch.save(randomize(Oracle(flat=True, **WIDE)).state_dict(), tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "ours.safetensors")
    conversion = convert(tmp_path / "ours.safetensors", tmp_path / "b.pt", "lucidrains")
    assert conversion.agreement.difference == 0
    assert "vit_pytorch.ViT(image_size=(32, 32), patch_size=(8, 8)" in conversion.how_to_load
    assert conversion.how_to_load.endswith("with vit-pytorch since 1.16.1")


RELEASES = {
    "0.7": "0.7 to 0.9",
    "0.10": "0.10 to 0.40",
    "1.0": "1.0 to 1.3",
    "1.4": "1.4 to 1.15",
    "1.16, mean": "1.16.0",
    "1.23, mean": "since 1.16.1",
    "SimpleViT 0.35": "0.35 to 0.40",
    "SimpleViT 1.0": "1.0 to 1.3",
    "SimpleViT 1.23, not square": "since 1.4.1",
}


@pytest.mark.parametrize("case", RELEASES)
def test_the_releases_that_load_a_file_are_named(tmp_path: Path, case: str) -> None:
    settings, hints = CASES[case]
    torch.save(Oracle(**settings).state_dict(), tmp_path / "a.pt")
    checkpoint = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=4, **hints), allow_pickle=True)
    assert releases(checkpoint.origin.dialect, checkpoint.config) == RELEASES[case]
