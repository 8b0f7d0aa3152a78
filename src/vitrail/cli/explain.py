"""`vitrail explain`: which parts of pictures a checkpoint decides by, and how far to believe the answer."""

import shlex
from collections.abc import Iterable
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitrail.cli.options import Json
from vitrail.cli.predict import BROKEN, Model, Pictures, gather, tell_apart
from vitrail.cli.printing import SteadyConsole, plain, print_json, progress_bar, working
from vitrail.cli.runs import check_run_folder, new_run_folder
from vitrail.errors import ConfigError, VitrailError
from vitrail.wording import counted, reason

if TYPE_CHECKING:
    from vitrail.data.transform import Picture
    from vitrail.explanation import AttentionMaps, Choice, Explanation, Faithfulness, Loaded, Subject
    from vitrail.explanation.render import Drawn

LONGEST_STEM = 200  # bytes; on most disks a name with its ending has at most 255


def explain(
    *pictures: Pictures,
    model: Model = None,
    method: Literal["auto", "attention", "rollout", "gradient-rollout", "relevance", "occlusion"] = "auto",
    target: str | None = None,
    layers: str | None = None,
    heads: str | None = None,
    score: Annotated[bool, Parameter(negative=())] = False,
    out: Path | None = None,
    as_json: Json = False,
) -> int:
    """Show which parts of pictures a checkpoint decides by: vitrail explain [MODEL] PICTURES…

    Writes overlays, heads, layers, and one sheet of all. What a model and a picture can be is said in
    `vitrail predict --help`. Exit code 1: some pictures could not be explained; the others were.

    Parameters
    ----------
    pictures
        [MODEL] PICTURES…, as for `vitrail predict`.
    method
        How to explain; auto judges all but occlusion on the pictures (four of them at most) and takes the best.
    target
        The class to explain, by name or number [default: the predicted one].
    layers
        Layers for method attention and for the picture of the heads, from 0, such as 0,5,-1 [default: the last look].
    heads
        Heads for the same, such as 0,3 [default: all].
    score
        Also measure deletion and insertion of the method on every picture.
    out
        The folder to write to [default: runs/explain-N].
    """
    from vitrail.explanation import open_subject
    from vitrail.explanation.attention import check_choice
    from vitrail.explanation.explanation import target_index
    from vitrail.prediction import load

    check_run_folder(out)
    chosen_layers, chosen_heads = parse_numbers("layers", layers), parse_numbers("heads", heads)
    source, names = tell_apart(pictures, model, explain)
    stream = gather(names, None)
    with working(f"loading {source}"):
        loaded = load(source)
    target_index(loaded, target)
    check_choice(loaded.model, chosen_layers, chosen_heads)
    found = dict(stream)
    choice = _choose(loaded, found, target, chosen_layers, chosen_heads) if method == "auto" else None
    work = Work(loaded, choice.method if choice else method, target, chosen_layers, chosen_heads, score)
    folder = new_run_folder("explain", out)
    with progress_bar("explaining", len(found)) as advance:
        for name, (path, picture) in zip(unique_names(found), found.items(), strict=True):
            try:
                work.add(folder, name, open_subject(picture, loaded.preprocess, Path(path).name))
            except (VitrailError, OSError) as error:
                work.failures[path] = reason(error)
            advance(1)
    if not work.found:
        raise ConfigError("no picture could be explained: " + " ".join(dict.fromkeys(work.failures.values())))
    work.finish(folder, f"{Path(source).name}: why?", choice.reason if choice else f"method {method}")
    if as_json:
        print_json(_as_json(work, choice))
    else:
        _print(work, choice, shlex.join(["vitrail", "figures", source, next(iter(found))]))
    return BROKEN if work.failures else 0


class Work:
    """The pictures that have been explained, what was written, and what went wrong."""

    def __init__(
        self,
        loaded: "Loaded",
        method: Any,
        target: str | None,
        layers: tuple[int, ...] | None,
        heads: tuple[int, ...] | None,
        score: bool,
    ) -> None:
        self.loaded, self.method, self.target = loaded, method, target
        self.layers, self.heads, self.score = layers, heads, score
        self.found: list[tuple[str, Explanation, Faithfulness | None]] = []  # name, what counted, how faithful
        self.drawn: list[Drawn] = []  # for the sheet, which has room for so many
        self.written: list[Path] = []
        self.failures: dict[str, str] = {}

    def add(self, folder: Path, name: str, subject: "Subject") -> None:
        """Explain one picture and write its overlay, heads, layers and raw maps."""
        from vitrail.explanation import attention_maps, explain_by, measure
        from vitrail.explanation.render import MOST_ON_SHEET, draw, heads_sheet, layers_sheet, overlay

        found = explain_by(self.loaded, subject, self.method, self.target, self.layers, self.heads)
        score = None
        if self.score and found.target is not None:
            score = measure(self.loaded.model, subject.image, found.target, found.map)
        attention = attention_maps(self.loaded.model, subject.image[None])
        shown = attention.select(self.layers, self.heads)
        numbers = [head % attention.maps.shape[2] for head in self.heads or range(attention.maps.shape[2])]
        full = overlay(subject, found.map)
        title = f"{subject.name}: attention"
        pictures = {
            "overlay": full,
            "heads": heads_sheet(f"{title}, head by head", subject, shown, numbers),
            "layers": layers_sheet(f"{title}, layer by layer", subject, attention),
        }
        for kind, picture in pictures.items():
            picture.save(folder / f"{name}-{kind}.png")
        _write_maps(folder / f"{name}.npz", found, attention)
        self.written += [*(folder / f"{name}-{kind}.png" for kind in pictures), folder / f"{name}.npz"]
        self.found.append((subject.name, found, score))
        if len(self.drawn) < MOST_ON_SHEET:
            self.drawn.append(draw(subject, found, full))

    def finish(self, folder: Path, heading: str, note: str) -> None:
        """Write the sheet of all pictures, or of the first ones if there are many."""
        from vitrail.explanation.render import explanation_sheet

        if len(self.drawn) < len(self.found):
            note = f"the first {len(self.drawn)} of {counted(len(self.found), 'picture')}; {note}"
        explanation_sheet(heading, note, self.drawn).save(folder / "sheet.png")
        self.written.insert(0, folder / "sheet.png")


def unique_names(paths: Iterable[str]) -> list[str]:
    """A name for each picture's results: its own, with a number where two share one."""
    from vitrail.prediction.pictures import STDIN

    names: dict[str, None] = {}
    for path in paths:
        stem = "stdin" if path == STDIN else _cut(Path(path).stem)
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}-{number}", number + 1
        names[name] = None
    return list(names)


def _cut(stem: str) -> str:
    whole = stem.encode("utf-8", "surrogateescape")
    return stem if len(whole) <= LONGEST_STEM else whole[:LONGEST_STEM].decode("utf-8", "ignore")


def parse_numbers(what: str, text: str | None) -> tuple[int, ...] | None:
    """The whole numbers in a text such as 0,5,-1."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{what} must be whole numbers with commas between, such as 0,5,-1; got {text!r}.") from None


def _choose(
    loaded: "Loaded",
    found: "dict[str, Picture]",
    target: str | None,
    layers: tuple[int, ...] | None,
    heads: tuple[int, ...] | None,
) -> "Choice":
    """Judge the methods on a few pictures, spread evenly over those given; broken files are passed over here."""
    from vitrail.explanation import choose, open_subject
    from vitrail.explanation.choice import CANDIDATES, JUDGED

    named = list(found.items())
    spread = [named[index * len(named) // JUDGED] for index in range(JUDGED)] if len(named) > JUDGED else named
    subjects: list[Subject] = []
    errors: list[str] = []
    for path, picture in spread:
        try:
            subjects.append(open_subject(picture, loaded.preprocess, Path(path).name))
        except VitrailError as error:
            errors.append(str(error))
    if not subjects:
        raise ConfigError("no picture to judge the methods by: " + " ".join(errors))
    with progress_bar("judging methods", len(CANDIDATES) + 1) as advance:
        return choose(loaded, subjects, target, layers, heads, progress=advance)


def _write_maps(path: Path, found: "Explanation", attention: "AttentionMaps") -> None:
    """The raw numbers: `map` (h, w), `attention` (layers, heads, h, w), and where the map lies in the picture."""
    import numpy as np

    view = found.view
    np.savez_compressed(
        path,
        map=found.map.numpy(),
        attention=attention.maps[0].float().cpu().numpy(),
        layers=np.array(attention.names),
        method=np.array(found.method),
        target=np.array(-1 if found.target is None else found.target),
        label=np.array(found.label),
        picture=np.array(view.picture),
        view=np.array([view.top, view.left, view.height, view.width]),
    )


def _as_json(work: Work, choice: "Choice | None") -> dict[str, Any]:
    return {
        "method": work.method,
        "reason": choice.reason if choice else "as asked",
        "methods": {} if choice is None else {name: _numbers(score) for name, score in choice.scores.items()},
        "method_failures": {} if choice is None else choice.failures,
        "pictures": [
            {
                "name": name,
                "predicted": found.predicted,
                "confidence": _number(found.confidence),
                "target": found.label,
                "probability": _number(found.probability),
                "faithfulness": None if score is None else _numbers(score),
            }
            for name, found, score in work.found
        ],
        "failures": work.failures,
        "written": [str(path) for path in work.written],
    }


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if isnan(value) else value


def _numbers(score: "Faithfulness") -> dict[str, float]:
    return {"deletion": score.deletion, "insertion": score.insertion, "score": score.score}


def _print(work: Work, choice: "Choice | None", following: str) -> None:
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    asked, scored = work.target is not None, any(score for _, _, score in work.found)
    names = ["picture", "predicted", "", *(["explained", ""] if asked else [])]
    table = Table(*names, box=None, pad_edge=False)
    for column in ("deletion ↓", "insertion ↑") if scored else ():
        table.add_column(column, justify="right")
    for name, found, score in work.found:
        cells = [Text(plain(name)), Text(plain(found.predicted)), _percent(found.confidence)]
        cells += [Text(plain(found.label)), _percent(found.probability)] if asked else []
        cells += [] if score is None else [f"{score.deletion:.3f}", f"{score.insertion:.3f}"]
        table.add_row(*cells)
    console.print(table)
    if choice is not None:
        _print_choice(console, choice)
    else:
        console.print(f"\nmethod {work.method}")
    for path, why in work.failures.items():
        console.print(Text("not explained ", style="yellow") + Text(plain(why if path in why else f"{path}: {why}")))
    rest = len(work.written) - 1
    console.print(
        f"\nwrote {plain(str(work.written[0]))} and {counted(rest, 'file')} beside it: "
        "overlays, heads, layers, raw maps (npz)"
    )
    console.print(f"next: {plain(following)}")


def _percent(share: float) -> str:
    return "" if isnan(share) else f"{share:.1%}"


def _print_choice(console: Console, choice: "Choice") -> None:
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
    console.print(f"\nauto took {choice.reason}")
