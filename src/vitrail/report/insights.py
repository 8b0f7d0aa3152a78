"""The sections of a report about single predictions: what they rest on, how far to trust them; and about attention."""

import numpy as np
import torch
from torch import Tensor

from vitrail.blocks import (
    Block,
    Drawings,
    EncodedPicture,
    Fact,
    Gallery,
    GalleryTile,
    Numbers,
    Paragraph,
    Section,
    encode_figure,
    encode_photo,
)
from vitrail.data.source import Dataset
from vitrail.errors import ExplanationError, VitrailError
from vitrail.evaluation.measurement import Booleans, Measurement, align_classes, pick_split
from vitrail.evaluation.ood import OodScores
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
from vitrail.report.sections import take_numbers
from vitrail.rng import Integers, permutation
from vitrail.wording import counted

MISTAKES, RIGHT = 12, 6  # pictures that are explained
STRANGEST = 12  # unfamiliar pictures that are shown
LOOKED_AT = 6  # pictures over which attention distance is averaged


def picture_sections(predictor: Predictor, dataset: Dataset, measurement: Measurement) -> list[Section]:
    """The worst mistakes and some correct predictions, each beside what it rests on."""
    results = measurement.results
    worst, best = results.worst(MISTAKES), results.best(RIGHT)
    texts = (results.about_worst(len(worst)), results.about_best(len(best)))
    sections: list[Section] = []
    for title, indices, text in zip(results.galleries, (worst, best), texts, strict=True):
        if not len(indices):
            sections.append(Section(title, [Paragraph(text)]))
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
    source, names, results = pick_split(dataset, measurement.split), measurement.classes, measurement.results
    order = align_classes(predictor, names, by_position=predictor.classes is None)
    tiles: list[GalleryTile] = []
    methods: dict[str, None] = {}
    failure = ""
    for index in map(int, indices):
        key, target = measurement.keys[index], results.explained(index)
        pictures: list[EncodedPicture] = []
        try:
            subject = open_subject(source.picture(int(measurement.samples[index])), predictor.preprocess, key)
            seen = enlarge(seen_part(subject))
            pictures.append(encode_photo(picture_of(seen), f"{key}: {results.true_label(index)}"))
            if explained:
                cells, method = _map_of(predictor, subject, order[target])
                methods[method] = None
                pictures.append(encode_photo(overlay(seen, cells), f"What counted for {names[target]}, by {method}"))
        except (VitrailError, OSError) as error:
            failure = str(error)
        tiles.append(GalleryTile(pictures, results.caption(index), key))
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
    numbers, others = take_numbers(measurement.results.trust_blocks())
    numbers += _familiarity_numbers(measurement, unfamiliar)
    blocks: list[Block] = [Paragraph(text), *([Numbers(numbers)] if numbers else []), *others]
    if measurement.familiarity is not None:
        strangest = np.argsort(measurement.familiarity, kind="stable")[:STRANGEST]
        tiles, _, _ = explain_tiles(predictor, dataset, measurement, strangest, explained=False)
        text = "The most unfamiliar pictures, the least like those of training first."
        blocks += [Paragraph(text), Gallery(tiles, scale=False)]
    return [Section("How far to trust it", blocks)]


def _familiarity_numbers(measurement: Measurement, unfamiliar: OodScores | None) -> list[Fact]:
    facts: list[Fact] = []
    familiar, right = measurement.familiar, measurement.results.right()
    if familiar is not None:
        note = "unlike the training pictures"
        if right is not None:
            known, others = _share(right.pictures[familiar]), _share(right.pictures[~familiar])
            note = f"{right.name} {known} of familiar pictures, {others} of these"
        facts.append(Fact("unfamiliar pictures", f"{1 - familiar.mean():.1%}", note))
    if unfamiliar is not None:
        note = f"AUROC; {unfamiliar.marked.value:.1%} of {counted(unfamiliar.pictures, 'picture')} marked as unfamiliar"
        facts.append(Fact(f"told from {unfamiliar.data}", f"{unfamiliar.auroc:.3f}", note))
    return facts


def _share(correct: Booleans) -> str:
    return f"{correct.mean():.1%}" if len(correct) else "–"
