"""`vitrail eval`: how good a model is on a data set, and where it fails."""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.commands import Classes, Device, Json, Merge, Precision, Preprocessing, Raw, Runtime, read_merge
from vitrail.cli.eval_table import print_evaluation, print_probes
from vitrail.cli.printing import print_end, print_json, print_no_report, print_note
from vitrail.data.config import DataConfig
from vitrail.errors import list_names
from vitrail.evaluation import ProbeName, ViewName
from vitrail.files import check_run_folder, new_run_folder

BROKEN = 1
_PLAIN = DataConfig()
MODEL_HELP = (
    "A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name. A single argument is the "
    "data, and the model is then the bundled cifar10."
)


def eval(  # noqa: A001 - the verb's name
    model: Annotated[str, Parameter(help=MODEL_HELP)],
    data: str | None = None,
    *,
    split: str | None = None,
    config: Annotated[DataConfig, Parameter(name="*")] = _PLAIN,
    tta: ViewName | None = None,
    robustness: Annotated[bool, Parameter(negative=())] = False,
    robustness_pictures: int | None = None,
    probe: Annotated[tuple[ProbeName, ...], Parameter(consume_multiple=True, negative=(), show_default=False)] = (),
    shots: int | None = None,
    coverage: float | None = None,
    unfamiliar: str | None = None,
    by_position: Annotated[bool, Parameter(negative=())] = False,
    classes: Classes = None,
    out: Path | None = None,
    raw: Raw = False,
    runtime: Runtime = "auto",
    precision: Precision = "float32",
    merge: Merge = None,
    preprocess: Preprocessing = None,
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """Measure a model on a data set.

    Parameters
    ----------
    data
        A folder, a table, or a name such as cifar10 or digits: see `vitrail data --help`.
    split
        train, val, test or all [default: test, or val if there is no test split].
    tta
        Test-time augmentation: average over mirrored pictures (flip), shifted ones (shift), or both (full).
    robustness
        Also measure under noise, blur, JPEG, brightness and rotation at five severities.
    robustness_pictures
        How many pictures of the split --robustness uses [default: 1000].
    probe
        Also fit simple classifiers on the frozen features of the training split: knn, linear, shots.
    shots
        Training pictures per class for --probe shots [default: 5].
    coverage
        How often label sets should hold the truth, for a calibrated model [default: 0.95].
    unfamiliar
        Other data, such as a folder of pictures, which a calibrated model should tell from these.
    by_position
        For a checkpoint without class names: its classes are those of the data, in the same order.
    out
        The folder to write to [default: runs/eval-N].
    """
    from vitrail.verbs.call import tell_data
    from vitrail.verbs.evaluate import evaluate
    from vitrail.verbs.settings import changed_settings

    check_run_folder(out)
    if data is None:
        model, data = tell_data(model, None)
    evaluation = evaluate(
        model,
        data,
        split=split,
        tta=tta,
        robustness=robustness,
        robustness_pictures=robustness_pictures,
        probe=probe,
        shots=shots,
        coverage=coverage,
        unfamiliar=unfamiliar,
        by_position=by_position,
        classes=classes,
        out=lambda: new_run_folder("eval", out),
        raw=raw,
        runtime=runtime,
        precision=precision,
        merge=read_merge(merge),
        preprocess=preprocess,
        device=device,
        progress=True,
        **changed_settings(config),
    )
    measurement = evaluation.measurement
    code = BROKEN if evaluation.report_error or (measurement is not None and measurement.broken) else 0
    if evaluation.folder is None:  # only the first of several ranks prints and writes
        return code
    if evaluation.class_order is not None:
        order = list_names(evaluation.class_order)
        print_note(f"the model's outputs are assumed to be, in this order: {order}")
    if evaluation.report_error:
        print_no_report(evaluation.report_error, "the numbers are written")
    if as_json:
        print_json({**evaluation.facts, "written": [str(path) for path in evaluation.written]})
        return code
    title = f"{evaluation.model} on {evaluation.dataset.name}, {evaluation.split}"
    if measurement is not None:
        print_evaluation(title, measurement, evaluation.facts)
        print_end(evaluation.written, f"vitrail predict {shlex.quote(model)} PICTURES…")
    else:
        print_probes(title, evaluation.facts)
        print_end(evaluation.written, shlex.join(["vitrail", "embed", model, "--data", data]))
    return code
