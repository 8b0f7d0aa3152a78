"""Every family of transformers, with every weight random: what transformers computes, we compute, and write back.

Each case lets transformers build and save a model, compares at its own size and at others, and writes it back key by
key; then again with the names of the modules, and without `config.json`.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from benchmarks.peers import transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images
from torch import Tensor

from conftest import randomize
from fuzzing import SEED, cases
from vitrail.data.preprocess import preset
from vitrail.data.transform import prepare
from vitrail.errors import AssumptionWarning, ConfigError, WeightsError
from vitrail.model import ViT
from vitrail.model.parts import NoRelative, RelativeBias, Rope
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.huggingface_config import FAMILIES, family_for
from vitrail.weights.foreign.huggingface_family import Family
from vitrail.weights.infer import Hints
from vitrail.weights.peers import build_peer
from vitrail.weights.read import FORMATS, read_checkpoint
from vitrail.weights.sanity import diagnose
from vitrail.weights.write import convert, write_checkpoint

TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "patch_size": 8,
}
SIZES: dict[str, Any] = {**TOWER, "image_size": 32}
NAFLEX: dict[str, Any] = {**TOWER, "num_patches": 16}
TEXT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 16}
CLASSES = {"num_labels": 7}
TINY_DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_attention_heads": 2,
    "decoder_num_hidden_layers": 1,
    "decoder_intermediate_size": 16,
}
Maker = Callable[[], Any]


def make(name: str, config: str, **fields: Any) -> Maker:
    return lambda: getattr(hf, name)(getattr(hf, f"{config}Config")(**fields))


def make_towers(name: str, config: str, vision: dict[str, Any] = SIZES, **fields: Any) -> Maker:
    return make(name, config, vision_config=vision, text_config=TEXT, **fields)


def logits(model: Any, **inputs: Any) -> Tensor:
    return model(**inputs).logits


def pooled(model: Any, **inputs: Any) -> Tensor:
    return model(**inputs).pooler_output


def first(model: Any, **inputs: Any) -> Tensor:
    return model(**inputs).last_hidden_state[:, 0]


def mean(model: Any, **inputs: Any) -> Tensor:
    return model(**inputs).last_hidden_state.mean(dim=1)


def mean_patch(model: Any, **inputs: Any) -> Tensor:
    return model(**inputs).last_hidden_state[:, 1:].mean(dim=1)


def embedded(model: Any, **inputs: Any) -> Tensor:
    return model.get_image_features(**inputs).pooler_output


def projected(model: Any, **inputs: Any) -> Tensor:
    return model(**inputs).image_embeds


def masked(model: Any, **inputs: Any) -> Tensor:
    """Of a masked autoencoder's encoder, which must not drop patches."""
    encoder = getattr(model, "vit", model)
    encoder.config.mask_ratio = 0.0
    return first(encoder, **inputs)


BIAS, SHARED = {"use_relative_position_bias": True}, {"use_shared_relative_position_bias": True}
CLS = {"use_mean_pooling": False}
# What transformers builds, where it gives what we compute, and whether it fits positions to a size: "" if by itself,
# None if not at all.
ASKED = "interpolate_pos_encoding"
CASES: dict[str, tuple[Maker, Callable[..., Tensor], str | None]] = {
    "ViT": (make("ViTForImageClassification", "ViT", **SIZES, **CLASSES), logits, ASKED),
    "DINOv3": (make("DINOv3ViTModel", "DINOv3ViT", **SIZES, num_register_tokens=3), pooled, ""),
    "DINOv3, gated": (
        make("DINOv3ViTModel", "DINOv3ViT", **SIZES, use_gated_mlp=True, hidden_act="silu", mlp_bias=False),
        pooled,
        "",
    ),
    "DINOv3, all biases": (make("DINOv3ViTModel", "DINOv3ViT", **SIZES, key_bias=True, rope_theta=50.0), pooled, ""),
    "CLIP": (make("CLIPVisionModel", "CLIPVision", **SIZES), pooled, ASKED),
    "CLIP, erf": (make("CLIPVisionModel", "CLIPVision", **SIZES, hidden_act="gelu"), pooled, ASKED),
    "CLIP, projection": (
        make("CLIPVisionModelWithProjection", "CLIPVision", **SIZES, projection_dim=24),
        projected,
        ASKED,
    ),
    "CLIP, both towers": (make_towers("CLIPModel", "CLIP", projection_dim=24), embedded, ASKED),
    "CLIP, classifier": (make_towers("CLIPForImageClassification", "CLIP", **CLASSES), logits, ASKED),
    "MetaCLIP 2": (make_towers("MetaClip2Model", "MetaClip2", projection_dim=24), embedded, ASKED),
    "MetaCLIP 2, classifier": (make_towers("MetaClip2ForImageClassification", "MetaClip2", **CLASSES), logits, ASKED),
    "SigLIP": (make("SiglipVisionModel", "SiglipVision", **SIZES), pooled, ASKED),
    "SigLIP, no pooling": (make("SiglipVisionModel", "SiglipVision", **SIZES, vision_use_head=False), mean, ASKED),
    "SigLIP, both towers": (make_towers("SiglipModel", "Siglip"), embedded, ASKED),
    "SigLIP, classifier": (make_towers("SiglipForImageClassification", "Siglip", **CLASSES), logits, ASKED),
    "BEiT, a table each": (make("BeitForImageClassification", "Beit", **SIZES, **BIAS, **CLASSES), logits, ""),
    "BEiT, one table": (
        make("BeitModel", "Beit", **SIZES, **SHARED, **CLS, use_absolute_position_embeddings=True, use_mask_token=True),
        pooled,
        "",
    ),
    "BEiT, no layer scale": (make("BeitModel", "Beit", **SIZES, **BIAS, layer_scale_init_value=0.0), pooled, ""),
    "data2vec": (
        make("Data2VecVisionForImageClassification", "Data2VecVision", **SIZES, **BIAS, **CLASSES),
        logits,
        "",
    ),
    "data2vec, no norm": (make("Data2VecVisionModel", "Data2VecVision", **SIZES, **SHARED), mean_patch, ""),
    "DeiT, distilled": (make("DeiTForImageClassificationWithTeacher", "DeiT", **SIZES, **CLASSES), logits, ASKED),
    "DeiT, one head": (make("DeiTForImageClassification", "DeiT", **SIZES, **CLASSES), logits, ASKED),
    "DeiT, pooler": (make("DeiTModel", "DeiT", **SIZES), pooled, ASKED),
    "MAE": (make("ViTMAEForPreTraining", "ViTMAE", **SIZES, **TINY_DECODER), masked, ASKED),
    "MSN": (make("ViTMSNForImageClassification", "ViTMSN", **SIZES, **CLASSES), logits, ASKED),
    "I-JEPA": (make("IJepaForImageClassification", "IJepa", **SIZES, **CLASSES), logits, ASKED),
    "I-JEPA, features": (make("IJepaModel", "IJepa", **SIZES), mean, ASKED),
    "AIMv2": (make("Aimv2VisionModel", "Aimv2Vision", **SIZES, use_head=False), mean, None),
}
BESIDE = ("text_model.", "text_projection.", "decoder.", "logit_")  # what is not part of the model, and not written


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    scale = theirs.abs().max()
    assert scale > 0.1
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-5 * scale


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_every_class_at_any_size_and_back(tmp_path: Path, case: str) -> None:
    maker, answer, asked = CASES[case]
    peer = randomize(maker()).eval()
    peer.save_pretrained(tmp_path / "saved")
    checkpoint = read_checkpoint(tmp_path / "saved")
    model = checkpoint.build()
    images = torch.randn(2, 3, 32, 32)
    assert_same(model(images), answer(peer, pixel_values=images))
    for size in () if asked is None else ((48, 48), (24, 56)):
        others = torch.randn(2, 3, *size)
        assert_same(model(others), answer(peer, pixel_values=others, **({asked: True} if asked else {})))
    write_checkpoint(checkpoint, tmp_path / "ours.safetensors")
    write_checkpoint(read_checkpoint(tmp_path / "ours.safetensors"), tmp_path / "written", "hf")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("saved", "written"))
    before = {name: tensor for name, tensor in before.items() if not name.startswith(BESIDE)}
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    again = read_checkpoint(tmp_path / "written")
    assert again.config == checkpoint.config
    save_file(peer.state_dict(), tmp_path / "saved" / "model.safetensors")
    modules = read_checkpoint(tmp_path / "saved")
    assert all(torch.equal(modules.tensors[name], tensor) for name, tensor in checkpoint.tensors.items())


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_transformers_runs_what_we_write(tmp_path: Path, case: str) -> None:
    """The class, its `config.json` and its processor are transformers' own."""
    maker, _, _ = CASES[case]
    randomize(maker()).save_pretrained(tmp_path / "saved")
    with pytest.warns(AssumptionWarning, match="has no preprocessor_config.json"):
        done = convert(tmp_path / "saved", tmp_path / "written", "hf", verify_with_peer=True)
    assert done.source_peer is not None
    assert done.peer is not None


UNSTATED = {"DINOv3", "DINOv3, gated", "DINOv3, all biases", "CLIP, erf", "MSN"}  # size, base, GELU, epsilon


@pytest.mark.parametrize("case", [case for case in CASES if case not in UNSTATED])
def test_weights_without_their_config(tmp_path: Path, case: str) -> None:
    randomize(CASES[case][0]()).save_pretrained(tmp_path / "saved")
    stated = read_checkpoint(tmp_path / "saved")
    bare = (tmp_path / "saved" / "model.safetensors").rename(tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(bare, hints=Hints(heads=4))
    assert checkpoint.config == stated.config
    assert any("does not state its LayerNorm epsilon" in note for note in checkpoint.notes)
    assert all(torch.equal(checkpoint.tensors[name], tensor) for name, tensor in stated.tensors.items())


def test_what_dinov3_without_its_config_leaves_open(tmp_path: Path) -> None:
    randomize(CASES["DINOv3"][0]()).save_pretrained(tmp_path / "saved")
    stated = read_checkpoint(tmp_path / "saved")
    bare = (tmp_path / "saved" / "model.safetensors").rename(tmp_path / "model.safetensors")
    assert read_checkpoint(bare, hints=Hints(heads=4, image_size=(32, 32))).config == stated.config


@pytest.mark.parametrize("name", ["Siglip2VisionModel", "Siglip2Model", "Siglip2ForImageClassification"])
@torch.inference_mode()
def test_naflex_with_pictures_of_several_sizes(tmp_path: Path, name: str) -> None:
    """One by one, and as a padded batch with a mask, as transformers takes them."""
    maker = {
        "Siglip2VisionModel": make(name, "Siglip2Vision", **NAFLEX),
        "Siglip2Model": make_towers(name, "Siglip2", NAFLEX),
        "Siglip2ForImageClassification": make_towers(name, "Siglip2", NAFLEX, **CLASSES),
    }[name]
    peer = randomize(maker()).eval()
    peer.save_pretrained(tmp_path / "saved")
    checkpoint = read_checkpoint(tmp_path / "saved")
    assert checkpoint.config.positions.resample == "siglip2"
    pictures = [torch.randn(3, *size) for size in ((32, 32), (16, 64), (24, 40))]
    flat = [flatten(picture) for picture in pictures]
    shapes = torch.tensor([[picture.shape[1] // 8, picture.shape[2] // 8] for picture in pictures])
    batch = torch.nn.utils.rnn.pad_sequence(flat, batch_first=True)
    real = (torch.arange(batch.shape[1]) < shapes.prod(dim=1)[:, None]).int()
    inputs = {"pixel_values": batch, "pixel_attention_mask": real, "spatial_shapes": shapes}
    answer = {"Siglip2Model": embedded, "Siglip2ForImageClassification": logits}.get(name, pooled)
    expected = answer(peer, **inputs)
    model = checkpoint.build()
    assert_same(model(pictures), expected)
    for picture, row in zip(pictures, expected, strict=True):
        assert_same(model(picture[None])[0], row)
    with pytest.warns(AssumptionWarning):
        done = convert(tmp_path / "saved", tmp_path / "written", "hf", verify_with_peer=True)
    assert done.peer is not None
    processor = hf.AutoImageProcessor.from_pretrained(tmp_path / "written")
    assert (processor.patch_size, processor.max_num_patches) == (8, 16)
    cropped = replace(checkpoint, preprocess=replace(checkpoint.preprocess, resize="shortest"))
    with pytest.raises(WeightsError, match="does not crop pictures"):
        write_checkpoint(cropped, tmp_path / "cropped", "hf")


def flatten(picture: Tensor, side: int = 8) -> Tensor:
    """Patches row by row, each pixel with its channels."""
    rows, columns = picture.shape[1] // side, picture.shape[2] // side
    return picture.reshape(3, rows, side, columns, side).permute(1, 3, 2, 4, 0).reshape(rows * columns, -1)


@pytest.mark.parametrize("name", ["Siglip", "CLIP"])
@torch.inference_mode()
def test_pictures_that_patches_do_not_fill(tmp_path: Path, name: str) -> None:
    """As SigLIP's at 384 pixels, with patches of 14: transformers ignores the last rows and columns."""
    peer = randomize(make(f"{name}VisionModel", f"{name}Vision", **{**SIZES, "image_size": 38})()).eval()
    peer.save_pretrained(tmp_path / "saved")
    processor = hf.ViTImageProcessor(size={"height": 38, "width": 38}, resample=3)
    processor.save_pretrained(tmp_path / "saved")
    done = convert(tmp_path / "saved", tmp_path / "written", "hf", verify_with_peer=True)
    assert done.source_peer is not None
    assert done.peer is not None
    assert json.loads((tmp_path / "written" / "config.json").read_text())["image_size"] == 38
    photo = Image.fromarray(load_sample_images().images[0])
    expected = pooled(peer, **processor(photo, return_tensors="pt"))
    for folder in ("saved", "written"):
        checkpoint = read_checkpoint(tmp_path / folder)
        assert checkpoint.preprocess.anchor == "corner"
        assert_same(checkpoint.build()(prepare(photo, checkpoint.preprocess)[None]), expected)


def test_the_scale_of_zero_shot_logits_is_kept(tmp_path: Path) -> None:
    for case, names in (("CLIP, both towers", {"logit_scale"}), ("SigLIP, both towers", {"logit_scale", "logit_bias"})):
        peer = randomize(CASES[case][0]())
        peer.save_pretrained(tmp_path / case)
        checkpoint = read_checkpoint(tmp_path / case)
        assert checkpoint.extras.keys() == names
        assert all(torch.equal(tensor, getattr(peer, name)) for name, tensor in checkpoint.extras.items())
        assert "the text tower was left out" in checkpoint.remarks[0]


def test_older_files_name_the_tower_and_store_numbers_that_are_computed(tmp_path: Path) -> None:
    randomize(CASES["CLIP"][0]()).save_pretrained(tmp_path / "clip")
    state = load_file(tmp_path / "clip" / "model.safetensors")
    older = {f"vision_model.{name}": tensor for name, tensor in state.items()}
    ids = {"vision_model.embeddings.position_ids": torch.arange(17)[None]}
    save_file({**older, **ids}, tmp_path / "clip" / "model.safetensors")
    checkpoint = read_checkpoint(tmp_path / "clip")
    assert any("position_ids" in remark for remark in checkpoint.remarks)
    write_checkpoint(checkpoint, tmp_path / "written", "hf")
    assert load_file(tmp_path / "written" / "model.safetensors").keys() == older.keys()
    assert (
        hf.CLIPVisionModel.from_pretrained(tmp_path / "written", output_loading_info=True)[1]["missing_keys"] == set()
    )


def test_a_kernel_that_two_families_differ_in_decides_which_is_written(tmp_path: Path) -> None:
    make("Siglip2VisionModel", "Siglip2Vision", **NAFLEX)().save_pretrained(tmp_path / "saved")
    config = read_checkpoint(tmp_path / "saved").config
    assert family_for(config).kind == "siglip2_vision_model"
    squashed = replace(config, positions=replace(config.positions, resample="hf"))
    assert family_for(squashed).kind == "siglip_vision_model"
    assert family_for(squashed, "siglip2_vision_model").kind == "siglip2_vision_model"


def test_every_family_holds_what_it_reads() -> None:
    kinds = [family.kind for family in FAMILIES]
    assert len(set(kinds)) == len(kinds)
    for family in FAMILIES:
        classes = {model.name for model in family.models}
        assert all(hasattr(hf, name) for name in classes)
        assert hf.AutoConfig.for_model(family.kind).model_type == family.kind


@pytest.mark.parametrize("case", CASES)
def test_what_config_json_leaves_out_is_transformers_default(tmp_path: Path, case: str) -> None:
    randomize(CASES[case][0]()).save_pretrained(tmp_path)
    stated = read_checkpoint(tmp_path)
    path = tmp_path / "config.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(without_defaults(facts)))
    assert read_checkpoint(tmp_path).config == stated.config


def without_defaults(facts: dict[str, Any]) -> dict[str, Any]:
    """What a `config.json` must say: the rest is what its class starts with."""
    usual = hf.AutoConfig.for_model(facts["model_type"]).to_dict()
    kept = {key: value for key, value in facts.items() if key == "model_type" or usual.get(key) != value}
    return {key: without_defaults(value) if key == "vision_config" else value for key, value in kept.items()}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_defaults_are_those_of_transformers(family: Family) -> None:
    usual = hf.AutoConfig.for_model(family.kind)
    assert {key: getattr(usual, key) for key in family.fields} == {
        key: default for key, (_, _, default) in family.fields.items()
    }
    assert usual.hidden_act == family.activation


@pytest.mark.parametrize("case", ["CLIP", "BEiT, a table each", "DeiT, distilled", "DINOv3"])
def test_mean_and_std_are_judged_by_the_family(tmp_path: Path, case: str) -> None:
    CASES[case][0]().save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    wrong = replace(checkpoint, preprocess=replace(checkpoint.preprocess, mean=(0.1,) * 3))
    assert not any("those of its family" in each.message for each in diagnose(checkpoint))
    assert any("those of its family" in each.message for each in diagnose(wrong))


REFUSED: dict[str, tuple[Maker, str]] = {
    "AIMv2's pooling": (make("Aimv2VisionModel", "Aimv2Vision", **SIZES), r"use_head.* pass pooling=.mean"),
    "AIMv2's towers": (make_towers("Aimv2Model", "Aimv2"), r"use_head.* pass pooling=.mean"),
    "AIMv2, native": (
        make("Aimv2VisionModel", "Aimv2Vision", **SIZES, use_head=False, is_native=True),
        "is_native must be false",
    ),
    "BEiT, masked": (
        make("BeitForMaskedImageModeling", "Beit", **SIZES, use_mask_token=True, vocab_size=9),
        "architectures of a beit model must be .*; got 'BeitForMaskedImageModeling'",
    ),
    "BEiT, two tables": (make("BeitModel", "Beit", **SIZES, **BIAS, **SHARED), "cannot both be true"),
    "DINOv3, GEGLU": (make("DINOv3ViTModel", "DINOv3ViT", **SIZES, use_gated_mlp=True), "must be silu; got 'gelu'"),
    "DINOv3, one bias": (
        make("DINOv3ViTModel", "DINOv3ViT", **SIZES, value_bias=False),
        "queries and values must both",
    ),
    "Pixio": (
        make("PixioModel", "Pixio", **{name: SIZES[name] for name in SIZES if name != "intermediate_size"}),
        "model_type must be one of .*; got 'pixio'",
    ),
    "Dinov2 with a classifier": (
        make(
            "Dinov2ForImageClassification",
            "Dinov2",
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            image_size=28,
            **CLASSES,
        ),
        r"must be Dinov2Model; got .* reads \[cls\] beside the mean .*Dinov2Model.from_pretrained",
    ),
    "DINOv3 as a backbone": (make("DINOv3ViTBackbone", "DINOv3ViT", **SIZES), r"Backbone'. .*DINOv3ViTModel.from_pre"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_by_name(tmp_path: Path, case: str) -> None:
    maker, message = REFUSED[case]
    maker().save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(tmp_path)


def test_what_has_the_keys_of_dinov2_is_noted(tmp_path: Path) -> None:
    sizes = {name: SIZES[name] for name in SIZES if name != "intermediate_size"}
    make("RfDetrDinov2Backbone", "RfDetrDinov2", **sizes, num_windows=2)().save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="looks like a detector"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    assert any("RF-DETR" in note for note in read_checkpoint(tmp_path, hints=Hints(heads=4)).notes)


def test_a_config_that_is_not_read_is_noted(tmp_path: Path) -> None:
    """Tipsv2's own names are those of its authors, whose files are read without a `config.json`."""
    make("Tipsv2VisionModel", "Tipsv2Vision", **SIZES, use_swiglu_ffn=True, layer_norm_eps=0.1)().save_pretrained(
        tmp_path
    )
    notes = read_checkpoint(tmp_path, hints=Hints(heads=4)).notes
    assert any("config.json beside the weights is not read" in note for note in notes)


@torch.inference_mode()
def test_aimv2_with_its_pooling_left_aside(tmp_path: Path) -> None:
    for case, inner in (("AIMv2's pooling", lambda peer: peer), ("AIMv2's towers", lambda peer: peer.vision_model)):
        peer = randomize(REFUSED[case][0]()).eval()
        peer.save_pretrained(tmp_path / case)
        checkpoint = read_checkpoint(tmp_path / case, hints=Hints(pooling="mean"))
        images = torch.randn(2, 3, 32, 32)
        assert_same(checkpoint.build()(images), mean(inner(peer), pixel_values=images))
        assert "head.cls_token" in checkpoint.extras


CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("CLIP", {"patch_size": [8, 8]}, "patch_size must be a positive whole number"),
    ("CLIP", {"use_head": True}, "has use_head, which a clip_vision_model model does not have"),
    ("CLIP, projection", {"projection_dim": 16}, "projection_dim is 16, but the projection has 24 rows"),
    ("CLIP, both towers", {"vision_config": 3}, "vision_config must be an object"),
    ("CLIP, both towers", {"vision_config": {"model_type": "vit"}}, "of vision_config must be clip_vision_model"),
    ("CLIP, both towers", {"q_former": {}}, "has q_former, which a clip model does not have"),
    ("BEiT, one table", {"use_mean_pooling": True}, "use_mean_pooling is true, but the weights have a norm of all"),
    ("BEiT, one table", {"image_size": [32, 64]}, "image_size must be a positive whole number"),
    ("DINOv3", {"num_attention_heads": 16}, "multiple of 4"),
]


@pytest.mark.parametrize(("case", "words", "message"), CONTRADICTIONS, ids=str)
def test_words_that_contradict_the_weights(tmp_path: Path, case: str, words: dict[str, Any], message: str) -> None:
    CASES[case][0]().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **words}))
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(tmp_path)


# Options that set models apart, by the part of the config that they are in.
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "": {
        "class_token": [True, False],
        "registers": [0, 1, 2],
        "pooling": ["cls", "mean", "map"],
        "pool_norm": ["before", "after", "none"],
        "representation": [None, 12],
        "num_classes": [0, 5],
        "pre_norm": [True, False],
        "patch_bias": [True, False],
        "patch_norm": [True, False],
        "summary_tokens": [1, 2],
        "pool_heads": [2],
        "pool_mlp_width": [20],
        "projection": [None, 10],
        "distilled": [True, False],
        "image_size": [(32, 32), (32, 48)],
        "relative": [NoRelative(), Rope(), Rope(base=50.0), RelativeBias(), RelativeBias(shared=True)],
    },
    "block": {
        "qkv_bias": [True, False],
        "key_bias": [True, False],
        "proj_bias": [True, False],
        "mlp_bias": [None, True, False],
        "layer_scale": [None, 0.1],
        "norm": ["layer", "rms"],
        "mlp": ["plain", "swiglu"],
        "activation": ["gelu", "gelu_tanh", "quick_gelu"],
        "norm_eps": [1e-3, 1e-6],
    },
    "positions": {"kind": ["learned", "none"], "covers": ["class", "patches", "all"], "resample": ["hf", "siglip2"]},
}


@torch.inference_mode()
def test_what_it_says_that_it_holds_is_held(tmp_path: Path) -> None:
    """Families' models with random options: refused, or written, read back and run by transformers as the same."""
    draw, held = Random(SEED), 0
    bases = []
    for name in (
        "ViT",
        "DINOv3",
        "CLIP, projection",
        "SigLIP",
        "BEiT, one table",
        "DeiT, distilled",
        "I-JEPA",
        "AIMv2",
    ):
        CASES[name][0]().save_pretrained(tmp_path / name)
        bases.append(read_checkpoint(tmp_path / name).config)
    for case in range(cases(24)):
        config = draw.choice(bases)
        with suppress(ConfigError):
            for _ in range(draw.randint(1, 2)):
                part = draw.choice(list(OPTIONS))
                option = draw.choice(list(OPTIONS[part]))
                change = {option: draw.choice(OPTIONS[part][option])}
                config = replace(config, **({part: replace(getattr(config, part), **change)} if part else change))
        if FORMATS["hf"].refusals(config):
            continue
        held += 1
        checkpoint = Checkpoint(
            config=config, tensors=randomize(ViT(config)).state_dict(), preprocess=preset("hf", config.image_size)
        )
        folder = tmp_path / str(case)
        write_checkpoint(checkpoint, folder, "hf")
        images = torch.randn(1, 3, *config.image_size)
        expected = checkpoint.build()(images)
        again = read_checkpoint(folder)
        assert_same(again.build()(images), expected)
        assert_same(build_peer(again, folder)(images), expected)
    assert held > cases(24) / 4
