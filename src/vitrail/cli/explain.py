"""`vitrail explain`: which parts of a picture the model's answer rests on, and how far to trust the explanation."""

import shlex
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitrail.cli.commands import Device, Json
from vitrail.cli.predict import BROKEN, Model, Pictures, tell_apart
from vitrail.cli.printing import SteadyConsole, plain, print_json
from vitrail.errors import ConfigError
from vitrail.files import check_run_folder, new_run_folder
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.explanation import Faithfulness, MethodChoice
    from vitrail.explanation.heatmap import Explanations


def explain(
    *pictures: Pictures,
    model: Model = None,
    method: Literal["auto", "attention", "rollout", "gradient-rollout", "relevance", "occlusion"] = "auto",
    target: str | None = None,
    layers: str | None = None,
    heads: str | None = None,
    score: Annotated[bool, Parameter(negative=())] = False,
    device: Device = "auto",
    out: Path | None = None,
    as_json: Json = False,
) -> int:
    """Show which parts of a picture an answer rests on.

    Parameters
    ----------
    pictures
        [MODEL] PICTURES…, as for `vitrail predict`.
    method
        How to explain; auto scores every method but occlusion on up to four of the pictures and uses the best.
    target
        The class to explain, by name or number [default: the predicted one].
    layers
        Layers for --method attention and for the sheet of heads, counted from 0, such as 0,5,-1 [default: the last].
    heads
        Heads for the same two, such as 0,3 [default: all].
    score
        Also measure the method's deletion and insertion scores on every picture.
    out
        The folder to write to [default: runs/explain-N].
    """
    check_run_folder(out)
    layer_numbers, head_numbers = parse_numbers("layers", layers), parse_numbers("heads", heads)
    source, names = tell_apart(pictures, model, explain)
    from vitrail.explanation.heatmap import Explanations
    from vitrail.verbs.explain import explain as explain_all

    explanations = explain_all(
        source,
        names,
        method=method,
        target=target,
        layers=layer_numbers,
        heads=head_numbers,
        score=score,
        device=device,
        progress=True,
    )
    assert isinstance(explanations, Explanations)  # a sequence of names, however many
    written = explanations.save(new_run_folder("explain", out), progress=True)
    if as_json:
        print_json(_as_json(explanations, written))
    else:
        _print(explanations, target is not None)
        inside = any(path.stem.endswith("heads") for path in written)  # which an export does not show
        following = ["figures", source, explanations[0].source] if inside else ["predict", source, *names[:1]]
        _print_written(written, shlex.join(["vitrail", *following]), heads=inside)
    return BROKEN if explanations.failures else 0


def parse_numbers(what: str, text: str | None) -> tuple[int, ...] | None:
    """The whole numbers in a text such as 0,5,-1."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{what} must be whole numbers separated by commas, such as 0,5,-1; got {text!r}.") from None


def _as_json(explanations: "Explanations", written: tuple[Path, ...]) -> dict[str, Any]:
    choice = explanations.choice
    return {
        "method": explanations.method,
        "reason": choice.reason if choice else "as requested",
        "methods": {} if choice is None else {name: _numbers(score) for name, score in choice.scores.items()},
        "method_failures": {} if choice is None else choice.failures,
        "pictures": [
            {
                "name": explained.name,
                "predicted": explained.explanation.predicted,
                "confidence": _number(explained.explanation.confidence),
                "target": explained.explanation.label,
                "probability": _number(explained.explanation.probability),
                "faithfulness": None if explained.faithfulness is None else _numbers(explained.faithfulness),
            }
            for explained in explanations
        ],
        "failures": explanations.failures,
        "written": [str(path) for path in written],
    }


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if isnan(value) else value


def _numbers(score: "Faithfulness") -> dict[str, float]:
    return {"deletion": score.deletion, "insertion": score.insertion, "score": score.score}


def _print(explanations: "Explanations", asked: bool) -> None:
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    scored = any(explained.faithfulness for explained in explanations)
    names = ["picture", "predicted", "", *(["explained", ""] if asked else [])]
    table = Table(*names, box=None, pad_edge=False)
    for column in ("deletion ↓", "insertion ↑") if scored else ():
        table.add_column(column, justify="right")
    for explained in explanations:
        explanation, score = explained.explanation, explained.faithfulness
        cells = [Text(plain(explained.name)), Text(plain(explanation.predicted)), _percent(explanation.confidence)]
        cells += [Text(plain(explanation.label)), _percent(explanation.probability)] if asked else []
        cells += [] if score is None else [f"{score.deletion:.3f}", f"{score.insertion:.3f}"]
        table.add_row(*cells)
    console.print(table)
    if explanations.choice is not None:
        _print_choice(console, explanations.choice)
    else:
        console.print(f"\nmethod {explanations.method}")
    for path, why in explanations.failures.items():
        console.print(Text("not explained ", style="yellow") + Text(plain(why if path in why else f"{path}: {why}")))


def _print_written(written: tuple[Path, ...], following: str, *, heads: bool) -> None:
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"\nwrote {plain(str(written[0]))} and {counted(len(written) - 1, 'file')} beside it: "
        f"overlays, {'heads, layers, ' if heads else ''}raw maps (npz)"
    )
    console.print(f"next: {plain(following)}")


def _percent(share: float) -> str:
    return "" if isnan(share) else f"{share:.1%}"


def _print_choice(console: Console, choice: "MethodChoice") -> None:
    if choice.scores:
        table = Table("method", box=None, pad_edge=False)
        for column in ("deletion ↓", "insertion ↑", "score"):
            table.add_column(column, justify="right")
        for name, score in sorted(choice.scores.items(), key=lambda item: -item[1].score):
            style = "bold" if name == choice.method else "dim" if name == "random" else ""
            table.add_row(name, f"{score.deletion:.3f}", f"{score.insertion:.3f}", f"{score.score:.3f}", style=style)
        console.print()
        console.print(table)
    for name, why in choice.failures.items():
        console.print(Text("left out ", style="yellow") + Text(plain(f"{name}: {why}")))
    console.print(f"\nauto chose {choice.reason}")
