"""`vitrail demo`: the whole way once, on the digits that come with scikit-learn."""

import shlex
from pathlib import Path

from rich.console import Console

from vitrail.cli.printing import SteadyConsole, plain
from vitrail.cli.train import carry_out_shown, make_folder, print_plan, print_scores, write_reports, written_paths


def demo(*, out: Path | None = None) -> int:
    """Train a small ViT on handwritten digits, and show what it has learnt.

    Parameters
    ----------
    out
        The folder to write to [default: runs/demo-N].
    """
    from vitrail.ranks import join_ranks
    from vitrail.training.display import Display
    from vitrail.training.lock import RunLock
    from vitrail.training.recipes import recipe
    from vitrail.training.run import settle
    from vitrail.training.setup import open_training_data
    from vitrail.training.signals import InterruptedRunError

    console = SteadyConsole(highlight=False, soft_wrap=True)
    ranks = join_ranks("auto")
    config = recipe("digits")
    console.print("vitrail demo: a Vision Transformer learns handwritten digits, from scratch, on this machine.\n")
    setup, measured = settle(config, open_training_data(config), ranks, Display(console))
    print_plan(setup, measured, ranks, console, whole=False, as_json=False)
    lock = RunLock()
    folder = make_folder(setup, out, lock, "demo")
    try:
        outcome = carry_out_shown(setup, ranks, folder, console, track=False, as_json=False)
    except InterruptedRunError as stop:
        console.print(f"\nsaved; continue with: vitrail train --resume {shlex.quote(str(folder))}")
        return stop.exit_code
    finally:
        lock.release()
    console.print()
    print_scores(outcome, console)
    pages = write_reports(outcome, setup, ranks)
    wrote = written_paths(outcome, pages)
    console.print("\nwrote " + ", ".join(plain(str(path)) for path in wrote), soft_wrap=True, markup=False)
    if pages:
        console.print(
            f"\nopen {plain(str(pages[0]))} in a browser: the curves, the mistakes, what it looks at", soft_wrap=True
        )
    run = shlex.quote(str(folder))
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
        "vitrail train PICTURES --weights hf://google/vit-base-patch16-224",
    )
    return 0 if pages else 1


def _suggest(console: Console, what: str, *commands: str) -> None:
    console.print(f"\n{what}:")
    for command in commands:
        console.print(f"  {plain(command)}", soft_wrap=True, markup=False)
