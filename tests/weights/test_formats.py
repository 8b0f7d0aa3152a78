"""Round trips are exact to the bit, for every format that can hold the model; what it cannot hold is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from conftest import randomize
from fuzzing import cases
from vitrail.data.preprocess import preset
from vitrail.errors import ConfigError, WeightsError
from vitrail.model import (
    BlockConfig,
    ConvStem,
    PatchStem,
    PositionConfig,
    RelativeBias,
    ResNetStem,
    Rope,
    ViT,
    ViTConfig,
)
from vitrail.model.merging import with_merging
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import eva, pe
from vitrail.weights.foreign.huggingface_dino import hidden_width
from vitrail.weights.foreign.timm import RESNET
from vitrail.weights.infer import Hints
from vitrail.weights.native import read_native, save_checkpoint
from vitrail.weights.read import FOREIGN, FORMATS, read_checkpoint, read_files
from vitrail.weights.resolve import FormatName, find_files
from vitrail.weights.write import write_checkpoint
from weights_fixtures import FITTING

FIXED = replace(RESNET, blocks=(1, 2), width_factor=0.5)


@st.composite
def configs(draw: st.DrawFn) -> ViTConfig:
    """Small models of every kind, weighted towards what the formats know."""
    class_token = draw(st.booleans())
    layer_scale = draw(st.sampled_from([None, 0.5]))
    dino = layer_scale is not None and draw(st.booleans())
    stem = draw(st.sampled_from([None, None, None, ResNetStem(blocks=(1, 1), width_factor=0.5), FIXED]))
    width, heads = draw(st.sampled_from([(16, 2), (24, 3), (32, 4)]))
    try:
        return ViTConfig(
            image_size=draw(st.sampled_from([(16, 16), (16, 32), (32, 24)])) if stem is None else (32, 32),
            patch_size=draw(st.sampled_from([(8, 8), (8, 4), (4, 8)])) if stem is None else (2, 2),
            channels=draw(st.sampled_from([1, 3, 3, 5])),
            width=width,
            heads=heads,
            depth=draw(st.integers(1, 3)),
            mlp_width=draw(st.sampled_from([32, 48])),
            num_classes=0 if dino else draw(st.sampled_from([0, 2, 5])),
            class_token=class_token,
            registers=draw(st.sampled_from([0, 0, 2])),
            pooling="cls" if class_token and draw(st.booleans()) else draw(st.sampled_from(["mean", "map"])),
            pool_norm=draw(st.sampled_from(["before", "after"])),
            representation=draw(st.sampled_from([None, None, 12])),
            block=BlockConfig(
                qkv_bias=draw(st.sampled_from([True, True, False])),
                qk_norm=draw(st.sampled_from([False, False, True])),
                layer_scale=layer_scale,
                norm_eps=draw(st.sampled_from([1e-6, 1e-6, 1e-12])),
                activation=draw(st.sampled_from(["gelu", "gelu_tanh"])),
                mlp=draw(st.sampled_from(["plain", "plain", "swiglu"])),
            ),
            positions=PositionConfig(
                kind=draw(st.sampled_from(["learned", "learned", "sincos", "none"])),
                covers=draw(st.sampled_from(["patches", "class", "class", "all"])),
            ),
            **({} if stem is None else {"stem": stem}),
        )
    except ConfigError:
        return ViTConfig(image_size=16, patch_size=8, width=16, heads=2, depth=1, mlp_width=32, num_classes=2)


def same_model(ours: ViTConfig, theirs: ViTConfig) -> bool:
    """Equal but for what no weight file holds: first values, dropout, and the kernel for other sizes."""

    def plain(config: ViTConfig) -> ViTConfig:
        block = replace(config.block, layer_scale=None if config.block.layer_scale is None else 1.0)
        if config.block.mlp == "swiglu":  # has no GELU
            block = replace(block, activation="gelu")
        positions = replace(config.positions, resample="google")
        return replace(config, block=block, positions=positions, mlp_width=config.hidden_width)

    return plain(ours) == plain(theirs)


# Format → what it takes for a random model to fit it; the rest stays random.
FORCED: dict[FormatName, Callable[[ViTConfig], dict[str, Any]]] = {
    "vitrail": lambda config: {},
    "timm": lambda config: {
        "block": replace(
            config.block,
            norm_eps=1e-6,
            mlp=config.block.mlp if config.pooling != "map" and config.stem.kind == "patch" else "plain",
        ),
        "representation": None,
        "positions": PositionConfig(kind="none" if config.positions.kind == "none" else "learned", covers="all"),
        "stem": PatchStem() if config.stem.kind == "patch" else FIXED,
    },
    "google": lambda config: {
        "block": BlockConfig(activation="gelu_tanh"),
        "registers": 0,
        "pooling": "cls" if config.class_token else "mean",
        "pool_norm": "before",
        "positions": PositionConfig(kind="none" if config.positions.kind == "none" else "learned"),
        "stem": PatchStem() if config.stem.kind == "patch" else replace(ResNetStem(), blocks=(1, 2), width_factor=0.5),
    },
    "big_vision": lambda config: {
        "block": BlockConfig(activation="gelu_tanh"),
        "registers": 0,
        "pooling": "cls" if config.class_token else config.pooling,
        "pool_norm": "before",
        "positions": PositionConfig(
            kind="sincos" if config.positions.kind == "none" else config.positions.kind, covers="patches"
        ),
        "stem": PatchStem(),
    },
    "torchvision": lambda config: {
        "block": BlockConfig(),
        "registers": 0,
        "class_token": True,
        "pooling": "cls",
        "positions": PositionConfig(),
        "num_classes": config.num_classes or 3,
        "channels": 3,
        "image_size": 32,
        "patch_size": 8,
        "stem": PatchStem(),
    },
    "hf": lambda config: {
        "block": replace(config.block, qk_norm=False, mlp=config.block.mlp if config.block.layer_scale else "plain"),
        "registers": config.registers if config.block.layer_scale else 0,
        "class_token": True,
        "pooling": "cls",
        "positions": PositionConfig(),
        "num_classes": 0 if config.block.layer_scale or config.representation else config.num_classes,
        "representation": None if config.block.layer_scale else config.representation,
        "mlp_width": hidden_width(config.width, 2, config.block.mlp == "swiglu" and bool(config.block.layer_scale)),
        "stem": PatchStem(),
        **({"image_size": 32, "patch_size": 8} if config.block.layer_scale else {}),
    },
    "dinov2": lambda config: {
        "block": replace(config.block, layer_scale=1.0, qk_norm=False, activation="gelu", norm_eps=1e-6),
        "class_token": True,
        "pooling": "cls",
        "positions": PositionConfig(),
        "num_classes": 0,
        "representation": None,
        "stem": PatchStem(),
    },
    "dinov3": lambda config: {
        "block": replace(
            config.block,
            layer_scale=1.0,
            qk_norm=False,
            activation="gelu",
            norm_eps=1e-5,
            key_bias=config.registers > 0,
        ),
        "class_token": True,
        "pooling": "cls",
        "positions": PositionConfig(kind="none"),
        "relative": Rope(),
        "num_classes": 0,
        "representation": None,
        "stem": PatchStem(),
    },
    "tips": lambda config: {
        "block": replace(config.block, layer_scale=1.0, qk_norm=False, activation="gelu", norm_eps=1e-6),
        "registers": 1,
        "class_token": True,
        "pooling": "cls",
        "positions": PositionConfig(),
        "num_classes": 0,
        "representation": None,
        "stem": PatchStem(),
    },
    "clip": lambda config: {
        "block": BlockConfig(
            norm_eps=1e-5, layer_scale=config.block.layer_scale, activation=("gelu", "quick_gelu")[config.depth % 2]
        ),
        "registers": 0,
        "class_token": True,
        "pooling": "cls" if config.class_token else "mean",
        "pool_norm": "before" if config.class_token else "after",
        "pre_norm": config.class_token,
        "patch_bias": False,
        "positions": PositionConfig(),
        "num_classes": 0,
        "representation": None,
        "projection": 20,
        "stem": PatchStem(),
    },
    "pe": lambda config: {
        "block": BlockConfig(norm_eps=1e-5, layer_scale=config.block.layer_scale),
        "registers": 0,
        "pooling": "map" if config.pool_norm == "before" else "mean",
        "pool_norm": "before" if config.pool_norm == "before" else "none",
        "pool_prefix": config.pool_norm == "before",
        "pool_heads": 8,
        "pre_norm": True,
        "patch_bias": False,
        "positions": PositionConfig(),
        "relative": pe.rope(config.class_token),
        "num_classes": 0,
        "representation": None,
        "projection": 20 if config.num_classes else None,
        "stem": PatchStem(),
    },
    "eva": lambda config: {
        "block": replace(
            config.block,
            qkv_bias=True,
            key_bias=False,
            qk_norm=False,
            activation="gelu",
            norm_eps=1e-6,
            mlp_norm=config.representation is None,
        ),
        "registers": 0,
        "class_token": True,
        "pooling": "mean" if config.pool_norm == "after" else "cls",
        "relative": eva.ROPE,
        "positions": PositionConfig(kind="none" if config.positions.kind == "none" else "learned"),
        "representation": None,
        "stem": PatchStem(),
    },
    "beit": lambda config: {
        "block": BlockConfig(qkv_bias=config.block.qkv_bias, key_bias=False, layer_scale=config.block.layer_scale),
        "registers": 0,
        "class_token": True,
        "pooling": "mean" if config.pool_norm == "after" else "cls",
        "relative": RelativeBias(shared=config.registers > 0),
        "positions": PositionConfig(kind="none" if config.positions.kind == "none" else "learned"),
        "representation": None,
        "stem": PatchStem(),
    },
    "aimv2": lambda config: {
        "block": BlockConfig(norm="rms", norm_eps=1e-5, qkv_bias=False, proj_bias=False, mlp="swiglu"),
        "registers": 0,
        "class_token": False,
        "pooling": "mean",
        "pool_norm": "before",
        "patch_norm": True,
        "positions": PositionConfig(),
        "num_classes": 0,
        "representation": None,
        "stem": PatchStem(),
    },
    "lucidrains": lambda config: {
        "attention_width": config.heads * (6 + config.depth),
        "block": BlockConfig(
            qkv_bias=False, proj_bias=config.class_token, mlp_bias=True, norm_eps=1e-5, activation="gelu"
        ),
        "registers": 0 if config.class_token else config.registers,
        "positions": PositionConfig(kind="learned" if config.class_token else "sincos"),
        "pooling": "mean" if config.pooling == "map" else config.pooling,
        "pool_prefix": config.class_token and config.pooling != "cls",
        "pool_norm": "before" if config.registers else config.pool_norm,
        "pixel_norm": config.pool_norm == "before" or config.registers > 0,
        "patch_norm": config.pool_norm == "before" or config.registers > 0,
        "num_classes": config.num_classes or 3,
        "representation": None,
        "stem": PatchStem(),
        **({} if config.stem.kind == "patch" else {"patch_size": 8}),
    },
    "tintn": lambda config: {
        "block": BlockConfig(activation="gelu_tanh", norm_eps=1e-5, qkv_bias=config.block.qkv_bias),
        "registers": 0,
        "class_token": True,
        "pooling": "cls",
        "pool_norm": "none",
        "positions": PositionConfig(),
        "num_classes": config.num_classes or 3,
        "representation": None,
        "image_size": 32,
        "patch_size": 8,
        "stem": PatchStem(),
    },
    "d2l": lambda config: {
        "block": BlockConfig(
            norm_eps=1e-5, qkv_bias=config.block.qkv_bias, proj_bias=config.block.qkv_bias, mlp_bias=True
        ),
        "registers": 0,
        "class_token": True,
        "pooling": "cls",
        "positions": PositionConfig(),
        "num_classes": config.num_classes or 3,
        "representation": None,
        "stem": PatchStem(),
        **({} if config.stem.kind == "patch" else {"patch_size": 8}),
    },
}


@pytest.mark.parametrize("name", FORCED)
@settings(max_examples=cases(8))
@given(config=configs(), choice=st.integers(0, 10**6))
def test_to_any_format_and_back_is_exact(name: FormatName, config: ViTConfig, choice: int) -> None:
    config = replace(config, **FORCED[name](config))
    assert FORMATS[name].refusals(config) == []
    checkpoint = Checkpoint(
        config=config,
        tensors=randomize(ViT(config)).state_dict(),
        preprocess=preset("google", config.image_size, config.channels),
    )
    hints = Hints(
        heads=config.heads,
        image_size=config.image_size,
        patch_size=config.patch_size,
        pooling=config.pooling,
        activation=config.block.activation,
    )
    suffix = FORMATS[name].suffixes[choice % len(FORMATS[name].suffixes)]
    if name == "timm" and isinstance(config.stem, ResNetStem):
        suffix = suffix or ".safetensors"  # timm registers no such hybrid
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        write_checkpoint(checkpoint, path, name)
        again = read_checkpoint(path, hints=hints, allow_pickle=True)
        assert again.file_format == name
        assert same_model(again.config, config)
        assert again.tensors.keys() == checkpoint.tensors.keys()
        for key, tensor in checkpoint.tensors.items():
            assert torch.equal(again.tensors[key], tensor), key


def test_every_foreign_format_can_hold_something(make_checkpoint: Callable[..., Checkpoint]) -> None:
    for name, fields in FITTING.items():
        assert FORMATS[name].refusals(make_checkpoint(**fields).config) == []


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("timm", {"block": BlockConfig(attention_scale=0.3)}, "no attention scale"),
    ("timm", {"representation": 12}, "no representation layer"),
    ("timm", {"registers": 2}, "positions to \\[cls\\] and registers alike"),
    ("timm", {"stem": ConvStem(widths=(8,), strides=(2,)), "patch_size": 4}, "no convolutional stem"),
    ("timm", {"stem": ResNetStem(blocks=(1,), width_factor=0.5), "patch_size": 2}, "its ResNet has 32 groups"),
    ("timm", {"positions": PositionConfig(kind="sincos")}, "its positions are learned"),
    ("timm", {"attention_width": 64}, "heads divide the width of the tokens"),
    ("torchvision", {"registers": 2}, "no registers"),
    ("torchvision", {"pooling": "mean"}, "pools the \\[cls\\] token"),
    ("torchvision", {"image_size": (32, 64)}, "are square"),
    ("torchvision", {"num_classes": 0}, "always has a head"),
    ("torchvision", {"channels": 1}, "3 channels"),
    ("torchvision", {"block": BlockConfig(qkv_bias=False)}, "have biases"),
    ("torchvision", {"block": BlockConfig(norm_eps=1e-12)}, "epsilon is 1e-06, not 1e-12"),
    ("torchvision", {"positions": PositionConfig(kind="none")}, "its positions are learned"),
    ("hf", {"representation": 12}, "has no representation layer before it"),
    ("hf", {"block": BlockConfig(qk_norm=True)}, "no qk-norm"),
    ("hf", {"registers": 1}, "positions cover \\[cls\\] and every other token"),
    ("hf", {"block": BlockConfig(layer_scale=1.0), "mlp_width": 50, "num_classes": 0}, "a multiple of the model's"),
    ("hf", {"block": BlockConfig(layer_scale=1.0), "image_size": (32, 64), "num_classes": 0}, "those of a square"),
    ("hf", {"block": BlockConfig(attention_scale=0.3)}, "no attention scale"),
    ("google", {}, "its GELU is gelu_tanh"),
    ("google", {"block": BlockConfig(activation="gelu_tanh"), "pooling": "map"}, "no attention pooling"),
    ("google", {"block": BlockConfig(activation="gelu_tanh"), "pooling": "mean"}, "a \\[cls\\] token only to pool it"),
    ("google", {"block": BlockConfig(activation="gelu_tanh", layer_scale=1.0)}, "no layer scale"),
    ("big_vision", {"block": BlockConfig(activation="gelu_tanh")}, "its positions cover patches only"),
    ("dinov2", {}, "always has layer scale"),
    ("lucidrains", {}, "have no biases"),
    ("lucidrains", {"pixel_norm": True}, "norms before and after the patch projection, or none"),
    ("lucidrains", {"pooling": "mean"}, "its mean is that of all tokens"),
    ("lucidrains", {"positions": PositionConfig(kind="sincos")}, "its SimpleViT has no \\[cls\\] token"),
    ("lucidrains", {"class_token": False, "pooling": "mean"}, "a \\[cls\\] token, except in its newest releases"),
    ("lucidrains", {"registers": 2}, "only its newer SimpleViT has registers"),
    ("tintn", {}, "it has no last LayerNorm"),
    ("tintn", {"image_size": (32, 64)}, "are square"),
    ("d2l", {"block": BlockConfig(qkv_bias=False)}, "all layers of its attention have biases, or none"),
    ("d2l", {"block": BlockConfig(proj_bias=False)}, "the layers of its MLP have biases"),
]


@pytest.mark.parametrize(("name", "fields", "message"), REFUSED)
def test_what_a_format_cannot_hold_is_refused_with_the_reason(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], name: Any, fields: dict[str, Any], message: str
) -> None:
    suffix = FORMATS[name].suffixes[0]
    with pytest.raises(WeightsError, match=f"{name} cannot hold this model: .*{message}"):
        write_checkpoint(make_checkpoint(**fields), tmp_path / f"a{suffix}", name)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_suffix_or_format(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    with pytest.raises(WeightsError, match="a torchvision checkpoint must have .pth"):
        write_checkpoint(make_checkpoint(), tmp_path / "a.npz", "torchvision")
    with pytest.raises(WeightsError, match=r"must have no suffix \(a folder\)"):
        write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors", "hf")
    with pytest.raises(WeightsError, match="unknown format 'tim'; did you mean timm"):
        write_checkpoint(make_checkpoint(), tmp_path / "a.pth", "tim")  # pyright: ignore


def test_writing_over_a_checkpoint_folder_replaces_it(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    folder = tmp_path / "model"
    write_checkpoint(make_checkpoint(), folder, "hf")
    (folder / "model-00001-of-00002.safetensors").write_text("of an older, sharded one")
    write_checkpoint(make_checkpoint(width=64), folder, "hf")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    assert read_checkpoint(folder).config.width == 64
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_with_other_things_is_never_replaced(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(WeightsError, match="holds other things, which we will not delete: thesis.tex"):
        write_checkpoint(make_checkpoint(), tmp_path, "hf")
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_keys_that_nobody_knows(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="those of no ViT that we know .* its first keys: a, b"):
        read_checkpoint(tmp_path / "a.safetensors")


def test_ambiguous_keys_name_the_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    for name in ("timm", "hf"):
        monkeypatch.setitem(FOREIGN, name, replace(FOREIGN[name], recognises=lambda tensors: True))
    with pytest.raises(WeightsError, match="could be timm or hf; name one with source_format="):
        read_checkpoint(tmp_path / "a.safetensors")


def test_missing_and_unknown_keys_are_listed(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors", "timm")
    tensors = load_file(tmp_path / "a.safetensors")
    tensors["surprise"] = tensors.pop("blocks.1.norm1.bias")
    save_file(tensors, tmp_path / "b.safetensors")
    with pytest.raises(WeightsError, match="missing blocks.1.norm1.bias; unknown surprise"):
        read_checkpoint(tmp_path / "b.safetensors", hints=Hints(heads=4))


def test_facts_that_a_file_does_not_tell(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(image_size=(16, 40)), tmp_path / "a.safetensors", "timm")
    with pytest.raises(WeightsError, match=r"possible: 16×40, or transposed\); pass image_size"):
        read_checkpoint(tmp_path / "a.safetensors", hints=Hints(heads=4))
    with pytest.raises(WeightsError, match="how many heads .* one of 1, 2, 4"):
        read_checkpoint(tmp_path / "a.safetensors", hints=Hints(image_size=(16, 40)))
    with pytest.raises(WeightsError, match="has 8 patches; the file has positions"):
        read_checkpoint(tmp_path / "a.safetensors", hints=Hints(heads=4, image_size=(16, 32)))
    read = read_checkpoint(tmp_path / "a.safetensors", hints=Hints(heads=4, image_size=(16, 40)))
    assert read.config.grid == (2, 5)


def test_hints_change_our_own_files_too(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors")
    read = read_checkpoint(tmp_path / "a.safetensors", hints=Hints(activation="gelu_tanh", norm_eps=1e-3))
    assert read.config.block == BlockConfig(activation="gelu_tanh", norm_eps=1e-3)
    with pytest.raises(WeightsError, match="resample it"):
        read_checkpoint(tmp_path / "a.safetensors", hints=Hints(image_size=(64, 64)))


@pytest.mark.parametrize("name", ["vitrail", "timm"])
def test_the_patches_of_a_file_that_states_them_are_not_changed(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], name: FormatName
) -> None:
    write_checkpoint(make_checkpoint(**FITTING[name]), tmp_path / "a.safetensors", name)
    assert read_checkpoint(tmp_path / "a.safetensors", hints=Hints(heads=4, patch_size=(8, 8))).config.grid == (4, 4)
    with pytest.raises(WeightsError, match="has patches of 8×8, which no hint can change; omit patch_size"):
        read_checkpoint(tmp_path / "a.safetensors", hints=Hints(heads=4, patch_size=(4, 4)))


@pytest.mark.parametrize("name", FITTING)
def test_foreign_to_ours_and_back_reproduces_every_key_and_value(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], name: FormatName
) -> None:
    suffix = FORMATS[name].suffixes[0]
    checkpoint = make_checkpoint(**FITTING[name])
    if name == "dinov2":
        checkpoint = replace(checkpoint, extras={"mask_token": torch.randn(1, 32)})
    first, ours, second = tmp_path / f"a{suffix}", tmp_path / "ours.safetensors", tmp_path / f"b{suffix}"
    write_checkpoint(checkpoint, first, name)
    write_checkpoint(read_checkpoint(first, hints=Hints(heads=4), allow_pickle=True), ours)
    write_checkpoint(read_checkpoint(ours), second, name)
    before, after = (read_files(find_files(path), allow_pickle=True).tensors for path in (first, second))
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(after[key], tensor), key
        assert after[key].dtype == tensor.dtype


@pytest.mark.parametrize("name", ["google", "big_vision", "torchvision", "hf"])
def test_a_kind_of_mlp_that_no_format_knows_is_refused_by_name(name: FormatName) -> None:
    """No format mentions it: what is not named as held is refused."""
    config = ViTConfig(block=BlockConfig(mlp="swiglu"))
    assert "its block.mlp is always 'plain', here it is 'swiglu'" in FORMATS[name].refusals(config)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "vitrail"])
def test_no_other_format_can_say_that_tokens_are_merged(name: FormatName) -> None:
    config = with_merging(ViTConfig(), 8)
    assert "it has no token merging" in FORMATS[name].refusals(config)


def test_our_own_format_keeps_the_merging(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint()
    merging = replace(checkpoint, config=with_merging(checkpoint.config, 2))
    for name, each in (("plain", checkpoint), ("merging", merging)):
        save_checkpoint(each, tmp_path / f"{name}.safetensors")
        assert read_native(tmp_path / f"{name}.safetensors").config == each.config
    assert b"merge" not in (tmp_path / "plain.safetensors").read_bytes()  # older versions read it
