"""timm's `Eva` and `Beit` compute here what they compute in timm, with every weight random, or they are refused.

DINOv3, EVA-02, BEiT, Perception Encoders, rope-vit: each registered name, shrunk, from its folder and from a bare file.
"""

import inspect
import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from benchmarks.peers import timm
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conftest import randomize
from fuzzing import cases
from vitrail.data.preprocess import preset
from vitrail.errors import ConfigError, VitrailError, WeightsError
from vitrail.model import BlockConfig, PositionConfig, ViT, ViTConfig
from vitrail.model.parts import RelativeBias, Rope
from vitrail.weights.adapt import compute_periods
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.timm import how_to_load, recognises
from vitrail.weights.foreign.timm_eva import infer_model, is_meant, usual_preprocess
from vitrail.weights.foreign.timm_eva_config import is_eva
from vitrail.weights.foreign.timm_eva_names import BEIT_NAMES, EVA_LOOKALIKES, EVA_NAMES, TRAINING
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.read import FORMATS, read_checkpoint
from vitrail.weights.write import convert, write_checkpoint

CLASSES = {"eva": timm.models.eva.Eva, "beit": timm.models.beit.Beit}
REGISTERED = [name for module in CLASSES for name in timm.list_models(module=module)]
NAMES = {**EVA_NAMES, **BEIT_NAMES}
# One name for each way in which they compute something, or spell it.
FAMILIES = [
    "vit_small_patch16_dinov3",
    "vit_small_plus_patch16_dinov3_qkvb",
    "vit_giant_patch16_lingbot",
    "eva_giant_patch14_clip_224",
    "eva02_tiny_patch14_224",
    "eva02_base_patch14_448",
    "eva02_base_patch16_clip_224",
    "vit_mediumd_patch16_rope_reg1_gap_256",
    "vit_base_patch16_rope_224",
    "vit_base_patch16_rope_mixed_ape_224",
    "vit_pe_core_base_patch16_224",
    "vit_pe_core_gigantic_patch14_448",
    "vit_pe_spatial_gigantic_patch14_448",
    "beit_base_patch16_224",
]


def shrink(name: str) -> dict[str, Any]:
    patch = 14 if "patch14" in name else 16
    more = {"num_kv_heads": 4} if "sapiens2" in name else {}
    return {"embed_dim": 32, "depth": 2, "num_heads": 4, "img_size": 3 * patch, "num_classes": 5, **more}


def save(model: nn.Module, folder: Path, arguments: dict[str, Any]) -> None:
    timm.models.save_for_hf(model, folder, model_config={}, model_args=arguments, safe_serialization=True)


def make(name: str, folder: Path, **changes: Any) -> nn.Module:
    """A model of this name with random weights, and the folder that timm writes."""
    arguments = {**shrink(name), **changes}
    peer = randomize(timm.create_model(name, **arguments)).eval()
    save(peer, folder, arguments)
    facts = json.loads((folder / "config.json").read_text())
    facts["pretrained_cfg"]["input_size"] = [3, *peer.patch_embed.img_size]  # as its data was, at this size
    (folder / "config.json").write_text(json.dumps(facts))
    return peer


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


class _RecordedError(Exception):
    pass


@pytest.mark.parametrize("module", CLASSES)
def test_the_table_of_names_is_timms(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    parameters = inspect.signature(CLASSES[module].__init__).parameters
    signature = {name: parameter.default for name, parameter in parameters.items() if name != "self"}
    norm = signature.pop("norm_layer")
    given: dict[str, Any] = {}

    def record(self: nn.Module, **arguments: Any) -> None:
        given.clear()
        given.update(arguments)
        raise _RecordedError

    monkeypatch.setattr(CLASSES[module], "__init__", record)
    for name in timm.list_models(module=module):
        with pytest.raises(_RecordedError):
            timm.create_model(name, pretrained_cfg={"num_classes": 1000})
        if name not in NAMES:
            assert name in EVA_LOOKALIKES or name.endswith("sapiens2")
            continue
        ours = dict(NAMES[name])
        theirs = given.pop("norm_layer", norm)
        eps = theirs.keywords["eps"] if theirs is not norm else 1e-6
        assert ours.pop("norm_eps", 1e-6) == eps, name
        assert signature.keys() - TRAINING - {"device", "dtype"} == ours.keys()
        for argument in ours:
            assert ours[argument] == pytest.approx(given.get(argument, signature[argument])), (name, argument)


@pytest.mark.parametrize("name", REGISTERED)
def test_every_registered_name_agrees_or_is_refused(tmp_path: Path, name: str) -> None:
    """At its own size; and, with the same weights, at another one that is not square."""
    peer = make(name, tmp_path)
    if name not in NAMES:
        with pytest.raises(WeightsError, match=f"timm's {name} has .*, which our model does not compute"):
            read_checkpoint(tmp_path)
        return
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.notes == ()
    model, patch = checkpoint.build(), checkpoint.config.patch_size[0]
    with torch.inference_mode():
        images = torch.randn(2, 3, 3 * patch, 3 * patch)
        assert_same(model(images), peer(images))
        if name in EVA_NAMES:  # BEiT takes one size only
            dynamic = timm.create_model(name, **shrink(name), dynamic_img_size=True).eval()
            dynamic.load_state_dict(peer.state_dict())
            images = torch.randn(2, 3, 2 * patch, 5 * patch)
            assert_same(model(images), dynamic(images))


def test_counts_of_registered_names() -> None:
    assert len(set(REGISTERED) & NAMES.keys()) == len(NAMES) == 66
    assert len(REGISTERED) == 72  # an EVA-02 with norms after its branches, and five Sapiens2


@pytest.mark.parametrize("name", FAMILIES)
def test_what_we_write_is_what_timm_wrote(tmp_path: Path, name: str) -> None:
    """To the bit, key by key; and timm builds it from our `config.json`, and with the line that we show."""
    peer = make(name, tmp_path / "theirs")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    for target in (tmp_path / "folder", tmp_path / "file.safetensors"):
        write_checkpoint(checkpoint, target, "timm")
        written = load_file(target if target.suffix else target / "model.safetensors")
        assert written.keys() == peer.state_dict().keys()
        assert all(torch.equal(written[key], tensor) for key, tensor in peer.state_dict().items())
        again = eval(how_to_load(checkpoint, target), {"timm": timm}).eval()
        images = torch.randn(2, 3, *checkpoint.config.image_size)
        with torch.inference_mode():
            torch.testing.assert_close(again(images), peer(images), rtol=0, atol=0)
    again = read_checkpoint(tmp_path / "folder")
    assert (again.config, again.preprocess, again.notes) == (checkpoint.config, checkpoint.preprocess, ())


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "eva02_base_patch14_448", "vit_pe_core_base_patch16_224"])
def test_a_bare_file_of_another_size_asks_for_its_name(tmp_path: Path, name: str) -> None:
    peer, path = make(name, tmp_path / "folder"), tmp_path / "bare.safetensors"
    save_file(peer.state_dict(), path)
    with pytest.raises(WeightsError, match=f"name its model in timm with architecture=, one of .*{name}"):
        read_checkpoint(path)
    with pytest.raises(WeightsError, match="pass heads="):
        read_checkpoint(path, hints=Hints(architecture=name))
    size = (3 * (14 if "patch14" in name else 16),) * 2
    checkpoint = read_checkpoint(path, hints=Hints(architecture=name, heads=4, image_size=size))
    assert checkpoint.config == read_checkpoint(tmp_path / "folder").config


def test_a_bare_beit_leaves_nothing_open(tmp_path: Path) -> None:
    """Its tables tell heads and grid. Its authors' files have an index beside each, which follows from the grid."""
    peer, path = make("beitv2_base_patch16_224", tmp_path / "folder"), tmp_path / "bare.safetensors"
    index = {f"blocks.{block}.attn.relative_position_index": torch.zeros(10, 10, dtype=torch.long) for block in (0, 1)}
    save_file({**peer.state_dict(), **index}, path)
    checkpoint = read_checkpoint(path, format_name="timm")
    assert (checkpoint.config.heads, checkpoint.config.grid) == (4, (3, 3))
    images = torch.randn(2, 3, 48, 48)
    with torch.inference_mode():
        assert_same(checkpoint.build()(images), peer(images))


def test_a_bare_beit_that_is_not_square(tmp_path: Path) -> None:
    peer, path = make("beit_base_patch16_224", tmp_path / "folder", img_size=(32, 48)), tmp_path / "bare.safetensors"
    save_file(peer.state_dict(), path)
    with pytest.raises(WeightsError, match="pass image_size="):
        read_checkpoint(path)
    checkpoint = read_checkpoint(path, hints=Hints(image_size=(32, 48)))
    images = torch.randn(2, 3, 32, 48)
    with torch.inference_mode():
        assert_same(checkpoint.build()(images), peer(images))


def test_one_table_for_all_blocks(tmp_path: Path) -> None:
    changes = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "use_abs_pos_emb": True}
    peer = make("beit_base_patch16_224", tmp_path / "theirs", **changes, global_pool="token")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    images = torch.randn(2, 3, 48, 48)
    with torch.inference_mode():
        assert_same(checkpoint.build()(images), peer(images))
    write_checkpoint(checkpoint, tmp_path / "ours", "timm")
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert all(torch.equal(written[key], tensor) for key, tensor in peer.state_dict().items())


ASKED = ["vit_base_patch16_lingbot", "vit_small_patch16_dinov3_qkvb", "vit_base_patch16_sapiens2", *EVA_LOOKALIKES]


@pytest.mark.parametrize("name", [*FAMILIES, *ASKED])
def test_a_bare_file_at_full_size(name: str) -> None:
    """Without numbers: only keys and shapes are looked at."""
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=5)
    state = model.state_dict()
    assert recognises(state)
    assert is_meant(state, None)
    raw = Raw(path=Path("model.safetensors"), tensors=state, sidecars={})
    if name.endswith("sapiens2"):
        with pytest.raises(WeightsError, match="Sapiens2"):
            infer_model(raw, Hints())
    elif name in EVA_LOOKALIKES:
        with pytest.raises(WeightsError, match=f"timm's {name} has a LayerNorm after each branch"):
            infer_model(raw, Hints())
    elif name.endswith("lingbot") and "giant" not in name:
        with pytest.raises(WeightsError, match=f"one of {name.replace('lingbot', 'dinov3_qkvb')}, {name}"):
            infer_model(raw, Hints())
        pooling, *_ = (infer_model(raw, Hints(pooling=pooling))[1].pooling for pooling in ("mean", "cls"))
        assert pooling == "mean"
    elif name.replace("dinov3_qkvb", "lingbot") in {*NAMES} - {name}:
        with pytest.raises(WeightsError, match=name):
            infer_model(raw, Hints())
    else:
        found, config, _ = infer_model(raw, Hints())
        assert config.heads == NAMES[name]["num_heads"]
        assert found == name or found.rsplit("_", 1)[0] == name.rsplit("_", 1)[0] or name.startswith("beitv2")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_bare_file_is_prepared_as_its_name_usually_is(name: str) -> None:
    if name.endswith(("lingbot", "448")) or "reg1" in name:  # squashed, or cropped otherwise: a note
        return
    usual = timm.get_pretrained_cfg(name)
    spec = usual_preprocess(name, ViTConfig(image_size=usual.input_size[1:]))
    assert (spec.mean, spec.std, spec.crop) == (usual.mean, usual.std, usual.crop_pct)


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "eva02_tiny_patch14_224", "beit_base_patch16_224"])
def test_conversion_with_proof_by_timm_itself(tmp_path: Path, name: str) -> None:
    make(name, tmp_path / "folder")
    convert(tmp_path / "folder", tmp_path / "ours.safetensors", verify_with_peer=True)
    for target in ("again", "bare.pth"):
        convert(tmp_path / "ours.safetensors", tmp_path / target, to="timm", verify_with_peer=True)


@pytest.mark.filterwarnings("ignore:.*mean and std")
def test_stored_periods_are_computed_for_timm(tmp_path: Path) -> None:
    """DINOv3's own files store them, rounded; timm computes them."""
    make("vit_small_patch16_dinov3", tmp_path / "folder", num_classes=0, global_pool="token")
    convert(tmp_path / "folder", tmp_path / "authors.pth", to="dinov3")
    state = torch.load(tmp_path / "authors.pth")
    state["rope_embed.periods"] = (state["rope_embed.periods"] * 1.005).bfloat16()
    torch.save(state, tmp_path / "authors.pth")
    with pytest.raises(WeightsError, match="it computes the periods of its rotary positions"):
        convert(tmp_path / "authors.pth", tmp_path / "again", to="timm", hints=Hints(heads=4))
    target = tmp_path / "timm"
    convert(tmp_path / "authors.pth", target, to="timm", hints=Hints(heads=4), change=compute_periods)
    before, after = (load_file(folder / "model.safetensors") for folder in (tmp_path / "folder", target))
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())


def test_an_unknown_name_is_suggested(tmp_path: Path) -> None:
    make("vit_small_patch16_dinov3", tmp_path / "folder")
    (tmp_path / "folder" / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"none that we know \(did you mean vit_small_patch16_224"):
        read_checkpoint(tmp_path / "folder", hints=Hints(architecture="vit_small_patch16_24"))


def test_a_file_cannot_hold_rotary_positions_that_no_name_stands_for(tmp_path: Path) -> None:
    make("vit_small_patch16_dinov3", tmp_path / "theirs", rope_temperature=50.0)
    checkpoint = read_checkpoint(tmp_path / "theirs")
    with pytest.raises(WeightsError, match="rope_temperature 50.0; write a folder"):
        write_checkpoint(checkpoint, tmp_path / "a.safetensors", "timm")
    write_checkpoint(checkpoint, tmp_path / "ours", "timm")
    assert read_checkpoint(tmp_path / "ours").config == checkpoint.config


def test_the_name_of_a_plain_vit_settles_what_its_keys_do_not_tell(tmp_path: Path) -> None:
    arguments = {"embed_dim": 48, "depth": 1, "img_size": 64, "num_classes": 5}
    peer = randomize(timm.create_model("vit_base_patch32_siglip_256", **arguments)).eval()
    save_file(peer.state_dict(), tmp_path / "a.safetensors")
    hints = Hints(architecture="vit_base_patch32_siglip_256.webli", heads=12)
    checkpoint = read_checkpoint(tmp_path / "a.safetensors", hints=hints)
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert_same(checkpoint.build()(images), peer(images))
    assert ["attention scale" in checkpoint.notes[0], "preprocessing" in checkpoint.notes[1]] == [True, True]


def test_an_architecture_belongs_to_timm(tmp_path: Path) -> None:
    make("vit_small_patch16_dinov3", tmp_path / "folder")
    write_checkpoint(read_checkpoint(tmp_path / "folder"), tmp_path / "ours.safetensors")
    with pytest.raises(WeightsError, match="architecture names a model of timm"):
        read_checkpoint(tmp_path / "ours.safetensors", hints=Hints(architecture="vit_small_patch16_dinov3"))


@pytest.mark.parametrize(
    ("base", "arguments", "message"),
    [
        ("vit_small_patch16_dinov3", {"rope_rotate_half": False}, "rope_rotate_half belongs to"),
        ("vit_small_patch16_dinov3", {"rope_grid_offset": 0.5}, "rope_grid_offset does not"),
        ("vit_small_patch16_dinov3", {"use_post_transformer_norm": True, "use_fc_norm": True}, "one last LayerNorm"),
        ("eva02_tiny_patch14_224", {"global_pool": "map"}, "plain MLPs"),
        ("eva02_tiny_patch14_224", {"global_pool": "max"}, "must be one of 'token', 'avg', 'map'"),
        ("eva_giant_patch14_224", {"use_post_norm": True}, "use_post_norm=True, which our model does not compute"),
        ("beit_base_patch16_224", {"use_shared_rel_pos_bias": True}, "not both"),
    ],
)
def test_arguments_that_our_model_does_not_compute(
    tmp_path: Path, base: str, arguments: dict[str, Any], message: str
) -> None:
    make(base, tmp_path, **arguments)
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(tmp_path)


def test_a_config_that_contradicts_itself_or_its_weights(tmp_path: Path) -> None:
    make("vit_small_patch16_dinov3", tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())

    def edit(**changes: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps({**facts, **changes}))

    edit(global_pool="token")
    with pytest.raises(WeightsError, match="timm builds vit_small_patch16_dinov3 with 'avg'"):
        read_checkpoint(tmp_path)
    assert read_checkpoint(tmp_path, hints=Hints(pooling="cls")).config.pooling == "cls"
    edit(num_features=64)
    with pytest.raises(WeightsError, match="embed_dim is 64 in one place and 32 in another"):
        read_checkpoint(tmp_path)
    edit(model_args={**facts["model_args"], "qkv_bias": True})
    with pytest.raises(WeightsError, match="missing blocks.0.attn.q_bias"):
        read_checkpoint(tmp_path)
    edit(model_args={**facts["model_args"], "mlp_ratio": 2.0})
    with pytest.raises(WeightsError, match=r"mlp\.fc1\.\S+ must have shape"):
        read_checkpoint(tmp_path)
    edit(model_args={**facts["model_args"], "gated_attn": True})
    with pytest.raises(WeightsError, match="gated_attn"):
        read_checkpoint(tmp_path)


ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "global_pool": st.sampled_from(["avg", "token", "map", "avg", "token", "map", "max", ""]),
    "qkv_bias": st.booleans(),
    "qkv_fused": st.booleans(),
    "qk_norm": st.booleans(),
    "mlp_ratio": st.sampled_from([2, 3.3, 4.0]),
    "swiglu_mlp": st.booleans(),
    "swiglu_align_to": st.sampled_from([0, 8]),
    "scale_mlp": st.booleans(),
    "scale_attn_inner": st.booleans(),
    "attn_type": st.sampled_from(["eva", "rope"]),
    "init_values": st.sampled_from([None, 0.1, 0.0]),
    "class_token": st.booleans(),
    "num_reg_tokens": st.sampled_from([0, 3]),
    "no_embed_class": st.booleans(),
    "use_abs_pos_emb": st.booleans(),
    "use_rot_pos_emb": st.booleans(),
    "rope_type": st.sampled_from(["cat", "mixed", "dinov3", "base"]),
    "rope_grid_offset": st.sampled_from([0.0, 1.0]),
    "rope_grid_indexing": st.sampled_from(["ij", "xy"]),
    "rope_temperature": st.sampled_from([10.0, 1000.0]),
    "rope_rotate_half": st.booleans(),
    "ref_feat_shape": st.sampled_from([None, [4, 2], 5]),
    "use_pre_transformer_norm": st.booleans(),
    "use_post_transformer_norm": st.sampled_from([None, True, False]),
    "use_fc_norm": st.sampled_from([None, True, False]),
    "attn_pool_num_heads": st.sampled_from([None, 2]),
    "attn_pool_mlp_ratio": st.sampled_from([None, 2.5]),
    "img_size": st.sampled_from([[32, 48], 48]),
    "dynamic_img_size": st.booleans(),
    "attn_only_layer_scale": st.booleans(),
    "use_post_norm": st.just(True),
    "use_rel_pos_bias": st.booleans(),
    "use_shared_rel_pos_bias": st.booleans(),
    "drop_path_rate": st.just(0.2),
}


def one_model(base: str, arguments: dict[str, Any], omitted: set[str]) -> str:
    """Whether a model is `agreed` on, `refused`, or `impossible` in timm itself; fails on a silent difference."""
    try:
        model = randomize(timm.create_model(base, **arguments)).eval()
    except Exception:
        return "impossible"
    with TemporaryDirectory() as path:
        folder = Path(path)
        save(model, folder, {name: value for name, value in arguments.items() if name not in omitted})
        try:
            checkpoint = read_checkpoint(folder)
        except VitrailError:
            return "refused"
        peer = timm.create_model(f"local-dir:{folder}").eval()
        peer.load_state_dict(model.state_dict())
        images = torch.randn(2, 3, *checkpoint.config.image_size)
        with torch.inference_mode():
            assert_same(checkpoint.build()(images), peer(images))
        if not is_eva(checkpoint.config) or FORMATS["timm"].refusals(checkpoint.config):
            return "agreed"  # without anything of these classes, it is written as a plain ViT, if at all
        write_checkpoint(checkpoint, folder / "again", "timm")
        written = load_file(folder / "again" / "model.safetensors")
        assert written.keys() == model.state_dict().keys()
        assert read_checkpoint(folder / "again").config == checkpoint.config
    return "agreed"


def test_any_model_arguments_agree_or_are_refused() -> None:
    results: Counter[str] = Counter()

    @settings(max_examples=cases(40))
    @given(
        base=st.sampled_from([name for name in FAMILIES if "patch16" in name]),
        names=st.sets(st.sampled_from(sorted(ARGUMENTS)), max_size=4),
        omitted=st.sampled_from([set[str](), set[str](), {"qkv_fused"}, {"rope_type"}, {"global_pool"}]),
        data=st.data(),
    )
    def run(base: str, names: set[str], omitted: set[str], data: st.DataObject) -> None:
        given = {name: data.draw(ARGUMENTS[name]) for name in sorted(names)}
        results[one_model(base, {**shrink(base), **given}, omitted)] += 1

    run()
    assert results["agreed"] >= 8
    assert results["refused"] >= 4


ROPES = st.builds(
    dict[str, Any],
    base=st.sampled_from([100.0, 10000.0]),
    coordinates=st.sampled_from(["unit", "index", "reference"]),
    offset=st.sampled_from([0.0, 0.0, 1.0]),
    order=st.sampled_from(["yx", "xy"]),
    pairing=st.sampled_from(["half", "interleaved"]),
    frequencies=st.sampled_from(["computed", "computed", "mixed", "stored"]),
)
BLOCKS: dict[str, st.SearchStrategy[Any]] = {
    "qkv_bias": st.booleans(),
    "key_bias": st.booleans(),
    "qk_norm": st.booleans(),
    "layer_scale": st.sampled_from([None, 1e-5]),
    "norm_eps": st.sampled_from([1e-6, 1e-5]),
    "mlp": st.sampled_from(["plain", "swiglu"]),
    "attention_norm": st.booleans(),
    "mlp_norm": st.booleans(),
}
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "class_token": st.booleans(),
    "registers": st.sampled_from([0, 3]),
    "pooling": st.sampled_from(["cls", "mean", "map"]),
    "pool_norm": st.sampled_from(["before", "after", "none"]),
    "pool_prefix": st.booleans(),
    "pool_heads": st.sampled_from([None, 2]),
    "pool_mlp_width": st.sampled_from([None, 40]),
    "mlp_width": st.just(44),
    "num_classes": st.sampled_from([0, 5]),
    "image_size": st.just((32, 48)),
}


def build(rope: dict[str, Any], table: bool | None, block: dict[str, Any], fields: dict[str, Any], covers: Any) -> Any:
    """A model with these options, or None if there is none."""
    reference = {"reference": (5, 3)} if rope["coordinates"] == "reference" else {}
    try:
        return ViTConfig(
            **{"image_size": (32, 32), "num_classes": 5, "mlp_width": 128, **fields},
            patch_size=(8, 8),
            width=32,
            depth=2,
            heads=4,
            block=BlockConfig(**block),
            positions=PositionConfig(kind=(covers and "learned") or "none", covers=covers or "all", resample="timm"),
            relative=Rope(**rope, **reference) if table is None else RelativeBias(shared=table),
        )
    except ConfigError:
        return None


def test_what_it_says_it_holds_is_held() -> None:
    """Any model that is written for timm, relative positions and all, is there what it is here; others are refused."""
    results: Counter[str] = Counter()

    @settings(max_examples=cases(40))
    @given(
        rope=ROPES,
        table=st.sampled_from([None, None, None, False, True]),
        block=st.fixed_dictionaries({}, optional=BLOCKS),
        fields=st.fixed_dictionaries({}, optional=FIELDS),
        pre_norm=st.sampled_from([False, False, True]),
        covers=st.sampled_from([None, "patches", "all"]),
    )
    def run(rope: Any, table: Any, block: Any, fields: Any, pre_norm: bool, covers: Any) -> None:
        norm = {"pre_norm": True, "patch_bias": False} if pre_norm else {}
        config = build(rope, table, block, {**fields, **norm}, covers)
        if config is None or FORMATS["timm"].refusals(config):
            results["refused"] += 1
            return
        checkpoint = Checkpoint(
            config=config,
            tensors=randomize(ViT(config)).state_dict(),
            preprocess=preset("timm", config.image_size),
        )
        with TemporaryDirectory() as path:
            write_checkpoint(checkpoint, Path(path, "ours"), "timm")
            peer = timm.create_model(f"local-dir:{Path(path, 'ours')}", pretrained=True).eval()
            images = torch.randn(2, 3, *config.image_size)
            with torch.inference_mode():
                assert_same(checkpoint.build()(images), peer(images))
            assert read_checkpoint(Path(path, "ours")).config == config
        results["held"] += 1

    run()
    assert results["held"] >= 3
    assert results["refused"] >= 3
