"""`vitrail.evaluate`: how good a model is on a data set, and where it fails."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitrail.data.config import DataConfig
from vitrail.data.opening import open_data
from vitrail.data.source import Dataset
from vitrail.data.split import read_split
from vitrail.device import pick_device
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation import plots, records
from vitrail.evaluation.corruptions import SEVERITIES, STRENGTHS
from vitrail.evaluation.measurement import Measurement, measure_split, order_by_position, pick_split
from vitrail.evaluation.names import ProbeName, ViewName
from vitrail.evaluation.probe import plan_probes, run_probes
from vitrail.evaluation.robustness import Robustness, measure_robustness
from vitrail.evaluation.views import check_view
from vitrail.folders import check_run_folder, new_run_folder
from vitrail.prediction import Predictor, load
from vitrail.prediction.arguments import tell_data
from vitrail.progress import Progress, pick_progress, silent, working
from vitrail.ranks import shared_ranks
from vitrail.report.assembly import REPORT
from vitrail.report.evaluations import story_of_eval, write_evaluation
from vitrail.report.runs import run_of
from vitrail.schema import to_dict
from vitrail.training.history import chose_epoch
from vitrail.verbs.data_settings import Out, changed_settings, read_data_settings
from vitrail.verbs.evaluation import Evaluation
from vitrail.weights.class_names import ClassNames, read_class_names

SHOTS = 5
ROBUSTNESS_PICTURES = 1000


def evaluate(
    model: Predictor | str | Path,
    data: Dataset | str | Path,
    *,
    split: str | None = None,
    tta: ViewName | None = None,
    robustness: bool = False,
    robustness_pictures: int | None = None,
    probe: ProbeName | Sequence[ProbeName] = (),
    shots: int | None = None,
    by_position: bool = False,
    classes: ClassNames | None = None,
    out: Out = None,
    raw: bool = False,
    device: str = "auto",
    progress: bool | Progress = False,
    **settings: Any,
) -> Evaluation:
    """Measure a model on a data set.

    Data without splits of their own get those that the model's run was trained with, so that nothing is measured that
    was trained on. Under torchrun the ranks share the pictures, and each returns the same numbers.

    Args:
        model: a loaded model, or what `vitrail.load` takes.
        data: an open data set, or what `vitrail.open_data` takes; `settings` are the fields of its `DataConfig`.
        split: train, val, test or all; by default test, or else val.
        tta: test-time augmentation: average over mirrored pictures ("flip"), shifted ones ("shift"), or both ("full").
        robustness: also measure under corruptions at five severities, on `robustness_pictures` (1000) of the split.
        probe: also fit simple classifiers on the frozen features: knn, linear, shots. A model without a head for these
            classes is measured by them only.
        shots: the training pictures of each class for the probe "shots"; by default 5.
        by_position: the checkpoint has no class names, and its classes are the data's in their order.
        classes: the names of the model's classes, in order, or a file of them, for a checkpoint without names.
        out: the folder for report.html, metrics.json, the tables and the figures; without it, nothing is written.
        raw: write the cells of CSV files as they are, for programs.
    """
    probes = (probe,) if isinstance(probe, str) else tuple(probe)
    config = read_data_settings(evaluate, settings)
    limit = _number("robustness_pictures=", robustness_pictures, ROBUSTNESS_PICTURES, "robustness=True", robustness)
    num_shots = _number("shots=", shots, SHOTS, 'probe="shots"', "shots" in probes)
    check_view(tta)
    plan = _Plan(
        tta=tta,
        robustness_pictures=limit if robustness else None,
        probes=probes,
        shots=num_shots,
        by_position=by_position,
        raw=raw,
    )
    if out is not None and not callable(out):
        check_run_folder(Path(out))
    asked = _asked(
        split=split,
        tta=tta,
        robustness=robustness,
        robustness_pictures=robustness_pictures,
        probe=probes,
        shots=shots,
        by_position=by_position,
        classes=str(classes) if isinstance(classes, str | Path) else None,
        raw=raw,
        device=None if device == "auto" else device,
        **changed_settings(config),
    )
    source, where = _names(model, data, classes, config, device)
    with shared_ranks() as ranks:
        shows = progress is not False and ranks.is_first
        show = pick_progress(progress) if shows else silent
        with working(f"loading {source}", speaks=shows and not isinstance(model, Predictor)):
            predictor = model if isinstance(model, Predictor) else load(model, class_names=classes, device=device)
        with working(f"opening {where}", speaks=shows and not isinstance(data, Dataset)):
            dataset, split_from = open_with_splits(data, where, config, run_of(source))
        name = split or default_split(dataset)
        about = {"model": source, "data": dataset.name, "split": name, "split_from": split_from or None, "tta": tta}
        results = _Results(out=out if ranks.is_first else None, facts=dict(about))
        _measure(results, predictor, dataset, plan, show, flatters=chose_epoch(run_of(source), where, name))
    evaluation = Evaluation(
        model=source,
        data=where,
        split=name,
        facts=results.facts,
        measurement=results.measurement,
        robustness=results.robustness,
        folder=results.folder,
        written=tuple(results.written),
        class_order=tuple(order_by_position(dataset.classes)) if by_position else None,
        predictor=predictor,
        dataset=dataset,
        story=story_of_eval(
            source,
            where,
            run_of(source),
            asked=asked,
            settings={**about, "data": where, "source": to_dict(config)},
            split_from=split_from,
        ),
    )
    with working("writing the report", speaks=shows and results.folder is not None):
        return _with_report(evaluation)


def default_split(dataset: Dataset) -> str:
    """Test, or else val."""
    for name in ("test", "val"):
        if name in dataset.splits:
            return name
    raise DataError(
        f'{dataset.name}: has no test or val split; split="train" or split="all" measures on what there is.'
    )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What to measure, and how."""

    tta: ViewName | None
    robustness_pictures: int | None  # None: not under corruptions
    probes: tuple[ProbeName, ...]
    shots: int
    by_position: bool
    raw: bool


@dataclass(kw_only=True)
class _Results:
    """What is known so far, written as soon as it is: work that fails later loses nothing."""

    out: Out
    facts: dict[str, Any]
    measurement: Measurement | None = None
    robustness: Robustness | None = None
    folder: Path | None = None
    written: list[Path] = field(default_factory=list[Path])

    def add(self, facts: dict[str, Any]) -> None:
        """Write metrics.json with these facts too."""
        self.facts.update(facts)
        if self.out is None:
            return
        if self.folder is None:
            self.folder = self.out() if callable(self.out) else new_run_folder("eval", Path(self.out))
            self.written.append(self.folder / "metrics.json")
        records.write_facts(self.facts, self.folder / "metrics.json")

    def add_measurement(self, measurement: Measurement, dataset: Dataset, raw: bool) -> None:
        self.measurement = measurement
        self.add(records.facts(measurement))
        if self.folder is not None:
            self.written += write_evaluation(self.folder, measurement, dataset, raw=raw)

    def add_robustness(self, robustness: Robustness) -> None:
        self.robustness = robustness
        self.add({"robustness": records.robustness_facts(robustness)})
        if self.folder is not None:
            title = f"{self.facts['data']}, {self.facts['split']}"
            self.written.append(self.folder / "robustness.png")
            plots.save_figure(plots.robustness_figure(robustness, title), self.written[-1])


def _measure(
    results: _Results, predictor: Predictor, dataset: Dataset, plan: _Plan, progress: Progress, *, flatters: bool
) -> None:
    """Everything that is asked for, one after the other; `flatters`: the split chose the epoch of the weights."""
    split: str = results.facts["split"]
    parts = plan_probes(dataset, split, plan.probes, plan.shots)
    has_head = plan.by_position or set(predictor.classes or ()) == set(dataset.classes)
    if parts is not None and not has_head:
        _refuse_for_features(results.facts["model"], {"tta=": plan.tta, "robustness=": plan.robustness_pictures})
    else:
        with progress("evaluating", len(pick_split(dataset, split))) as advance:
            measurement = measure_split(
                predictor, dataset, split, tta=plan.tta, by_position=plan.by_position, progress=advance
            )
        results.add_measurement(replace(measurement, chose_epoch=flatters), dataset, plan.raw)
    if parts is not None:
        results.add({"probes": run_probes(predictor, parts, plan.probes, plan.shots, progress)})
    if plan.robustness_pictures is not None:
        results.add_robustness(_measure_robustness(predictor, dataset, split, plan, plan.robustness_pictures, progress))


def _measure_robustness(
    predictor: Predictor, dataset: Dataset, split: str, plan: _Plan, limit: int, progress: Progress
) -> Robustness:
    passes = 1 + len(STRENGTHS) * len(SEVERITIES)
    with progress("corrupting", passes * min(limit, len(pick_split(dataset, split)))) as advance:
        return measure_robustness(
            predictor, dataset, split, tta=plan.tta, limit=limit, by_position=plan.by_position, progress=advance
        )


def _number(name: str, given: int | None, usual: int, other: str, goes: bool) -> int:
    """A number of pictures, which means nothing without the other setting."""
    if given is None:
        return usual
    if not goes:
        raise ConfigError(f"{name} goes with {other}; add that, or omit {name}")
    if given < 1:
        raise ConfigError(f"{name} must be at least 1; got {given}.")
    return given


def _asked(**settings: Any) -> dict[str, Any]:
    """The settings that were given."""
    return {name: value for name, value in settings.items() if value is not None and value is not False and value != ()}


def _names(
    model: Predictor | str | Path, data: Dataset | str | Path, classes: Any, config: DataConfig, device: str
) -> tuple[str, str]:
    """What the model and the data are called, for reports; a mistake in them or beside them is an error."""
    if isinstance(model, Predictor):
        given = [name for name, value in (("classes=", classes), ("device=", device != "auto")) if value]
        if given:
            raise ConfigError(f"{' and '.join(given)} cannot change a loaded model; pass it to vitrail.load instead.")
    else:
        pick_device(device)
        if classes is not None:
            read_class_names(classes)  # a mistake in them is an error before anything is opened
    if isinstance(data, Dataset) and (changed := changed_settings(config)):
        names = ", ".join(f"{name}=" for name in changed)
        raise ConfigError(f"{names} cannot change an open data set; pass it to vitrail.open_data instead.")
    source = model.source or "model" if isinstance(model, Predictor) else str(model)
    where = data.name if isinstance(data, Dataset) else str(data)
    if not isinstance(model, Predictor) and not isinstance(data, Dataset):
        return tell_data(source, where)
    return source, where


def open_with_splits(data: Dataset | str | Path, where: str, config: DataConfig, run: Path) -> tuple[Dataset, str]:
    """The data, and where their splits are from if they have none: those of the run, if it wrote them, or new ones."""
    dataset = data if isinstance(data, Dataset) else open_data(where, config)
    if not dataset.made_split:
        return dataset, ""
    file = run / "split.csv"
    made = "made here, by names and seed; a model trained on these data may have seen what is measured"
    if isinstance(data, Dataset):
        return dataset, str(file) if _agrees(dataset, file) else made
    if not file.is_file():
        return dataset, made
    try:
        return open_data(where, replace(config, split_file=file)), str(file)
    except DataError:
        return dataset, f'{file} is of other pictures; a new split was made; the split "all" takes every picture'


def _agrees(dataset: Dataset, file: Path) -> bool:
    """Whether an open data set has the splits that a run wrote down."""
    if not file.is_file():
        return False
    keys = [source.key(index) for source in dataset.splits.values() for index in range(len(source))]
    names = [name for name, source in dataset.splits.items() for _ in range(len(source))]
    try:
        parts = read_split(file, keys)
    except DataError:
        return False
    return all(names[index] == name for name, indices in parts.items() for index in indices)


def _refuse_for_features(source: str, options: dict[str, Any]) -> None:
    """Where only features are measured, there are no answers that these settings could change."""
    given = [option for option, value in options.items() if value]
    if given:
        raise ConfigError(
            f"{' and '.join(given)} cannot be used here: {source} has no head for the classes of the data, so only its "
            "features are measured, by the probes."
        )


def _with_report(evaluation: Evaluation) -> Evaluation:
    """The same with its report, where there is a folder for it; why there is none must not cost the numbers."""
    if evaluation.folder is None or evaluation.measurement is None:
        return evaluation
    try:
        page = evaluation.report(evaluation.folder / REPORT)
    except Exception as error:
        return replace(evaluation, report_error=" ".join(str(error).split()) or type(error).__name__)
    return replace(evaluation, written=(page, *evaluation.written))
