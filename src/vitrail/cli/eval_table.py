"""What `vitrail eval` prints."""

import math
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitrail.cli.printing import SteadyConsole, plain
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.evaluation.measurement import Measurement
    from vitrail.evaluation.metrics import Rate

MAX_CLASSES = 20


def print_evaluation(title: str, measurement: "Measurement", facts: dict[str, Any]) -> None:
    """The numbers, the classes and the mistakes."""
    metrics = measurement.metrics
    console = _begin(f"{title}: {counted(len(measurement.targets), 'picture')}", facts)
    if measurement.chose_epoch:
        console.print(
            "val also chose the epoch whose weights were kept, so these figures are slightly optimistic", style="dim"
        )
    rows = [("top-1", _describe(metrics.top1))]
    rows += [("top-5", _describe(metrics.top5))] if metrics.top5 else []
    rows += [
        ("macro F1", f"{metrics.macro_f1:.3f}"),
        ("balanced accuracy", f"{metrics.balanced_accuracy:.2%}"),
        ("calibration error", _calibration(measurement)),
        ("NLL, Brier", f"{metrics.nll:.4f}, {metrics.brier:.4f}"),
        *_trust_rows(facts),
        ("throughput", f"{measurement.images_per_second or 0:,.0f} pictures/s"),
        *_extra_rows(facts),
    ]
    console.print(_number_table(rows))
    console.print()
    console.print(_class_table(measurement))
    console.print()
    _print_mistakes(console, measurement)


def print_probes(title: str, facts: dict[str, Any]) -> None:
    """The probes only, for a model without a head for these classes."""
    console = _begin(title, facts)
    console.print("the model has no head for these classes; only its features were measured", style="dim")
    console.print(_number_table(_extra_rows(facts)))


def _begin(title: str, facts: dict[str, Any]) -> Console:
    console = SteadyConsole(highlight=False, markup=False)
    console.print(plain(title), style="bold", soft_wrap=True)
    if facts["split_from"]:
        console.print(plain(f"split: {facts['split_from']}"), style="dim", soft_wrap=True)
    return console


def _number_table(rows: list[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False)
    for name, value in rows:
        table.add_row(Text(name, style="bold"), value)
    return table


def _extra_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    probes: dict[str, Any] = facts.get("probes", {})
    if "knn" in probes:
        rows.append(("kNN probe", _describe_facts(probes["knn"]["top1"]) + f", k = {probes['knn']['k']}"))
    if "linear" in probes:
        rows.append(("linear probe", _describe_facts(probes["linear"]["top1"]) + f", C = {probes['linear']['C']:g}"))
    if "shots" in probes:
        few = probes["shots"]
        rows.append((f"{few['shots']}-shot probe", f"{few['mean']:.2%} ± {few['std']:.2%}, {len(few['trials'])} draws"))
    if "robustness" in facts:
        robust = facts["robustness"]
        curves = ", ".join(f"{name} {_mean(curve):.1%}" for name, curve in robust["curves"].items())
        rows.append(("corrupted", f"{robust['mean']:.1%} of {counted(robust['pictures'], 'picture')}; {curves}"))
    return rows


def _mean(curve: list[dict[str, float]]) -> float:
    return sum(rate["value"] for rate in curve) / len(curve)


def _trust_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if sets := facts.get("label_sets"):
        size = f"{sets['mean_size']:.2f} labels each"
        name = f"{100 * sets['requested']:.4g} % label sets"
        rows.append((name, f"{_describe_facts(sets['coverage'])} hold the truth, {size}"))
    if known := facts.get("familiarity"):
        text = f"{known['unfamiliar']['value']:.1%} unlike anything seen in training"
        for name, of in (("top1_of_unfamiliar", "of these"), ("top1_of_familiar", "of the others")):
            text += f"; top-1 {known[name]['value']:.1%} {of}" if known[name] else ""
        rows.append(("familiarity", text))
    if others := facts.get("unfamiliar"):
        text = f"AUROC {others['auroc']:.3f}; {others['false_positive_rate']:.1%} pass where 95 % of these do"
        marked = f"{others['marked']['value']:.1%} of {counted(others['pictures'], 'picture')} marked as unfamiliar"
        rows.append((f"told from {plain(others['data'])}", f"{text}; {marked}"))
    return rows


def _calibration(measurement: "Measurement") -> str:
    after, before = (each.calibration.error for each in (measurement.metrics, measurement.uncalibrated))
    return f"{after:.2%}" + ("" if measurement.trust is None else f"  ({before:.2%} without the calibration)")


def _describe(rate: "Rate") -> str:
    return f"{rate.value:.2%}  (95 %: {rate.low:.2%} to {rate.high:.2%})"


def _describe_facts(rate: dict[str, float]) -> str:
    return f"{rate['value']:.2%}  (95 %: {rate['low']:.2%} to {rate['high']:.2%})"


def _class_table(measurement: "Measurement") -> Table:
    """Every class, or the worst ones if there are many."""
    from vitrail.evaluation.output import class_sets, worst_first

    scores = measurement.metrics.classes
    places = list(range(len(measurement.classes)))
    title = "class"
    if len(places) > MAX_CLASSES:
        places = worst_first(scores.f1.tolist())[:MAX_CLASSES]
        title = f"the {MAX_CLASSES} worst of {len(measurement.classes):,} classes"
    sets = ("coverage", "set size") if measurement.label_sets is not None else ()
    table = Table(title, "precision", "recall", "F1", *sets, "pictures", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for place in places:
        numbers = (scores.precision[place], scores.recall[place], scores.f1[place])
        held = class_sets(measurement, place)
        numbers += (held.coverage, held.mean_size) if sets else ()
        cells = ("–" if math.isnan(value) else f"{value:.3f}" for value in numbers)
        table.add_row(Text(plain(measurement.classes[place])), *cells, f"{scores.support[place]:,}")
    return table


def _print_mistakes(console: Console, measurement: "Measurement") -> None:
    from vitrail.evaluation.output import confusions

    worst = [f"{truth} → {predicted} {count}×" for truth, predicted, count in confusions(measurement, 5)]
    if worst:
        console.print(plain("most frequent mistakes (true → predicted): " + ", ".join(worst)), soft_wrap=True)
    for key, why in list(measurement.broken.items())[:5]:
        console.print(Text("left out ", style="yellow") + Text(plain(f"{key}: {why}")), soft_wrap=True)
