"""`vitrail figures`: the paper's figures 6 and 7 for a checkpoint."""

import shlex
from pathlib import Path

from vitrail.cli.commands import Device, Json
from vitrail.cli.predict import BROKEN, Model, Pictures, tell_apart
from vitrail.cli.printing import SteadyConsole, plain, print_json
from vitrail.files import check_run_folder, new_run_folder


def figures(
    *pictures: Pictures, model: Model = None, device: Device = "auto", out: Path | None = None, as_json: Json = False
) -> int:
    """Draw the paper's figures for a checkpoint.

    Parameters
    ----------
    pictures
        [MODEL] PICTURES…, as for `vitrail predict`; 128 at most, the first six are shown [default: two photographs].
    out
        The folder to write to [default: runs/figures-N].
    """
    check_run_folder(out)
    source, names = tell_apart(pictures, model, figures)
    from vitrail.verbs.figures import look

    looks = look(source, names or None, device=device, progress=True)
    drawn = looks.draw(new_run_folder("figures", out), progress=True)
    notes = [*drawn.notes, *(f"left out {_with_name(path, why)}" for path, why in drawn.failures.items())]
    if as_json:
        print_json({"written": [str(path) for path in drawn.written], "notes": notes})
        return BROKEN if drawn.failures else 0
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    for note in notes:
        console.print(f"note: {plain(note)}")
    pictured = ", ".join(plain(str(path)) for path in drawn.written if path.suffix == ".png")
    console.print(f"wrote {pictured} and a .pdf of each")
    following = shlex.join(["vitrail", "explain", source, *(names[:2] or ["PICTURES"])])
    console.print(f"next: {plain(following)}")
    return BROKEN if drawn.failures else 0


def _with_name(path: str, why: str) -> str:
    return why if path in why else f"{path}: {why}"
