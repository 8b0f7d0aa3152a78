"""A folder of timm computes here what timm builds from its `config.json`, or it is refused: no silent difference.

timm makes each model, saves it with its own `save_for_hf`, and builds it again from the `config.json`.
"""

import inspect
import json
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.peers import timm, transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from conftest import randomize
from fuzzing import cases
from vitrail.data.preprocess import preset
from vitrail.data.transform import prepare
from vitrail.errors import ConfigError, VitrailError, WeightsError
from vitrail.model import BlockConfig, PositionConfig, ViT, ViTConfig
from vitrail.model.parts import RelativeBias
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import timm_relpos
from vitrail.weights.foreign.timm import assumptions, how_to_load, infer_config, recognises
from vitrail.weights.foreign.timm_naflex import classic_arguments
from vitrail.weights.foreign.timm_names import DEFAULTS, LOOKALIKES, NAMES, OTHERS, PLAIN, QUICK_GELU, named_arguments
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.read import FORMATS, read_checkpoint
from vitrail.weights.write import convert, write_checkpoint

TIMM = timm.models.vision_transformer.VisionTransformer
NAFLEX = timm.models.naflexvit.NaFlexVit
RELPOS = timm.models.vision_transformer_relpos.VisionTransformerRelPos
MODULES = ("vision_transformer", "vision_transformer_hybrid", "deit", "vitamin")  # all that build a VisionTransformer
REGISTERED = [name for module in MODULES for name in timm.list_models(module=module)]
TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_classes": 5}


def save(model: nn.Module, folder: Path, arguments: dict[str, Any], **config: Any) -> None:
    timm.models.save_for_hf(model, folder, model_config=config, model_args=arguments, safe_serialization=True)


def edit(folder: Path, changes: dict[str, Any], data: dict[str, Any]) -> None:
    """Change the top level and the `pretrained_cfg` of a `config.json`."""
    facts = json.loads((folder / "config.json").read_text())
    facts["pretrained_cfg"] |= data
    (folder / "config.json").write_text(json.dumps(facts | changes))


def build_again(folder: Path, state: dict[str, torch.Tensor]) -> nn.Module | None:
    """The model that timm builds from `config.json`, with exactly these weights; None where timm cannot."""
    try:
        model = timm.create_model(f"local-dir:{folder}", pretrained=False)
        model.load_state_dict(state)
    except Exception:
        return None
    return model.eval()


def difference(checkpoint: Checkpoint, peer: nn.Module) -> float:
    config = checkpoint.config
    images = torch.randn(2, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, ours = peer(images), checkpoint.build()(images)
    assert ours.shape == expected.shape
    return ((ours - expected).abs().max() / expected.abs().max()).item()


class _RecordedError(Exception):
    pass


def norm_of(layer: Any) -> Any:
    """A norm of timm's tables, as ours say it."""
    if not isinstance(layer, partial):
        return layer
    kinds = {timm.layers.LayerNorm: "layer", timm.layers.RmsNorm: "rms"}
    return kinds[layer.func], layer.keywords["eps"]


MLPS = {timm.layers.SwiGLUPacked: "packed", timm.layers.SwiGLU: "split", timm.layers.Mlp: "plain"}


def test_the_table_of_names_is_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = {name: parameter.default for name, parameter in inspect.signature(TIMM.__init__).parameters.items()}
    attention = signature.pop("attn_layer")
    assert {name: signature[name] for name in DEFAULTS if name != "attn_layer"} == {
        name: value for name, value in DEFAULTS.items() if name != "attn_layer"
    }
    given: dict[str, Any] = {}

    def record(self: nn.Module, **arguments: Any) -> None:
        given.clear()
        given.update(arguments)
        raise _RecordedError

    monkeypatch.setattr(TIMM, "__init__", record)
    classic = [name for name in NAMES if named_arguments(name)["layout"] == "classic"]
    assert set(REGISTERED) > set(classic)
    for name in classic:
        with torch.device("meta"), pytest.raises(_RecordedError):
            timm.create_model(name, pretrained_cfg={"num_classes": 1000})
        ours = dict(named_arguments(name))
        hybrid = ours.pop("resnet") is not None
        assert ours.pop("mlp") == MLPS[given.pop("mlp_layer", timm.layers.Mlp)]
        assert ours.pop("distilled") == ("distilled" in name)
        assert (ours.pop("layout"), ours.pop("resample")) == ("classic", "timm")
        assert (ours.pop("rel_pos_type"), ours.pop("shared_rel_pos")) == (None, False)
        given["act_layer"] = {nn.SiLU: "silu"}.get(given.get("act_layer"), given.get("act_layer"))
        for norm in ("norm_layer", "embed_norm_layer"):
            assert ours.pop(norm) == norm_of(given.pop(norm, None)), (name, norm)
        assert ("embed_layer" in given) == hybrid, name
        assert given.pop("attn_layer", attention) is attention
        assert given.keys() - {"embed_layer", "weight_init"} <= ours.keys(), name
        for argument in ours.keys() - {"attn_layer"}:
            assert ours[argument] == pytest.approx(given.get(argument, signature[argument])), (name, argument)


def test_the_table_of_names_is_that_of_timms_naflex_models(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def record(self: nn.Module, cfg: Any, **arguments: Any) -> None:
        given.append(cfg)
        raise _RecordedError

    monkeypatch.setattr(NAFLEX, "__init__", record)
    named = [name for name in NAMES if named_arguments(name)["layout"] == "naflex"]
    assert {*named} | {"naflexvit_base_patch16_parfac_gap"} == {*timm.list_models(module="naflexvit")}
    for name in named:
        with torch.device("meta"), pytest.raises(_RecordedError):
            timm.create_model(name)
        ours = dict(named_arguments(name))
        size = ours.pop("img_size")
        fixed = {"layout": "naflex", "no_embed_class": True, "dynamic_img_size": True}
        theirs = {**PLAIN, **fixed, **classic_arguments(asdict(given.pop()), {**ours, "resample": "timm"})}
        assert theirs.pop("img_size") == (size, size)
        assert theirs == pytest.approx(ours), name


def test_the_table_of_names_is_that_of_timms_relative_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = inspect.signature(RELPOS.__init__).parameters
    given: list[dict[str, Any]] = []

    def record(self: nn.Module, **arguments: Any) -> None:
        given.append(arguments)
        raise _RecordedError

    monkeypatch.setattr(RELPOS, "__init__", record)
    for name in timm.list_models(module="vision_transformer_relpos"):
        if name not in NAMES:
            assert "_rpn_" in name
            continue
        with torch.device("meta"), pytest.raises(_RecordedError):
            timm.create_model(name, pretrained_cfg={"num_classes": 1000})
        told = {argument: signature[argument].default for argument in timm_relpos.KNOWN} | given.pop()
        theirs = {**PLAIN, "layout": "relpos", "pos_embed": "none", **timm_relpos.classic_arguments(told)}
        assert theirs == pytest.approx(dict(named_arguments(name))), name


RELATIVE: dict[str, dict[str, Any]] = {
    "table": {"rel_pos_type": "bias"},
    "shared table, [cls]": {
        "rel_pos_type": "bias",
        "shared_rel_pos": True,
        "class_token": True,
        "global_pool": "token",
        "fc_norm": False,
    },
    "MLP": {"rel_pos_dim": 8, "qkv_bias": True, "fc_norm": False},
    "Swin's MLP, [cls]": {"rel_pos_type": "mlp-swin", "class_token": True},
}


@pytest.mark.parametrize("case", RELATIVE)
def test_relative_positions(tmp_path: Path, case: str) -> None:
    """Tables return to the bit; MLPs are read as the table that they give, for any picture size."""
    arguments = {**TINY, "num_heads": 4, **RELATIVE[case]}
    peer = randomize(timm.create_model("vit_relpos_small_patch16_224", **arguments)).eval()
    save(peer, tmp_path / "theirs", arguments)
    edit(tmp_path / "theirs", {}, {"input_size": [3, 32, 32]})
    checkpoint = read_checkpoint(tmp_path / "theirs")
    assert difference(checkpoint, peer) <= 1e-5
    assert checkpoint.config.relative == RelativeBias(shared="shared" in case)
    assert any("MLP of its relative positions" in remark for remark in checkpoint.remarks) == ("MLP" in case)
    for target in ("folder", "file.safetensors"):
        assert convert(tmp_path / "theirs", tmp_path / target, "timm", verify_with_peer=True).peer is not None
    written, state = load_file(tmp_path / "file.safetensors"), peer.state_dict()
    if "MLP" not in case:
        assert written.keys() == state.keys()
        assert all(torch.equal(written[name], tensor) for name, tensor in state.items())
        return
    larger = timm.create_model("vit_relpos_small_patch16_224", **{**arguments, "img_size": (40, 56)}).eval()
    larger.load_state_dict(state)
    assert difference(read_checkpoint(tmp_path / "theirs", hints=Hints(image_size=(40, 56))), larger) <= 1e-5


def test_weights_that_were_trained_with_another_gelu_are_those_of_timms_notes() -> None:
    configs = timm.models.vision_transformer.default_cfgs
    noted = {
        name: tuple(tag for tag, data in each.cfgs.items() if data.notes and "QuickGELU" in data.notes[0])
        for name, each in configs.items()
        if "quickgelu" not in name
    }
    expected = {name: sorted(tags) for name, tags in noted.items() if tags}
    assert {name: sorted(tags) for name, tags in QUICK_GELU.items()} == expected


def test_replaced_names_are_read_as_timm_reads_them() -> None:
    replaced = timm.models._registry._deprecated_models
    mapped = 0
    for old, new in replaced.items():
        if timm.models._registry._model_to_module.get(old) in MODULES:
            try:
                assert named_arguments(old) == named_arguments(new), old
                mapped += 1
            except WeightsError:
                pass
    assert mapped == 32  # the others are distilled, and two hybrids with names of their own


TANH = ["vit_base_patch32_siglip_256", "vit_base_patch32_siglip_gap_256"]


@pytest.mark.parametrize("name", [*LOOKALIKES, *TANH, "vit_base_patch16_gap_224", "test_vit3"])
def test_a_bare_file_names_what_else_it_may_be(name: str) -> None:
    """At full size, without numbers: only keys and shapes are looked at."""
    with torch.device("meta"):
        state = timm.create_model(name, num_classes=5).state_dict()
    raw = Raw(path=Path("model.safetensors"), tensors=state, sidecars={})
    assert recognises(state)
    hints = Hints(heads=3) if name == "test_vit3" else Hints()  # of an unpublished size
    config = infer_config(raw, hints)
    (note,) = [note for note in assumptions(config, hints) if note.startswith("these models of timm")]
    traits = {"vit_base_patch16_gap_224": "heads 16", "test_vit3": "pool_prefix True", **OTHERS}
    trait = traits.get(name, "activation gelu_tanh")
    assert f"{name} ({trait})" in note


ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "num_heads": st.sampled_from([1, 2, 4, 6]),
    "mlp_ratio": st.sampled_from([2, 3.3, 4.0]),
    "qkv_bias": st.booleans(),
    "qk_norm": st.booleans(),
    "init_values": st.sampled_from([None, 0.1, 0.0]),
    "class_token": st.booleans(),
    "reg_tokens": st.sampled_from([0, 1, 3]),
    "no_embed_class": st.booleans(),
    "pos_embed": st.sampled_from(["learn", "learn", "none", ""]),
    "global_pool": st.sampled_from(["token", "avg", "map", "token", "avg", "map", "max", "avgmax", ""]),
    "fc_norm": st.sampled_from([None, True, False]),
    "act_layer": st.sampled_from(["gelu", "gelu_tanh", "gelu", "gelu_tanh", "relu", "silu", "quick_gelu"]),
    "norm_layer": st.sampled_from([None, "layernorm", "rmsnorm", "layernormfp32", "simplenorm"]),
    "attn_layer": st.sampled_from(["", "attn", "attn", "diff"]),
    "img_size": st.sampled_from([32, 32, [32, 48], 36]),
    "patch_size": st.sampled_from([8, 8, 16, [8, 16]]),
    "in_chans": st.sampled_from([1, 3, 4]),
    "dynamic_img_size": st.booleans(),
    "dynamic_img_pad": st.booleans(),
    "drop_path_rate": st.just(0.2),
    "weight_init": st.sampled_from(["", "jax", "skip"]),
}
RARE: dict[str, st.SearchStrategy[Any]] = {
    "pool_include_prefix": st.booleans(),
    "scale_attn_norm": st.booleans(),
    "scale_mlp_norm": st.booleans(),
    "proj_bias": st.booleans(),
    "pre_norm": st.booleans(),
    "final_norm": st.booleans(),
    "embed_norm_layer": st.sampled_from([None, "layernorm", "rmsnorm"]),
}
BASES = ("vit_base_patch16_224", "vit_tiny_patch16_224", "vit_base_patch16_siglip_224", "vit_base_patch32_siglip_256")
BASES += ("vit_medium_patch16_gap_256", "deit3_small_patch16_224", "vit_base_patch14_reg4_dinov2", "test_vit2")
BASES += ("vit_base_patch16_rpn_224", "test_vit3", "eva_large_patch14_196", "vit_base_patch16_clip_224")
BASES += ("vit_base_patch32_clip_quickgelu_224", "beit3_base_patch16_224", "aimv2_large_patch14_224", "test_vit4")
BASES += ("naflexvit_base_patch16_gap", "naflexvit_base_patch16_siglip")
BASES += ("deit_tiny_distilled_patch16_224", "vit_intern300m_patch14_448", "vit_dwee_patch16_reg1_gap_256")


@st.composite
def model_arguments(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(sorted(ARGUMENTS)), max_size=6))
    names |= draw(st.sets(st.sampled_from(sorted(RARE)), max_size=2)) if draw(st.booleans()) else set()
    given = {name: draw({**ARGUMENTS, **RARE}[name]) for name in sorted(names)}
    return {**TINY, "num_heads": 4, **given}


def one_model(base: str, arguments: dict[str, Any], omitted: set[str]) -> str:
    """Whether a model is `agreed` on, `refused`, or `impossible` in timm itself; fails on a silent difference.

    The `omitted` arguments are not written to `config.json`, so that it may describe another model than the weights.
    """
    try:
        model = randomize(timm.create_model(base, **arguments)).eval()
    except Exception:
        return "impossible"
    with TemporaryDirectory() as path:
        folder = Path(path)
        save(model, folder, {name: value for name, value in arguments.items() if name not in omitted})
        peer = build_again(folder, model.state_dict())
        try:
            checkpoint = read_checkpoint(folder)
        except VitrailError:
            return "refused"
        assert peer is not None, f"timm cannot build {base} from this config.json: {arguments}, without {omitted}"
        assert difference(checkpoint, peer) <= 1e-5
        try:
            write_checkpoint(checkpoint, folder / "ours", "timm")
        except WeightsError as error:
            assert "timm cannot hold this model" in str(error)  # noqa: PT017
            return "agreed"
        again = timm.create_model(f"local-dir:{folder / 'ours'}", pretrained=True).eval()
        assert difference(checkpoint, again) <= 1e-5
    return "agreed"


def test_any_model_arguments_agree_or_are_refused() -> None:
    results: Counter[str] = Counter()

    @settings(max_examples=cases(40))
    @given(
        base=st.sampled_from(BASES),
        arguments=model_arguments(),
        omitted=st.sets(st.sampled_from(sorted({**ARGUMENTS, **TINY})), max_size=2).flatmap(
            lambda names: st.sampled_from([set[str](), set[str](), names])
        ),
    )
    def run(base: str, arguments: dict[str, Any], omitted: set[str]) -> None:
        results[one_model(base, arguments, omitted)] += 1

    run()
    assert results["agreed"] >= 10
    assert results["refused"] >= 5


DATA: dict[str, st.SearchStrategy[Any]] = {
    "input_size": st.sampled_from([[3, 32, 32], [3, 32, 32], [3, 32, 48], [3, 40, 40], [3, 64, 32], [1, 32, 32]]),
    "fixed_input_size": st.booleans(),
    "interpolation": st.sampled_from(
        ["bicubic", "bilinear", "nearest", "lanczos", "box", "hamming", "random", "", None]
    ),
    "crop_pct": st.sampled_from([0.875, 0.9, 0.95, 1.0, 0.5, 1 / 3, 1.1, 0, None]),
    "crop_mode": st.sampled_from(["center", "squash", "border", "", None]),
    "mean": st.sampled_from([[0.1, 0.2, 0.3], [0.5], [0.5, 0.5], [], None, [0, 0, 0]]),
    "std": st.sampled_from([[0.5, 0.6, 0.7], [0.5], [1, 1, 1], [0.5, 0.5], None]),
    "test_input_size": st.just([3, 64, 64]),
    "test_crop_pct": st.just(1.0),
    "min_input_size": st.just([3, 16, 16]),
    "custom_load": st.just(False),
    "label_offset": st.sampled_from([0, 1]),
    "classifier": st.sampled_from(["head", "fc"]),
    "license": st.just("mit"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A tiny model that takes 32×32 pixels, and one that takes any size."""
    made: dict[bool, Path] = {}
    for dynamic in (False, True):
        made[dynamic] = tmp_path_factory.mktemp("dynamic" if dynamic else "fixed")
        arguments = {**TINY, "num_heads": 4, "in_chans": 3, "dynamic_img_size": dynamic}
        save(randomize(timm.create_model("vit_tiny_patch16_224", **arguments)), made[dynamic], arguments)
    return made


def one_transform(folder: Path, data: dict[str, Any], picture: Image.Image) -> str:
    facts = json.loads((folder / "config.json").read_text()) | {"pretrained_cfg": data}
    (folder / "config.json").write_text(json.dumps(facts))
    try:
        checkpoint = read_checkpoint(folder)
    except VitrailError:
        return "refused"
    model = timm.create_model(f"local-dir:{folder}", pretrained=False)
    config = timm.data.resolve_data_config({}, model=model)
    expected = timm.data.create_transform(**config, is_training=False)(picture)
    if checkpoint.notes:
        return "noted"
    ours = prepare(picture, checkpoint.preprocess)
    assert ours.shape == expected.shape
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    return "agreed"


def test_any_transform_agrees_or_is_refused(folders: dict[bool, Path]) -> None:
    results: Counter[str] = Counter()
    noise = np.random.default_rng(0)

    @settings(max_examples=cases(60))
    @given(
        dynamic=st.booleans(),
        data=st.fixed_dictionaries({}, optional=DATA),
        size=st.tuples(st.integers(20, 90), st.integers(20, 90)),
    )
    def run(dynamic: bool, data: dict[str, Any], size: tuple[int, int]) -> None:
        picture = Image.fromarray(noise.integers(0, 256, (*size, 3), dtype=np.uint8))
        results[one_transform(folders[dynamic], {"input_size": [3, 32, 32], **data}, picture)] += 1

    run()
    assert results["agreed"] > 10
    assert results["refused"] > 10


def tiny(folder: Path, **changes: Any) -> nn.Module:
    arguments = {**TINY, "num_heads": 4, **changes}
    peer = randomize(timm.create_model("vit_tiny_patch16_224", **arguments)).eval()
    save(peer, folder, arguments)
    edit(folder, {}, {"input_size": [arguments.get("in_chans", 3), *peer.patch_embed.img_size]})
    return peer


def test_statistics_for_other_channels_are_noted(tmp_path: Path) -> None:
    peer = tiny(tmp_path, in_chans=1)
    edit(tmp_path, {}, {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]})
    checkpoint = read_checkpoint(tmp_path)
    assert difference(checkpoint, peer) <= 1e-5
    assert checkpoint.preprocess.mean == pytest.approx((0.2,))
    assert "the model has 1: assumed their average" in checkpoint.notes[0]


def test_a_model_for_any_size_at_the_size_of_its_data(tmp_path: Path) -> None:
    peer = tiny(tmp_path / "theirs", dynamic_img_size=True)
    edit(tmp_path / "theirs", {}, {"input_size": [3, 48, 64]})
    checkpoint = read_checkpoint(tmp_path / "theirs")
    write_checkpoint(checkpoint, tmp_path / "ours", "timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    assert read_checkpoint(tmp_path / "ours").preprocess == checkpoint.preprocess
    images = torch.randn(2, 3, *checkpoint.preprocess.size)
    with torch.inference_mode():
        expected = peer(images)
        torch.testing.assert_close(checkpoint.build()(images), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(again(images), expected, rtol=1e-5, atol=1e-5)


def test_the_first_form_of_config_json(tmp_path: Path) -> None:
    """All in one object, with `labels`."""
    peer = randomize(timm.create_model("test_vit", num_classes=2, img_size=32)).eval()
    save_file(peer.state_dict(), tmp_path / "model.safetensors")
    facts = {"architecture": "test_vit", "num_classes": 2, "input_size": [3, 32, 32], "fixed_input_size": True}
    (tmp_path / "config.json").write_text(json.dumps({**facts, "labels": ["cat", "dog"], "num_features": 64}))
    checkpoint = read_checkpoint(tmp_path)
    assert difference(checkpoint, peer) <= 1e-5
    assert checkpoint.classes == ("cat", "dog")


@pytest.mark.parametrize("changes", [{}, {"act_layer": "gelu_tanh"}, {"global_pool": "avg"}, {"img_size": [32, 48]}])
def test_the_line_that_loads_what_we_wrote_runs(tmp_path: Path, changes: dict[str, Any]) -> None:
    peer = tiny(tmp_path / "theirs", **changes)
    checkpoint = read_checkpoint(tmp_path / "theirs")
    for target in (tmp_path / "folder", tmp_path / "file.safetensors"):
        write_checkpoint(checkpoint, target, "timm")
        loaded = eval(how_to_load(checkpoint, target), {"timm": timm}).eval()
        assert difference(checkpoint, loaded) <= 1e-5
        for name, tensor in peer.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor)
    again = read_checkpoint(tmp_path / "folder")
    assert (again.config, again.preprocess, again.notes) == (checkpoint.config, checkpoint.preprocess, ())


def test_a_scale_of_its_own_is_read_with_a_hint(tmp_path: Path) -> None:
    """As the `qk_scale` of the well-known write-ups, which no key of their files tells."""
    peer = randomize(timm.create_model("vit_tiny_patch16_224", **TINY, num_heads=4)).eval()
    for block in peer.blocks:
        block.attn.fused_attn, block.attn.scale = False, 0.7
    save_file(peer.state_dict(), tmp_path / "a.safetensors")
    assert difference(read_checkpoint(tmp_path / "a.safetensors", hints=Hints(heads=4)), peer) > 1e-3
    scaled = read_checkpoint(tmp_path / "a.safetensors", hints=Hints(heads=4, attention_scale=0.7))
    assert difference(scaled, peer) <= 1e-5
    write_checkpoint(scaled, tmp_path / "ours.safetensors")
    assert difference(read_checkpoint(tmp_path / "ours.safetensors"), peer) <= 1e-5


def test_the_folder_that_transformers_writes(tmp_path: Path) -> None:
    """Its TimmWrapper adds keys of its own to timm's `config.json`."""
    peer = tiny(tmp_path)
    facts = transformers.TimmWrapperConfig(architecture="vit_tiny_patch16_224").to_dict()
    added = {name: value for name, value in facts.items() if name not in ("num_classes", "label_names", "model_args")}
    edit(tmp_path, added, {})
    assert difference(read_checkpoint(tmp_path), peer) <= 1e-5


def clip_tower(folder: Path, name: str = "vit_base_patch16_clip_224", **data: Any) -> nn.Module:
    """A CLIP tower of timm, whose head is the projection."""
    arguments = {**TINY, "num_heads": 4}
    peer = randomize(timm.create_model(name, **arguments)).eval()
    nn.init.zeros_(peer.head.bias)
    save(peer, folder, arguments)
    edit(folder, {}, {"input_size": [3, 32, 32], **data})
    return peer


def test_the_projection_of_a_clip_tower(tmp_path: Path) -> None:
    """timm calls it the head, and gives it a bias of zeros; with names of classes it is one."""
    peer = clip_tower(tmp_path / "theirs")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    assert (checkpoint.config.projection, checkpoint.config.num_classes) == (5, 0)
    assert difference(checkpoint, peer) <= 1e-5
    for target in ("folder", "file.safetensors", "file.pth"):
        written = convert(tmp_path / "theirs", tmp_path / target, "timm", verify_with_peer=True)
        assert written.peer is not None
        assert written.source_peer is not None
    state = load_file(tmp_path / "file.safetensors")
    assert state.keys() == peer.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in peer.state_dict().items())
    edit(tmp_path / "theirs", {"label_names": list("abcde")}, {})
    named = read_checkpoint(tmp_path / "theirs")
    assert (named.config.projection, named.config.num_classes, named.classes) == (None, 5, tuple("abcde"))
    assert difference(named, peer) <= 1e-5


def test_weights_under_a_name_with_another_gelu_are_noted(tmp_path: Path) -> None:
    peer = clip_tower(tmp_path, tag="openai")
    (note,) = read_checkpoint(tmp_path).notes
    assert "vit_base_patch16_clip_224.openai was trained with quick_gelu" in note
    assert difference(read_checkpoint(tmp_path), peer) <= 1e-5
    chosen = read_checkpoint(tmp_path, hints=Hints(activation="quick_gelu"))
    assert chosen.notes == ()
    twin = timm.create_model("vit_base_patch16_clip_quickgelu_224", **TINY, num_heads=4).eval()
    twin.load_state_dict(peer.state_dict())
    assert difference(chosen, twin) <= 1e-5
    for tag in ("laion2b", "openai_ft_in1k"):
        edit(tmp_path, {}, {"tag": tag})
        assert read_checkpoint(tmp_path).notes == ()


@pytest.mark.parametrize(
    "name", ["deit_tiny_distilled_patch16_224", "beit3_base_patch16_224", "aimv2_large_patch14_224", "test_vit3"]
)
def test_what_was_converted_runs_in_timm(tmp_path: Path, name: str) -> None:
    arguments = {**TINY, "num_heads": 4}
    peer = randomize(timm.create_model(name, **arguments)).eval()
    save(peer, tmp_path / "theirs", arguments)
    edit(tmp_path / "theirs", {}, {"input_size": [3, 32, 32]})
    convert(tmp_path / "theirs", tmp_path / "ours.safetensors", verify_with_peer=True)
    back = convert(tmp_path / "ours.safetensors", tmp_path / "folder", "timm", verify_with_peer=True)
    assert back.peer is not None
    assert difference(read_checkpoint(tmp_path / "folder"), peer) <= 1e-5


BLOCKS = st.fixed_dictionaries(
    {"layer_scale": st.sampled_from([None, 0.1]), "activation": st.sampled_from(["gelu", "gelu_tanh", "quick_gelu"])},
    optional={
        "qkv_bias": st.booleans(),
        "qk_norm": st.booleans(),
        "norm_eps": st.sampled_from([1e-6, 1e-5, 1e-3]),
        "mlp": st.sampled_from(["plain", "swiglu"]),
        "norm": st.sampled_from(["layer", "rms"]),
        "proj_bias": st.booleans(),
        "attention_norm": st.booleans(),
        "mlp_norm": st.booleans(),
    },
)
FIELDS = st.fixed_dictionaries(
    {"num_classes": st.sampled_from([0, 5]), "registers": st.sampled_from([0, 0, 1, 3])},
    optional={
        "class_token": st.booleans(),
        "pooling": st.sampled_from(["cls", "mean", "map"]),
        "pool_norm": st.sampled_from(["before", "after", "none"]),
        "patch_norm": st.booleans(),
        "pool_prefix": st.booleans(),
        "projection": st.just(7),
        "relative": st.sampled_from([RelativeBias(), RelativeBias(shared=True)]),
    },
)


def test_what_it_says_it_holds_is_held() -> None:
    """Any model that is written as a folder of timm is there what it is here; any other is refused before."""
    results: Counter[str] = Counter()

    @settings(max_examples=cases(25))
    @given(block=BLOCKS, fields=FIELDS, pre_norm=st.booleans(), covers=st.sampled_from(["patches", "class", "all"]))
    def run(block: dict[str, Any], fields: dict[str, Any], pre_norm: bool, covers: Any) -> None:
        kind = "none" if "relative" in fields else "learned"
        try:
            config = ViTConfig(
                image_size=(32, 32),
                patch_size=(8, 8),
                width=32,
                depth=2,
                heads=4,
                block=BlockConfig(**block),
                positions=PositionConfig(kind=kind, covers=covers, resample="timm"),
                pre_norm=pre_norm,
                patch_bias=not pre_norm,
                **fields,
            )
        except ConfigError:
            return
        if FORMATS["timm"].refusals(config):
            results["refused"] += 1
            return
        weights = randomize(ViT(config)).state_dict()
        checkpoint = Checkpoint(config=config, tensors=weights, preprocess=preset("timm", (32, 32)))
        with TemporaryDirectory() as folder:
            write_checkpoint(checkpoint, Path(folder, "ours"), "timm")
            peer = timm.create_model(f"local-dir:{Path(folder, 'ours')}", pretrained=True).eval()
            assert difference(checkpoint, peer) <= 1e-5
            assert read_checkpoint(Path(folder, "ours")).config.projection == config.projection
        results["held"] += 1

    run()
    assert results["held"] >= 3
    assert results["refused"] >= 3


def test_a_file_that_would_be_read_as_another_model_is_not_written(tmp_path: Path) -> None:
    arguments = {**TINY, "num_heads": 4}
    for name, changes, message in (
        ("test_vit3", {}, "do not tell that .* are pooled too; write a folder"),
        ("vit_base_patch16_clip_224", {"final_norm": False}, "those of a Perception Encoder; write a folder"),
    ):
        save(timm.create_model(name, **arguments, **changes), tmp_path / name, {**arguments, **changes})
        with pytest.raises(WeightsError, match=message):
            write_checkpoint(read_checkpoint(tmp_path / name), tmp_path / "a.safetensors", "timm")
