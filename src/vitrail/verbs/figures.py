"""What the paper's figures 6 and 7 are drawn from, and into which files."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.pixels import Picture
from vitrail.errors import ConfigError, VitrailError
from vitrail.explanation import Subject, explain_by, open_subject
from vitrail.explanation.paper_figures import (
    EXAMPLES,
    attention_distance,
    patch_filters,
    plot_attention,
    plot_distance,
    plot_filters,
    plot_positions,
    position_similarity,
    save_paper_figure,
)
from vitrail.model.positions import POSITIONS
from vitrail.model.summary import describe_positions
from vitrail.prediction import Predictor
from vitrail.progress import Progress, pick_progress, working
from vitrail.verbs.explain import Figures
from vitrail.weights.proof import sample_photos
from vitrail.wording import counted, reason

MOST_PICTURES = 128  # over which attention distance is averaged, as in the paper
READERS = {"cls": "[cls]", "mean": "the mean of the patches", "map": "the attention pooling"}


@dataclass(frozen=True, kw_only=True)
class Looks:
    """What the figures are drawn from: how far the heads look on each picture, and the pictures to show."""

    predictor: Predictor
    distances: list[Tensor] = field(default_factory=list[Tensor])
    shown: list[Subject] = field(default_factory=list[Subject])
    notes: list[str] = field(default_factory=list[str])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    def draw(self, folder: Path, *, progress: bool | Progress = False) -> Figures:
        """Write the figures into a folder."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with working("drawing", speaks=progress is not False):
                weights, weight_notes = draw_weights(self.predictor, folder)
                attention, attention_notes = draw_attention(self, folder) if self.shown else ([], [])
        except OSError as error:
            raise ConfigError(f"{folder}: the figures cannot be written there ({reason(error)}).") from error
        return Figures(
            written=(*weights, *attention),
            notes=(*self.notes, *weight_notes, *attention_notes),
            failures=self.failures,
        )


def look(predictor: Predictor, gathered: dict[str, Picture] | None, *, progress: bool | Progress = False) -> Looks:
    """Run the model on one picture after the other; only those to show stay in memory."""
    examples, notes = _choose_examples(predictor, gathered)
    looks = Looks(predictor=predictor, notes=notes)
    with pick_progress(progress)("looking", len(examples)) as advance:
        for source, picture in examples.items():
            try:
                subject = open_subject(picture, predictor.preprocess, Path(source).name)
                looks.distances.append(attention_distance(predictor.model, subject.image[None]))
            except (VitrailError, OSError) as error:
                looks.failures[source] = reason(error)
            else:
                looks.shown.extend([subject] if len(looks.shown) < EXAMPLES else [])
            advance(1)
    if gathered and not looks.shown:
        raise ConfigError("no picture could be read: " + " ".join(looks.failures.values()))
    return looks


def _choose_examples(predictor: Predictor, gathered: dict[str, Picture] | None) -> tuple[dict[str, Picture], list[str]]:
    """The pictures that were passed, or two photographs if the model takes photographs."""
    if gathered is not None:
        many = f"the first {MOST_PICTURES} of {counted(len(gathered), 'picture')} are used"
        first = dict(list(gathered.items())[:MOST_PICTURES])
        return first, [many] if len(gathered) > MOST_PICTURES else []
    channels = predictor.preprocess.channels
    if channels not in (1, 3):
        return {}, [f"no attention figures: the model takes {counted(channels, 'channel')}, which no picture file has"]
    note = "no pictures were given: attention is shown on two photographs, which may be unlike what it was trained on"
    return {path.name: path for path in sample_photos()}, [note]


def draw_weights(predictor: Predictor, folder: Path) -> tuple[list[Path], list[str]]:
    """The figures that need no picture, and notes on those that are missing."""
    notes: list[str] = []
    filters = patch_filters(predictor.model)
    if filters.explained is None:
        notes.append(f"this model's patches are not cut from pixels, so the filters are those of the {filters.what}")
    written = save_paper_figure(plot_filters(filters), folder, "filters")
    similarity = position_similarity(predictor.model)
    config = predictor.model.config
    if similarity is None:
        return written, [*notes, f"no figure of position embeddings: this model has {describe_positions(config)}"]
    positions = POSITIONS[config.positions.kind].description
    return written + save_paper_figure(plot_positions(similarity, positions), folder, "positions"), notes


def draw_attention(looks: Looks, folder: Path) -> tuple[list[Path], list[str]]:
    """The figures of the model's attention on pictures, and notes on those that are missing."""
    config = looks.predictor.model.config
    distance = torch.stack(looks.distances).mean(dim=0)
    plot = plot_distance(distance, len(looks.distances), config.image_size)
    written = save_paper_figure(plot, folder, "distance")
    try:
        explained = [(subject, explain_by(looks.predictor, subject, "rollout")) for subject in looks.shown]
    except VitrailError as error:
        return written, [f"no figure of attention: {error}"]
    return written + save_paper_figure(plot_attention(explained, READERS[config.pooling]), folder, "attention"), []
