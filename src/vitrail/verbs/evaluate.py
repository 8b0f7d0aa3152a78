"""`vitrail.evaluate`: how good a model is on a data set, and where it fails."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from vitrail.canvas import save_figure
from vitrail.data.agreement import check_same_data
from vitrail.data.config import DataConfig
from vitrail.data.datasets import check_where, open_data
from vitrail.data.source import Dataset, Source
from vitrail.data.split import read_split
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation import ProbeName, ViewName, output, plots
from vitrail.evaluation.measurement import (
    COVERAGE,
    Measurement,
    check_view,
    measure_split,
    order_by_position,
    pick_split,
    views,
)
from vitrail.evaluation.ood import MOST_OTHERS, OodScores, is_unlabelled, measure_ood, open_unlabelled
from vitrail.evaluation.probe import plan_probes, run_probes
from vitrail.evaluation.robustness import SEVERITIES, STRENGTHS, Robustness, measure_robustness
from vitrail.files import check_run_folder, new_run_folder
from vitrail.prediction import Predictor
from vitrail.prediction.results import Request, require_familiarity
from vitrail.progress import Progress, pick_progress, silent, working
from vitrail.ranks import shared_ranks
from vitrail.registry import PrecisionChoice, RuntimeChoice
from vitrail.report.assembly import REPORT, evaluation_context, run_of
from vitrail.schema import to_dict
from vitrail.training.run_folder import chose_epoch
from vitrail.verbs.call import RuntimeRequest, tell_data
from vitrail.verbs.loading import check_model, open_model
from vitrail.verbs.scores import Evaluation
from vitrail.verbs.settings import DataSettings, Out, changed_settings, read_data_settings
from vitrail.weights.metadata import ClassNames

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
    coverage: float | None = None,
    unfamiliar: Dataset | str | Path | None = None,
    by_position: bool = False,
    classes: ClassNames | None = None,
    out: Out = None,
    raw: bool = False,
    runtime: RuntimeChoice = "auto",
    precision: PrecisionChoice = "float32",
    merge: int | Sequence[int] | None = None,
    preprocess: str | None = None,
    device: str = "auto",
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> Evaluation:
    """Measure a model on a data set.

    Data without splits of their own get those that the model's run was trained with, so that no training picture is
    measured. Under torchrun the ranks share the pictures, and each returns the same numbers.

    Args:
        model: a loaded model, or what `vitrail.load` takes.
        data: an open data set, or what `vitrail.open_data` takes; `settings` are the fields of its `DataConfig`.
        split: train, val, test or all; by default test, or val if there is no test split.
        tta: test-time augmentation: average over mirrored pictures ("flip"), shifted ones ("shift"), or both ("full").
        robustness: also measure under corruptions at five severities, on `robustness_pictures` (1000) of the split.
        probe: also fit simple classifiers on the frozen features: knn, linear, shots. A model without a head for these
            classes is measured by these only.
        shots: training pictures per class for the probe "shots"; by default 5.
        coverage: how often label sets should hold the truth, by default 0.95; for a calibrated model.
        unfamiliar: other data, such as a folder of pictures, which the model should tell from these; for a calibrated
            model.
        by_position: for a checkpoint without class names: its classes are those of the data, in the same order.
        classes: the names of the model's classes, in order, or a file of them, for a checkpoint without names.
        out: the folder for report.html, metrics.json, the tables and the figures; without it, nothing is written.
        raw: write the cells of CSV files unchanged, for programs.
        runtime: torch, onnx or openvino; auto takes the fastest whose answers equal torch's, if there is enough to do.
        precision: float32, bf16, or auto: bf16 where it is measured to be faster.
        merge: merge about so many similar patches away in each block, for speed; see docs/model.md.
        preprocess: for an ONNX file of another tool, how its pictures are prepared: google, timm, timm-imagenet, hf,
            torchvision, dinov2 or clip.
    """
    probes = (probe,) if isinstance(probe, str) else tuple(probe)
    config = read_data_settings(evaluate, settings)
    limit = _number("`robustness_pictures=`", robustness_pictures, ROBUSTNESS_PICTURES, "`robustness=True`", robustness)
    num_shots = _number("`shots=`", shots, SHOTS, '`probe="shots"`', "shots" in probes)
    check_view(tta)
    plan = _Plan(
        tta=tta,
        robustness_pictures=limit if robustness else None,
        probes=probes,
        shots=num_shots,
        coverage=coverage,
        by_position=by_position,
        raw=raw,
    )
    if isinstance(unfamiliar, str | Path):
        check_where(str(unfamiliar))
    if unfamiliar is not None and tta is not None:
        raise ConfigError("compares pictures as they are; omit `tta=`", field="unfamiliar")
    if out is not None and not callable(out):
        check_run_folder(Path(out))
    wanted = RuntimeRequest(runtime=runtime, precision=precision, merge=merge, preprocess=preprocess)
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
        classes=str(classes) if isinstance(classes, str | Path) else None,
        raw=raw,
        **wanted.given(),
        device=None if device == "auto" else device,
        **changed_settings(config),
    )
    source, where = _names(model, data, classes, config, device)
    wanted.check(model if isinstance(model, Predictor) else source, device)
    with shared_ranks() as ranks:
        shows = progress is not False and ranks.is_first
        show = pick_progress(progress) if shows else silent
        predictor = open_model(model, device, classes, wanted=wanted, progress=shows)
        Request(coverage=coverage).check(predictor, predictor.runtime)
        if unfamiliar is not None:
            require_familiarity(predictor, predictor.runtime, "`unfamiliar=`")
        plan = replace(plan, others=None if unfamiliar is None else open_others(unfamiliar, config))
        with working(f"opening {where}", speaks=shows and not isinstance(data, Dataset)):
            dataset, split_from = open_with_splits(data, where, config, run_of(source))
            check_same_data(dataset, ranks)
        name = split or default_split(dataset)
        fast = predictor
        if not isinstance(model, Predictor):
            count = _count_pictures(dataset, name, plan)
            fast = _put(wanted, predictor, pick_split(dataset, name), count, ranks.world_size, speaks=shows)
        about = {"model": source, "data": dataset.name, "split": name, "split_from": split_from or None, "tta": tta}
        about["runtime"] = fast.runtime.name
        results = _Results(out=out if ranks.is_first else None, facts=dict(about))
        _measure(results, fast, dataset, plan, show, flatters=chose_epoch(run_of(source), where, name))
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
        class_order=tuple(order_by_position(dataset.classes)) if by_position else None,
        predictor=predictor,
        dataset=dataset,
        context=evaluation_context(
            source,
            where,
            run_of(source),
            arguments=arguments,
            settings={**about, "data": where, "source": to_dict(config)},
            split_from=split_from,
        ),
    )
    with working("writing the report", speaks=shows and results.folder is not None):
        return _with_report(evaluation)


def _put(
    wanted: RuntimeRequest, predictor: Predictor, source: Source, count: int, world_size: int, *, speaks: bool
) -> Predictor:
    """The model on what suits the work; ranks, which must compute the same, choose nothing by measuring."""
    wanted = wanted if world_size == 1 else wanted.unmeasured()
    return wanted.put(predictor, count, (source.picture(place) for place in range(len(source))), speaks=speaks)


def _count_pictures(dataset: Dataset, split: str, plan: "_Plan") -> int:
    """How many pictures the model will see, roughly."""
    count = len(pick_split(dataset, split))
    passes = 1 if plan.tta is None else len(views(torch.zeros(1, 1, 1, 1), plan.tta))
    corrupted = (1 + len(STRENGTHS) * len(SEVERITIES)) * min(plan.robustness_pictures or 0, count)
    return passes * (count + corrupted) + (sum(map(len, dataset.splits.values())) if plan.probes else 0)


def open_others(data: Dataset | str | Path, config: DataConfig) -> tuple[str, Source]:
    """The pictures of other data, whatever their labels, and their name."""
    if not isinstance(data, Dataset):
        if is_unlabelled(Path(data)):
            return Path(data).name, open_unlabelled(Path(data))
        data = open_data(str(data), DataConfig(data_dir=config.data_dir))
    return data.name, pick_split(data, "all")


def default_split(dataset: Dataset) -> str:
    """Test, or val if there is no test split."""
    for name in ("test", "val"):
        if name in dataset.splits:
            return name
    raise DataError(f'{dataset.name} has no test or val split; pass `split="train"` or `split="all"`.')


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What to measure, and how."""

    tta: ViewName | None
    robustness_pictures: int | None  # None: corruptions are not measured
    probes: tuple[ProbeName, ...]
    shots: int
    coverage: float | None
    by_position: bool
    raw: bool
    others: tuple[str, Source] | None = None  # pictures that the model should tell from these, and their name


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
        if self.out is None:
            return
        if self.folder is None:
            self.folder = self.out() if callable(self.out) else new_run_folder("eval", Path(self.out))
            self.written.append(self.folder / "metrics.json")
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
    results: _Results, predictor: Predictor, dataset: Dataset, plan: _Plan, progress: Progress, *, flatters: bool
) -> None:
    """Measure everything in the plan; `flatters`: the split chose the epoch of the weights."""
    split: str = results.facts["split"]
    parts = plan_probes(dataset, split, plan.probes, plan.shots)
    has_head = plan.by_position or set(predictor.classes or ()) == set(dataset.classes)
    if parts is not None and not has_head:
        unusable = {"`tta=`": plan.tta, "`robustness=`": plan.robustness_pictures, "`unfamiliar=`": plan.others}
        _refuse_for_features(results.facts["model"], unusable)
    else:
        with progress("evaluating", len(pick_split(dataset, split))) as advance:
            measurement = measure_split(
                predictor, dataset, split, tta=plan.tta, by_position=plan.by_position, progress=advance
            )
        measurement = replace(measurement, chose_epoch=flatters, coverage=plan.coverage or COVERAGE)
        results.add_measurement(measurement, dataset, plan.raw)
        if plan.others is not None:
            with progress("comparing", min(MOST_OTHERS, len(plan.others[1]))) as advance:
                results.unfamiliar = measure_ood(predictor, *plan.others, measurement, progress=advance)
            results.add({"unfamiliar": asdict(results.unfamiliar)})
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


def _names(
    model: Predictor | str | Path,
    data: Dataset | str | Path,
    classes: ClassNames | None,
    config: DataConfig,
    device: str,
) -> tuple[str, str]:
    """The names of the model and the data, for reports; a mistake in them or in their settings is an error."""
    check_model(model, device, classes)
    if isinstance(data, Dataset) and (changed := changed_settings(config)):
        names = ", ".join(f"`{name}=`" for name in changed)
        raise ConfigError(f"{names} cannot change an open data set; pass it to vitrail.open_data instead.")
    source = model.source or "model" if isinstance(model, Predictor) else str(model)
    where = data.name if isinstance(data, Dataset) else str(data)
    if not isinstance(model, Predictor) and not isinstance(data, Dataset):
        return tell_data(source, where)
    return source, where


def open_with_splits(data: Dataset | str | Path, where: str, config: DataConfig, run: Path) -> tuple[Dataset, str]:
    """The data, and the origin of their splits if they have none of their own: the run's, or new ones."""
    dataset = data if isinstance(data, Dataset) else open_data(where, config)
    if not dataset.made_split:
        return dataset, ""
    file = run / "split.csv"
    new = "made now, from names and a seed; a model trained on these data may have seen the measured pictures"
    if isinstance(data, Dataset):
        return dataset, str(file) if _agrees(dataset, file) else new
    if not file.is_file():
        return dataset, new
    try:
        return open_data(where, replace(config, split_file=file)), str(file)
    except DataError:
        return dataset, f'{file} is for other pictures, so a new split was made; the split "all" uses every picture'


def _agrees(dataset: Dataset, file: Path) -> bool:
    """Whether an open data set has the splits that a run recorded."""
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
        return replace(evaluation, report_error=" ".join(str(error).split()) or type(error).__name__)
    return replace(evaluation, written=(page, *evaluation.written))
