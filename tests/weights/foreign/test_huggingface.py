"""transformers' files word by word: each is used, irrelevant or refused, and what is assumed is noted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitrail.data.preprocess import Preprocess
from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.huggingface_config import FAMILIES
from vitrail.weights.foreign.huggingface_preprocess import FILE, processor_config, read_preprocess
from vitrail.weights.foreign.huggingface_vit import VIT
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint
from weights_fixtures import FITTING


def read(facts: dict[str, Any], size: int = 224, kind: str = "vit") -> tuple[Preprocess, tuple[str, ...]]:
    family = next(family for family in FAMILIES if family.kind == kind)
    return read_preprocess({FILE: facts}, family, ViTConfig(image_size=size, patch_size=1, width=8, heads=1))


def named(name: str, **words: Any) -> dict[str, Any]:
    return {"image_processor_type": name, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, **words}


CASES: list[tuple[dict[str, Any], int, dict[str, Any]]] = [
    (named("DeiTImageProcessor"), 224, {"resize": "squash", "crop": 0.875, "interpolation": "bicubic"}),
    (named("DeiTImageProcessor", size=438, crop_size=384), 384, {"resize": "squash", "crop": 384 / 438}),
    (named("ConvNextImageProcessor", size=224, crop_pct=0.9), 224, {"resize": "shortest", "resize_to": 248}),
    (named("ConvNextImageProcessor"), 384, {"resize": "squash", "crop": 1.0}),
    (named("PoolFormerImageProcessor", crop_pct=0.95), 224, {"resize": "shortest", "resize_to": 235}),
    (named("CLIPImageProcessor", size=256), 224, {"resize": "shortest", "resize_to": 256}),
    (named("ViTImageProcessor", size=224), 224, {"resize": "squash", "interpolation": "bilinear"}),
    (named("ViTImageProcessor", size=256, crop_size=224), 256, {"resize": "squash", "crop": 1.0}),  # no do_center_crop
    (named("BitImageProcessor"), 224, {"interpolation": "bicubic"}),
    (named("ViTImageProcessorFast", resample=0), 224, {"interpolation": "nearest_exact"}),
    ({"image_processor_type": "ViTFeatureExtractor", "image_mean": 0.5, "image_std": [0.5]}, 224, {"mean": (0.5,) * 3}),
]


@pytest.mark.parametrize(("facts", "size", "expected"), CASES, ids=str)
def test_what_each_class_does(facts: dict[str, Any], size: int, expected: dict[str, Any]) -> None:
    spec, notes = read(facts, size)
    assert {name: getattr(spec, name) for name in expected} == expected
    assert spec.size == (size, size)
    assert not notes


REFUSED: list[tuple[dict[str, Any], str]] = [
    (named("LevitImageProcessor"), "image_processor_type must be one of .*; got 'LevitImageProcessor'"),
    (named("ViTImageProcessor", resample=1), "resample must be one of 0 .*; got 1"),
    (named("ViTImageProcessor", do_pad=True), "do_pad must be False; got True"),
    (named("ViTImageProcessor", colour="sepia"), "has colour, which none of the image processors"),
    (named("ViTImageProcessor", auto_map={"AutoImageProcessor": "x.Y"}), "has auto_map"),
    (named("ViTImageProcessor", size={"longest_edge": 224}), "size must have height and width, or shortest_edge"),
    (named("ViTImageProcessor", do_center_crop=True), "do_center_crop needs crop_size"),
    (named("SiglipImageProcessor", size=224), "must crop after resizing the shortest side"),
    (named("BitImageProcessor", size=200), "which transformers pads with black"),
    (named("ViTImageProcessor", image_mean=None), "image_mean must be one number per channel; got None"),
    (named("ViTImageProcessor", size=256), "gives pictures of 256×256, and the model expects 224×224"),
    (named("ConvNextImageProcessor", size=224, do_center_crop=True, crop_size=200), "crops to its size 224"),
    (named("ViTImageProcessor", rescale_factor=0), "rescale_factor must be a positive number; got 0"),
    (named("DeiTImageProcessor", size=[256, 300]), "a different share of the height than of the width"),
]


@pytest.mark.parametrize(("facts", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_refused_by_name(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        read(facts)


def test_what_is_assumed_is_noted() -> None:
    spec, notes = read({"size": 224})
    assert (
        notes[0] == "preprocessor_config.json names no image processor: assumed ViTImageProcessor, as transformers does"
    )
    assert "does not give image_mean and image_std" in notes[1]
    assert spec.mean == (0.5, 0.5, 0.5)
    assert read({}, kind="dinov2")[0].mean[0] == 0.48145466
    assert "crop_pct has no effect in ViTImageProcessor" in read(named("ViTImageProcessor", crop_pct=0.9))[1][0]
    _, notes = read_preprocess({}, VIT, ViTConfig())
    assert "has no preprocessor_config.json: assumed the preprocessing of hf" in notes[0]


def test_a_processor_of_several_parts_goes_first() -> None:
    parts = {"processor_class": "X", "image_processor": named("CLIPImageProcessor")}
    spec, _ = read_preprocess({FILE: named("ViTImageProcessor"), "processor_config.json": parts}, VIT, ViTConfig())
    assert spec.resize == "shortest"


@pytest.fixture
def folder(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> Path:
    write_checkpoint(make_checkpoint(**FITTING["hf"]), tmp_path / "model", "hf")
    return tmp_path / "model"


def change(folder: Path, **words: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **words}))
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"sliding_window": 4}, "config.json has sliding_window, which a vit model does not have"),
        ({"quantization_config": {"bits": 4}}, "has quantization_config"),
        ({"is_decoder": True}, "is_decoder must be False; got True"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads must be {}"),
        ({"head_dim": 4}, "head_dim must be hidden_size / heads; got 4"),
        ({"hidden_act": "relu"}, "hidden_act must be one of gelu.*; got 'relu'"),
        ({"qkv_bias": "no"}, "qkv_bias must be true or false; got 'no'"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps must be a number"),
        ({"num_labels": 3}, "num_labels is 3, but the classifier has 7 rows"),
        ({"architectures": ["ViTForMaskedImageModeling"]}, "architectures of a vit model must be"),
        ({"model_type": "vit_2"}, "model_type must be one of vit, .*siglip2.*; got 'vit_2'"),
    ],
    ids=str,
)
def test_config_words_that_are_refused(folder: Path, words: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(change(folder, **words))


def test_config_words_that_change_nothing(folder: Path) -> None:
    plain = read_checkpoint(folder)
    words = {
        "torch_dtype": "float16",
        "_name_or_path": "x",
        "initializer_range": 1.0,
        "sliding_window": None,
        "top_k": 50,
    }
    assert read_checkpoint(change(folder, **words)).config == plain.config
    assert not plain.notes


def test_logits_that_transformers_reads_one_by_one_are_noted(folder: Path) -> None:
    notes = read_checkpoint(change(folder, problem_type="multi_label_classification")).notes
    assert "one by one (multi_label_classification)" in notes[0]


def test_a_classifier_that_is_not_there_is_noted(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(**FITTING["hf"], num_classes=0), tmp_path / "model", "hf")
    notes = read_checkpoint(change(tmp_path / "model", architectures=["ViTForImageClassification"])).notes
    assert "the weights have no classifier" in notes[0]


def test_dinov2_must_be_square(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    fields = {"num_classes": 0, "block": BlockConfig(layer_scale=1.0)}
    write_checkpoint(make_checkpoint(**fields), tmp_path / "model", "hf")
    with pytest.raises(WeightsError, match="treats positions as those of a square"):
        read_checkpoint(change(tmp_path / "model", image_size=[16, 64]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Preprocess(interpolation="lanczos"), "no lanczos resize"),
        (Preprocess(size=(224, 320), resize="shortest", crop=0.9), "just cover that"),
    ],
)
def test_preprocessing_that_transformers_has_not(spec: Preprocess, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        processor_config(spec)
