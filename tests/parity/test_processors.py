"""transformers' own files, read by transformers and by us: the same pixels and logits, or we refuse. Nothing between.

Each example is a random subset of the words that its files may hold, with sensible and absurd values. Pixels agree to
the rounding of float32: 2e-6 of the largest number that the arithmetic passes through, so no byte differs.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from benchmarks.peers import transformers
from hypothesis import event, given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor

from conftest import randomize
from fuzzing import cases
from vitrail.data.preprocess import Preprocess
from vitrail.data.transform import prepare
from vitrail.errors import AssumptionWarning, VitrailError, WeightsError
from vitrail.model import ViTConfig
from vitrail.weights.foreign.huggingface_config import FAMILIES
from vitrail.weights.foreign.huggingface_preprocess import FILE, PROCESSORS, processor_config, read_preprocess
from vitrail.weights.foreign.huggingface_vit import VIT
from vitrail.weights.proof import sample_photos
from vitrail.weights.read import NONSENSE, read_checkpoint
from vitrail.weights.write import convert

PHOTOGRAPHS = [Image.fromarray(image) for image in load_sample_images().images]
PICTURES = [PHOTOGRAPHS[0].crop((3, 5, 138, 202)), PHOTOGRAPHS[1].resize((97, 61)), PHOTOGRAPHS[1].crop((9, 9, 73, 73))]
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}


side = st.sampled_from([16, 24, 31, 32, 33, 48])
sizes = st.one_of(
    side,
    st.lists(side, min_size=2, max_size=2),
    st.builds(lambda height, width: {"height": height, "width": width}, side, side),
    st.builds(lambda edge: {"shortest_edge": edge}, st.sampled_from([24, 33, 48, 64, 400])),
)
crops = st.one_of(
    st.sampled_from([16, 24]),
    st.builds(lambda height, width: {"height": height, "width": width}, side, st.sampled_from([16, 24])),
)
flag = st.sampled_from([True, True, True, False, None])
numbers = st.sampled_from([0.5, 0.1, 1, 100.0])
statistics = st.one_of(st.lists(numbers, min_size=3, max_size=3), numbers, st.lists(numbers, min_size=1, max_size=1))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "do_resize": st.just(True),
    "size": sizes,
    "crop_size": crops,
    "do_center_crop": flag,
    "crop_pct": st.sampled_from([0.875, 0.9, 1.0, 0.5, 1]),
    "resample": st.sampled_from([0, 2, 3]),
    "do_rescale": flag,
    "rescale_factor": st.sampled_from([1 / 255, 1 / 127.5, 1.0, 1]),
    "do_normalize": flag,
    "image_mean": statistics,
    "image_std": statistics,
    "default_to_square": flag,
}
ODD_SIZES = [
    {"shortest_edge": 32, "longest_edge": 64},
    {"longest_edge": 64},
    {"max_height": 32, "max_width": 48},
    {"min_pixels": 100, "max_pixels": 4000},
    {"height": 32},
    [32],
    0,
    "large",
    32.0,
    None,
]
ODD: dict[str, list[Any]] = {
    "do_resize": [False, None, "yes"],
    "size": ODD_SIZES,
    "crop_size": [*ODD_SIZES, {"shortest_edge": 16}, 300],
    "do_center_crop": ["yes", 1],
    "crop_pct": [1.2, 0, None, "0.9"],
    "resample": [1, 4, 5, 7, None, "bicubic", 2.0, True],
    "do_rescale": [0],
    "rescale_factor": [0.0, None, -1.0],
    "image_mean": [None, "half", [], [0.5, 0.5], [0.5] * 4],
    "image_std": [None, [0.0] * 3, [0.5, 0.5], [-1.0] * 3],
}
RARE: dict[str, st.SearchStrategy[Any]] = {
    "do_convert_rgb": flag,
    "do_pad": flag,
    "pad_size": sizes,
    "use_square_size": flag,
    "data_format": st.sampled_from(["channels_first", "channels_last"]),
    "input_data_format": st.sampled_from(["channels_first", "channels_last"]),
    "do_reduce_labels": flag,
    "disable_grouping": flag,
    "size_divisor": st.sampled_from([16, None]),
    "do_flip_channel_order": flag,
}
OTHER = ["LevitImageProcessor", "EfficientNetImageProcessor", "PvtImageProcessor", "BlipImageProcessor", "Nothing"]


@st.composite
def processors(draw: st.DrawFn) -> dict[str, Any]:
    """The words of a `preprocessor_config.json`: a class, some of its fields, and now and then a strange one."""
    name = draw(st.sampled_from([*PROCESSORS, *PROCESSORS, *PROCESSORS, *OTHER]))
    kind = draw(st.sampled_from(["type", "type", "type", "Fast", "Pil", "extractor", "both", "none"]))
    old = name.replace("ImageProcessor", "FeatureExtractor")
    words: dict[str, dict[str, Any]] = {
        "type": {"image_processor_type": name},
        "Fast": {"image_processor_type": f"{name}Fast"},
        "Pil": {"image_processor_type": f"{name}Pil"},
        "extractor": {"feature_extractor_type": old},
        "both": {"image_processor_type": name, "feature_extractor_type": old},
        "none": {},
    }
    fields = draw(st.lists(st.sampled_from(list(FIELDS)), unique=True))
    facts = {**words[kind], **{key: draw(FIELDS[key]) for key in fields}}
    strange = draw(st.sampled_from(["", "", "", "rare", "odd"]))
    if strange == "rare":
        key = draw(st.sampled_from(list(RARE)))
        facts[key] = draw(RARE[key])
    elif strange == "odd":
        key = draw(st.sampled_from(list(ODD)))
        facts[key] = draw(st.sampled_from(ODD[key]))
    return facts


def theirs_of(facts: Mapping[str, Any], kind: str) -> list[Tensor] | None:
    """What transformers makes of the pictures; nothing where it raises."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({"model_type": kind}))
        (Path(folder) / FILE).write_text(json.dumps(facts))
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(folder)
            return [processor(picture, return_tensors="pt")["pixel_values"][0].float() for picture in PICTURES]
        except Exception:  # it raises anything
            return None


def assert_same_pixels(ours: Tensor, theirs: Tensor, spec: Preprocess) -> None:
    largest = (1 + max(map(abs, spec.mean))) / min(spec.std)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max().item() <= 2e-6 * max(1.0, largest)


@settings(max_examples=cases(60))
@given(facts=processors(), kind=st.sampled_from(["vit", "dinov2", "dinov3_vit", "clip", "siglip", "beit", "deit"]))
def test_any_image_processor(facts: dict[str, Any], kind: str) -> None:
    theirs = theirs_of(facts, kind)
    family = next(family for family in FAMILIES if kind in (family.kind, family.tower))
    size = tuple(theirs[0].shape[-2:]) if theirs and theirs[0].numel() else (16, 16)
    config = ViTConfig(image_size=size, patch_size=1, width=8, heads=1)
    try:
        spec, _ = read_preprocess({FILE: facts}, family, config)
    except (VitrailError, *NONSENSE):
        event("refused by both" if theirs is None else "refused by us")
        return
    event("read")
    assert theirs is not None, "transformers refuses it, and we do not"
    for picture, pixels in zip(PICTURES, theirs, strict=True):
        assert_same_pixels(prepare(picture, spec), pixels, spec)


@st.composite
def specs(draw: st.DrawFn) -> Preprocess:
    """Any preprocessing whose resize kernel transformers has."""
    size = (draw(side), draw(side))
    fields: dict[str, Any] = {
        "size": size,
        "interpolation": draw(st.sampled_from(["nearest_exact", "bilinear", "bicubic"])),
        "resize": draw(st.sampled_from(["squash", "shortest"])),
        "mean": draw(st.tuples(numbers, numbers, numbers)),
        "std": draw(st.tuples(numbers, numbers, numbers)),
        "kernel": draw(st.sampled_from(["bytes", "float"])),
        "anchor": "floor",
    }
    if fields["interpolation"] == "bicubic":
        fields["kernel"] = "bytes"
    if fields["resize"] == "shortest" and draw(st.booleans()):
        return Preprocess(**fields, resize_to=max(size) + draw(st.integers(0, 40)))
    return Preprocess(**fields, crop=draw(st.sampled_from([1.0, 0.9, 0.875, 224 / 438])))


@given(spec=specs())
def test_any_preprocessing_that_we_write(spec: Preprocess) -> None:
    try:
        facts = processor_config(spec)
    except WeightsError:
        assert spec.resize == "shortest"
        assert spec.size[0] != spec.size[1]
        return
    theirs = theirs_of(facts, "vit")
    assert theirs is not None
    config = ViTConfig(image_size=spec.size, patch_size=1, width=8, heads=1)
    again, notes = read_preprocess({FILE: facts}, VIT, config)
    assert not notes
    for picture, pixels in zip(PICTURES, theirs, strict=True):
        assert_same_pixels(prepare(picture, spec), pixels, spec)
        assert torch.equal(prepare(picture, again), prepare(picture, replace(spec, std=again.std, mean=again.mean)))


CONFIG_FIELDS: dict[str, dict[str, list[Any]]] = {
    "vit": {
        "intermediate_size": [32, 24],
        "pooler_output_size": [16, 12, None],
        "pooler_act": ["tanh", "relu", "gelu"],
    },
    "dinov2": {
        "mlp_ratio": [2, 3],
        "layerscale_value": [1.0, 0.1],
        "drop_path_rate": [0.0, 0.1],
        "use_swiglu_ffn": [False, True],
        "apply_layernorm": [True, False],
        "reshape_hidden_states": [True, False],
        "use_mask_token": [True, False],
        "out_features": [["stage1"]],
    },
}
CONFIG_FIELDS["dinov2_with_registers"] = {**CONFIG_FIELDS["dinov2"], "num_register_tokens": [1, 3]}
CONFIG_FIELDS["dinov3_vit"] = {
    "num_register_tokens": [0, 1, 3],
    "layerscale_value": [1.0, 0.1],
    "rope_theta": [100.0, 50.0],
    "query_bias": [True, False],
    "key_bias": [True, False],
    "value_bias": [True, False],
    "proj_bias": [True, False],
    "mlp_bias": [True, False],
    "use_gated_mlp": [True, False],
    "pos_embed_rescale": [2.0, None],
}
CONFIG_FIELDS["clip_vision_model"] = {"projection_dim": [8, 16], "attention_dropout": [0.1], "dropout": [0.1]}
CONFIG_FIELDS["siglip_vision_model"] = {"vision_use_head": [True], "attention_dropout": [0.1]}
CONFIG_FIELDS["beit"] = {
    "use_relative_position_bias": [True, False],
    "use_shared_relative_position_bias": [True, False],
    "use_absolute_position_embeddings": [True, False],
    "use_mean_pooling": [True, False],
    "use_mask_token": [True, False],
    "layer_scale_init_value": [0.0, 0.1],
    "drop_path_rate": [0.0, 0.2],
    "vocab_size": [10],
}
CONFIG_FIELDS["deit"] = CONFIG_FIELDS["vit"]
ACTIVATIONS = ["gelu_python", "gelu_python_tanh", "gelu_10", "quick_gelu", "relu", "silu"]
ANY_FIELDS: dict[str, list[Any]] = {
    "hidden_size": [16, 32],
    "num_hidden_layers": [1, 2],
    "num_attention_heads": [1, 2, 4],
    "head_dim": [8, 4, None],
    "hidden_act": ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate", *ACTIVATIONS],
    "layer_norm_eps": [1e-12, 1e-6, 1e-3, 0.5],
    "image_size": [16, 32, [16, 32], [8, 32], 20],
    "patch_size": [8, 4, [8, 4]],
    "num_channels": [3, 1],
    "qkv_bias": [True, False],
    "hidden_dropout_prob": [0.0, 0.3],
    "attention_probs_dropout_prob": [0.0, 0.3],
    "is_decoder": [False, True],
    "chunk_size_feed_forward": [0, 2],
    "problem_type": ["multi_label_classification", "regression"],
    "output_hidden_states": [True],
    "initializer_range": [0.02, 0.5],
    "encoder_stride": [16, 8],
    "tie_last_hidden_states": [True, False],
    "foo": [1],
    "mlp_ratio": [2],
    "intermediate_size": [24],
}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """The words of a `config.json`, small enough to run."""
    kind = draw(st.sampled_from(["vit", *CONFIG_FIELDS]))
    fields = {**ANY_FIELDS, **CONFIG_FIELDS[kind]}
    drawn = draw(st.lists(st.sampled_from(list(fields)), unique=True, max_size=6))
    return {"model_type": kind, **TINY, **{key: draw(st.sampled_from(fields[key])) for key in drawn}}


def peer_of(facts: dict[str, Any], classes: int, folder: Path) -> Any:
    """transformers' own model of these words in a folder, with random weights; nothing where it cannot be."""
    kind = facts["model_type"]
    heads = kind in ("vit", "beit", "deit") and classes
    maker = transformers.AutoModelForImageClassification if heads else transformers.AutoModel
    labels = {"num_labels": classes} if classes else {}
    try:
        config = transformers.AutoConfig.for_model(**facts, **labels)
        randomize(maker.from_config(config)).save_pretrained(folder)
        written = json.loads((folder / "config.json").read_text())
        kept = {key: written[key] for key in ("architectures", "id2label", "label2id") if key in written}
        (folder / "config.json").write_text(json.dumps({**facts, **kept}))
        return maker.from_pretrained(folder).eval()
    except Exception:  # it raises anything
        return None


@given(facts=configs(), classes=st.sampled_from([0, 3]))
def test_any_config(facts: dict[str, Any], classes: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        peer = peer_of(facts, classes, folder)
        if peer is None:
            event("refused by transformers")
            return
        try:
            checkpoint = read_checkpoint(folder)
        except VitrailError:
            event("refused by us")
            return
        event("read")
        size = facts["image_size"]
        images = torch.randn(2, checkpoint.config.channels, *([size, size] if isinstance(size, int) else size))
        height, width = checkpoint.config.image_size  # what whole patches fill
        with torch.inference_mode():
            output = peer(images)
            theirs = output.logits if "logits" in output else output.pooler_output
            ours = checkpoint.build()(images[..., :height, :width])
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_a_deit_folder_from_the_file_to_the_answer(tmp_path: Path) -> None:
    """Squashed to 40, cropped to 32: in transformers, by us, and in the folder that we write."""
    source, target = tmp_path / "source", tmp_path / "target"
    facts = {"model_type": "vit", **TINY, "image_size": 32, "intermediate_size": 32}
    assert peer_of(facts, 3, source) is not None
    words = {"feature_extractor_type": "DeiTFeatureExtractor", "size": 40, "crop_size": 32, "do_center_crop": True}
    (source / FILE).write_text(json.dumps({**words, "resample": 3, "image_mean": [0.4] * 3, "image_std": [0.2] * 3}))
    conversion = convert(source, target, "hf", verify_with_peer=True)
    assert conversion.photographs is not None
    assert conversion.source_peer is not None
    assert conversion.peer is not None
    model = read_checkpoint(source)
    for photo in sample_photos():
        with torch.inference_mode():
            ours = model.build()(prepare(photo, model.preprocess)[None])[0].softmax(0)
        for folder in (source, target):
            classify = transformers.pipeline("image-classification", model=str(folder))
            theirs = {answer["label"]: answer["score"] for answer in classify(str(photo))}
            for index, share in enumerate(ours.tolist()):
                assert abs(theirs[f"LABEL_{index}"] - share) <= 1e-5


def test_dinov2_for_pictures_of_another_size_than_its_positions(tmp_path: Path) -> None:
    facts = {"model_type": "dinov2", **TINY, "image_size": 70, "patch_size": 14, "mlp_ratio": 2}
    assert peer_of(facts, 0, tmp_path / "source") is not None
    words = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 50}, "crop_size": 42}
    (tmp_path / "source" / FILE).write_text(json.dumps(words))
    with pytest.warns(AssumptionWarning, match="the defaults of BitImageProcessor are used"):
        conversion = convert(tmp_path / "source", tmp_path / "target", "hf", verify_with_peer=True)
    assert conversion.photographs is not None
    assert conversion.photographs.difference == 0
    assert any("gives pictures of 42×42, and the model expects 70×70" in note for note in conversion.notes)
