from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from tests.prediction.conftest import CLASSES, make_predictor
from torch import nn

import vitrail
from vitrail.data.transform import prepare
from vitrail.errors import ConfigError, InputError, WeightsError
from vitrail.prediction import Prediction, Predictor
from vitrail.runtimes.runtime import Floats
from vitrail.weights import resolve


def expected(predictor: Predictor, path: Path) -> torch.Tensor:
    """The straightforward way: one picture, the model, softmax."""
    with torch.inference_mode():
        return predictor.model(prepare(path, predictor.preprocess)[None])[0].softmax(0)


def test_one_picture_in_every_form_gives_one_prediction(predictor: Predictor, photos: list[Path]) -> None:
    image = Image.open(photos[0]).convert("RGB")
    array = np.array(image)
    forms = [photos[0], str(photos[0]), photos[0].read_bytes(), image, array, torch.as_tensor(array).permute(2, 0, 1)]
    scores = expected(predictor, photos[0])
    for form in forms:
        found = predictor.predict(form, top_k=3)
        assert isinstance(found, Prediction)
        # Pillow resizes an array plane by plane, which gives the same bytes.
        np.testing.assert_allclose(found.scores, scores.sort(descending=True).values[:3], rtol=1e-5)
        assert found.label == CLASSES[int(scores.argmax())]
        assert found.score == found.scores[0]
        assert [CLASSES[index] for index in found.indices] == list(found.labels)
        assert found.error is None


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_several_pictures_come_in_order_and_a_broken_one_has_its_error(
    predictor: Predictor, photos: list[Path], threads: int, batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(predictor.runtime), "threads", threads)
    found = list(predictor.predict(photos, top_k=9, batch_size=batch_size))
    assert [item.picture for item in found] == [str(path) for path in photos]
    for path, item in zip(photos, found, strict=True):
        if path == photos[3]:
            assert item.error is not None
            assert "not a picture of a known format" in item.error
            assert item.labels == ()
            assert item.label is None
            assert item.score is None
        else:
            scores = expected(predictor, path)
            assert item.label == CLASSES[int(scores.argmax())]
            np.testing.assert_allclose(item.scores, scores.sort(descending=True).values, rtol=1e-4)


def test_the_stream_reads_no_further_than_it_must(
    predictor: Predictor, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(predictor.runtime), "threads", 2)
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield photos[taken % 3]

    stream = predictor.predict(endless(), batch_size=2)
    first = [next(stream) for _ in range(5)]
    assert [item.picture for item in first] == [str(photos[place % 3]) for place in range(1, 6)]
    assert taken < 30
    assert isinstance(stream, Generator)
    stream.close()


def test_a_batch_is_several_pictures(predictor: Predictor) -> None:
    batch = np.random.default_rng(0).integers(0, 256, (3, 20, 20, 3), dtype=np.uint8)
    found = list(predictor.predict(iter(batch)))
    stacked: Any = predictor.predict(batch)  # typed as one picture, which an array of three dimensions is
    assert list(stacked) == found
    assert [item.picture for item in found] == ["picture 0", "picture 1", "picture 2"]
    assert found[1].scores == pytest.approx(predictor.predict(batch[1]).scores, rel=1e-4)


def test_embeddings_are_what_the_head_sees(predictor: Predictor, photos: list[Path]) -> None:
    found = list(predictor.embed(photos))
    assert found[3].vector is None
    assert "known format" in str(found[3].error)
    for path, item in zip(photos, found, strict=True):
        if item.vector is not None:
            with torch.inference_mode():
                features = predictor.model.features(prepare(path, predictor.preprocess)[None])[0]
            np.testing.assert_allclose(item.vector, features, rtol=1e-4, atol=1e-5)
    one = predictor.embed(photos[0])
    assert one.vector is not None
    assert found[0].vector is not None
    np.testing.assert_allclose(one.vector, found[0].vector, rtol=1e-4, atol=1e-5)


def test_mistakes_are_named(predictor: Predictor, photos: list[Path]) -> None:
    with pytest.raises(InputError, match=r"03\.jpg: not a picture"):
        predictor.predict(photos[3])
    with pytest.raises(InputError, match="no such file"):
        predictor.predict("nowhere.jpg")
    with pytest.raises(InputError, match="got 5"):
        predictor.predict(5)  # pyright: ignore
    with pytest.raises(ConfigError, match="top_k must be at least 1"):
        predictor.predict(photos[0], top_k=0)
    with pytest.raises(ConfigError, match="batch_size must be at least 1"):
        list(predictor.predict(photos, batch_size=0))
    assert "got NoneType" in str(next(iter(predictor.predict([None]))).error)  # pyright: ignore
    headless = replace(make_predictor(num_classes=0), classes=None)
    with pytest.raises(WeightsError, match="no classes to predict; use embed"):
        headless.predict(photos[0])
    vector = headless.embed(photos[0]).vector
    assert vector is not None
    assert vector.shape == (headless.model.config.width,)


def test_an_answer_that_is_not_finite_is_an_error(predictor: Predictor, photos: list[Path]) -> None:
    with torch.no_grad():
        cast("nn.Linear", predictor.model.head).bias[2] = torch.nan
    assert "not finite" in str(next(iter(predictor.predict(photos[:1]))).error)


def test_classes_without_names_are_numbers(predictor: Predictor, photos: list[Path]) -> None:
    nameless = replace(predictor, classes=None)
    assert nameless.predict(photos[0]).label == str(nameless.predict(photos[0]).indices[0])


class Upside:
    """Another runtime: it knows nothing of torch's models."""

    name, threads, batch_size, num_classes, has_features = "Upside", 2, 3, 3, False

    def grid_of(self, size: tuple[int, int]) -> tuple[int, int]:
        return size

    def logits(self, images: Floats) -> Floats:
        return images.mean(axis=(2, 3))

    def features(self, images: Floats) -> Floats:
        return images.reshape(len(images), -1)

    def logits_and_features(self, images: Floats) -> tuple[Floats, Floats]:
        return self.logits(images), self.features(images)


def test_another_runtime_stands_behind_the_same_predictor(predictor: Predictor, photos: list[Path]) -> None:
    other = replace(predictor, runtime=Upside(), classes=("r", "g", "b"))
    found = list(other.predict(photos))
    brightest = prepare(photos[5], predictor.preprocess).mean(dim=(1, 2)).argmax()
    assert found[5].label == "rgb"[int(brightest)]
    assert other(torch.ones(2, 3, 4, 4)).shape == (2, 3)
    with pytest.raises(InputError, match="runs on Upside, which can predict and embed but has no torch model"):
        _ = other.model
    assert other.num_classes == 3


def test_load_without_a_source_takes_the_bundled_model(
    checkpoint_file: Path, photos: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(resolve, "BUNDLED_FOLDER", tmp_path)
    with pytest.raises(WeightsError, match="the bundled model cifar10 is missing from this installation"):
        vitrail.load()
    checkpoint_file.rename(tmp_path / "cifar10.safetensors")
    assert vitrail.load().predict(photos[0]) == vitrail.load("cifar10").predict(photos[0])


def test_a_device_that_is_not_there(checkpoint_file: Path) -> None:
    with pytest.raises(ConfigError, match="device 'nonsense' cannot be used"):
        vitrail.load(checkpoint_file, device="nonsense")
