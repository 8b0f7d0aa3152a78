"""`vitrail.evaluate`: how good a model is on a data set, and where it fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from vitrail.data.source import Dataset
from vitrail.errors import ConfigError, suggest
from vitrail.evaluation import ProbeName, ViewName
from vitrail.prediction import Predictor
from vitrail.progress import Progress
from vitrail.registry import PrecisionChoice, RuntimeChoice
from vitrail.verbs.call import Out, RuntimeRequest, check_out, refuse_settings, resolve_data
from vitrail.verbs.keywords import DataSettings, changed_settings, read_data_settings, renamed
from vitrail.weights.metadata import ClassNames

if TYPE_CHECKING:
    from vitrail.verbs.scores import Evaluation

SHOTS = 5
ROBUSTNESS_PICTURES = 1000


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """What to measure, and how."""

    split: str | None
    tta: ViewName | None
    robustness_pictures: int | None  # None: corruptions are not measured
    probes: tuple[ProbeName, ...]
    shots: int
    coverage: float | None
    unfamiliar: Dataset | str | Path | None  # pictures that the model should tell from these
    by_position: bool
    raw: bool
    out: Out


@renamed(classes="class_names")
def evaluate(
    model: Predictor | str | Path,
    data: Dataset | str | Path | None = None,
    *,
    split: str | None = None,
    tta: ViewName | None = None,
    robustness: bool = False,
    robustness_pictures: int | None = None,
    probe: ProbeName | Sequence[ProbeName] = (),
    shots: int | None = None,
    coverage: float | None = None,
    unfamiliar: Dataset | str | Path | None = None,
    by_position: bool = False,
    class_names: ClassNames | None = None,
    out: Out = None,
    raw: bool = False,
    runtime: RuntimeChoice = "auto",
    precision: PrecisionChoice = "float32",
    merge: int | Sequence[int] | None = None,
    preprocess: str | None = None,
    device: str = "auto",
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> "Evaluation":
    """Measure a model on a data set.

    Data without splits of their own get those that the model's run was trained with, so that no training picture is
    measured. Under torchrun the ranks share the pictures, and each returns the same numbers. The `settings` are the
    fields of `DataConfig`.

    Args:
        model: A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name. A single argument
            is the data, and the model is then the bundled cifar10. In Python, also a loaded model.
        data: A folder, a table, or a name such as cifar10 or digits: see `vitrail data --help`. In Python, also an open
            data set.
        split: train, val, test or all [default: test, or val if there is no test split].
        tta: Test-time augmentation: also measure the average over mirrored pictures (flip), shifted ones (shift), or
            both (full), in addition to the results for the unchanged pictures.
        robustness: Also measure under noise, blur, JPEG, brightness and rotation at five severities.
        robustness_pictures: How many pictures of the split the corruptions are measured on [default: 1000].
        probe: Also fit simple classifiers on the frozen features of the training split: knn, linear, shots.
        shots: Training pictures per class for the probe shots [default: 5].
        coverage: How often label sets should hold the truth, for a calibrated model [default: 0.95].
        unfamiliar: Other data, such as a folder of pictures, which a calibrated model should recognise as unlike these.
        by_position: For a checkpoint without class names: its classes are those of the data, in the same order.
        class_names: A file with the names of the model's classes, one per line in the model's order, or JSON (index →
            name). In Python, also the names themselves.
        out: The folder for the report, the tables and the figures [default: runs/eval-N]. In Python, nothing is written
            by default.
        raw: Write the cells of CSV files unchanged, for programs. By default, a cell that a spreadsheet would take
            for a formula gets a leading apostrophe, and control characters are spelled out.
        runtime: The backend; auto: the fastest whose answers equal torch's, measured once if there is enough to do.
        precision: The number format; auto: bf16, or your int8 export of this model, if it is measured to be faster.
        merge: Merge about this many similar patches in each block, for speed, such as 8; or a number for each block,
            such as 8,8,4,4.
        preprocess: For an ONNX file of another tool, how its pictures are prepared: google, timm, timm-imagenet, hf,
            torchvision, dinov2 or clip.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps, …
    """
    probes = (probe,) if isinstance(probe, str) else tuple(probe)
    config = read_data_settings(evaluate, settings)
    changed = changed_settings(config)
    limit = _number("`robustness_pictures=`", robustness_pictures, ROBUSTNESS_PICTURES, "`robustness=True`", robustness)
    plan = EvaluationPlan(
        split=split,
        tta=tta,
        robustness_pictures=limit if robustness else None,
        probes=probes,
        shots=_number("`shots=`", shots, SHOTS, '`probe="shots"`', "shots" in probes),
        coverage=coverage,
        unfamiliar=unfamiliar,
        by_position=by_position,
        raw=raw,
        out=out,
    )
    if tta is not None and tta not in get_args(ViewName):
        raise ConfigError(f"has no {tta!r}; {suggest(str(tta), get_args(ViewName))}", field="tta")
    if unfamiliar is not None and tta is not None:
        raise ConfigError("compares pictures as they are; omit `tta=`", field="unfamiliar")
    refuse_settings(data, changed)
    check_out(out)
    request = RuntimeRequest(runtime=runtime, precision=precision, merge=merge, preprocess=preprocess)
    source, found = resolve_data(model, data, config, device=device, class_names=class_names, request=request)
    arguments = _passed(
        split=split,
        tta=tta,
        robustness=robustness,
        robustness_pictures=robustness_pictures,
        probe=probes,
        shots=shots,
        coverage=coverage,
        unfamiliar=str(unfamiliar) if isinstance(unfamiliar, str | Path) else None,
        by_position=by_position,
        class_names=str(class_names) if isinstance(class_names, str | Path) else None,
        raw=raw,
        **request.given(),
        device=None if device == "auto" else device,
        **changed,
    )
    from vitrail.verbs.scores import carry_out

    return carry_out(source, found, plan, arguments, progress)


def _number(name: str, number: int | None, usual: int, other: str, goes: bool) -> int:
    """A number of pictures, which has no effect without the other setting."""
    if number is None:
        return usual
    if not goes:
        raise ConfigError(f"{name} goes with {other}; add that, or omit {name}")
    if number < 1:
        raise ConfigError(f"{name} must be at least 1; got {number}.")
    return number


def _passed(**settings: Any) -> dict[str, Any]:
    """The settings that were passed."""
    return {name: value for name, value in settings.items() if value is not None and value is not False and value != ()}
