"""What `vitrail.evaluate` measures and returns: a model's scores on a data set."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from vitrail.canvas import save_figure
from vitrail.data.agreement import check_same_data
from vitrail.data.datasets import check_where
from vitrail.data.source import Dataset, Source
from vitrail.errors import ConfigError, InputError, list_names
from vitrail.evaluation import output, plots
from vitrail.evaluation.measurement import (
    COVERAGE,
    Measurement,
    count_views,
    measure_split,
    order_by_position,
    pick_split,
)
from vitrail.evaluation.ood import MOST_OTHERS, OodScores, measure_ood
from vitrail.evaluation.probe import plan_probes, run_probes
from vitrail.evaluation.robustness import SEVERITIES, STRENGTHS, Robustness, check_robustness, measure_robustness
from vitrail.prediction import Predictor
from vitrail.prediction.results import Request, require_familiarity
from vitrail.progress import Progress, ending, left_out, pick_progress, silent, table, working
from vitrail.ranks import shared_ranks
from vitrail.report.assembly import REPORT, ReportContext, evaluation_context, run_of, show_evaluation, write_page
from vitrail.schema import to_dict
from vitrail.training.run_folder import chose_epoch
from vitrail.verbs.call import DataArgument, ModelArgument, Out, make_out
from vitrail.verbs.evaluate import EvaluationPlan
from vitrail.verbs.measured_data import default_split, open_others, open_with_splits
from vitrail.wording import counted, in_one_line, plain

MAX_CLASSES = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """A model measured on a split of a data set. A notebook shows its numbers and the first figure."""

    model: str
    data: str
    split: str
    facts: dict[str, Any] = field(repr=False)  # what metrics.json holds
    measurement: Measurement | None = field(repr=False)  # every prediction; None if only features were measured
    robustness: Robustness | None = field(default=None, repr=False)  # accuracy under corruptions, if requested
    unfamiliar: OodScores | None = field(default=None, repr=False)  # how well others are told apart, if requested
    folder: Path | None = None
    written: tuple[Path, ...] = field(default=(), repr=False)  # the report first
    report_error: str = ""  # why the report could not be made; everything else is written
    class_order: tuple[str, ...] | None = field(default=None, repr=False)  # of the model's outputs, with `by_position`
    predictor: Predictor = field(repr=False)
    dataset: Dataset = field(repr=False)
    context: ReportContext = field(repr=False)  # what else the report shows

    @property
    def metrics(self) -> Any:
        """Accuracy, calibration, confusion and all other numbers; for another task than one, what it measures."""
        return self._measured().metrics

    @property
    def probes(self) -> dict[str, Any]:
        """Probe → its accuracy on the split and what it chose."""
        return self.facts.get("probes", {})

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """The rows of predictions.csv: the prediction for each picture, or why it could not be read."""
        return list(output.predictions(self._measured()))

    def report(self, path: str | Path = REPORT) -> Path:
        """Write the report page to this file."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        measured = (self._measured(), self.robustness, self.unfamiliar)
        return write_page(target, self.context, self.predictor, self.dataset, *measured)

    def _measured(self) -> Measurement:
        if self.measurement is None:
            raise InputError(
                f"{self.model} has no head for the classes of {self.data}, so only its features were measured: see "
                "`probes`."
            )
        return self.measurement

    def _repr_html_(self) -> str:
        return show_evaluation(f"{self.model} on {self.data}, {self.split}", self.measurement, self.facts)

    @property
    def speaks(self) -> bool:
        """Whether the command prints it: of several ranks, only the first writes and prints."""
        return self.folder is not None

    @property
    def exit_code(self) -> int:
        """1: some pictures could not be read, or no report could be made."""
        return int(bool(self.report_error or (self.measurement is not None and self.measurement.broken)))

    def remarks(self) -> Iterator[str]:
        """What the command prints on the error stream."""
        if self.folder is not None and self.class_order is not None:
            yield f"note: the model's outputs are assumed to be, in this order: {list_names(self.class_order)}"
        if self.report_error:
            yield f"no report: {self.report_error} (the numbers are written)"

    def to_dict(self) -> dict[str, Any]:
        """What metrics.json holds, and the paths that were written."""
        return {**self.facts, "written": [str(path) for path in self.written]}

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints: the numbers, the classes and the mistakes."""
        measurement = self.measurement
        title = f"{self.model} on {self.dataset.name}, {self.split}"
        pictures = "" if measurement is None else f": {counted(len(measurement.targets), 'picture')}"
        yield Text(plain(f"{title}{pictures}"), style="bold")
        if self.facts["split_from"]:
            yield Text(plain(f"split: {self.facts['split_from']}"), style="dim")
        if measurement is None:
            yield Text("the model has no head for these classes; only its features were measured", style="dim")
            yield table(_extra_rows(self.facts))
            following = f"vitrail embed {shlex.quote(self.model)} --data {shlex.quote(self.data)}"
            yield from ending(self.written, following)
            return
        if measurement.chose_epoch:
            yield Text(
                "val also chose the epoch whose weights were kept, so these figures are slightly optimistic",
                style="dim",
            )
        yield table(_rows(measurement, self.facts))
        yield ""
        classes = measurement.results.short_table(MAX_CLASSES)
        yield table(classes.rows, *classes.head)
        yield ""
        yield from map(plain, measurement.results.remarks())
        yield from left_out(measurement.broken, 5)
        yield from ending(self.written, f"vitrail predict {shlex.quote(self.model)} PICTURES…")


def _rows(measurement: Measurement, facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        *measurement.results.rows(),
        *_averaged_rows(measurement),
        *_familiarity_rows(measurement, facts),
        ("throughput", f"{measurement.images_per_second or 0:,.0f} pictures/s"),
        *_extra_rows(facts),
    ]


def _averaged_rows(measurement: Measurement) -> list[tuple[str, str]]:
    """The first number with test-time augmentation, beside those without."""
    if (averaged := measurement.averaged) is None:
        return []
    name, text = averaged.results.rows()[0]
    return [(f"{name} with tta", f"{text}; {averaged.described_views}")]


def _extra_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    probes: dict[str, Any] = facts.get("probes", {})
    if "knn" in probes:
        rows.append(("kNN probe", _describe(probes["knn"]["top1"]) + f", k = {probes['knn']['k']}"))
    if "linear" in probes:
        rows.append(("linear probe", _describe(probes["linear"]["top1"]) + f", C = {probes['linear']['C']:g}"))
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


def _familiarity_rows(measurement: Measurement, facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if known := facts.get("familiarity"):
        text = f"{known['unfamiliar']['value']:.1%} unlike anything seen in training"
        right = measurement.results.right()
        for name, of in (("unfamiliar", "of these"), ("familiar", "of the others")):
            if right is not None and (share := known[f"{right.key}_of_{name}"]):
                text += f"; {right.name.removesuffix(' accuracy')} {share['value']:.1%} {of}"
        rows.append(("familiarity", text))
    if others := facts.get("unfamiliar"):
        text = f"AUROC {others['auroc']:.3f}; {others['false_positive_rate']:.1%} pass where 95 % of these do"
        marked = f"{others['marked']['value']:.1%} of {counted(others['pictures'], 'picture')} marked as unfamiliar"
        rows.append((f"told from {plain(others['data'])}", f"{text}; {marked}"))
    return rows


def _describe(rate: dict[str, float]) -> str:
    return f"{rate['value']:.2%}  (95 %: {rate['low']:.2%} to {rate['high']:.2%})"


def carry_out(
    model: ModelArgument,
    data: DataArgument,
    plan: EvaluationPlan,
    arguments: dict[str, Any],
    progress: bool | Progress,
) -> Evaluation:
    """Measure everything in the plan; `arguments` are those of the call that a report repeats."""
    if isinstance(plan.unfamiliar, str | Path):
        check_where(str(plan.unfamiliar))
    source, where = model.source or "model", data.name
    with shared_ranks() as ranks:
        shows = progress is not False and ranks.is_first
        show = pick_progress(progress) if shows else silent
        predictor = model.open(speaks=shows)
        Request(coverage=plan.coverage).check(predictor, predictor.runtime)
        if plan.robustness_pictures is not None:
            check_robustness(predictor.task)
        if plan.unfamiliar is not None:
            require_familiarity(predictor, predictor.runtime, "`unfamiliar=`")
        others = None if plan.unfamiliar is None else open_others(plan.unfamiliar, data.config)
        with working(f"opening {where}", speaks=shows and data.opened is None):
            dataset, split_from = open_with_splits(data, run_of(source), predictor)
            check_same_data(dataset, ranks)
        if plan.probes:
            dataset.require_classes("a probe")
        name = plan.split or default_split(dataset)
        fast = predictor
        if model.loaded is None:  # ranks, which must compute the same, choose nothing by measuring
            request = model.request if ranks.world_size == 1 else model.request.unmeasured()
            pictures = pick_split(dataset, name)
            some = (picture for _, picture in pictures.stream(range(len(pictures))))
            fast = request.put(predictor, _count_pictures(dataset, name, plan), some, speaks=shows)
        about = {"model": source, "data": dataset.name, "split": name, "split_from": split_from or None}
        about |= {"tta": plan.tta, "runtime": fast.runtime.name}
        results = _Results(out=plan.out if ranks.is_first else None, facts=dict(about))
        _measure(results, fast, dataset, plan, others, show, flatters=chose_epoch(run_of(source), where, name))
    evaluation = Evaluation(
        model=source,
        data=where,
        split=name,
        facts=results.facts,
        measurement=results.measurement,
        robustness=results.robustness,
        unfamiliar=results.unfamiliar,
        folder=results.folder,
        written=tuple(results.written),
        class_order=tuple(order_by_position(dataset.classes)) if plan.by_position else None,
        predictor=predictor,
        dataset=dataset,
        context=evaluation_context(
            source,
            where,
            run_of(source),
            task=predictor.task,
            arguments=arguments,
            settings={**about, "data": where, "source": to_dict(data.config)},
            split_from=split_from,
        ),
    )
    with working("writing the report", speaks=shows and results.folder is not None):
        return _with_report(evaluation)


def _count_pictures(dataset: Dataset, split: str, plan: EvaluationPlan) -> int:
    """How many pictures the model will see, roughly."""
    count = len(pick_split(dataset, split))
    passes = count_views(plan.tta)
    corrupted = (1 + len(STRENGTHS) * len(SEVERITIES)) * min(plan.robustness_pictures or 0, count)
    seen = count + (0 if plan.tta is None else passes * count) + passes * corrupted
    return seen + (sum(map(len, dataset.splits.values())) if plan.probes else 0)


@dataclass(kw_only=True)
class _Results:
    """The results so far, written at once, so that a later failure loses nothing."""

    out: Out
    facts: dict[str, Any]
    measurement: Measurement | None = None
    robustness: Robustness | None = None
    unfamiliar: OodScores | None = None
    folder: Path | None = None
    written: list[Path] = field(default_factory=list[Path])

    def add(self, facts: dict[str, Any]) -> None:
        """Add these facts, and write metrics.json."""
        self.facts.update(facts)
        if self.folder is None and (folder := make_out(self.out, "eval")) is not None:
            self.folder = folder
            self.written.append(folder / "metrics.json")
        if self.folder is not None:
            output.write_facts(self.facts, self.folder / "metrics.json")

    def add_measurement(self, measurement: Measurement, dataset: Dataset, raw: bool) -> None:
        self.measurement = measurement
        self.add(output.facts(measurement))
        if self.folder is not None:
            self.written += output.write_evaluation(self.folder, measurement, dataset, raw=raw)

    def add_robustness(self, robustness: Robustness) -> None:
        self.robustness = robustness
        self.add({"robustness": output.robustness_facts(robustness)})
        if self.folder is not None:
            title = f"{self.facts['data']}, {self.facts['split']}"
            self.written.append(self.folder / "robustness.png")
            save_figure(plots.robustness_figure(robustness, title), self.written[-1])


def _measure(
    results: _Results,
    predictor: Predictor,
    dataset: Dataset,
    plan: EvaluationPlan,
    others: tuple[str, Source] | None,
    progress: Progress,
    *,
    flatters: bool,
) -> None:
    """Measure everything in the plan; `flatters`: the split chose the epoch of the weights."""
    split: str = results.facts["split"]
    parts = plan_probes(dataset, split, plan.probes, plan.shots)
    has_head = plan.by_position or set(predictor.classes or ()) == set(dataset.classes)
    if parts is not None and not has_head:
        unusable = {"`tta=`": plan.tta, "`robustness=`": plan.robustness_pictures, "`unfamiliar=`": others}
        _refuse_for_features(results.facts["model"], unusable)
    else:
        with progress("evaluating", len(pick_split(dataset, split))) as advance:
            measurement = measure_split(predictor, dataset, split, by_position=plan.by_position, progress=advance)
        how: dict[str, Any] = {"chose_epoch": flatters, "coverage": plan.coverage or COVERAGE}
        measurement = replace(measurement, **how)
        if plan.tta is not None:
            with progress("averaging views", len(pick_split(dataset, split))) as advance:
                averaged = measure_split(
                    predictor, dataset, split, tta=plan.tta, by_position=plan.by_position, progress=advance
                )
            measurement = replace(measurement, averaged=replace(averaged, **how))
        results.add_measurement(measurement, dataset, plan.raw)
        if others is not None:
            with progress("comparing", min(MOST_OTHERS, len(others[1]))) as advance:
                results.unfamiliar = measure_ood(predictor, *others, measurement, progress=advance)
            results.add({"unfamiliar": asdict(results.unfamiliar)})
    if parts is not None:
        results.add({"probes": run_probes(predictor, parts, plan.probes, plan.shots, progress)})
    if plan.robustness_pictures is not None:
        results.add_robustness(_measure_robustness(predictor, dataset, split, plan, plan.robustness_pictures, progress))


def _measure_robustness(
    predictor: Predictor, dataset: Dataset, split: str, plan: EvaluationPlan, limit: int, progress: Progress
) -> Robustness:
    passes = 1 + len(STRENGTHS) * len(SEVERITIES)
    with progress("corrupting", passes * min(limit, len(pick_split(dataset, split)))) as advance:
        return measure_robustness(
            predictor, dataset, split, tta=plan.tta, limit=limit, by_position=plan.by_position, progress=advance
        )


def _refuse_for_features(source: str, options: dict[str, Any]) -> None:
    """Refuse settings that have no effect when only features are measured."""
    unusable = [option for option, value in options.items() if value]
    if unusable:
        raise ConfigError(
            f"{' and '.join(unusable)} cannot be used here: {source} has no head for the classes of the data, so only "
            "its features are measured, by the probes."
        )


def _with_report(evaluation: Evaluation) -> Evaluation:
    """The same with its report, if there is a folder for it; if that fails, the numbers are kept."""
    if evaluation.folder is None or evaluation.measurement is None:
        return evaluation
    try:
        page = evaluation.report(evaluation.folder / REPORT)
    except Exception as error:
        return replace(evaluation, report_error=in_one_line(error))
    return replace(evaluation, written=(page, *evaluation.written))
