"""A float32 export → 8 bits: candidates are made and measured, and the best is written if it is good enough."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from vitrail.errors import WeightsError
from vitrail.progress import working
from vitrail.runtimes.exporting import LARGEST_ONNX, Target, seal_onnx, write_openvino
from vitrail.runtimes.manifest import Manifest
from vitrail.runtimes.openvino_runtime import read_model
from vitrail.runtimes.quantizing_tools import METHODS, Job, Method, write_controlled, write_int8
from vitrail.runtimes.runtime import Floats
from vitrail.runtimes.trials import Calibration, Candidate, Goal, Trial, check_telling, format_trials, size_of
from vitrail.weights.layout import EXPORT_IN_FOLDER
from vitrail.weights.proof import Agreement

CHOOSING, ACCEPTING = "choosing", "accepting"
NEAR = 0.05  # how far below the goal accuracy control may still help: it puts back single layers, not the whole model


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """What was written in 8 bits, how far it is from float32, and all that was tried."""

    manifest: Manifest
    agreement: Agreement
    trials: tuple[Trial, ...]


def quantize(
    manifest: Manifest,
    plain: Path,
    draft: Path,
    target: Target,
    calibration: Calibration,
    goal: Goal,
    *,
    speaks: bool = False,
) -> Quantized:
    """Write the float32 export at `plain` to `draft` in 8 bits; a WeightsError shows the table if none is good enough.

    The candidates are compared on other pictures than those on which the chosen one is accepted.
    """
    if target == "onnx" and size_of(plain) > LARGEST_ONNX:
        raise WeightsError("int8 in ONNX is for models of up to 2 GB; export this one for OpenVINO.")
    with TemporaryDirectory(dir=draft.parent) as folder:
        job = Job(
            plain=plain,
            folder=Path(folder),
            target=target,
            manifest=replace(manifest, precision="int8"),
            calibration=calibration,
            goal=goal,
        )
        sweep = _Sweep(job, speaks)
        best = sweep.run()
        with working(f"measuring {best.method} on other pictures", speaks=speaks):
            trial, agreement = sweep.judge(best)
        if not accepts(goal, sweep.float_trial(ACCEPTING), trial):
            raise WeightsError(
                f"no int8 export reached {goal}; nothing was written. What was tried ({calibration.describe()}):\n"
                f"{format_trials(sweep.trials)}\n"
                "Calibrate with more pictures, or with others that are more like those that the model will see; or "
                "ask for less with agreement= or max_loss="
            )
        written = _write(best.path, draft, target, replace(job.manifest, agreement=trial.agreement))
    return Quantized(manifest=written, agreement=agreement, trials=tuple(sweep.trials))


def accepts(goal: Goal, plain: Trial, trial: Trial) -> bool:
    """Whether a candidate is good enough: by its agreement, or by its loss where that is asked for and known."""
    if trial.agreement >= goal.agreement:
        return True
    if goal.max_loss is None or plain.accuracy is None or trial.accuracy is None:
        return False
    return 100 * (plain.accuracy - trial.accuracy) <= goal.max_loss + 1e-9


class _Sweep:
    """All candidates of one export, and what was measured of them."""

    def __init__(self, job: Job, speaks: bool) -> None:
        self._job, self._speaks = job, speaks
        self._pictures = {CHOOSING: job.calibration.choosing, ACCEPTING: job.calibration.accepting}
        self._expected: dict[str, Floats] = {}
        self.trials: list[Trial] = []
        with working("measuring float32", speaks=speaks):
            reference = Candidate("float32", job.plain, job.target, job.manifest)
            for part, pictures in self._pictures.items():
                expected = reference.logits(pictures)
                check_telling(pictures, expected, job.goal)
                self._expected[part] = expected
                self.trials.append(reference.try_on(pictures, part, expected)[0])

    def float_trial(self, part: str) -> Trial:
        return next(trial for trial in self.trials if trial.part == part)

    def run(self) -> Candidate:
        """Try one method after the other, until one is clearly good enough; the best."""
        goal, results = self._job.goal, list[tuple[Trial, Candidate, Method]]()
        for method in METHODS[self._job.target]:
            with working(f"quantising: {method.name}", speaks=self._speaks):
                trial, candidate = self._measure(method.name, write_int8(self._job, method))
            results.append((trial, candidate, method))
            if trial.agreement >= (1 + goal.agreement) / 2:
                break
        trial, best, method = max(results, key=lambda result: result[0].agreement)  # the first of equals
        good = accepts(goal, self.float_trial(CHOOSING), trial)
        if good or self._job.target != "openvino" or trial.agreement < goal.agreement - NEAR:
            return best
        name = f"{method.name}, some layers in float32"
        with working(f"quantising: {name}", speaks=self._speaks):
            controlled, other = self._measure(name, write_controlled(self._job, method))
        return other if controlled.agreement > trial.agreement else best

    def judge(self, candidate: Candidate) -> tuple[Trial, Agreement]:
        """The figures on the pictures that chose nothing."""
        expected = self._expected[ACCEPTING]
        trial, logits = candidate.try_on(self._pictures[ACCEPTING], ACCEPTING, expected)
        self.trials.append(trial)
        return trial, Agreement(
            what="logits",
            difference=float(np.abs(logits - expected).max()),
            scale=float(np.abs(expected).max()),
            top1=trial.agreement,
            pictures=trial.pictures,
        )

    def _measure(self, name: str, path: Path) -> tuple[Trial, Candidate]:
        candidate = Candidate(name, path, self._job.target, self._job.manifest)
        trial, _ = candidate.try_on(self._pictures[CHOOSING], CHOOSING, self._expected[CHOOSING])
        self.trials.append(trial)
        return trial, candidate


def _write(path: Path, draft: Path, target: Target, manifest: Manifest) -> Manifest:
    """The accepted graph, with what was measured of it in its manifest."""
    if target == "openvino":
        model: Any = read_model(path / EXPORT_IN_FOLDER)
        write_openvino(model, manifest, draft)
    else:
        path.replace(draft)
        seal_onnx(draft, manifest)
    return manifest
