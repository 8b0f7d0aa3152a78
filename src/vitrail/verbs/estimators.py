"""`vitrail.Classifier` and `vitrail.Regressor`: `vitrail.train` and `predict` as estimators of scikit-learn.

Where only the head is trained, features come from the user's cache (`training/feature_cache.py`): folds, grids and
clones compute those of a picture once.
"""

import json
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from vitrail.data import DataConfig, Dataset
from vitrail.errors import ConfigError, SamplesError, WeightsError
from vitrail.prediction import Predictor, load
from vitrail.training.feature_cache import FeatureCache, compute_features
from vitrail.training.recipes import read_changes
from vitrail.verbs.fits import classify, train_on
from vitrail.verbs.samples import Samples, Targets, describe, read_classes, read_numbers, read_samples
from vitrail.weights.native import save_checkpoint
from vitrail.weights.tensor_files import read_safetensors

Array = np.ndarray[Any, Any]
HEADER = "vitrail.estimator"  # in a checkpoint's metadata: what is an estimator's own
FITTED = "model.safetensors"
# Settings of the data that have a meaning for pictures in memory.
OWN_DATA = {"val_rate", "split_seed", "max_broken_rate"}


class _Scratch:
    """A folder that lasts as long as this object."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vitrail-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class _Estimator(BaseEstimator, ABC):
    """What both have in common."""

    predictor_: Predictor
    run_: Path | None

    def __init__(
        self,
        *,
        weights: str | Path = "auto",
        train: Literal["all", "head", "lora"] | None = None,
        recipe: str | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        batch_size: int | None = None,
        image_size: int | tuple[int, int] | None = None,
        val_rate: float | None = None,
        seed: int = 0,
        device: str = "auto",
        settings: dict[str, Any] | None = None,
        out: str | Path | None = None,
    ) -> None:
        """Everything is as for `vitrail.train`, and None is what that chooses.

        Args:
            weights: The checkpoint to start from; auto means pretrained weights for photographs.
            train: What to train [default: head, unless a recipe is named].
            val_rate: The share of the pictures that choose the epoch and calibrate the probabilities.
            settings: Any other setting of `vitrail.train` by its name.
            out: The folder of the run [default: a temporary one, which lasts as long as the estimator].
        """
        self.weights = weights
        self.train = train
        self.recipe = recipe
        self.epochs = epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.image_size = image_size
        self.val_rate = val_rate
        self.seed = seed
        self.device = device
        self.settings = settings
        self.out = out

    def fit(self, X: Any, y: Any, **refused: Any) -> Self:  # noqa: N803 - scikit-learn's names
        """Train on pictures and their labels."""
        if refused:
            hint = ": every picture counts the same" if "sample_weight" in refused else ""
            raise TypeError(f"{type(self).__name__}.fit takes X and y; got {', '.join(refused)}{hint}.")
        changes = self._changes()
        samples = read_samples(X)
        targets = self._read_targets(y, len(samples.pictures))
        dataset = Dataset(
            name="X",
            classes=targets.names,
            splits={"train": samples.source(targets.labels)},
            task=targets.task,
            max_broken_rate=changes.get("max_broken_rate", DataConfig().max_broken_rate),
            named_task=True,
        )
        scratch = _Scratch() if self.out is None else None
        folder = scratch.folder if scratch else Path(cast("str | Path", self.out))
        self.predictor_, self._cache = train_on(dataset, samples, changes, folder)
        self.run_, self._scratch = folder, scratch
        self._learn_form(targets)
        return self

    def _changes(self) -> dict[str, Any]:
        """The settings of the run, as `vitrail.train` takes them."""
        named = self.get_params(deep=False)
        recipe, settings = named.pop("recipe"), dict(named.pop("settings") or {})
        del named["out"]
        if twice := sorted(set(settings) & set(named)):
            raise ConfigError(f"{twice[0]} is an argument of its own; it must not be in `settings=` too.")
        useless = {each.name for each in fields(DataConfig)} - OWN_DATA
        if wrong := sorted(set(settings) & useless):
            raise ConfigError(f"{wrong[0]} says where data are found and how they are split; X and y are the data.")
        passed = {name: value for name, value in named.items() if value is not None}
        if recipe is None:
            passed.setdefault("train", "head")
        if isinstance(size := passed.get("image_size"), int):
            passed["image_size"] = (size, size)
        return read_changes("train", recipe, None, settings | passed)

    @abstractmethod
    def _read_targets(self, y: Any, count: int) -> Targets:
        """What y holds, for as many pictures."""

    @abstractmethod
    def _learn_form(self, targets: Targets) -> None:
        """Remember how answers are spelled."""

    def _meanings(self, X: Any) -> Array:  # noqa: N803
        """Probabilities or values of the pictures, (N, outputs); one that cannot be read is an error."""
        check_is_fitted(self, "predictor_")
        samples = read_samples(X)
        outputs, broken = self._outputs(samples)
        if broken:
            index, why = next(iter(broken.items()))
            more = f" ({len(broken) - 1:,} more cannot be read)" if len(broken) > 1 else ""
            raise SamplesError(f"{describe(samples.pictures[index], index)}: {why}{more}")
        return self.predictor_.probabilities(np.stack([outputs[index] for index in range(len(samples.pictures))]))

    def _outputs(self, samples: Samples) -> tuple[dict[int, Array], dict[int, str]]:
        """The outputs of the pictures by their indices, and why others have none."""
        if self._cache is not None:
            features, broken = compute_features(self.predictor_, samples.digests, samples.named, self._cache)
            return classify(self.predictor_, features), broken
        rows = dict(enumerate(self.predictor_.logits(samples.named(range(len(samples.pictures))))))
        good = {index: value for index, (_, value) in rows.items() if not isinstance(value, str)}
        return good, {index: value for index, (_, value) in rows.items() if isinstance(value, str)}

    # Keeping --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator as one of our checkpoints, which every verb reads, with its parameters in it."""
        check_is_fitted(self, "predictor_")
        facts = {
            "kind": type(self).__name__,
            "params": self._plain_params(),
            **self._form(),
            "head": self._cache is not None,
        }
        save_checkpoint(self.predictor_.checkpoint(), path, {HEADER: json.dumps(facts)})
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The estimator that `save` wrote."""
        text = read_safetensors(Path(path))[1].get(HEADER)
        if text is None:
            raise WeightsError(f"{path} was not written by {cls.__name__}.save; vitrail.load reads any checkpoint.")
        try:
            facts: dict[str, Any] = json.loads(text)
            kind, params, has_cache = facts.pop("kind"), facts.pop("params"), facts.pop("head")
        except (ValueError, KeyError, AttributeError) as error:
            raise WeightsError(f"{path} is damaged: what it says of the estimator cannot be read.") from error
        if kind != cls.__name__:
            raise WeightsError(f"{path} holds a {kind}; use vitrail.{kind}.load.")
        self = cls(**params)
        self.predictor_, self.run_, self._scratch = load(path, device=self.device), None, None
        predictor = self.predictor_
        self._cache = FeatureCache.of(predictor.model, predictor.preprocess) if has_cache else None
        self._set_form(facts)
        return self

    def _plain_params(self) -> dict[str, Any]:
        """The parameters as JSON has them."""
        params = {name: str(value) if isinstance(value, Path) else value for name, value in self.get_params().items()}
        try:
            json.dumps(params)
        except TypeError as error:
            raise ConfigError(f"parameters must be plain values to be saved; {error}.") from None
        return params

    @abstractmethod
    def _form(self) -> dict[str, Any]:
        """How answers are spelled, as JSON has it."""

    @abstractmethod
    def _set_form(self, facts: dict[str, Any]) -> None:
        """Read that again."""

    def __getstate__(self) -> dict[str, Any]:
        """What pickles hold: the model as the bytes of its checkpoint, and no folder of this process."""
        state = dict(super().__getstate__())
        predictor: Predictor | None = state.pop("predictor_", None)
        if predictor is not None:
            state.pop("_scratch")
            state["run_"] = self.run_ if self.out is not None else None
            with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
                save_checkpoint(predictor.checkpoint(), Path(folder) / FITTED)
                state["_checkpoint"] = (Path(folder) / FITTED).read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        content: bytes | None = state.pop("_checkpoint", None)
        super().__setstate__(state)
        if content is not None:
            self._scratch = _Scratch()
            path = self._scratch.folder / FITTED
            path.write_bytes(content)
            self.predictor_ = load(path, device=self.device)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = True  # of paths, or of pictures
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        tags.target_tags.required = True
        return tags


class Classifier(ClassifierMixin, _Estimator):
    """A ViT that learns classes of pictures, or several labels for each, as an estimator of scikit-learn.

    `X` is a list, an array or a column of paths, arrays (H, W, C) or PIL pictures; `y` has a class for each, or is a
    matrix of zeros and ones. By default only a head is trained, on features that are computed once for each picture.
    """

    classes_: Array

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The class of each picture; or, of a model of several labels, 0 or 1 for each."""
        scores = self._meanings(X)
        if self.predictor_.task.labels == "class":
            return self.classes_[scores.argmax(axis=1)]
        thresholds = self.predictor_.task.thresholds(self.predictor_.trust, scores.shape[1])
        return (scores > np.array(thresholds)).astype(np.int64)

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The probability of each class (N, classes), in the order of `classes_`; or of each label (N, labels)."""
        return self._meanings(X)

    def _read_targets(self, y: Any, count: int) -> Targets:
        return read_classes(y, count)

    def _learn_form(self, targets: Targets) -> None:
        assert targets.classes is not None
        self.classes_ = targets.classes

    def _form(self) -> dict[str, Any]:
        kind = self.classes_.dtype.kind
        if kind not in "biufUT" and not all(isinstance(each, str) for each in self.classes_):
            raise ConfigError(f"labels must be texts, numbers or booleans to be saved; got {self.classes_.dtype}.")
        return {"classes": self.classes_.tolist(), "dtype": "object" if kind in "OT" else self.classes_.dtype.str}

    def _set_form(self, facts: dict[str, Any]) -> None:
        self.classes_ = np.array(facts["classes"], dtype=facts["dtype"])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class Regressor(RegressorMixin, _Estimator):
    """A ViT that learns one number of pictures, or several, as an estimator of scikit-learn.

    `X` is as for `Classifier`; `y` has a number for each picture (N,), or several (N, K).
    """

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The value of each picture (N,), or its values (N, K), as `y` had them."""
        values = self._meanings(X)
        return values[:, 0] if self._single else values

    def _read_targets(self, y: Any, count: int) -> Targets:
        return read_numbers(y, count)

    def _learn_form(self, targets: Targets) -> None:
        self._single = targets.single

    def _form(self) -> dict[str, Any]:
        return {"single": self._single}

    def _set_form(self, facts: dict[str, Any]) -> None:
        self._single = bool(facts["single"])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
