"""`vitrail demo`: the whole workflow once, on the digits that come with scikit-learn."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from vitrail.cli.printing import SteadyConsole, plain
from vitrail.cli.train import exit_code, print_problem, print_scores

if TYPE_CHECKING:
    from vitrail.training.run import Run


def demo(*, out: Path | None = None) -> int:
    """Train a small ViT on handwritten digits, and show what it has learned.

    Parameters
    ----------
    out
        The folder to write to [default: runs/demo-N].
    """
    from vitrail.cli.run_display import RunDisplay, until_interrupted
    from vitrail.verbs.train import demo as demo_run

    console = SteadyConsole(highlight=False, soft_wrap=True)
    display = RunDisplay(console)
    console.print("vitrail demo: a Vision Transformer learns handwritten digits, from scratch, on this machine.\n")
    return until_interrupted(lambda: _show(demo_run(out=out, progress=display), console), display)


def _show(result: "Run", console: Console) -> int:
    """The results, and what to try next."""
    console.print()
    print_problem(result)
    print_scores(result, console)
    written = ", ".join(plain(str(path)) for path in result.written)
    console.print(f"\nwrote {written}", soft_wrap=True, markup=False)
    if result.report is not None:
        console.print(
            f"\nopen {plain(str(result.report))} in a browser for the curves, the mistakes and what the model looks at",
            soft_wrap=True,
        )
    run = shlex.quote(str(result.folder))
    _suggest(
        console,
        "try this model",
        f"vitrail predict {run} PICTURES",
        f"vitrail eval {run} digits --robustness",
        f"vitrail figures {run}",
    )
    _suggest(
        console,
        "then your own pictures, in a folder with one folder per class",
        "vitrail data check PICTURES",
        "vitrail train PICTURES",
        "vitrail train PICTURES --minutes 30",
    )
    return exit_code(result)


def _suggest(console: Console, what: str, *commands: str) -> None:
    console.print(f"\n{what}:")
    for command in commands:
        console.print(f"  {plain(command)}", soft_wrap=True, markup=False)
