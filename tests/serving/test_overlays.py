"""A served model explains as the library does: `vitrail.explain` and `ViT.trace` are the oracles."""

import dataclasses
import io
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.conftest import picture
from tests.explanation.conftest import images_for

import vitrail
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, ExplanationError, InputError
from vitrail.explanation import METHODS, open_subject
from vitrail.explanation.heatmap import scale_map
from vitrail.explanation.raw_attention import patch_attention
from vitrail.explanation.saliency import explain_by
from vitrail.model import AttentionQuery
from vitrail.prediction import Predictor
from vitrail.runtimes.graph_runtime import ExportedRuntime
from vitrail.runtimes.manifest import LOGITS, Manifest
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.schema import to_dict
from vitrail.serving.overlays import LONGEST, attend, explain_picture, methods_of
from vitrail.weights.metadata import Metadata


def encoded(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format="PNG")
    return stream.getvalue()


PICTURE = encoded(picture(3, (70, 45)))


@pytest.fixture
def make_predictor(make_model):
    def make(**changes: Any) -> Predictor:
        model = make_model(**changes)
        spec = Preprocess(size=model.config.image_size, resize="shortest")
        names = tuple("abcdefg"[: model.config.num_classes]) or None
        return Predictor(runtime=TorchRuntime(model), preprocess=spec, classes=names)

    return make


def exported(predictor: Predictor) -> Predictor:
    """The same model behind the runtime of exports, which has no torch model to look into."""
    config = predictor.model.config
    manifest = Manifest(
        facts=Metadata(preprocess=predictor.preprocess),
        num_classes=config.num_classes,
        tokens=config.tokens,
        outputs=(LOGITS,),
        config=json.dumps(to_dict(config)),
    )
    own = predictor.runtime
    runtime = ExportedRuntime("ONNX Runtime", manifest, lambda _: lambda images: [own.logits(images)])
    return dataclasses.replace(predictor, runtime=runtime)


@pytest.mark.parametrize("method", METHODS)
def test_the_map_is_the_librarys(method: str, make_predictor) -> None:
    predictor = make_predictor()
    answer: Any = explain_picture(predictor, PICTURE, method=method, target="c")
    expected: Any = vitrail.explain(predictor, PICTURE, method=method, target="c")
    assert answer["method"] == method
    assert answer["grid"] == [4, 4]
    torch.testing.assert_close(torch.tensor(answer["map"]), scale_map(expected.map), rtol=0, atol=1e-4)
    assert answer["picture_size"] == [70, 45]
    view = expected.explanation.view
    sides = [view.left, view.top, view.left + view.width, view.top + view.height]
    assert answer["box"] == pytest.approx(sides, abs=1e-4)
    assert sides[0] > 10  # the preprocessing cuts the picture off
    predicted = predictor.predict(PICTURE)
    assert [each["label"] for each in answer["labels"]] == list(predicted.labels)
    assert [each["index"] for each in answer["labels"]] == list(predicted.indices)
    assert [each["score"] for each in answer["labels"]] == pytest.approx(list(predicted.scores), abs=1e-6)
    assert (answer["target"]["label"], answer["target"]["index"]) == ("c", 2)
    assert answer["target"]["score"] == pytest.approx(expected.explanation.probability, abs=1e-6)


def test_auto_is_relevance_or_the_next_method_that_shows_something(make_predictor) -> None:
    predictor = make_predictor()
    answer: Any = explain_picture(predictor, PICTURE)
    assert answer["method"] == "relevance"
    same: Any = explain_picture(predictor, PICTURE, method="relevance")
    assert answer["map"] == same["map"]
    with torch.no_grad():
        predictor.model.head.weight.zero_()
    other: Any = explain_picture(predictor, PICTURE)
    assert other["method"] == "rollout"
    with pytest.raises(ExplanationError, match="no patch counts for class"):
        explain_picture(predictor, PICTURE, method="relevance")


def test_a_layer_or_a_head_shows_its_attention(make_predictor) -> None:
    predictor = make_predictor()
    answer: Any = explain_picture(predictor, PICTURE, layer=1, head=2)
    expected: Any = vitrail.explain(predictor, PICTURE, method="attention", layers=[1], heads=[2])
    assert answer["method"] == "attention"
    torch.testing.assert_close(torch.tensor(answer["map"]), scale_map(expected.map), rtol=0, atol=1e-4)
    for wrong in ({"layer": 3}, {"head": -5}):
        with pytest.raises(ConfigError, match="must be between"):
            explain_picture(predictor, PICTURE, **wrong)
        with pytest.raises(ConfigError, match="must be between"):
            attend(predictor, PICTURE, **wrong)
    with pytest.raises(ConfigError, match="omit them with method 'relevance'"):
        explain_picture(predictor, PICTURE, method="relevance", layer=1)


def test_the_overlay_is_the_librarys(make_predictor) -> None:
    predictor = make_predictor()
    png: Any = explain_picture(predictor, PICTURE, method="rollout", as_png=True)
    expected: Any = vitrail.explain(predictor, PICTURE, method="rollout")
    assert np.array_equal(np.array(Image.open(io.BytesIO(png))), np.array(expected.overlay))


def test_the_overlay_of_a_large_picture_is_drawn_smaller(make_predictor) -> None:
    large = encoded(picture(3, (2 * LONGEST, 800)))
    png: Any = explain_picture(make_predictor(), large, method="rollout", as_png=True)
    assert Image.open(io.BytesIO(png)).size == (LONGEST, 400)


def rows_of(text: str) -> torch.Tensor:
    return torch.tensor(np.frombuffer(b64decode(text), np.uint8).astype(np.float32))


@pytest.mark.parametrize(("layer", "head"), [(None, None), (0, None), (1, 3), (-2, -1)])
def test_what_a_patch_attends_to_is_the_models_own_attention(layer, head, make_predictor) -> None:
    predictor = make_predictor(registers=2)
    answer = attend(predictor, PICTURE, layer=layer, head=head)
    model, image = predictor.model, open_subject(PICTURE, predictor.preprocess).image
    number = (2 if layer is None else layer) % 3
    maps = model.trace(image[None], attention=AttentionQuery(layers=(number,))).attention[number][0]
    mean = maps.mean(dim=0) if head is None else maps[head]  # (N, N)
    expected = mean[3:, 3:] / mean[3:, 3:].amax(dim=1, keepdim=True)
    assert rows_of(answer["data"]).view(16, 16).sub(expected * 255).abs().max() <= 0.51
    cls = mean[0, 3:] / mean[0, 3:].max()
    assert rows_of(answer["cls"]).sub(cls * 255).abs().max() <= 0.51
    assert (answer["grid"], answer["layers"], answer["heads"]) == ([4, 4], 3, 4)
    assert (answer["layer"], answer["head"]) == (number, None if head is None else head % 4)


def test_merged_patches_attend_as_one(make_model) -> None:
    model = make_model(merge=(5, 2, 0))
    images = images_for(model, 1)
    trace = model.trace(images, attention=AttentionQuery(layers=(1,)))
    groups = trace.groups[0][0]  # the token of each patch as layer 1 gets it
    looks = trace.attention[1][0].mean(dim=0)  # (tokens, tokens)
    sizes = torch.bincount(groups)
    expected = looks[groups][:, groups] / sizes[groups]
    torch.testing.assert_close(patch_attention(model, images, 1).patches[0], expected)


def test_a_model_without_classes_shows_its_attention(make_predictor) -> None:
    predictor = make_predictor(num_classes=0, pooling="mean", class_token=False)
    assert methods_of(predictor) == ("attention", "rollout")
    answer: Any = explain_picture(predictor, PICTURE)
    assert (answer["method"], answer["target"], answer["labels"]) == ("rollout", None, [])
    assert attend(predictor, PICTURE)["cls"] is None
    with pytest.raises(ConfigError, match="no classes, so it has no method 'occlusion'; use attention or rollout"):
        explain_picture(predictor, PICTURE, method="occlusion")


def test_an_export_is_explained_by_occlusion_only(make_predictor) -> None:
    predictor = make_predictor()
    export = exported(predictor)
    assert methods_of(export) == ("occlusion",)
    answer: Any = explain_picture(export, PICTURE, target="1")
    expected: Any = explain_picture(predictor, PICTURE, method="occlusion", target="b")
    assert answer["method"] == "occlusion"
    np.testing.assert_allclose(answer.pop("map"), expected.pop("map"), atol=2e-4)
    assert answer["labels"] == expected["labels"]
    with pytest.raises(ConfigError, match="runs on ONNX Runtime.*no method 'relevance', only occlusion.*checkpoint"):
        explain_picture(export, PICTURE, method="relevance")
    with pytest.raises(ConfigError, match="ONNX Runtime.*cannot show what its patches attend to"):
        attend(export, PICTURE)
    subject = open_subject(PICTURE, predictor.preprocess)
    one, other = (explain_by(each, subject, "occlusion") for each in (export, predictor))
    torch.testing.assert_close(one.map, other.map)


def test_an_export_that_says_nothing_about_its_patches_is_explained_in_cells_of_16_pixels(make_predictor) -> None:
    export = exported(make_predictor())
    runtime: Any = export.runtime
    runtime.manifest = dataclasses.replace(runtime.manifest, config="{}")
    answer: Any = explain_picture(export, PICTURE)
    height, width = export.preprocess.size
    assert answer["grid"] == [height // 16, width // 16]


def test_mistakes_are_told_before_the_picture_is_read(make_predictor) -> None:
    predictor = make_predictor()
    with pytest.raises(ConfigError, match="unknown method 'relevanc'; did you mean relevance"):
        explain_picture(predictor, b"no picture", method="relevanc")
    with pytest.raises(ConfigError, match="unknown class 'z'"):
        explain_picture(predictor, PICTURE, target="z")
    for ask in (explain_picture, attend):
        with pytest.raises(InputError, match="not a picture"):
            ask(predictor, b"no picture")


def test_too_many_patches_to_send(make_predictor, monkeypatch) -> None:
    monkeypatch.setattr("vitrail.serving.overlays.MOST_PATCHES", 15)
    with pytest.raises(ConfigError, match="up to 15 of them; this model has 16"):
        attend(make_predictor(), PICTURE)


def test_the_bundled_model_recognizes_most_of_the_examples() -> None:
    model = vitrail.load()
    examples = sorted((Path(vitrail.__file__).parent / "serving" / "examples").glob("*.*g"))
    assert len(examples) >= 6
    assert sum(path.stat().st_size for path in examples) <= 60_000
    right = [prediction.labels[0] == Path(prediction.picture).stem for prediction in model.predict(examples)]
    assert sum(right) >= 0.8 * len(right), dict(zip(examples, right, strict=True))
