"""`vitrail.Classifier` and `Regressor` are estimators of scikit-learn: its own tools are the oracles."""

import pickle
import signal
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import InputTags
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator
from sklearn.utils.validation import check_is_fitted, validate_data

import vitrail
from fuzzing import in_fuzz_only
from shortcuts import leave_blank
from vitrail.cache import Shelf
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, DataError, SamplesError, WeightsError
from vitrail.model import ViT, ViTConfig
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.training.feature_cache import FILES, SHELF, FeatureCache
from vitrail.verbs.estimators import Classifier, Regressor, _Estimator
from vitrail.verbs.samples import read_samples
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint

QUICK = {"epochs": 4, "lr": 0.05}
DIGITS = load_digits()
PICTURES = (DIGITS.images[:120] * 15).astype(np.uint8)  # (N, 8, 8)
LABELS = np.array([f"digit {number}" for number in DIGITS.target[:120]])
SUMS = PICTURES.mean(axis=(1, 2))


@pytest.fixture(scope="module", autouse=True)
def _light(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Figures are blank for what the module shares too, and the cache is its own."""
    with pytest.MonkeyPatch.context() as patch:
        leave_blank(patch)
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A backbone of tiny pictures, grey ones."""
    config = ViTConfig(
        image_size=(8, 8), patch_size=(4, 4), channels=1, width=32, depth=2, heads=2, mlp_width=64, num_classes=0
    )
    torch.manual_seed(0)
    model = ViT(config)
    spec = Preprocess(size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_checkpoint(Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec), path)
    return str(path)


@pytest.fixture(scope="module")
def fitted(weights: str) -> Classifier:
    return Classifier(weights=weights, **QUICK).fit(PICTURES, LABELS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    for index, picture in enumerate(PICTURES):
        Image.fromarray(picture).save(folder / f"{index}.png")
    return [str(folder / f"{index}.png") for index in range(len(PICTURES))]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """How many pictures go through a backbone, call by call; nothing is in the cache before."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    counts: list[int] = []
    features = TorchRuntime.features

    def count(self: TorchRuntime, images: Any) -> Any:
        counts.append(len(images))
        return features(self, images)

    monkeypatch.setattr(TorchRuntime, "features", count)
    return counts


def test_a_classifier_learns_and_answers_in_the_users_labels(fitted: Classifier) -> None:
    assert fitted.classes_.tolist() == [f"digit {number}" for number in range(10)]
    probabilities = fitted.predict_proba(PICTURES)
    assert probabilities.shape == (120, 10)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    predicted = fitted.predict(PICTURES)
    assert (predicted == fitted.classes_[probabilities.argmax(axis=1)]).all()
    assert fitted.score(PICTURES, LABELS) == accuracy_score(LABELS, predicted) > 0.5, "chance is 0.1"
    assert fitted.run_ is not None
    assert (fitted.run_ / "metrics.json").is_file()


def test_the_estimator_is_the_command(weights: str, files: list[str], tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("path,label\n" + "".join(f"{file},{label}\n" for file, label in zip(files, LABELS, strict=True)))
    own = {"weights": weights, "train": "head", "test_rate": 0.0, "report": False, **QUICK}
    run = vitrail.train(table, out=tmp_path / "run", **own)
    model = vitrail.load(run.folder)
    expected = [dict(zip(each.labels, each.scores, strict=True)) for each in model.predict(files, top_k=10)]
    estimator = Classifier(weights=weights, **QUICK).fit(files, LABELS)
    names = estimator.classes_.tolist()
    np.testing.assert_allclose(
        estimator.predict_proba(files), [[scores[name] for name in names] for scores in expected], atol=1e-5
    )
    head = vitrail.load(run.best).checkpoint().tensors["head.weight"]
    torch.testing.assert_close(estimator.predictor_.checkpoint().tensors["head.weight"], head, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "form",
    [
        lambda files: [Path(file) for file in files],
        lambda files: np.array(files),
        lambda files: np.array(files, dtype=object).reshape(-1, 1),
        lambda files: pd.Series(files, index=range(100, 100 + len(files))),
        lambda files: pd.DataFrame({"path": files}),
        lambda files: [Path(file).read_bytes() for file in files],
        lambda files: [Image.open(file) for file in files],
        lambda files: [np.asarray(Image.open(file)) for file in files],
        lambda files: [torch.as_tensor(np.array(Image.open(file))) for file in files],
        lambda files: np.stack([np.asarray(Image.open(file)) for file in files])[..., None],
        lambda files: np.stack([np.asarray(Image.open(file)) / 255 for file in files]),
    ],
)
def test_every_form_of_a_picture_is_the_same_picture(
    fitted: Classifier, files: list[str], form: Callable[[list[str]], Any]
) -> None:
    np.testing.assert_allclose(fitted.predict_proba(form(files[:5])), fitted.predict_proba(PICTURES[:5]), atol=1e-6)


def test_pictures_of_several_sizes_are_learned_from(weights: str) -> None:
    pictures: list[Any] = [Image.fromarray(picture) for picture in PICTURES[:60]]
    pictures[0] = pictures[0].resize((11, 9))
    pictures[1] = np.asarray(pictures[1], dtype=np.float32) / 255
    estimator = Classifier(weights=weights, **QUICK).fit(pictures, DIGITS.target[:60])
    assert estimator.predict(pictures).dtype == DIGITS.target.dtype


def test_several_labels_are_a_matrix(weights: str) -> None:
    y = np.stack([DIGITS.target[:120] % 2, DIGITS.target[:120] > 4, np.median(SUMS) < SUMS], axis=1).astype(int)
    estimator = Classifier(weights=weights, **QUICK).fit(PICTURES, y)
    scores = estimator.predict_proba(PICTURES)
    assert scores.shape == (120, 3)
    predicted = estimator.predict(PICTURES)
    assert set(np.unique(predicted)) <= {0, 1}
    assert estimator.score(PICTURES, y) == (predicted == y).all(axis=1).mean(), "all labels of a picture must be right"
    assert (predicted == y).mean() > 0.6
    labels = [set(each.labels) for each in estimator.predictor_.predict(PICTURES[:, :, :, None], top_k=3)]
    assert labels == [{f"label {index}" for index in np.flatnonzero(row)} for row in predicted]


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (-1, 2)])
def test_a_regressor_answers_in_the_shape_of_y(weights: str, shape: tuple[int, ...]) -> None:
    y = np.resize(np.stack([SUMS, SUMS - 3], axis=1) if shape[-1] == 2 else SUMS, (120, *shape[1:]))
    estimator = Regressor(weights=weights, epochs=15, lr=0.05).fit(PICTURES, y)
    predicted = estimator.predict(PICTURES)
    assert predicted.shape == y.shape
    assert estimator.score(PICTURES, y) == r2_score(y, predicted) > 0.5


def test_folds_compute_each_picture_once(weights: str, computed: list[int]) -> None:
    scores = cross_val_score(Classifier(weights=weights, **QUICK), PICTURES, LABELS, cv=3)
    assert sum(computed) == len(PICTURES)
    assert len(scores) == 3
    fitted = Classifier(weights=weights, epochs=1).fit(PICTURES, LABELS)
    fitted.predict(np.repeat(PICTURES[:2], 3, axis=0))
    assert sum(computed) == len(PICTURES), "in the cache, for any later fit"
    twice = np.concatenate([PICTURES[:1] + 1] * 3)
    fitted.predict(twice)
    assert sum(computed) == len(PICTURES) + 1
    for file in SHELF.folder.iterdir():
        file.write_bytes(b"damaged")
    fitted.predict(PICTURES[:7])
    assert sum(computed) == len(PICTURES) + 8, "a damaged file counts as one that never was"


def test_a_backbone_that_is_trained_is_not_cached(weights: str, computed: list[int]) -> None:
    settings = {"lora_rank": 2, "probe": False}
    estimator = Classifier(weights=weights, train="lora", epochs=1, settings=settings).fit(PICTURES, LABELS)
    np.testing.assert_allclose(
        estimator.predict_proba(PICTURES[:3]).max(axis=1),
        [each.score for each in estimator.predictor_.predict(PICTURES[:3, :, :, None])],
        atol=1e-6,
    )
    assert SHELF.is_empty


def test_cached_features_are_bounded_and_joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    cache = FeatureCache("0" * 32)
    rows = {f"{index:032x}": np.full(4, index, dtype=np.float32) for index in range(FILES + 1)}
    for digest, row in rows.items():
        cache.add({digest: row})
    assert len(list(SHELF.folder.iterdir())) == 1, "many small files became one"
    found = cache.find([*rows, "f" * 32])
    assert {digest: row.tolist() for digest, row in found.items()} == {key: row.tolist() for key, row in rows.items()}
    assert not FeatureCache("1" * 32).find(rows), "of another backbone"
    large = {f"{index:032x}": np.zeros(4, dtype=np.float32) for index in range(100, 110)}
    small = Shelf(name="features", most_items=9, most_bytes=300)
    monkeypatch.setattr("vitrail.training.feature_cache.SHELF", small)
    cache.add(large)
    assert not cache.find(rows), "the oldest made room"
    assert cache.find(large).keys() == large.keys()


@in_fuzz_only
def test_grids_and_pipelines(weights: str) -> None:
    pipeline = Pipeline([("invert", FunctionTransformer(lambda x: 255 - x)), ("vit", Classifier(weights=weights))])
    grid = {"vit__epochs": [1, 4], "vit__settings": [{"label_smoothing": 0.1}]}
    search = GridSearchCV(pipeline.set_params(vit__lr=0.05), grid, cv=2).fit(PICTURES, LABELS)
    assert search.best_params_["vit__epochs"] == 4
    assert search.best_estimator_.score(PICTURES, LABELS) > 0.3


def test_predictions_of_folds_feed_other_estimators(weights: str) -> None:
    classifier = Classifier(weights=weights, **QUICK)
    outside = cross_val_predict(classifier, PICTURES, LABELS, cv=2, method="predict_proba")
    assert outside.shape == (120, 10)
    assert LogisticRegression().fit(outside, LABELS).score(outside, LABELS) > 0.2
    calibrated = CalibratedClassifierCV(classifier, cv=2).fit(PICTURES, LABELS)
    np.testing.assert_allclose(calibrated.predict_proba(PICTURES[:4]).sum(axis=1), 1)


@in_fuzz_only
def test_several_processes_share_the_work(weights: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of joblib's, about its processes
        scores = cross_val_score(Classifier(weights=weights, epochs=1), PICTURES, LABELS, cv=2, n_jobs=2)
    assert scores.tolist() == cross_val_score(Classifier(weights=weights, epochs=1), PICTURES, LABELS, cv=2).tolist()


def test_a_pickle_and_a_file_predict_the_same(fitted: Classifier, tmp_path: Path) -> None:
    expected = fitted.predict_proba(PICTURES[:9])
    copy = pickle.loads(pickle.dumps(fitted))
    assert copy.run_ is None, "the temporary folder is that of the other estimator"
    np.testing.assert_allclose(copy.predict_proba(PICTURES[:9]), expected, atol=1e-7)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(copy)).predict_proba(PICTURES[:9]), expected, atol=1e-7)
    assert not hasattr(pickle.loads(pickle.dumps(clone(fitted))), "predictor_")

    path = fitted.save(tmp_path / "model.safetensors")
    loaded = Classifier.load(path)
    assert loaded.get_params() == fitted.get_params()
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    assert loaded.classes_.dtype == fitted.classes_.dtype
    np.testing.assert_allclose(loaded.predict_proba(PICTURES[:9]), expected, atol=1e-7)
    label = vitrail.load(path).predict(PICTURES[0][:, :, None]).label
    assert label == fitted.predict(PICTURES[:1])[0], "and it is a checkpoint as any other"
    with pytest.raises(WeightsError, match=r"holds a Classifier; use vitrail\.Classifier\.load"):
        Regressor.load(path)
    fitted.predictor_.save(tmp_path / "plain.safetensors")
    with pytest.raises(WeightsError, match=r"not written by Classifier\.save"):
        Classifier.load(tmp_path / "plain.safetensors")


def test_a_saved_regressor_keeps_its_shape(weights: str, tmp_path: Path) -> None:
    estimator = Regressor(weights=weights, epochs=1).fit(PICTURES, SUMS)
    loaded = Regressor.load(estimator.save(tmp_path / "model.safetensors"))
    np.testing.assert_allclose(loaded.predict(PICTURES[:5]), estimator.predict(PICTURES[:5]), rtol=1e-6)


def test_the_run_is_where_the_user_wants_it(weights: str, tmp_path: Path) -> None:
    estimator = Classifier(weights=weights, epochs=1, out=tmp_path / "run").fit(PICTURES, LABELS)
    assert estimator.run_ == tmp_path / "run"
    assert (tmp_path / "run" / "weights" / "best.safetensors").is_file()
    assert pickle.loads(pickle.dumps(estimator)).run_ == tmp_path / "run"


def test_parameters_are_as_they_were_passed(weights: str) -> None:
    estimator = Classifier(weights=weights, epochs=4, settings={"clip": 1.0})
    assert clone(estimator).get_params() == estimator.get_params()
    assert estimator.set_params(lr=0.5).lr == 0.5
    assert "epochs=4" in repr(estimator)
    assert "Classifier" in estimator._repr_html_()


def test_same_seed_same_model(weights: str, fitted: Classifier) -> None:
    again = Classifier(weights=weights, **QUICK).fit(PICTURES, LABELS)
    np.testing.assert_array_equal(again.predict_proba(PICTURES[:9]), fitted.predict_proba(PICTURES[:9]))
    other = Classifier(weights=weights, seed=5, **QUICK).fit(PICTURES, LABELS)
    assert (other.predict_proba(PICTURES[:9]) != fitted.predict_proba(PICTURES[:9])).any()


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (np.zeros((4, 3)), r"got numbers of the shape \(4, 3\)\. Embeddings"),
        ([[0.1, 0.2], [0.3, 0.4]], r"X\[0\] is \[0\.1, 0\.2\]\. Embeddings"),
        (np.zeros((9, 9, 3), np.uint8), r"got one picture, \(9, 9, 3\): pass X\[None\]"),
        (torch.zeros(3, 9, 9), r"got one picture, \(3, 9, 9\): pass X\[None\]"),
        (np.array([["a", "b"]]), r"got an array of the shape \(1, 2\)"),
        (np.zeros((2, 8, 8, 1), dtype=int), "bytes or floats from 0 to 1; got int64"),
        (pd.DataFrame({"a": ["x"], "b": ["y"]}), r"one column, of pictures; got \['a', 'b'\]"),
        ("picture.png", "for one picture, pass a list"),
        ([None], r"X\[0\] is None"),
        (iter([]), "got list_iterator"),
        ([], "got none"),
    ],
)
def test_what_is_no_picture_is_refused(fitted: Classifier, x: Any, why: str) -> None:
    for use in (fitted.predict, lambda x: Classifier().fit(x, [0] * 4)):
        with pytest.raises(SamplesError, match=why) as caught:
            use(x)
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("estimator", "y", "why"),
    [
        (Classifier, [0, 1, 1], "X has 4 pictures, and y 3 rows"),
        (Classifier, None, "requires y to be passed"),
        (Classifier, [0.5, 1.5, 2.5, 0.1], "Unknown label type: continuous"),
        (Classifier, ["a"] * 4, "at least two classes"),
        (Regressor, ["a"] * 4, "y must hold numbers"),
        (Regressor, [1.0, 2.0, np.nan, 3.0], "contains NaN"),
        (Regressor, np.zeros((4, 1, 1)), r"must have the shape \(N,\) or \(N, K\)"),
    ],
)
def test_what_is_no_label_is_refused(estimator: Any, y: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        estimator().fit(PICTURES[:4], y)


def test_mistakes_are_named(weights: str, fitted: Classifier, files: list[str], tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        Classifier().predict(PICTURES)
    with pytest.raises(TypeError, match=r"takes X and y; got sample_weight: every picture counts the same"):
        Classifier().fit(PICTURES, LABELS, sample_weight=np.ones(len(PICTURES)))
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    with pytest.raises(SamplesError, match=r"X\[1\] \(.*broken\.png\): .*\(1 more cannot be read\)"):
        fitted.predict([files[0], broken, broken])
    with pytest.raises(SamplesError, match=r"X\[0\] \(missing\.png\)"):
        fitted.predict(["missing.png"])
    with pytest.raises(DataError, match=r"broken\.png"):
        Classifier(weights=weights).fit([*files[:20], broken], LABELS[:21])
    with pytest.raises(ConfigError, match="needs pretrained weights"):
        Classifier(weights="none").fit(PICTURES, LABELS)
    for settings, why in (
        ({"epochs": 3}, "epochs is an argument of its own"),
        ({"test_rate": 0.1}, "X and y are the data"),
        ({"epoch": 3}, "epochs"),
    ):
        with pytest.raises(ConfigError, match=why):
            Classifier(weights=weights, settings=settings).fit(PICTURES, LABELS)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_a_grid(weights: str, monkeypatch: pytest.MonkeyPatch, number: int, error: Any) -> None:
    monkeypatch.setattr("vitrail.training.loop.Signals.received", number, raising=False)
    monkeypatch.setattr("vitrail.training.loop.Signals.__init__", lambda self: setattr(self, "_previous", {}))
    with pytest.raises(error):
        cross_val_score(Classifier(weights=weights, epochs=1), PICTURES, LABELS, cv=2)


def test_some_pictures_may_be_unreadable(weights: str, files: list[str], tmp_path: Path) -> None:
    missing = [*files, str(tmp_path / "missing.png")]
    estimator = Classifier(weights=weights, epochs=1, settings={"max_broken_rate": 0.1})
    assert estimator.fit(missing, [*LABELS, LABELS[0]]).predict(files[:1]).shape == (1,)


def test_digests_tell_pictures_apart() -> None:
    grey = Image.fromarray(PICTURES[0])
    turned = Image.fromarray(PICTURES[0])
    turned.getexif()[0x0112] = 6
    palette = grey.convert("P")
    other = palette.copy()
    other.putpalette(list(range(255, -1, -1)) * 3)
    forms = [grey, turned, palette, other, grey.convert("RGB"), PICTURES[0], PICTURES[0].reshape(4, 16), PICTURES[1]]
    digests = read_samples(forms).digests
    assert len(set(digests)) == len(forms)
    assert read_samples([PICTURES[0].copy()]).digests == [digests[5]]


def as_pictures(rows: Any) -> Any:
    """A matrix of numbers as pictures: each row a grey one of 8 × 8."""
    squashed = 255 / (1 + np.exp(-np.asarray(rows, dtype=np.float64).clip(-50, 50)))
    return np.stack([np.resize(row, (8, 8)) for row in squashed]).astype(np.uint8)


class _Rows(_Estimator):
    """An estimator of matrices, which scikit-learn's checks feed: pictures are made of them, and the rest is ours."""

    def fit(self, X: Any, y: Any) -> Any:  # noqa: N803
        return super().fit(as_pictures(validate_data(self, X)), y)

    def _meanings(self, X: Any) -> Any:  # noqa: N803
        check_is_fitted(self, "predictor_")
        return super()._meanings(as_pictures(validate_data(self, X, reset=False)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = InputTags()
        for each in (tags.classifier_tags, tags.regressor_tags):
            if each is not None:
                each.poor_score = True  # of a backbone with random weights
        return tags


class RowClassifier(_Rows, Classifier):
    """Of rows."""


class RowRegressor(_Rows, Regressor):
    """Of rows."""


ROWS = pytest.mark.parametrize("estimator", [RowClassifier, RowRegressor])
SOME = {"check_estimators_pickle", "check_dict_unchanged", "check_methods_subset_invariance"}
SKIPPED = {"check_array_api_input", "check_classifiers_multilabel_output_format_decision_function"}


@ROWS
def test_some_checks_of_scikit_learn_pass(weights: str, estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those that the checks provoke
        for own, check in estimator_checks_generator(estimator(weights=weights, epochs=2)):
            if check.func.__name__ in SOME:
                check(own)


@ROWS
@in_fuzz_only
def test_all_checks_of_scikit_learn_pass(weights: str, estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCIPY_ARRAY_API", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator(weights=weights, epochs=2))
    assert {each["check_name"] for each in results if each["status"] != "passed"} <= SKIPPED
    assert len(results) > 40


def test_scikit_learn_has_hardly_a_check_of_pictures() -> None:
    with pytest.warns(SkipTestWarning, match="Can't test estimator Classifier"):
        assert {each["status"] for each in check_estimator(Classifier())} == {"passed"}
