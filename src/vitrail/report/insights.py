"""The sections of a report about single predictions: what they rest on, how far to trust them; and about attention."""

import numpy as np
import torch
from torch import Tensor

from vitrail.blocks import (
    Block,
    Curve,
    Drawings,
    EncodedPicture,
    Fact,
    Gallery,
    GalleryTile,
    Numbers,
    Paragraph,
    Plot,
    Plots,
    Section,
    Table,
    encode_figure,
    encode_photo,
)
from vitrail.data.source import Dataset
from vitrail.errors import ExplanationError, VitrailError
from vitrail.evaluation.measurement import Booleans, Measurement, align_classes, pick_split
from vitrail.evaluation.ood import OodScores
from vitrail.evaluation.output import class_sets, worst_first
from vitrail.evaluation.plots import top_losses
from vitrail.explanation import Subject, explain_by, open_subject
from vitrail.explanation.heatmap import enlarge, overlay, picture_of, seen_part
from vitrail.explanation.paper_figures import (
    attention_distance,
    patch_filters,
    plot_distance,
    plot_filters,
    plot_positions,
    position_similarity,
)
from vitrail.model.positions import POSITIONS
from vitrail.prediction import Predictor
from vitrail.report.sections import MOST_CLASSES, interval_text, rate_text
from vitrail.rng import permutation
from vitrail.tasks.one_metrics import Integers
from vitrail.wording import counted

MISTAKES, RIGHT = 12, 6  # pictures that are explained
STRANGEST = 12  # unfamiliar pictures that are shown
LOOKED_AT = 6  # pictures over which attention distance is averaged


def picture_sections(predictor: Predictor, dataset: Dataset, measurement: Measurement) -> list[Section]:
    """The worst mistakes and some correct predictions, each beside what it rests on."""
    correct = measurement.answers.correct
    wrong, right = int((~correct).sum()), np.flatnonzero(correct)
    _, first = np.unique(measurement.targets[right], return_index=True)  # one of each class
    some = right[first[:: max(1, len(first) // RIGHT)][:RIGHT]]
    which = "; these have the highest loss" if wrong > MISTAKES else ""
    mistakes = "One picture is misclassified." if wrong == 1 else f"{wrong:,} pictures are misclassified{which}."
    sections: list[Section] = []
    for title, indices, text, none in (
        ("Worst mistakes", top_losses(measurement, MISTAKES), mistakes, "No picture is misclassified."),
        ("Correct predictions", some, "One picture each of some classes.", "No picture is classified correctly."),
    ):
        if not len(indices):
            sections.append(Section(title, [Paragraph(none)]))
            continue
        tiles, methods, failure = explain_tiles(predictor, dataset, measurement, indices)
        if methods:
            text += " The colours beside each picture show which parts the prediction rests on "
            text += f"({', '.join(methods)})."
        blocks: list[Block] = [Paragraph(text), Gallery(tiles, scale=bool(methods))]
        if failure:
            blocks.append(Paragraph(f"Not every picture could be explained: {failure}", quiet=True))
        sections.append(Section(title, blocks))
    return sections


def explain_tiles(
    predictor: Predictor, dataset: Dataset, measurement: Measurement, indices: Integers, *, explained: bool = True
) -> tuple[list[GalleryTile], list[str], str]:
    """The pictures with their explanations, the methods that gave them, and why one could not be explained."""
    source, names, answers = pick_split(dataset, measurement.split), measurement.classes, measurement.answers
    order = align_classes(predictor, names, by_position=predictor.classes is None)
    tiles: list[GalleryTile] = []
    methods: dict[str, None] = {}
    failure = ""
    for index in indices:
        key, target, predicted = measurement.keys[index], measurement.targets[index], answers.predicted[index]
        title = f"predicted {names[predicted]} ({answers.confidence[index]:.0%})"
        if predicted != target:
            share = f" ({np.exp(-answers.losses[index]):.0%})" if explained else ""
            title += f", true class {names[target]}{share}"
        pictures: list[EncodedPicture] = []
        try:
            subject = open_subject(source.picture(int(measurement.samples[index])), predictor.preprocess, key)
            seen = enlarge(seen_part(subject))
            pictures.append(encode_photo(picture_of(seen), f"{key}: {names[target]}"))
            if explained:
                cells, method = _map_of(predictor, subject, order[predicted])
                methods[method] = None
                pictures.append(encode_photo(overlay(seen, cells), f"What counted for {names[predicted]}, by {method}"))
        except (VitrailError, OSError) as error:
            failure = str(error)
        tiles.append(GalleryTile(pictures, title, key))
    return tiles, list(methods), failure


def _map_of(predictor: Predictor, subject: Subject, target: int) -> tuple[Tensor, str]:
    """What counted for the predicted class, by a cheap class-specific method, or else by one that ignores the class.

    An export has no gradients and no attention, so its patches are covered one by one.
    """
    if not predictor.in_torch:
        return explain_by(predictor, subject, "occlusion", target).map, "occlusion"
    try:
        return explain_by(predictor, subject, "relevance", target).map, "relevance"
    except ExplanationError:
        return explain_by(predictor, subject, "rollout", target).map, "rollout"


def attention_section(predictor: Predictor, dataset: Dataset, measurement: Measurement | None) -> Section:
    """The inner workings of the checkpoint: filters, positions, and how far its heads look."""
    model = predictor.model
    filters, similarity = patch_filters(model), position_similarity(model)
    alt = f"{filters.what}, as small pictures"
    drawn = [encode_figure(lambda theme: plot_filters(filters, theme), alt, "What the first layer looks for.")]
    if similarity is not None:
        kind = POSITIONS[model.config.positions.kind].description
        about = "Each tile: how similar one patch's position is to all others."
        alt = "Similarity of the position embeddings"
        drawn.append(encode_figure(lambda theme: plot_positions(similarity, kind, theme), alt, about))
    source = pick_split(dataset, measurement.split if measurement is not None else "train")
    distances: list[Tensor] = []
    for index in permutation(0, 0, len(source))[:LOOKED_AT].tolist():
        try:
            image = open_subject(source.picture(index), predictor.preprocess).image
        except (VitrailError, OSError):
            continue  # unreadable pictures have been counted already
        distances.append(attention_distance(model, image[None]))
    if distances:
        distance, count, size = torch.stack(distances).mean(dim=0), len(distances), model.config.image_size
        ends = f"{distance[0].mean():.1f} pixels in the first layer, {distance[-1].mean():.1f} in the last"
        alt, about = f"Mean attention distance: {ends}", f"A head looks {ends}, on average."
        drawn.append(encode_figure(lambda theme: plot_distance(distance, count, size, theme), alt, about))
    about = "The figures of the ViT paper, for this checkpoint."
    return Section("Attention", [Paragraph(about, quiet=True), Drawings(drawn)])


def trust_sections(
    predictor: Predictor, dataset: Dataset, measurement: Measurement, unfamiliar: OodScores | None = None
) -> list[Section]:
    """How far to trust the answers, for a model that was calibrated; otherwise nothing."""
    trust = measurement.trust
    if trust is None:
        return []
    text = f"The calibration was made on {counted(trust.pictures, 'picture')} of {trust.data}, and is measured here on "
    text += f"{measurement.split}."
    if trust.data == f"{measurement.data}, {measurement.split}":
        text += " These are the same pictures, so its figures are optimistic."
    blocks: list[Block] = [Paragraph(text), Numbers(_numbers(measurement, unfamiliar))]
    if measurement.label_sets is not None:
        blocks += _set_blocks(measurement)
    if measurement.familiarity is not None:
        strangest = np.argsort(measurement.familiarity, kind="stable")[:STRANGEST]
        tiles, _, _ = explain_tiles(predictor, dataset, measurement, strangest, explained=False)
        text = "The most unfamiliar pictures: their features are farthest from those of the training pictures."
        blocks += [Paragraph(text), Gallery(tiles, scale=False)]
    return [Section("How far to trust it", blocks)]


def _numbers(measurement: Measurement, unfamiliar: OodScores | None) -> list[Fact]:
    error, before = (each.calibration.error for each in (measurement.metrics, measurement.uncalibrated))
    facts = [Fact("calibration error", f"{error:.2%}", f"{before:.2%} without the calibration")]
    sets, familiar, correct = measurement.label_sets, measurement.familiar, measurement.answers.correct
    if sets is not None:
        note = f"{100 * sets.requested:.4g} % requested; {interval_text(sets.coverage)}"
        facts.append(Fact("label sets that hold the truth", f"{sets.coverage.value:.2%}", note))
        facts.append(Fact("labels in a set", f"{sets.mean_size:.2f}", "on average"))
    if familiar is not None:
        note = f"top-1 accuracy {_share(correct[familiar])} of familiar pictures, {_share(correct[~familiar])} of these"
        facts.append(Fact("unfamiliar pictures", f"{1 - familiar.mean():.1%}", note))
    if unfamiliar is not None:
        note = f"AUROC; {unfamiliar.marked.value:.1%} of {counted(unfamiliar.pictures, 'picture')} marked as unfamiliar"
        facts.append(Fact(f"told from {unfamiliar.data}", f"{unfamiliar.auroc:.3f}", note))
    return facts


def _set_blocks(measurement: Measurement) -> list[Block]:
    """The coverage curve, and the classes."""
    curve, across = measurement.coverage_curve(), "requested coverage"
    measured = Curve("measured", [(sets.requested, sets.coverage.value) for sets in curve])
    requested = Curve("requested", [(sets.requested, sets.requested) for sets in curve], style="second")
    sizes = Curve("measured", [(sets.requested, sets.mean_size) for sets in curve])
    plots = [
        Plot("Sets that hold the truth", [measured, requested], across, percent=True),
        Plot("Labels in a set, on average", [sizes], across),
    ]
    text = "A label set holds as many of the most likely labels as it takes to hold the truth as often as requested, "
    text += "over all pictures. It always holds one, so a coverage below the accuracy is exceeded."
    return [Paragraph(text), Plots(plots), _class_table(measurement)]


def _class_table(measurement: Measurement) -> Table:
    """How often the sets of each class hold the truth, the worst class first if there are many."""
    sets = measurement.label_sets
    assert sets is not None
    indices = list(range(len(measurement.classes)))
    note = "The promise is for all pictures together, not for each class."
    if len(indices) > MOST_CLASSES:
        indices = worst_first([class_sets(measurement, index).coverage for index in indices])[:MOST_CLASSES]
        note += f" The {MOST_CLASSES} worst of {len(measurement.classes):,} classes; classes.csv has all of them."
    rows = [
        (measurement.classes[index], *(("–", "–") if held is None else (rate_text(held), f"{size:.2f}")))
        for index, held, size in ((index, sets.classes[index], sets.class_sizes[index]) for index in indices)
    ]
    head = ("class", f"label sets that hold the truth, {100 * sets.requested:.4g} % requested", "labels in a set")
    return Table(head, rows, note)


def _share(correct: Booleans) -> str:
    return f"{correct.mean():.1%}" if len(correct) else "–"
