"""What `train`, `demo` and `eval` leave behind for people: the figures of an evaluation, and report.html."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.printing import SteadyConsole, duration, plain, progress_bar
from vitrail.cli.runs import run_of
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.source import Dataset
    from vitrail.evaluation.evaluation import Evaluation
    from vitrail.evaluation.metrics import Integers
    from vitrail.evaluation.report import Block, Picture, Section, Tile
    from vitrail.evaluation.robustness import Robustness
    from vitrail.prediction import Predictor
    from vitrail.training.curves import Row

REPORT = "report.html"
MISTAKES, RIGHT = 12, 6  # pictures that are explained
LOOKED_AT = 16  # pictures that attention distance is averaged over


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a report is about, besides the numbers."""

    model: str
    commands: dict[str, str]  # what for → the command
    settings: dict[str, Any]
    environment: dict[str, Any]
    run: Path | None = None  # the training run, whose curves are shown
    check: "Sequence[Block]" = ()  # what the data check before the training found
    split_from: str = ""  # where the splits are from, if the data have none


def report_on_run(folder: Path, dataset: "Dataset", device: str = "auto") -> list[Path]:
    """Measure the best weights of a finished run on test or else val, and write the figures and the report beside them.

    One process does this alone, after the ranks have parted.
    """
    from vitrail.data.check.record import RECORD, read_record
    from vitrail.evaluation.evaluation import evaluate, pick_split
    from vitrail.evaluation.records import facts, write_facts
    from vitrail.evaluation.sections import check_blocks
    from vitrail.prediction import load
    from vitrail.schema import to_dict
    from vitrail.training.history import chose_epoch
    from vitrail.training.run import read_config

    config = read_config(folder)
    predictor = load(folder, device=device)
    split = next((name for name in ("test", "val") if name in dataset.splits), None)
    found, paths = None, list[Path]()
    if split is not None:
        with progress_bar("evaluating", len(pick_split(dataset, split))) as advance:
            found = evaluate(predictor, dataset, split, progress=advance)
        found = replace(found, chose_epoch=chose_epoch(folder, config.data, split))
        paths = write_evaluation(folder, found, dataset)
        told = _read_json(folder / "metrics.json") | {"evaluation": facts(found)}
        write_facts(told, folder / "metrics.json")
    name = config.start.model or Path(config.start.weights or "").name
    story = Story(
        model=name,
        commands=_run_commands(folder, config.data, config.source.data_dir),
        settings=to_dict(config),
        environment=_read_json(folder / "env.json"),
        run=folder,
        check=check_blocks(read_record(folder / RECORD), config.data),
    )
    return [write_page(folder, story, predictor, dataset, found), *paths]


def attempt(make: Callable[[], list[Path]], safe: str) -> list[Path]:
    """The files that `make` writes; if it fails in any way, none, and a line that says why and what is `safe`."""
    try:
        return make()
    except Exception as error:  # a report must never cost the work that it is about
        why = " ".join(str(error).split()) or type(error).__name__
        SteadyConsole(stderr=True, highlight=False, markup=False, soft_wrap=True).print(
            f"no report: {plain(why)} ({safe})"
        )
        return []


def report_on_eval(
    folder: Path,
    predictor: "Predictor",
    dataset: "Dataset",
    found: "Evaluation",
    curves: "Robustness | None",
    settings: dict[str, Any],
) -> Path:
    """The report of `vitrail eval`; if the model is a run folder, with the curves of its training."""
    from vitrail.environment import environment
    from vitrail.evaluation.sections import check_blocks
    from vitrail.training.history import data_check, trained_on

    source, data = str(settings["model"]), str(settings["data"])
    where, run = _data_argument(data, settings["source"]["data_dir"]), run_of(source)
    told = environment()
    story = Story(
        model=source,
        commands={"measure it again": _as_typed(told), **_model_commands(source, where)},
        settings=settings,
        environment=told,
        run=run if (run / "results.csv").is_file() else None,
        split_from=str(settings["split_from"] or ""),
        check=check_blocks(data_check(run, data), data) if trained_on(run, data) else (),
    )
    return write_page(folder, story, predictor, dataset, found, curves)


def write_evaluation(folder: Path, found: "Evaluation", dataset: "Dataset", *, raw: bool = False) -> list[Path]:
    """The answers, classes and confusions as CSV files, and the figures, as files of their own."""
    from vitrail.evaluation import plots, records
    from vitrail.evaluation.mistakes import mistakes_sheet
    from vitrail.files import atomic_path

    metrics = found.metrics
    chose = " (also chose the epoch)" if found.chose_epoch else ""
    title = f"{found.data}, {found.split}{chose}: top-1 {metrics.top1.value:.1%} of {metrics.top1.total:,}"
    tables = {
        "predictions.csv": records.write_predictions,
        "classes.csv": records.write_classes,
        "confusion.csv": records.write_confusion,
    }
    for name, write in tables.items():
        write(found, folder / name, raw=raw)
    paths = [folder / name for name in ("confusion_matrix.png", "reliability.png", "top_losses.jpg")]
    plots.save_figure(plots.confusion_figure(metrics.confusion, found.classes, title), paths[0])
    plots.save_figure(plots.reliability_figure(metrics.calibration, title), paths[1])
    with atomic_path(paths[2]) as draft:
        mistakes_sheet(found, dataset).save(draft, quality=92)
    return [*(folder / name for name in tables), *paths]


def write_page(
    folder: Path,
    story: Story,
    predictor: "Predictor",
    dataset: "Dataset",
    found: "Evaluation | None",
    curves: "Robustness | None" = None,
) -> Path:
    """report.html, from everything that is known."""
    from vitrail.evaluation.report import Fact, Report, write_report
    from vitrail.evaluation.sections import data_section, headline, result_section, verdict
    from vitrail.training.curves import learning_rates, read_rows
    from vitrail.training.run import read_config
    from vitrail.training.section import training_section

    predictor.model.cpu()  # what follows is a few pictures at a time, and drawn from main memory
    parameters = sum(parameter.numel() for parameter in predictor.model.parameters())
    height, width = predictor.preprocess.size
    model = Fact(name="model", value=_short_count(parameters), note=f"parameters, pictures of {width}×{height}")
    facts = [*(headline(found) if found is not None else ()), model]
    sections = [data_section(dataset, story.split_from, story.check)]
    rows = read_rows(story.run / "results.csv") if story.run is not None else []
    if story.run is not None and rows:
        rates = learning_rates(predictor.model, read_config(story.run), predictor.model.config.depth)
        sections.append(training_section(rows, rates, f"{_epochs(rows)} in {duration(rows[-1].seconds)}"))
        facts.append(Fact(name="training", value=duration(rows[-1].seconds), note=_epochs(rows)))
    if found is not None:
        sections += [result_section(found, curves), *_picture_sections(predictor, dataset, found)]
    sections += [_attention_section(predictor, dataset, found), *_last_sections(story)]
    unknown = f"No pictures of {dataset.name} were held out, so nobody knows how good this model is."
    report = Report(
        title=f"{story.model} on {dataset.name}",
        verdict=verdict(story.model, found) if found is not None else unknown,
        facts=facts,
        sections=sections,
    )
    write_report(report, folder / REPORT)
    return folder / REPORT


def _picture_sections(predictor: "Predictor", dataset: "Dataset", found: "Evaluation") -> "list[Section]":
    """The worst mistakes and some right answers, each beside what it was decided by."""
    import numpy as np

    from vitrail.evaluation.mistakes import top_losses
    from vitrail.evaluation.report import Gallery, Paragraph, Section

    is_right = found.answers.predicted == found.targets
    wrong, right = int((~is_right).sum()), np.flatnonzero(is_right)
    worst = top_losses(found, MISTAKES)
    _, first = np.unique(found.targets[right], return_index=True)  # one of each class
    sections: list[Section] = []
    beside = "The colours beside each picture show which parts counted for the answer"
    for title, places, said in (
        ("Worst mistakes", worst, _count_wrong(wrong)),
        ("Correct answers", right[first[:: max(1, len(first) // RIGHT)][:RIGHT]], "One picture each of some classes."),
    ):
        if not len(places):
            text = "No picture is misclassified." if places is worst else "No picture is classified correctly."
            sections.append(Section(title=title, blocks=[Paragraph(text=text)]))
            continue
        tiles, methods, failure = _explain(predictor, dataset, found, places)
        how = f" {beside} ({', '.join(methods)})." if methods else ""
        blocks: list[Block] = [Paragraph(text=said + how), Gallery(tiles=tiles, scale=bool(methods))]
        if failure:
            blocks.append(Paragraph(text=f"Not every picture could be explained: {failure}", quiet=True))
        sections.append(Section(title=title, blocks=blocks))
    return sections


def _count_wrong(wrong: int) -> str:
    if wrong == 1:
        return "One picture is misclassified."
    return f"{wrong:,} pictures are misclassified{'; these cost most' if wrong > MISTAKES else ''}."


def _explain(
    predictor: "Predictor", dataset: "Dataset", found: "Evaluation", places: "Integers"
) -> "tuple[list[Tile], list[str], str]":
    """The pictures with their explanations, the methods that gave them, and why one could not be explained."""
    import numpy as np

    from vitrail.evaluation.evaluation import align_classes, pick_split
    from vitrail.evaluation.metrics import log_softmax
    from vitrail.evaluation.report import Tile, encode_photo
    from vitrail.explanation import open_subject
    from vitrail.explanation.render import enlarge, overlay, picture_of, seen_part

    source = pick_split(dataset, found.split)
    order = align_classes(predictor, found.classes, by_position=predictor.classes is None)
    shares = np.exp(log_softmax(found.logits[places].astype(np.float64)))
    tiles: list[Tile] = []
    methods: dict[str, None] = {}
    failure = ""
    for place, row in zip(places, shares, strict=True):
        key, said = found.keys[place], int(row.argmax())
        truth, answer = found.classes[found.targets[place]], found.classes[said]
        title = f"said {answer} ({row[said]:.0%})" + (
            "" if truth == answer else f", is {truth} ({row[found.targets[place]]:.0%})"
        )
        pictures: list[Picture] = []
        try:
            subject = open_subject(source.picture(int(found.samples[place])), predictor.preprocess, key)
            seen = enlarge(seen_part(subject))
            pictures.append(encode_photo(picture_of(seen), f"{key}: {truth}"))
            cells, method = _decide_by(predictor, subject, order[said])
            methods[method] = None
            pictures.append(encode_photo(overlay(seen, cells), f"What counted for {answer}, by {method}"))
        except (VitrailError, OSError) as error:
            failure = str(error)
        tiles.append(Tile(pictures=pictures, title=title, note=key))
    return tiles, list(methods), failure


def _decide_by(predictor: "Predictor", subject: Any, target: int) -> tuple[Any, str]:
    """What counted for the class that was said, by a cheap method that knows classes, or else by one that does not."""
    from vitrail.errors import ExplanationError
    from vitrail.explanation import explain_by

    try:
        return explain_by(predictor, subject, "relevance", target).map, "relevance"
    except ExplanationError:
        return explain_by(predictor, subject, "rollout", target).map, "rollout"


def _attention_section(predictor: "Predictor", dataset: "Dataset", found: "Evaluation | None") -> "Section":
    """How the checkpoint looks at pictures: filters, positions, and how far its heads look."""
    import torch

    from vitrail.draws import permutation
    from vitrail.evaluation.evaluation import pick_split
    from vitrail.evaluation.report import Block, Drawings, Paragraph, Section, encode_figure
    from vitrail.explanation import open_subject
    from vitrail.explanation.figures import attention_distance, patch_filters, position_similarity
    from vitrail.explanation.plots import longest_distance, plot_distance, plot_filters, plot_positions

    model = predictor.model
    filters = patch_filters(model)
    drawn = [
        encode_figure(
            lambda theme: plot_filters(filters, theme),
            f"{filters.what}, as small pictures",
            "What the first layer looks for.",
        )
    ]
    similarity = position_similarity(model)
    if similarity is not None:
        kind = "learned" if model.config.positions.kind == "learned" else "fixed sines and cosines"
        about = "Each tile: how like one patch's position is to all others."
        alt = "Similarity of the position embeddings"
        drawn.append(encode_figure(lambda theme: plot_positions(similarity, kind, theme), alt, about))
    source = pick_split(dataset, found.split if found is not None else "train")
    looks: list[torch.Tensor] = []
    for index in permutation(0, 0, len(source))[:LOOKED_AT].tolist():
        try:
            image = open_subject(source.picture(index), predictor.preprocess).image
        except (VitrailError, OSError):
            continue  # a picture that cannot be read has been counted already
        looks.append(attention_distance(model, image[None]))
    if looks:
        distance, longest = torch.stack(looks).mean(dim=0), longest_distance(model.config.image_size)
        ends = f"{distance[0].mean():.1f} pixels in the first layer, {distance[-1].mean():.1f} in the last"
        drawn.append(
            encode_figure(
                lambda theme: plot_distance(distance, len(looks), longest, theme),
                f"Mean attention distance: {ends}",
                f"A head looks {ends}, on average.",
            )
        )
    text = "The figures of the ViT paper, for this checkpoint."
    blocks: list[Block] = [Paragraph(text=text, quiet=True), Drawings(pictures=drawn)]
    return Section(title="Attention", blocks=blocks)


def _last_sections(story: Story) -> "list[Section]":
    import yaml

    from vitrail.evaluation.report import Block, Listing, Paragraph, Section

    commands: list[Block] = []
    for what, command in story.commands.items():
        commands += [Paragraph(text=what[0].upper() + what[1:] + ":"), Listing(text=command)]
    settings = yaml.safe_dump(story.settings, sort_keys=False, allow_unicode=True)
    told = yaml.safe_dump(story.environment, sort_keys=False, allow_unicode=True)
    packages: dict[str, str] = story.environment.get("packages", {})
    where = f"vitrail {story.environment.get('vitrail', '?')}, Python {story.environment.get('python', '?')}, "
    where += ", ".join(f"{name} {number}" for name, number in packages.items())
    return [
        Section(title="Commands", blocks=commands),
        Section(
            title="Config and environment",
            blocks=[
                Paragraph(text=where + "."),
                Listing(text=settings, summary="The whole config"),
                Listing(text=told, summary="The environment"),
            ],
        ),
    ]


def _run_commands(folder: Path, data: str, data_dir: Path | None) -> dict[str, str]:
    told = _read_json(folder / "env.json")
    again = ["vitrail", "train", "--config", str(folder / "config.yaml")]
    commands = {"train it again, from the same config": shlex.join(again)}
    if told.get("command"):
        commands = {"what was typed": _as_typed(told), **commands}
    return {**commands, **_model_commands(str(folder), _data_argument(data, data_dir))}


def _data_argument(data: str, data_dir: Path | str | None) -> str:
    return shlex.join([data] if data_dir is None else [data, "--data-dir", str(data_dir)])


def _model_commands(source: str, where: str) -> dict[str, str]:
    """What to do next with a model; `where` is its data, ready for a shell."""
    model = shlex.quote(source)
    return {
        "ask it about your pictures": f"vitrail predict {model} PICTURES",
        "see what its answers rest on": f"vitrail explain {model} PICTURES",
        "measure it under noise, blur, JPEG, brightness and rotation": f"vitrail eval {model} {where} --robustness",
        "start from it on other pictures": f"vitrail train OTHER_PICTURES --weights {model}",
    }


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _as_typed(told: dict[str, Any]) -> str:
    """The command line that an environment tells of, as a person would type it."""
    ranks, here = int(told.get("world_size", 1)), int(told.get("local_world_size", 1))
    nodes = f"--nnodes {ranks // here} " if ranks > here else ""
    start = f"torchrun {nodes}--nproc-per-node {here} -m vitrail" if ranks > 1 else "vitrail"
    return f"{start} {shlex.join(told['command'][1:])}"


def _epochs(rows: "list[Row]") -> str:
    return "1 epoch" if rows[-1].epoch == 1 else f"{rows[-1].epoch} epochs"


def _short_count(count: int) -> str:
    return f"{count:,}" if count < 1_000_000 else f"{count / 1e6:.1f} M"
