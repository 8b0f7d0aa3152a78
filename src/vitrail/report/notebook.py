"""An evaluation in a notebook: a table of its numbers, with the confusion matrix."""

from typing import Any

from vitrail.evaluation import plots
from vitrail.evaluation.measurement import Measurement
from vitrail.report.page import Drawings, Picture, Table
from vitrail.report.pictures import encode_figure
from vitrail.report.render import render_template
from vitrail.report.sections import calibration_text, rate_text


def show_evaluation(title: str, measurement: Measurement | None, facts: dict[str, Any]) -> str:
    """A piece of HTML; only the probes if there are no predictions."""
    rows = [*(_answer_rows(measurement) if measurement is not None else ()), *_probe_rows(facts)]
    table = Table(head=("measure", "value"), rows=rows, texts=(1,))
    drawn = Drawings(pictures=[_confusion(measurement)] if measurement is not None else [])
    return render_template("evaluation.html.j2", title=title, table=table, drawn=drawn)


def _answer_rows(measurement: Measurement) -> list[tuple[str, str]]:
    metrics = measurement.metrics
    rows = [("pictures", f"{metrics.top1.total:,}"), ("top-1 accuracy", rate_text(metrics.top1))]
    rows += [("top-5 accuracy", rate_text(metrics.top5))] if metrics.top5 else []
    return [
        *rows,
        ("macro F1", f"{metrics.macro_f1:.3f}"),
        ("balanced accuracy", f"{metrics.balanced_accuracy:.2%}"),
        ("calibration error", calibration_text(measurement)),
    ]


def _probe_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    probes: dict[str, Any] = facts.get("probes", {})
    rows = [(f"{name} probe", f"{probes[name]['top1']['value']:.2%}") for name in ("knn", "linear") if name in probes]
    if "shots" in probes:
        few = probes["shots"]
        rows.append((f"{few['shots']}-shot probe", f"{few['mean']:.2%} ± {few['std']:.2%}"))
    if "robustness" in facts:
        rows.append(("under corruptions", f"{facts['robustness']['mean']:.2%}"))
    return rows


def _confusion(measurement: Measurement) -> Picture:
    confusion = measurement.metrics.confusion
    alt = f"Which of {len(measurement.classes):,} classes are taken for which"
    return encode_figure(
        lambda theme: plots.confusion_figure(confusion, measurement.classes, "confusion matrix", theme), alt
    )
