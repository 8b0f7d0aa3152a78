"""timm's folders are a closed world, and its bare files say what had to be assumed; `tests/parity` has the numbers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitrail.errors import ConfigError, WeightsError
from vitrail.model import BlockConfig, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.timm import RESNET, how_to_load
from vitrail.weights.foreign.timm_names import NAMES, OTHERS
from vitrail.weights.infer import Hints, infer_heads
from vitrail.weights.read import FORMATS, read_checkpoint
from vitrail.weights.resolve import FormatName
from vitrail.weights.write import write_checkpoint
from weights_fixtures import FITTING


@pytest.fixture
def folder(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> Path:
    write_checkpoint(make_checkpoint(num_classes=5), tmp_path / "model", "timm")
    assert read_checkpoint(tmp_path / "model").notes == ()
    return tmp_path / "model"


def edit(folder: Path, *path: str, **changes: Any) -> None:
    """Change what `config.json` has at its top, or in the object that `path` names."""
    facts = json.loads((folder / "config.json").read_text())
    part = facts
    for name in path:
        part = part[name]
    part.update(changes)
    (folder / "config.json").write_text(json.dumps(facts))


TOP, ARGS, DATA = (), ("model_args",), ("pretrained_cfg",)
REFUSED: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (TOP, {"architecture": "vit_base_patch16_rpn_224"}, "vit_base_patch16_rpn_224 has a LayerNorm after each branch"),
    (TOP, {"architecture": "vit_base_patch16_clip_224.openai"}, "pre_norm is True there and False in the weights"),
    (TOP, {"architecture": "deit_tiny_distilled_patch16_224"}, "distillation token is True there and False"),
    (TOP, {"architecture": "vit_dwee_patch16_reg1_gap_256"}, "has differential attention"),
    (TOP, {"architecture": "vit_base_r26_s32_224"}, "ResNet blocks is 2×2×2×2 there and None in the weights"),
    (TOP, {"architecture": "my_vit"}, "architecture 'my_vit' is none that we know"),
    (TOP, {"architecture": None}, "names no architecture of timm"),
    (TOP, {"model_type": "vit"}, "names no architecture of timm"),
    (TOP, {"surprise": 1}, "config.json has surprise"),
    (TOP, {"global_pool": "avg"}, "says global_pool 'avg', but timm builds .* with 'token'"),
    (TOP, {"num_classes": 6}, "num_classes is 6 there and 5 in the weights"),
    (TOP, {"num_features": 47}, "num_features is 47 there and 32"),
    (TOP, {"model_args": 7}, "model_args must be a JSON object"),
    (ARGS, {"embed_dim": 64}, "embed_dim is 64 there and 32"),
    (ARGS, {"depth": 5}, "depth is 5 there and 3"),
    (ARGS, {"mlp_ratio": 3}, "MLP width .* is 96 there and 64"),
    (ARGS, {"patch_size": [8, 4]}, "patch_size is 8×4 there and 8×8"),
    (ARGS, {"img_size": 64}, "image_size 64×64 has 64 patches"),
    (ARGS, {"img_size": 36}, "not a multiple of the patch size 8×8; .* pass image_size=\\(32, 32\\)"),
    (ARGS, {"num_heads": "4"}, "num_heads must be a whole number; got '4'"),
    (ARGS, {"act_layer": "relu"}, "act_layer='relu'; it must be one of 'gelu', 'gelu_tanh'"),
    (ARGS, {"norm_layer": "rmsnorm"}, "kind of norms is rms there and layer in the weights"),
    (ARGS, {"norm_layer": "simplenorm"}, "norm_layer='simplenorm', which our model does not compute"),
    (ARGS, {"norm_layer": ["layer", 1e-5]}, "norm_layer=.* which our model does not compute"),
    (ARGS, {"pos_embed": "rope"}, "pos_embed='rope'"),
    (ARGS, {"scale_attn_norm": True}, "scale_attn_norm is True there and False in the weights"),
    (ARGS, {"final_norm": False}, "last norm .* is none there and before in the weights"),
    (ARGS, {"embed_norm_layer": "layernorm"}, "norm of the patches .* is True there and False"),
    (ARGS, {"attn_layer": "diff"}, "attn_layer='diff', which our model does not compute"),
    (ARGS, {"fc_norm": True}, "fc_norm with global_pool 'token'"),
    (ARGS, {"block_fn": "ResPostBlock"}, "model_args of config.json has block_fn"),
    (ARGS, {"mlp_layer": "SwiGLU"}, "model_args of config.json has mlp_layer"),
    (ARGS, {"qk_scale": 0.3}, "model_args of config.json has qk_scale"),
    (DATA, {"surprise": 1}, "pretrained_cfg of config.json has surprise"),
    (DATA, {"label_offset": 1}, "label_offset=1"),
    (
        DATA,
        {"interpolation": "random"},
        "interpolation='random'; it must be one of 'nearest', 'bilinear'",
    ),
    (DATA, {"crop_mode": "border"}, "crop_mode='border'; it must be one of 'center', 'squash'"),
    (DATA, {"crop_pct": 1.2}, "crop_pct must be above 0 and at most 1; got 1.2"),
    (DATA, {"mean": [0.5, 0.5]}, "mean must have 3 values, one per channel"),
    (DATA, {"std": "0.5"}, "std must be a list of numbers"),
    (DATA, {"std": [0, 1, 1]}, "std above 0"),
    (DATA, {"input_size": [32, 32]}, "input_size must be channels, height, width"),
]


@pytest.mark.parametrize(("where", "changes", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_we_do_not_compute_is_refused_by_name(
    folder: Path, where: tuple[str, ...], changes: dict[str, Any], message: str
) -> None:
    edit(folder, *where, **changes)
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(folder)


@pytest.mark.parametrize("kind", ["max", "avgmax", "", "prr"])
def test_other_poolings_are_refused(folder: Path, kind: str) -> None:
    edit(folder, global_pool=kind)
    edit(folder, "model_args", global_pool=kind)
    with pytest.raises(WeightsError, match=f"global_pool='{kind}'; it must be one of 'token', 'avg', 'map'"):
        read_checkpoint(folder)


def test_what_does_not_matter_is_accepted(folder: Path) -> None:
    before = read_checkpoint(folder)
    edit(folder, label_descriptions={"a": "b"})
    edit(folder, "model_args", drop_path_rate=0.1, weight_init="jax", dynamic_img_pad=True)
    edit(folder, "pretrained_cfg", url="x", tag="y", test_input_size=[3, 64, 64], test_crop_pct=0.5, license="mit")
    after = read_checkpoint(folder)
    assert (after.config, after.preprocess, after.notes) == (before.config, before.preprocess, ())


def test_hints_go_before_config_json(folder: Path) -> None:
    hints = Hints(heads=2, pooling="mean", activation="gelu_tanh", norm_eps=1e-3, attention_scale=0.5)
    config = read_checkpoint(folder, hints=hints).config
    assert (config.heads, config.pooling) == (2, "mean")
    block = config.block
    assert (block.activation, block.norm_eps, block.attention_scale) == ("gelu_tanh", 1e-3, 0.5)


def test_the_size_of_the_data_is_used_by_models_that_take_any(folder: Path) -> None:
    edit(folder, "pretrained_cfg", input_size=[3, 48, 48])
    fixed = read_checkpoint(folder)
    assert fixed.preprocess.size == (32, 32)
    assert "pictures of 48×48 pixels for a model that takes 32×32" in fixed.notes[0]
    edit(folder, "model_args", dynamic_img_size=True)
    dynamic = read_checkpoint(folder)
    assert (dynamic.preprocess.size, dynamic.notes) == ((48, 48), ())
    edit(folder, "pretrained_cfg", input_size=[3, 50, 50])
    with pytest.raises(WeightsError, match="multiple of 8"):
        read_checkpoint(folder)


def test_class_names_are_used_or_noted(folder: Path) -> None:
    names = ["a", "b", "c", "d", "e"]
    for labels in (names, dict(enumerate(names))):
        edit(folder, label_names=labels)
        assert read_checkpoint(folder).classes == tuple(names)
    for labels in (names[:4], ["a"] * 5, {"0": "a", "2": "b"}, 7):
        edit(folder, label_names=labels)
        checkpoint = read_checkpoint(folder)
        assert checkpoint.classes is None
        assert "label_names" in " ".join(checkpoint.notes)


ASSUMED: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"heads": 4}, "its heads: assumed 3, as in the published model of its width and depth; `heads=` changes"),
    "pooling": ({"pooling": "cls"}, "its pooling: assumed cls; `pooling=` changes that"),
    "GELU": ({"activation": "gelu"}, "its GELU: assumed gelu"),
    "epsilon": ({"norm_eps": 1e-6}, "its LayerNorm epsilon: assumed 1e-06; `norm_eps=` changes that"),
    "scale": ({"attention_scale": 0.125}, "its attention scale: assumed 1 / √64; `attention_scale=` changes that"),
}


def test_a_bare_file_says_what_was_assumed(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint(width=192, depth=12, heads=3, mlp_width=32)
    write_checkpoint(checkpoint, tmp_path / "a.safetensors", "timm")
    notes = read_checkpoint(tmp_path / "a.safetensors").notes
    assert len(notes) == len(ASSUMED) + 1
    assert "does not state its preprocessing: assumed" in notes[-1]
    for hints, text in ASSUMED.values():
        assert sum(text in note for note in notes) == 1
        told = read_checkpoint(tmp_path / "a.safetensors", hints=Hints(**hints)).notes
        assert len(told) == len(notes) - 1
        assert not any(text in note for note in told)


def test_what_the_keys_tell_is_not_assumed(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    block = BlockConfig(qk_norm=True)
    write_checkpoint(make_checkpoint(pooling="map", block=block), tmp_path / "a.safetensors", "timm")
    notes = " ".join(read_checkpoint(tmp_path / "a.safetensors").notes)
    assert "its heads" not in notes
    assert "its pooling" not in notes


def test_the_line_that_loads_a_hybrid_names_what_differs_from_its_own_defaults(
    make_checkpoint: Callable[..., Checkpoint],
) -> None:
    stem = replace(RESNET, blocks=(), width_factor=1.0)
    checkpoint = make_checkpoint(stem=stem, patch_size=(8, 8), width=768, depth=12, heads=12, mlp_width=3072)
    line = how_to_load(checkpoint, Path("a.pth"))
    assert line.startswith('timm.create_model("vit_tiny_r_s16_p8_224", checkpoint_path="a.pth", img_size=32, ')
    assert "embed_dim=768" in line
    assert "num_heads=12" in line
    assert "depth" not in line


@pytest.mark.parametrize(("width", "depth"), [(128, 6), (48, 4), (192, 6), (128, 3), (64, 2)])
def test_our_own_sizes_are_no_convention_for_the_heads_of_others(width: int, depth: int) -> None:
    with pytest.raises(WeightsError, match=f"no published model has width {width} and depth {depth};"):
        infer_heads(width, depth, Hints())
    assert infer_heads(width, depth, Hints(heads=2)) == 2
    assert infer_heads(768, 12, Hints()) == ViTConfig().heads


@pytest.mark.parametrize("name", [*FITTING, "vitrail"])
def test_every_format_is_read_with_an_attention_scale(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], name: FormatName
) -> None:
    path = tmp_path / f"a{FORMATS[name].suffixes[0]}"
    write_checkpoint(make_checkpoint(**FITTING.get(name, {})), path, name)
    read = read_checkpoint(path, hints=Hints(heads=4, attention_scale=0.3), allow_pickle=True)
    assert read.config.block.attention_scale == 0.3


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_an_attention_scale_is_positive(scale: float) -> None:
    with pytest.raises(ConfigError, match="attention_scale must be positive"):
        Hints(attention_scale=scale)


def test_no_name_is_both_read_and_refused() -> None:
    from fnmatch import fnmatchcase

    assert not [name for name in NAMES for pattern in OTHERS if fnmatchcase(name, pattern)]
