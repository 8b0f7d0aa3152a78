"""What tests leave out where they are about something else, and what takes seconds: reports, figures, long probes.

Also for processes of their own, so nothing heavy is imported here.
"""

from pathlib import Path
from typing import Any


def skip_reports(patch: Any) -> None:
    """A report takes seconds, and has tests of its own."""

    def write(target: Path, *_: Any) -> Path:
        target.touch()
        return target

    patch.setattr("vitrail.verbs.runs.report_on_run", lambda folder, *_, **__: [folder / "report.html"])
    patch.setattr("vitrail.verbs.scores.write_page", write)


def leave_blank(patch: Any, *, only_pdf: bool = False) -> None:
    """Figures become white pictures of their size; or only their PDF files, which take longest, become empty ones."""
    from matplotlib.figure import Figure
    from PIL import Image

    draw = Figure.savefig

    def save(figure: Any, target: Any, *, dpi: Any = None, **options: Any) -> None:
        if options.get("format") == "pdf":
            target.write(b"%PDF-1.4")
            return
        if only_pdf:
            draw(figure, target, dpi=dpi or "figure", **options)
            return
        width, height = figure.get_size_inches() * (dpi or figure.dpi)
        Image.new("L", (int(width), int(height)), 255).save(target, "PNG")

    patch.setattr(Figure, "savefig", save)


def shorten_probes(patch: Any) -> None:
    """Five epochs of the head instead of a hundred, also before fine-tuning."""
    from vitrail.training import recipes
    from vitrail.training.changes import apply_changes

    short = apply_changes(recipes.linear(), {"epochs": 5})
    patch.setitem(recipes.RECIPES, "linear", lambda: short)
