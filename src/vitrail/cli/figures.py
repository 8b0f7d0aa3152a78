"""`vitrail figures`: the paper's figures 6 and 7 for a checkpoint."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from vitrail.cli.options import Json
from vitrail.cli.predict import Model, Pictures, gather, tell_apart
from vitrail.cli.runs import new_run_folder
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.explain import Loaded, Subject

MOST_PICTURES = 128  # that attention distance is averaged over, as in the paper


def figures(*pictures: Pictures, model: Model = None, out: Path | None = None, as_json: Json = False) -> int:
    """Draw the paper's figures for a checkpoint: vitrail figures [MODEL] [PICTURES…]

    Filters, positions, attention distance, attention; PDF and PNG each.

    Parameters
    ----------
    pictures
        [MODEL] PICTURES…, as for `vitrail predict`; without pictures, two photographs. Attention distance is averaged
        over the first 128, and the first six are shown.
    out
        The folder to write to [default: runs/figures-N].
    """
    from vitrail.predict import load

    source, names = tell_apart(pictures, model, figures)
    loaded = load(source)
    subjects, notes = _open_examples(loaded, names)
    folder = new_run_folder("figures", out)
    written = _draw_weights(loaded, folder, notes)
    if subjects:
        written += _draw_looks(loaded, subjects, folder, notes)
    if as_json:
        print(json.dumps({"written": [str(path) for path in written], "notes": notes}, indent=2, ensure_ascii=False))
        return 0
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for note in notes:
        console.print(f"note: {note}")
    console.print(f"wrote {', '.join(str(path) for path in written if path.suffix == '.png')} and a .pdf of each")
    console.print(f"next: vitrail explain {source} {' '.join(names[:2]) or 'PICTURES'}")
    return 0


def _open_examples(loaded: "Loaded", names: tuple[str, ...]) -> tuple[list["Subject"], list[str]]:
    """The pictures asked for, or two photographs where the model takes photographs."""
    from vitrail.explain import open_subject
    from vitrail.weights.convert import sample_photos

    notes: list[str] = []
    if names:
        found = list(dict(gather(names, None)).items())
        if len(found) > MOST_PICTURES:
            notes.append(f"the first {MOST_PICTURES} of {len(found)} pictures are used")
        return [open_subject(it, loaded.preprocess, Path(path).name) for path, it in found[:MOST_PICTURES]], notes
    if loaded.preprocess.channels not in (1, 3):
        notes.append(f"no attention figures: the model wants {loaded.preprocess.channels} channels, which no file has")
        return [], notes
    notes.append("no pictures were given: attention is shown on two photographs that the model may know nothing about")
    return [open_subject(path, loaded.preprocess, path.name) for path in sample_photos()], notes


def _draw_weights(loaded: "Loaded", folder: Path, notes: list[str]) -> list[Path]:
    """The figures that need no picture."""
    from vitrail.explain.figures import patch_filters, position_similarity
    from vitrail.explain.plots import plot_filters, plot_positions, save_figure

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


def _draw_looks(loaded: "Loaded", subjects: list["Subject"], folder: Path, notes: list[str]) -> list[Path]:
    """The figures that show the model looking at pictures."""
    import torch

    from vitrail.explain import explain_by
    from vitrail.explain.figures import attention_distance
    from vitrail.explain.plots import EXAMPLES, longest_distance, plot_attention, plot_distance, save_figure

    each = [attention_distance(loaded.model, subject.image[None]) for subject in subjects]
    distance = torch.stack(each).mean(dim=0)
    longest = longest_distance(loaded.model.config.image_size)
    written = save_figure(plot_distance(distance, len(subjects), longest), folder, "distance")
    try:
        found = [(subject, explain_by(loaded, subject, "rollout")) for subject in subjects[:EXAMPLES]]
    except VitrailError as error:
        notes.append(f"no figure of attention: {error}")
        return written
    who = {"cls": "[cls]", "mean": "the mean of the patches", "map": "the attention pooling"}
    return written + save_figure(plot_attention(found, who[loaded.model.config.pooling]), folder, "attention")
