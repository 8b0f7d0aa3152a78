"""`vitrail eval`: how good a model is on a data set, and where it fails."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.cli.eval_table import print_evaluation, print_probes
from vitrail.cli.options import Device, Json
from vitrail.cli.printing import print_end, progress_bar
from vitrail.cli.report import attempt, report_on_eval, write_evaluation
from vitrail.cli.runs import new_run_folder
from vitrail.data.config import DataConfig
from vitrail.errors import DataError
from vitrail.schema import to_dict

if TYPE_CHECKING:
    from vitrail.data.source import Dataset
    from vitrail.evaluate.evaluation import Evaluation
    from vitrail.evaluate.robustness import Robustness
    from vitrail.evaluate.sharing import Share
    from vitrail.predict import Predictor

Probe = Literal["knn", "linear", "shots"]
BROKEN = 1
_PLAIN = DataConfig()


def eval(  # noqa: A001 - the verb's name
    model: str,
    data: str | None = None,
    *,
    split: str | None = None,
    config: Annotated[DataConfig, Parameter(name="*")] = _PLAIN,
    tta: Literal["flip", "shift", "full"] | None = None,
    robustness: Annotated[bool, Parameter(negative=())] = False,
    robustness_pictures: int = 1000,
    probe: Annotated[tuple[Probe, ...], Parameter(consume_multiple=True, negative=())] = (),
    shots: int = 5,
    by_position: Annotated[bool, Parameter(negative=())] = False,
    out: Path | None = None,
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """Measure a model on a data set: vitrail eval [MODEL] DATA

    Writes report.html, predictions.csv, metrics.json, confusion_matrix.png, reliability.png and top_losses.jpg. Under
    torchrun the ranks share the pictures, and the result is the same. With --probe, a model without a head, or with one
    for other classes, is measured by its features alone. Exit code 1: some pictures could not be read, or no report
    could be made.

    Parameters
    ----------
    model
        A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name. With one argument alone,
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
        How many pictures of the split are used for that.
    probe
        Also fit simple classifiers on the frozen features of the training split: knn, linear, shots.
    shots
        The training pictures of each class for --probe shots.
    by_position
        The checkpoint has no class names, and its classes are the data's in their order.
    out
        The folder to write to [default: runs/eval-N].
    """
    from vitrail.evaluate.evaluation import evaluate
    from vitrail.evaluate.sharing import share_work
    from vitrail.predict import load
    from vitrail.weights.bundled import DEFAULT

    source, where = (DEFAULT, model) if data is None else (model, data)
    with share_work() as share:
        predictor = load(source, device=device)
        dataset, note = _open(where, config, source)
        name = split or _default_split(dataset)
        extras: dict[str, Any] = {"model": source, "tta": tta}
        if probe:
            extras["probes"] = _run_probes(predictor, dataset, name, probe, shots, share)
        found = curves = None
        if not probe or by_position or set(predictor.classes or ()) == set(dataset.classes):
            with _bar("evaluating", dataset, name, share) as advance:
                found = evaluate(predictor, dataset, name, tta=tta, by_position=by_position, progress=advance)
        if robustness and found is not None:
            curves = _measure_robustness(predictor, dataset, name, robustness_pictures, by_position, share)
        code = BROKEN if found is not None and found.broken else 0
        if share.rank:
            return code
        folder = new_run_folder("eval", out)
        facts, paths = extras, list[Path]()
        if found is not None:
            facts, paths = _write(folder, found, dataset, curves, extras)
        paths.insert(0, folder / "metrics.json")
        paths[0].write_text(json.dumps(facts, indent=2), encoding="utf-8")
    if found is not None:
        told = {"model": source, "data": where, "split": name, "tta": tta, "source": to_dict(config)}
        pages = attempt(
            lambda: [report_on_eval(folder, predictor, dataset, found, curves, told)], "the numbers are written"
        )
        paths, code = [*pages, *paths], code if pages else BROKEN
    if as_json:
        print(json.dumps({**facts, "written": [str(path) for path in paths]}, indent=2))
        return code
    title = f"{source} on {dataset.name}, {name}"
    if found is not None:
        print_evaluation(title, found, facts, note)
    else:
        print_probes(title, facts, note)
    print_end(paths, f"vitrail predict {source} PICTURES…" if found else f"vitrail embed {source} --data {where}")
    return code


def _open(where: str, config: DataConfig, source: str) -> "tuple[Dataset, str]":
    """The data; those without splits of their own get the ones that the run was trained with, if it wrote them."""
    from vitrail.data.opening import open_data

    dataset = open_data(where, config)
    file = Path(source) / "split.csv"
    if not dataset.made_split or not file.is_file():
        return dataset, "note: the split was made here, by names and seed" if dataset.made_split else ""
    try:
        return open_data(where, replace(config, split_file=file)), f"split: {file}"
    except DataError:
        return dataset, f"note: {file} is of other pictures; a new split was made; --split all takes every picture"


def _default_split(dataset: "Dataset") -> str:
    for name in ("test", "val"):
        if name in dataset.splits:
            return name
    raise DataError(
        f"{dataset.name}: has no test or val split; --split train or --split all measures on what there is."
    )


def _bar(what: str, dataset: "Dataset", split: str, share: "Share", times: int = 1) -> Any:
    from vitrail.evaluate.evaluation import pick_split

    return progress_bar(what, times * len(pick_split(dataset, split)), speaks=share.rank == 0)


def _measure_robustness(
    predictor: "Predictor", dataset: "Dataset", split: str, limit: int, by_position: bool, share: "Share"
) -> "Robustness":
    from vitrail.evaluate.corruptions import SEVERITIES, STRENGTHS
    from vitrail.evaluate.evaluation import choose, pick_split
    from vitrail.evaluate.robustness import measure_robustness

    passes = 1 + len(STRENGTHS) * len(SEVERITIES)
    count = len(choose(len(pick_split(dataset, split)), limit))
    with progress_bar("corrupting", passes * count, speaks=share.rank == 0) as advance:
        return measure_robustness(predictor, dataset, split, limit=limit, by_position=by_position, progress=advance)


def _run_probes(
    predictor: "Predictor", dataset: "Dataset", split: str, kinds: tuple[Probe, ...], shots: int, share: "Share"
) -> dict[str, Any]:
    """Every probe on features that are computed once."""
    from vitrail.evaluate import probe
    from vitrail.evaluate.records import rate_facts

    dataset = dataset.with_validation()
    names = probe.require_splits(dataset, split)
    total = sum(len(dataset.split(name)) for name in names)
    with progress_bar("features", total, speaks=share.rank == 0) as advance:
        train, val, test = (probe.extract(predictor, dataset, name, advance) for name in names)
    results: dict[str, Any] = {}
    if "knn" in kinds:
        results["knn"] = {"top1": rate_facts(probe.knn(train, test)), "k": probe.NEIGHBOURS}
    if "linear" in kinds:
        found = probe.linear(train, val, test)
        results["linear"] = {"top1": rate_facts(found.top1), "C": found.best_c, "validation": found.validation}
    if "shots" in kinds:
        few = probe.few_shot(train, val, test, shots=shots)
        results["shots"] = {"shots": few.shots, "mean": few.mean, "std": few.std, "trials": few.trials}
    return results


def _write(
    folder: Path, found: "Evaluation", dataset: "Dataset", curves: "Robustness | None", extras: dict[str, Any]
) -> tuple[dict[str, Any], list[Path]]:
    from vitrail.evaluate import plots, records

    facts = {**extras, **records.facts(found)}
    paths = write_evaluation(folder, found, dataset)
    if curves is not None:
        paths.append(folder / "robustness.png")
        plots.save_figure(plots.robustness_figure(curves, f"{found.data}, {found.split}"), paths[-1])
        rates = {kind: [records.rate_facts(rate) for rate in curve] for kind, curve in curves.curves.items()}
        clean = records.rate_facts(curves.clean)
        facts["robustness"] = {"pictures": curves.clean.total, "clean": clean, "mean": curves.mean, "curves": rates}
    return facts, paths
