"""`vitrail eval`: how good a model is on a data set, and where it fails."""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.eval_table import print_evaluation, print_probes
from vitrail.cli.options import Classes, Device, Json, Precision, Raw, Runtime
from vitrail.cli.printing import print_end, print_json, print_no_report, print_note
from vitrail.data.config import DataConfig
from vitrail.errors import list_names
from vitrail.evaluation.names import ProbeName, ViewName
from vitrail.folders import check_run_folder, new_run_folder

BROKEN = 1
_PLAIN = DataConfig()


def eval(  # noqa: A001 - the verb's name
    model: str,
    data: str | None = None,
    *,
    split: str | None = None,
    config: Annotated[DataConfig, Parameter(name="*")] = _PLAIN,
    tta: ViewName | None = None,
    robustness: Annotated[bool, Parameter(negative=())] = False,
    robustness_pictures: int | None = None,
    probe: Annotated[tuple[ProbeName, ...], Parameter(consume_multiple=True, negative=())] = (),
    shots: int | None = None,
    by_position: Annotated[bool, Parameter(negative=())] = False,
    classes: Classes = None,
    out: Path | None = None,
    raw: Raw = False,
    runtime: Runtime = "auto",
    precision: Precision = "float32",
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """Measure a model on a data set: vitrail eval [MODEL] DATA

    Writes report.html, metrics.json, predictions.csv, classes.csv, confusion.csv, confusion_matrix.png, reliability.png
    and top_losses.jpg. Under torchrun the ranks share the pictures, and the result is the same. With --probe, a model
    without a head, or with one for other classes, is measured by its features only. Exit code 1: some pictures could
    not be read, or no report could be made.

    Parameters
    ----------
    model
        A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name. A single argument
        is the data, and the model is the bundled cifar10.
    data
        A folder, a table, a name such as cifar10 or digits: see `vitrail data --help`.
    split
        train, val, test or all [default: test, or else val].
    tta
        Test-time augmentation: average over mirrored pictures, shifted ones, or both.
    robustness
        Also measure under noise, blur, JPEG, brightness and rotation at five severities.
    robustness_pictures
        How many pictures of the split are used for that [default: 1000].
    probe
        Also fit simple classifiers on the frozen features of the training split: knn, linear, shots.
    shots
        The training pictures of each class for --probe shots [default: 5].
    by_position
        The checkpoint has no class names, and its classes are the data's in their order.
    out
        The folder to write to [default: runs/eval-N].
    """
    from vitrail.prediction.arguments import tell_data
    from vitrail.verbs.data_settings import changed_settings
    from vitrail.verbs.evaluate import evaluate

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
        by_position=by_position,
        classes=classes,
        out=lambda: new_run_folder("eval", out),
        raw=raw,
        runtime=runtime,
        precision=precision,
        device=device,
        progress=True,
        **changed_settings(config),
    )
    measurement = evaluation.measurement
    code = BROKEN if evaluation.report_error or (measurement is not None and measurement.broken) else 0
    if evaluation.folder is None:  # of several ranks, the first prints and writes
        return code
    if evaluation.class_order is not None:
        order = list_names(evaluation.class_order)
        print_note(f"the model's outputs are taken to be, in this order: {order}")
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
