"""`vitrail figures`: the paper's figures 6 and 7 for a checkpoint."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.options import Json
from vitrail.cli.predict import BROKEN, Model, Pictures, gather, tell_apart
from vitrail.cli.printing import SteadyConsole, plain, print_json, progress_bar, working
from vitrail.cli.runs import check_run_folder, new_run_folder
from vitrail.errors import ConfigError, VitrailError
from vitrail.wording import counted, reason

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.explanation import Loaded, Subject
    from vitrail.prediction.predictor import Named

MOST_PICTURES = 128  # that attention distance is averaged over, as in the paper


def figures(*pictures: Pictures, model: Model = None, out: Path | None = None, as_json: Json = False) -> int:
    """Draw the paper's figures for a checkpoint: vitrail figures [MODEL] [PICTURES…]

    Filters, positions, attention distance, attention; PDF and PNG each.

    Parameters
    ----------
    pictures
        [MODEL] PICTURES…, as for `vitrail predict`; without pictures, two photographs. Attention distance is averaged
        over the first 128, and the first six are shown. Exit code 1: some could not be read.
    out
        The folder to write to [default: runs/figures-N].
    """
    from vitrail.prediction import load

    check_run_folder(out)
    source, names = tell_apart(pictures, model, figures)
    with working(f"loading {source}"):
        loaded = load(source)
    examples, notes = _find_examples(loaded, names)
    looks = _look(loaded, examples)
    if names and not looks.shown:
        raise ConfigError("no picture could be read: " + " ".join(looks.failures))
    notes += [f"left out {why}" for why in looks.failures]
    folder = new_run_folder("figures", out)
    with working("drawing"):
        written = _draw_weights(loaded, folder, notes)
        if looks.shown:
            written += _draw_looks(loaded, looks, folder, notes)
    code = BROKEN if looks.failures else 0
    if as_json:
        print_json({"written": [str(path) for path in written], "notes": notes})
        return code
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    for note in notes:
        console.print(f"note: {plain(note)}")
    drawn = ", ".join(plain(str(path)) for path in written if path.suffix == ".png")
    console.print(f"wrote {drawn} and a .pdf of each")
    following = shlex.join(["vitrail", "explain", source, *(names[:2] or ["PICTURES"])])
    console.print(f"next: {plain(following)}")
    return code


def _find_examples(loaded: "Loaded", names: tuple[str, ...]) -> tuple[list["Named"], list[str]]:
    """The pictures asked for, or two photographs where the model takes photographs."""
    from vitrail.weights.convert import sample_photos

    if names:
        found = list(dict(gather(names, None)).items())
        many = f"the first {MOST_PICTURES} of {counted(len(found), 'picture')} are used"
        return found[:MOST_PICTURES], [many] if len(found) > MOST_PICTURES else []
    if loaded.preprocess.channels not in (1, 3):
        return [], [
            f"no attention figures: the model takes {counted(loaded.preprocess.channels, 'channel')}, which no file has"
        ]
    note = "no pictures were given: attention is shown on two photographs that the model may know nothing about"
    return [(path.name, path) for path in sample_photos()], [note]


@dataclass
class _Looks:
    """How far the heads look on each picture, and the pictures to show."""

    distances: list["Tensor"] = field(default_factory=list["Tensor"])
    shown: list["Subject"] = field(default_factory=list["Subject"])
    failures: list[str] = field(default_factory=list[str])


def _look(loaded: "Loaded", examples: "list[Named]") -> _Looks:
    """One picture after the other; only those to show stay in memory."""
    from vitrail.explanation import open_subject
    from vitrail.explanation.figures import attention_distance
    from vitrail.explanation.plots import EXAMPLES

    looks = _Looks()
    with progress_bar("looking", len(examples)) as advance:
        for path, picture in examples:
            try:
                subject = open_subject(picture, loaded.preprocess, Path(path).name)
                looks.distances.append(attention_distance(loaded.model, subject.image[None]))
            except (VitrailError, OSError) as error:
                looks.failures.append(reason(error))
            else:
                looks.shown += [subject] if len(looks.shown) < EXAMPLES else []
            advance(1)
    return looks


def _draw_weights(loaded: "Loaded", folder: Path, notes: list[str]) -> list[Path]:
    """The figures that need no picture."""
    from vitrail.explanation.figures import patch_filters, position_similarity
    from vitrail.explanation.plots import plot_filters, plot_positions, save_figure

    config = loaded.model.config
    filters = patch_filters(loaded.model)
    if filters.explained is None:
        notes.append(f"no patch is cut from the pixels, so the filters are those of the {filters.what}")
    written = save_figure(plot_filters(filters), folder, "filters")
    similarity = position_similarity(loaded.model)
    if similarity is None:
        notes.append("no figure of the positions: this model has none")
        return written
    kind = "learned" if config.positions.kind == "learned" else "fixed sines and cosines"
    return written + save_figure(plot_positions(similarity, kind), folder, "positions")


def _draw_looks(loaded: "Loaded", looks: _Looks, folder: Path, notes: list[str]) -> list[Path]:
    """The figures that show the model looking at pictures."""
    import torch

    from vitrail.explanation import explain_by
    from vitrail.explanation.plots import longest_distance, plot_attention, plot_distance, save_figure

    distance = torch.stack(looks.distances).mean(dim=0)
    longest = longest_distance(loaded.model.config.image_size)
    written = save_figure(plot_distance(distance, len(looks.distances), longest), folder, "distance")
    try:
        found = [(subject, explain_by(loaded, subject, "rollout")) for subject in looks.shown]
    except VitrailError as error:
        notes.append(f"no figure of attention: {error}")
        return written
    who = {"cls": "[cls]", "mean": "the mean of the patches", "map": "the attention pooling"}
    return written + save_figure(plot_attention(found, who[loaded.model.config.pooling]), folder, "attention")
