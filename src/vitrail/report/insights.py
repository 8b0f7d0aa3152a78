"""The sections of a report about single predictions: what they rest on, how far to trust them, and the model's
attention.
"""

import numpy as np
import torch
from torch import Tensor

from vitrail.data.source import Dataset
from vitrail.errors import ExplanationError, VitrailError
from vitrail.evaluation.measurement import Booleans, Measurement, align_classes, pick_split
from vitrail.evaluation.metrics import Integers
from vitrail.evaluation.ood import OodScores
from vitrail.evaluation.output import class_sets, worst_first
from vitrail.evaluation.plots import top_losses
from vitrail.explanation import Subject, explain_by, open_subject
from vitrail.explanation.heatmap import enlarge, overlay, picture_of, seen_part
from vitrail.explanation.paper_figures import (
    attention_distance,
    longest_distance,
    patch_filters,
    plot_distance,
    plot_filters,
    plot_positions,
    position_similarity,
)
from vitrail.prediction import Predictor
from vitrail.report.blocks import (
    Block,
    Curve,
    Drawings,
    Fact,
    Facts,
    Gallery,
    Paragraph,
    Picture,
    Plot,
    Plots,
    Section,
    Table,
    Tile,
    encode_figure,
    encode_photo,
)
from vitrail.report.sections import interval_text, rate_text
from vitrail.rng import permutation
from vitrail.weights.trust import Trust, probabilities
from vitrail.wording import counted

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


STRANGEST = 12  # pictures that are shown
MOST_CLASSES = 40  # rows of a table


def trust_sections(
    predictor: Predictor, dataset: Dataset, measurement: Measurement, unfamiliar: OodScores | None = None
) -> list[Section]:
    """How far to trust the answers, for a model that was calibrated; otherwise nothing."""
    trust = measurement.trust
    if trust is None:
        return []
    blocks: list[Block] = [Paragraph(text=_origin(trust, measurement)), Facts(facts=_numbers(measurement, unfamiliar))]
    if measurement.label_sets is not None:
        blocks += _set_blocks(measurement)
    if measurement.familiarity is not None:
        blocks += _strange_blocks(predictor, dataset, measurement)
    return [Section(title="How far to trust it", blocks=blocks)]


def _origin(trust: Trust, measurement: Measurement) -> str:
    text = f"The calibration was made on {counted(trust.pictures, 'picture')} of {trust.data}, and is measured here on "
    text += f"{measurement.split}."
    if trust.data == f"{measurement.data}, {measurement.split}":
        text += " These are the same pictures, so its figures are optimistic."
    return text


def _numbers(measurement: Measurement, unfamiliar: OodScores | None) -> list[Fact]:
    error, before = (each.calibration.error for each in (measurement.metrics, measurement.uncalibrated))
    facts = [Fact(name="calibration error", value=f"{error:.2%}", note=f"{before:.2%} without the calibration")]
    sets, familiar = measurement.label_sets, measurement.familiar
    if sets is not None:
        note = f"{100 * sets.requested:.4g} % requested; {interval_text(sets.coverage)}"
        facts.append(Fact(name="label sets that hold the truth", value=f"{sets.coverage.value:.2%}", note=note))
        facts.append(Fact(name="labels in a set", value=f"{sets.mean_size:.2f}", note="on average"))
    if familiar is not None:
        right = measurement.answers.predicted == measurement.targets
        note = f"top-1 accuracy {_share(right[familiar])} of familiar pictures, {_share(right[~familiar])} of these"
        facts.append(Fact(name="unfamiliar pictures", value=f"{1 - familiar.mean():.1%}", note=note))
    if unfamiliar is not None:
        note = f"AUROC; {unfamiliar.marked.value:.1%} of {counted(unfamiliar.pictures, 'picture')} marked as unfamiliar"
        facts.append(Fact(name=f"told from {unfamiliar.data}", value=f"{unfamiliar.auroc:.3f}", note=note))
    return facts


def _set_blocks(measurement: Measurement) -> list[Block]:
    """The coverage curve, and the classes."""
    curve = measurement.coverage_curve()
    held = [(each.requested, each.coverage.value) for each in curve]
    plots = [
        Plot(
            title="Sets that hold the truth",
            curves=[
                Curve(name="measured", points=held),
                Curve(name="requested", points=[(x, x) for x, _ in held], style="second"),
            ],
            across="requested coverage",
            percent=True,
        ),
        Plot(
            title="Labels in a set, on average",
            curves=[Curve(name="measured", points=[(each.requested, each.mean_size) for each in curve])],
            across="requested coverage",
        ),
    ]
    text = "A label set holds as many of the most likely labels as it takes to hold the truth as often as requested, "
    text += "over all pictures. It always holds one, so a coverage below the accuracy is exceeded."
    return [Paragraph(text=text), Plots(plots=plots), _class_table(measurement)]


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
        (
            measurement.classes[index],
            "–" if (held := sets.classes[index]) is None else rate_text(held),
            "–" if held is None else f"{sets.class_sizes[index]:.2f}",
        )
        for index in indices
    ]
    head = ("class", f"label sets that hold the truth, {100 * sets.requested:.4g} % requested", "labels in a set")
    return Table(head=head, rows=rows, note=note)


def _strange_blocks(predictor: Predictor, dataset: Dataset, measurement: Measurement) -> list[Block]:
    """The pictures that are most unlike anything seen in training, the strangest first."""
    assert measurement.familiarity is not None
    assert measurement.familiar_shares is not None
    source = pick_split(dataset, measurement.split)
    tiles: list[Tile] = []
    for index in np.argsort(measurement.familiarity, kind="stable")[:STRANGEST]:
        key, truth = measurement.keys[index], measurement.classes[measurement.targets[index]]
        predicted = measurement.classes[measurement.answers.predicted[index]]
        title = f"predicted {predicted} ({measurement.answers.confidence[index]:.0%})"
        title += "" if predicted == truth else f", true class {truth}"
        try:
            subject = open_subject(source.picture(int(measurement.samples[index])), predictor.preprocess, key)
            pictures = [encode_photo(picture_of(enlarge(seen_part(subject))), f"{key}: {truth}")]
        except (VitrailError, OSError):
            pictures = []
        tiles.append(Tile(pictures=pictures, title=title, note=key))
    text = "The most unfamiliar pictures: their features are farthest from those of the training pictures."
    return [Paragraph(text=text), Gallery(tiles=tiles, scale=False)]


def _share(right: Booleans) -> str:
    return f"{right.mean():.1%}" if len(right) else "–"
