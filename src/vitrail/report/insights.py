"""The sections of a report about the inner workings of the model: what its predictions rest on, and its attention."""

import numpy as np
import torch
from torch import Tensor

from vitrail.data.source import Dataset
from vitrail.draws import permutation
from vitrail.errors import ExplanationError, VitrailError
from vitrail.evaluation.measurement import Measurement, align_classes, pick_split
from vitrail.evaluation.metrics import Integers
from vitrail.evaluation.mistakes import top_losses
from vitrail.explanation import Subject, explain_by, open_subject
from vitrail.explanation.figures import attention_distance, patch_filters, position_similarity
from vitrail.explanation.plots import longest_distance, plot_distance, plot_filters, plot_positions
from vitrail.explanation.render import enlarge, overlay, picture_of, seen_part
from vitrail.prediction import Predictor
from vitrail.report.page import Block, Drawings, Gallery, Paragraph, Picture, Section, Tile
from vitrail.report.pictures import encode_figure, encode_photo
from vitrail.weights.trust import probabilities

MISTAKES, RIGHT = 12, 6  # pictures that are explained
LOOKED_AT = 6  # pictures over which attention distance is averaged


def picture_sections(predictor: Predictor, dataset: Dataset, measurement: Measurement) -> list[Section]:
    """The worst mistakes and some correct predictions, each beside what it rests on."""
    is_right = measurement.answers.predicted == measurement.targets
    wrong, right = int((~is_right).sum()), np.flatnonzero(is_right)
    worst = top_losses(measurement, MISTAKES)
    _, first = np.unique(measurement.targets[right], return_index=True)  # one of each class
    sections: list[Section] = []
    beside = "The colours beside each picture show which parts the prediction rests on"
    for title, indices, text in (
        ("Worst mistakes", worst, _count_wrong(wrong)),
        (
            "Correct predictions",
            right[first[:: max(1, len(first) // RIGHT)][:RIGHT]],
            "One picture each of some classes.",
        ),
    ):
        if not len(indices):
            none = "No picture is misclassified." if indices is worst else "No picture is classified correctly."
            sections.append(Section(title=title, blocks=[Paragraph(text=none)]))
            continue
        tiles, methods, failure = explain_tiles(predictor, dataset, measurement, indices)
        how = f" {beside} ({', '.join(methods)})." if methods else ""
        blocks: list[Block] = [Paragraph(text=text + how), Gallery(tiles=tiles, scale=bool(methods))]
        if failure:
            blocks.append(Paragraph(text=f"Not every picture could be explained: {failure}", quiet=True))
        sections.append(Section(title=title, blocks=blocks))
    return sections


def _count_wrong(wrong: int) -> str:
    if wrong == 1:
        return "One picture is misclassified."
    return f"{wrong:,} pictures are misclassified{'; these have the highest loss' if wrong > MISTAKES else ''}."


def explain_tiles(
    predictor: Predictor, dataset: Dataset, measurement: Measurement, indices: Integers
) -> tuple[list[Tile], list[str], str]:
    """The pictures with their explanations, the methods that gave them, and why one could not be explained."""
    source = pick_split(dataset, measurement.split)
    order = align_classes(predictor, measurement.classes, by_position=predictor.classes is None)
    shares = probabilities(measurement.logits[indices], measurement.trust)
    tiles: list[Tile] = []
    methods: dict[str, None] = {}
    failure = ""
    for index, row in zip(indices, shares, strict=True):
        key, predicted = measurement.keys[index], int(row.argmax())
        truth, answer = measurement.classes[measurement.targets[index]], measurement.classes[predicted]
        title = f"predicted {answer} ({row[predicted]:.0%})" + (
            "" if truth == answer else f", true class {truth} ({row[measurement.targets[index]]:.0%})"
        )
        pictures: list[Picture] = []
        try:
            subject = open_subject(source.picture(int(measurement.samples[index])), predictor.preprocess, key)
            seen = enlarge(seen_part(subject))
            pictures.append(encode_photo(picture_of(seen), f"{key}: {truth}"))
            cells, method = _map_of(predictor, subject, order[predicted])
            methods[method] = None
            pictures.append(encode_photo(overlay(seen, cells), f"What counted for {answer}, by {method}"))
        except (VitrailError, OSError) as error:
            failure = str(error)
        tiles.append(Tile(pictures=pictures, title=title, note=key))
    return tiles, list(methods), failure


def _map_of(predictor: Predictor, subject: Subject, target: int) -> tuple[Tensor, str]:
    """What counted for the predicted class, by a cheap class-specific method, or else by one that ignores the class.

    An export has no gradients and no attention; covering its patches one by one is what is left.
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
        about = "Each tile: how similar one patch's position is to all others."
        alt = "Similarity of the position embeddings"
        drawn.append(encode_figure(lambda theme: plot_positions(similarity, kind, theme), alt, about))
    source = pick_split(dataset, measurement.split if measurement is not None else "train")
    looks: list[Tensor] = []
    for index in permutation(0, 0, len(source))[:LOOKED_AT].tolist():
        try:
            image = open_subject(source.picture(index), predictor.preprocess).image
        except (VitrailError, OSError):
            continue  # unreadable pictures have been counted already
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
