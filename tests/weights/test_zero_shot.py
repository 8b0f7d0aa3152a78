"""A tower with texts for a head: the cosine of picture and text, written out, and what transformers computes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.peers import transformers

import vitrail
from families import write_family
from fuzzing import in_fuzz_only
from vitrail.cli.main import main
from vitrail.errors import AssumptionWarning, VitrailError, WeightsError
from vitrail.weights.native import read_native
from vitrail.weights.zero_shot import read_prompts

NAMES = ["cat", "dog", "ship"]


@pytest.fixture
def tower(tmp_path: Path) -> Path:
    return write_family(tmp_path / "tower.safetensors", "clip", depth=1)


def write_texts(path: Path, **changes: Any) -> Path:
    arrays = {"names": np.array(NAMES), "embeddings": np.random.default_rng(0).normal(size=(3, 24)).astype("f4")}
    values = {name: value for name, value in (arrays | changes).items() if value is not None}
    np.savez(path, **values)
    return path


@pytest.mark.parametrize(("scale", "bias"), [(None, None), (50.0, None), (8.0, -3.0)])
def test_logits_are_scaled_cosines(tower: Path, tmp_path: Path, scale: float | None, bias: float | None) -> None:
    given = {name: None if value is None else np.array(value) for name, value in (("scale", scale), ("bias", bias))}
    texts = write_texts(tmp_path / "texts.npz", **given)
    vitrail.convert(tower, tmp_path / "zero.safetensors", texts=texts)
    model = vitrail.load(tmp_path / "zero.safetensors")
    assert model.classes == tuple(NAMES)
    images = torch.randn(4, 3, 32, 32)
    features = vitrail.load(tower).model.features(images).detach().numpy()
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    rows = np.load(texts)["embeddings"]
    cosines = features @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
    expected = cosines * (scale or 100.0) + (bias or 0.0)
    logits = model.runtime.logits(images.numpy())
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    shares = model.probabilities(logits)
    if bias is None:
        np.testing.assert_allclose(shares.sum(axis=1), 1)
    else:
        np.testing.assert_allclose(shares, 1 / (1 + np.exp(-expected)), rtol=1e-4, atol=1e-6)
    notes = read_native(tmp_path / "zero.safetensors").notes
    assert any("multiplied by 100" in note for note in notes) == (scale is None)


@in_fuzz_only
def test_a_classifier_of_texts_is_exported_and_calibrated(tower: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.npz", scale=np.array(8.0), bias=np.array(-1.0))
    zero, target = tmp_path / "zero.safetensors", tmp_path / "zero.onnx"
    assert main(["convert", str(tower), str(zero), "--texts", str(texts)]) == 0
    vitrail.export(zero, target, with_preprocess=True)
    picture = "docs/images/ship.png"
    expected, exported = vitrail.load(zero).predict(picture), vitrail.load(target).predict(picture)
    assert expected.labels == exported.labels
    np.testing.assert_allclose(exported.scores, expected.scores, rtol=1e-3, atol=1e-4)
    changed = vitrail.load(zero, classes=["a", "b"])
    assert changed.scores == "softmax"
    assert not changed.model.config.normalize_features


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": None}, "missing names"),
        ({"other": np.zeros(3)}, "unknown other"),
        ({"embeddings": np.zeros((3, 24))}, "not zero"),
        ({"embeddings": np.full((3, 24), np.nan)}, "finite"),
        ({"embeddings": np.ones((2, 24))}, "one embedding for each label"),
        ({"embeddings": np.ones((3, 7))}, "as many numbers as the picture's: 24; got 7"),
        ({"embeddings": np.ones((3, 24), dtype=int)}, "must be floats"),
        ({"names": np.array(["a", "a", "b"])}, "both called 'a'"),
        ({"scale": np.array([1.0, 2.0])}, "scale must be one number"),
        ({"scale": np.array(-1.0)}, "must be positive"),
        ({"bias": np.array(-1.0)}, "need their scale too"),
    ],
)
def test_bad_texts(tower: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VitrailError, match=message):
        vitrail.convert(tower, tmp_path / "zero.safetensors", texts=write_texts(tmp_path / "texts.npz", **changes))
    assert not (tmp_path / "zero.safetensors").exists()


def test_mistakes(tower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "zero.safetensors"
    (tmp_path / "pickled.npz").write_bytes(b"no archive")
    for texts, message in (("gone.npz", "there is no file"), ("x.txt", ".npz"), ("pickled.npz", "cannot be read")):
        with pytest.raises(VitrailError, match=message):
            vitrail.convert(tower, target, texts=tmp_path / texts)
    texts = write_texts(tmp_path / "texts.npz")
    assert main(["convert", str(tower), str(target), "--texts", str(texts), "--num-classes", "3"]) == 2
    assert "--texts makes a head of its own" in " ".join(capsys.readouterr().err.split())


def test_prompts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("cat\ndog: a dog in the snow\n\ndog: a photo of my dog\n", encoding="utf-8")
    assert read_prompts(path) == {"cat": ("a photo of a cat.",), "dog": ("a dog in the snow", "a photo of my dog")}
    path.write_text(": nothing\n", encoding="utf-8")
    with pytest.raises(VitrailError, match="must be one line of text"):
        read_prompts(path)


def save_tokenizer(folder: Path) -> None:
    """Words by their letters' sum, for the tests' own text towers."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<pad>", "<unk>", "a", "photo", "of", "cat", "dog", "ship", ".", "snow", "in", "the", "<end>"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 12)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<end>"
    )
    fast.save_pretrained(folder)


@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_prompts_give_what_transformers_computes(tmp_path: Path, family: str) -> None:
    sizes: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": 13, "max_position_embeddings": 16, "eos_token_id": 12, "pad_token_id": 0}
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    extra: Any = {"projection_dim": 24} if family == "CLIP" else {}
    torch.manual_seed(0)
    if family == "Siglip":
        text["projection_size"] = 32
    config = getattr(transformers, f"{family}Config")(text_config=text, vision_config=vision, **extra)
    model = getattr(transformers, f"{family}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
        model.logit_scale.fill_(2.0)
    folder = tmp_path / "whole"
    model.save_pretrained(folder)
    save_tokenizer(folder)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("cat\ndog: the dog\nship\n", encoding="utf-8")
    target = tmp_path / "zero.safetensors"
    with pytest.warns(AssumptionWarning, match=r"no preprocessor_config\.json"):
        vitrail.convert(folder, target, prompts=prompts)
    images = torch.randn(3, 3, 32, 32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["a photo of a cat.", "the dog", "a photo of a ship."]
    tokens = tokenizer(texts, padding="max_length", max_length=16, return_tensors="pt")
    with torch.no_grad():
        expected = model(pixel_values=images, **tokens).logits_per_image.numpy()
    loaded = vitrail.load(target)
    np.testing.assert_allclose(loaded.runtime.logits(images.numpy()), expected, rtol=1e-4, atol=1e-4)
    assert loaded.scores == ("softmax" if family == "CLIP" else "sigmoid")
    # Words that the tokenizer does not know are one to it; so are all words without its files.
    prompts.write_text("cat\nlorry: the lorry\nvan: the van\n", encoding="utf-8")
    with pytest.raises(WeightsError, match="those of 'lorry' and 'van' have the same embedding"):
        vitrail.convert(folder, tmp_path / "same.safetensors", prompts=prompts)
