"""The best weights of a run as a model for use, `weights/best.safetensors`: written whenever they improve, and
calibrated on validation at the end.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitrail.data.source import Source
from vitrail.errors import VitrailError
from vitrail.evaluation.confidence import SplitOutputs, count_pictures, fit_trust, fit_trust_by_others
from vitrail.evaluation.measurement import Measurement, measure_split
from vitrail.evaluation.ood import TRAINING_PICTURES
from vitrail.prediction import Predictor
from vitrail.ranks import Ranks
from vitrail.rng import Integers
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.training.feature_store import Features
from vitrail.training.gradients import whole
from vitrail.training.listener import Listener
from vitrail.training.objectives import Objective
from vitrail.training.setup import Setup
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Origin
from vitrail.weights.native import save_checkpoint
from vitrail.weights.proof import Agreement

BEST = Path("weights") / "best.safetensors"
SAME = 1e-5  # of the largest logit: what rounding makes of merged weights


class BestWeights:
    """Writes the model as it is now, whenever it is the best so far."""

    def __init__(self, setup: Setup, objective: Objective, ranks: Ranks, folder: Path, listener: Listener) -> None:
        self.setup, self.objective, self.ranks, self.listener = setup, objective, ranks, listener
        self.folder = folder
        self._proven = False  # that the written model computes what the trained one does

    def save(self) -> None:
        """Write one self-describing file; all ranks must call it."""
        setup = self.setup
        tensors = {name: whole(tensor).detach().cpu() for name, tensor in setup.model.state_dict().items()}
        finished = Checkpoint(
            config=setup.model.config,
            tensors=self.objective.plain(tensors),
            extras={name: whole(tensor).detach().cpu() for name, tensor in self.objective.extras().items()},
            preprocess=setup.preprocess,
            classes=setup.dataset.classes if setup.model.config.num_classes else None,
            task=setup.task,
            origin=Origin(
                source=setup.source or f"trained on {setup.dataset.name} with {setup.config.recipe}",
                outliers=setup.config.augment.outlier_rate > 0,
            ),
        )
        self._report(self.objective.prove(finished))

        def write() -> None:
            self.objective.write_beside((self.folder / BEST).parent, tensors)
            save_checkpoint(finished, self.folder / BEST)

        self.ranks.from_first(write)

    def _report(self, agreement: Agreement | None) -> None:
        """Report once that the written model computes what the trained one does; and whenever it does not."""
        if agreement is None or (self._proven and agreement.relative <= SAME):
            return
        self._proven = agreement.relative <= SAME
        difference = f"differ by up to {agreement.relative:.0e} of the largest"
        self.listener.said(
            f"the adapters are merged into best.safetensors; {agreement.what} with and without merging {difference}"
            + ("" if self._proven else ": more than rounding explains, so evaluate the merged model itself")
        )


def calibrate(
    predictor: Predictor,
    setup: Setup,
    ranks: Ranks,
    folder: Path,
    listener: Listener,
    features: Mapping[str, Features],
    held_out: Measurement | None = None,
) -> tuple[Predictor, Measurement | None]:
    """Calibrate the best weights on the validation pictures, by all ranks together; test pictures play no part.

    With `held_out`, by what the models of folds computed for the pictures that each had not seen.

    Without such pictures, or with too few, the weights stay as they are; the latter is reported. What was measured is
    returned, for the report. `features` are those of the splits, if a head was trained on them: they are not computed
    again.
    """
    if not setup.has_validation and held_out is None:
        return predictor, None

    def classify(split: str, samples: Integers, order: list[int]) -> SplitOutputs | None:
        known = features.get(split)
        return None if known is None else _classify(known, predictor, setup.dataset.split(split), samples, order)

    what = "pictures measured for the calibration"
    unsure = setup.config.augment.outlier_rate > 0
    try:
        if held_out is not None:
            advance = count_progress(listener, what, min(TRAINING_PICTURES, len(setup.dataset.split("train"))))
            trust = fit_trust_by_others(
                predictor, setup.dataset, held_out, unsure=unsure, known=classify, progress=advance
            )
            measurement = held_out
        else:
            advance = count_progress(listener, what, count_pictures(setup.dataset))
            trust, measurement = fit_trust(predictor, setup.dataset, unsure=unsure, known=classify, progress=advance)
    except VitrailError as error:
        listener.said(f"the model is not calibrated: {error}")
        return predictor, held_out
    finally:
        listener.ended()
    listener.said(f"calibrated {trust.describe()[0]}")
    calibrated = replace(predictor, trust=trust)
    ranks.from_first(lambda: save_checkpoint(calibrated.checkpoint(), folder / BEST))
    seconds = None if setup.config.start.training.on_features else measurement.seconds  # of the head only
    return calibrated, replace(measurement, trust=trust, seconds=seconds)


def measure_test(predictor: Predictor, setup: Setup, listener: Listener) -> Measurement | None:
    """The best weights on the test split, by all ranks together; once, for the report too.

    Unreadable pictures must not fail the run: then there is no measurement, and the reason is reported.
    """
    if "test" not in setup.dataset.splits:
        return None
    advance = count_progress(listener, "test pictures measured", len(setup.dataset.split("test")))
    try:
        return measure_split(predictor, setup.dataset, "test", progress=advance)
    except VitrailError as error:
        listener.said(f"the test split could not be measured: {error}")
        return None
    finally:
        listener.ended()


def count_progress(listener: Listener, what: str, total: int) -> Callable[[int], None]:
    """Tells the listener how much is done, given what has been added to it."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        listener.prepared(what, done, total)

    return advance


def _classify(
    known: Features, predictor: Predictor, source: Source, samples: Integers, order: list[int]
) -> SplitOutputs:
    """What the head makes of features that are known already."""
    chosen = torch.from_numpy(np.isin(known.indices.numpy(), samples))
    features, runtime = known.features[chosen], predictor.runtime
    assert isinstance(runtime, TorchRuntime)
    logits = runtime.run(runtime.model.classify, features).numpy()[:, order]
    there: Integers = known.indices[chosen].numpy()
    lost = {source.key(int(index)): "cannot be read" for index in np.setdiff1d(samples, there)}
    return SplitOutputs(there, np.ascontiguousarray(logits), features.numpy(), lost)
