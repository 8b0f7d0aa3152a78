"""The section of a report about how far to trust the answers: calibration, label sets, unfamiliar pictures."""

import numpy as np

from vitrail.data.source import Dataset
from vitrail.errors import VitrailError
from vitrail.evaluation.familiarity import Strangers
from vitrail.evaluation.measurement import Booleans, Measurement, pick_split
from vitrail.evaluation.records import CURVE, class_sets, worst_first
from vitrail.explanation import open_subject
from vitrail.explanation.render import enlarge, picture_of, seen_part
from vitrail.prediction import Predictor
from vitrail.report.page import Block, Curve, Fact, Facts, Gallery, Paragraph, Plot, Plots, Section, Table, Tile
from vitrail.report.pictures import encode_photo
from vitrail.report.sections import interval_text, rate_text
from vitrail.weights.trust import Trust
from vitrail.wording import counted

STRANGEST = 12  # pictures that are shown
MOST_CLASSES = 40  # rows of a table


def trust_sections(
    predictor: Predictor, dataset: Dataset, measurement: Measurement, strangers: Strangers | None = None
) -> list[Section]:
    """How far to trust the answers, for a model that was calibrated; otherwise nothing."""
    trust = measurement.trust
    if trust is None:
        return []
    blocks: list[Block] = [Paragraph(text=_origin(trust, measurement)), Facts(facts=_numbers(measurement, strangers))]
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


def _numbers(measurement: Measurement, strangers: Strangers | None) -> list[Fact]:
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
    if strangers is not None:
        note = f"AUROC; {strangers.marked.value:.1%} of {counted(strangers.pictures, 'picture')} marked as unfamiliar"
        facts.append(Fact(name=f"told from {strangers.data}", value=f"{strangers.auroc:.3f}", note=note))
    return facts


def _set_blocks(measurement: Measurement) -> list[Block]:
    """The coverage curve, and the classes."""
    assert measurement.trust is not None
    assert measurement.trust.sets is not None
    levels = [level for level in CURVE if level <= measurement.trust.sets.levels[-1]]
    curve = [each for level in levels if (each := measurement.label_sets_at(level)) is not None]
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
