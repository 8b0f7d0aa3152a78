"""What a notebook shows: a prediction as the picture beside bars, a model step by step."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import picture

from vitrail.data.preprocess import Preprocess
from vitrail.model import ViT, summarize
from vitrail.prediction import Prediction, Predictor
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.weights.metadata import Origin


@pytest.fixture
def predictor(make_model: Callable[..., ViT]) -> Predictor:
    model = make_model()
    return Predictor(
        runtime=TorchRuntime(model),
        preprocess=Preprocess(size=model.config.image_size),
        classes=tuple("abcdefg"),
        origin=Origin(source="here.safetensors"),
    )


def opened(prediction: Prediction) -> Image.Image:
    png = prediction._repr_png_()
    assert png is not None
    return Image.open(io.BytesIO(png)).convert("RGB")


def test_a_prediction_shows_its_picture(predictor: Predictor, tmp_path: Path) -> None:
    path = tmp_path / "green.png"
    Image.new("RGB", (64, 64), (0, 200, 0)).save(path)
    (streamed,) = predictor.predict([path])
    assert streamed.source is None, "thousands of predictions hold no pictures"
    array = np.asarray(Image.open(path))
    for prediction in (
        predictor.predict(path),
        predictor.predict(array),
        predictor.predict(path.read_bytes()),
        streamed,
    ):
        left = np.asarray(opened(prediction))[:, : opened(prediction).width // 4]
        assert (left == (0, 200, 0)).all(axis=2).mean() > 0.5
    path.unlink()
    assert opened(streamed).width < opened(predictor.predict(array)).width, "bars only"


def test_bars_are_as_long_as_the_scores(predictor: Predictor) -> None:
    def blue(score: float) -> int:
        drawn = np.asarray(opened(Prediction(picture="none", labels=("a",), scores=(score,), indices=(0,))))
        return int((drawn == (0x2F, 0x6D, 0xB5)).all(axis=2).sum(axis=1).max())

    assert blue(0.8) == pytest.approx(2 * blue(0.4), rel=0.05)


def test_names_of_any_kind_can_be_drawn() -> None:
    labels = ("$x_{$", "long " * 50, "国字", "a\nb")
    assert opened(Prediction(picture="none", labels=labels, scores=(0.4, 0.3, 0.2, 0.1), indices=(0, 1, 2, 3)))


def test_what_has_no_classes_shows_no_bars() -> None:
    assert Prediction(picture="x.png", error="cannot be read")._repr_png_() is None


def test_a_single_prediction_equals_one_of_a_stream(predictor: Predictor) -> None:
    shot = picture(1, (40, 30))
    single, (streamed,) = predictor.predict(shot), predictor.predict([shot])
    assert single.source is shot
    assert single.labels == streamed.labels
    assert "source" not in repr(single)


def test_a_model_shows_its_steps(predictor: Predictor) -> None:
    text = predictor._repr_markdown_()
    assert text.startswith("**here.safetensors**: 7 classes, pictures of 32×32\n\n| step |")
    summary = summarize(predictor.model.config)
    assert len(text.splitlines()) == 2 + 2 + len(summary.steps) + 1
    assert f"**{sum(each.numel() for each in predictor.model.parameters()):,}**" in text
    assert summary._repr_markdown_() in text
