"""`vitrail eval`: how good a model is on a data set, and where it fails."""

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.cli.eval_probes import Probe, plan_probes, run_probes
from vitrail.cli.eval_table import print_evaluation, print_probes
from vitrail.cli.options import Classes, Device, Json, Raw
from vitrail.cli.printing import print_end, print_json, print_note, progress_bar, working
from vitrail.cli.report import attempt, report_on_eval, write_evaluation
from vitrail.cli.runs import check_run_folder, new_run_folder, run_of
from vitrail.data.config import DataConfig
from vitrail.errors import ConfigError, DataError, list_names
from vitrail.schema import to_dict

if TYPE_CHECKING:
    from vitrail.data.source import Dataset
    from vitrail.evaluation.evaluation import Evaluation
    from vitrail.evaluation.robustness import Robustness
    from vitrail.evaluation.views import ViewName
    from vitrail.prediction import Predictor

BROKEN = 1
SHOTS = 5
ROBUSTNESS_PICTURES = 1000
_PLAIN = DataConfig()


@dataclass(kw_only=True)
class _Results:
    """What is known so far, written as soon as it is: work that fails later loses nothing."""

    out: Path | None
    writes: bool  # of several ranks, the first
    facts: dict[str, Any]
    folder: Path | None = None
    paths: list[Path] = field(default_factory=list[Path])

    def add(self, facts: dict[str, Any]) -> None:
        """Write metrics.json with these facts too."""
        from vitrail.evaluation.records import write_facts

        self.facts.update(facts)
        if not self.writes:
            return
        if self.folder is None:
            self.folder = new_run_folder("eval", self.out)
            self.paths.append(self.folder / "metrics.json")
        write_facts(self.facts, self.folder / "metrics.json")


def eval(  # noqa: A001 - the verb's name
    model: str,
    data: str | None = None,
    *,
    split: str | None = None,
    config: Annotated[DataConfig, Parameter(name="*")] = _PLAIN,
    tta: Literal["flip", "shift", "full"] | None = None,
    robustness: Annotated[bool, Parameter(negative=())] = False,
    robustness_pictures: int | None = None,
    probe: Annotated[tuple[Probe, ...], Parameter(consume_multiple=True, negative=())] = (),
    shots: int | None = None,
    by_position: Annotated[bool, Parameter(negative=())] = False,
    classes: Classes = None,
    out: Path | None = None,
    raw: Raw = False,
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """Measure a model on a data set: vitrail eval [MODEL] DATA

    Writes report.html, metrics.json, predictions.csv, classes.csv, confusion.csv, confusion_matrix.png, reliability.png
    and top_losses.jpg. Under torchrun the ranks share the pictures, and the result is the same. With --probe, a model
    without a head, or with one for other classes, is measured by its features alone. Exit code 1: some pictures could
    not be read, or no report could be made.

    Parameters
    ----------
    model
        A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name. With a single argument,
        that is the data, and the model is the bundled cifar10.
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
    from vitrail.device import pick_device
    from vitrail.evaluation.evaluation import evaluate, order_by_position
    from vitrail.prediction import load
    from vitrail.prediction.arguments import tell_data
    from vitrail.ranks import shared_ranks
    from vitrail.training.history import chose_epoch
    from vitrail.weights.class_names import read_class_names

    limit = _number("--robustness-pictures", robustness_pictures, ROBUSTNESS_PICTURES, "--robustness", robustness)
    shots = _number("--shots", shots, SHOTS, "--probe shots", "shots" in probe)
    check_run_folder(out)
    place = pick_device(device)
    if classes is not None:
        read_class_names(classes)  # wrong ones are told before anything is opened
    source, where = tell_data(model, data)
    with shared_ranks() as share:
        first = share.rank == 0
        with working(f"loading {source}", speaks=first):
            predictor = load(source, class_names=classes, device=place)
        with working(f"opening {where}", speaks=first):
            dataset, split_from = _open(where, config, source)
        name = split or _default_split(dataset)
        parts = plan_probes(dataset, name, probe, shots)
        alone = parts is not None and not by_position and set(predictor.classes or ()) != set(dataset.classes)
        if alone:
            _refuse_for_features(source, {"--tta": tta, "--robustness": robustness})
        if by_position and first:
            order = list_names(order_by_position(dataset.classes))
            print_note(f"the model's outputs are taken to be, in this order: {order}")
        told = {"model": source, "data": dataset.name, "split": name, "split_from": split_from or None, "tta": tta}
        results = _Results(out=out, writes=first, facts=told)
        found = curves = None
        if not alone:
            with progress_bar("evaluating", _count(dataset, name), speaks=first) as advance:
                found = evaluate(predictor, dataset, name, tta=tta, by_position=by_position, progress=advance)
            found = replace(found, chose_epoch=chose_epoch(run_of(source), where, name))
            _add_evaluation(results, found, dataset, raw)
        if parts is not None:
            results.add({"probes": run_probes(predictor, parts, probe, shots, speaks=first)})
        if robustness and found is not None:
            curves = _measure_robustness(predictor, dataset, name, limit, tta, by_position, speaks=first)
            _add_robustness(results, curves, found)
    code = BROKEN if found is not None and found.broken else 0
    if results.folder is None:
        return code
    folder, paths = results.folder, results.paths
    if found is not None:
        settings = {**told, "data": where, "source": to_dict(config)}
        with working("writing the report"):
            pages = attempt(
                lambda: [report_on_eval(folder, predictor, dataset, found, curves, settings)], "the numbers are written"
            )
        paths, code = [*pages, *paths], code if pages else BROKEN
    if as_json:
        print_json({**results.facts, "written": [str(path) for path in paths]})
        return code
    title = f"{source} on {dataset.name}, {name}"
    if found is not None:
        print_evaluation(title, found, results.facts)
        print_end(paths, f"vitrail predict {shlex.quote(source)} PICTURES…")
    else:
        print_probes(title, results.facts)
        print_end(paths, shlex.join(["vitrail", "embed", source, "--data", where]))
    return code


def _number(option: str, given: int | None, usual: int, other: str, has_other: bool) -> int:
    """How many pictures an option says, which is nothing without the other one."""
    if given is None:
        return usual
    if not has_other:
        raise ConfigError(f"{option} goes with {other}; add that, or leave {option} out.")
    if given < 1:
        raise ConfigError(f"{option} must be at least 1; got {given}.")
    return given


def _refuse_for_features(source: str, options: dict[str, Any]) -> None:
    """Where features are measured alone, there are no answers that these options could change."""
    given = [option for option, value in options.items() if value]
    if given:
        raise ConfigError(
            f"{' and '.join(given)} cannot be used here: {source} has no head for the classes of the data, so only its "
            "features are measured, by --probe."
        )


def _open(where: str, config: DataConfig, source: str) -> "tuple[Dataset, str]":
    """The data, and where their splits are from if they have none: those of the run, if it wrote them, or new ones."""
    from vitrail.data.opening import open_data

    dataset = open_data(where, config)
    if not dataset.made_split:
        return dataset, ""
    file = run_of(source) / "split.csv"
    if not file.is_file():
        return dataset, "made here, by names and seed; a model trained on these data may have seen what is measured"
    try:
        return open_data(where, replace(config, split_file=file)), str(file)
    except DataError:
        return dataset, f"{file} is of other pictures; a new split was made; --split all takes every picture"


def _default_split(dataset: "Dataset") -> str:
    for name in ("test", "val"):
        if name in dataset.splits:
            return name
    raise DataError(
        f"{dataset.name}: has no test or val split; --split train or --split all measures on what there is."
    )


def _count(dataset: "Dataset", split: str) -> int:
    from vitrail.evaluation.evaluation import pick_split

    return len(pick_split(dataset, split))


def _measure_robustness(
    predictor: "Predictor",
    dataset: "Dataset",
    split: str,
    limit: int,
    tta: "ViewName | None",
    by_position: bool,
    *,
    speaks: bool,
) -> "Robustness":
    from vitrail.evaluation.corruptions import SEVERITIES, STRENGTHS
    from vitrail.evaluation.robustness import measure_robustness

    passes = 1 + len(STRENGTHS) * len(SEVERITIES)
    with progress_bar("corrupting", passes * min(limit, _count(dataset, split)), speaks=speaks) as advance:
        return measure_robustness(
            predictor, dataset, split, tta=tta, limit=limit, by_position=by_position, progress=advance
        )


def _add_evaluation(results: _Results, found: "Evaluation", dataset: "Dataset", raw: bool) -> None:
    from vitrail.evaluation import records

    results.add(records.facts(found))
    if results.folder is not None:
        results.paths += write_evaluation(results.folder, found, dataset, raw=raw)


def _add_robustness(results: _Results, curves: "Robustness", found: "Evaluation") -> None:
    from vitrail.evaluation import plots, records

    rates = {kind: [records.rate_facts(rate) for rate in curve] for kind, curve in curves.curves.items()}
    clean = records.rate_facts(curves.clean)
    results.add({"robustness": {"pictures": curves.clean.total, "clean": clean, "mean": curves.mean, "curves": rates}})
    if results.folder is not None:
        results.paths.append(results.folder / "robustness.png")
        plots.save_figure(plots.robustness_figure(curves, f"{found.data}, {found.split}"), results.paths[-1])
