"""`vitrail.explain` and `figures`: which parts of a picture an answer rests on, and the paper's figures 6 and 7."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rich.console import RenderableType

from vitrail.errors import ConfigError, ExplanationError, VitrailError, suggest
from vitrail.prediction import Predictor
from vitrail.progress import Progress, pick_progress
from vitrail.verbs.call import Out, Pictures, check_out, make_out, resolve_model, resolve_pictures
from vitrail.wording import plain, reason

if TYPE_CHECKING:
    import torch

    from vitrail.data.pixels import Picture
    from vitrail.explanation import MethodChoice
    from vitrail.explanation.gallery import Explained, Explanations
    from vitrail.explanation.saliency import Method, Subject


def explain(
    model: Predictor | str | Path | None,
    pictures: Pictures,
    *,
    method: Literal["auto", "attention", "rollout", "gradient-rollout", "relevance", "occlusion"] = "auto",
    target: int | str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    score: bool = False,
    device: "str | torch.device" = "auto",
    out: Out = None,
    progress: bool | Progress = False,
) -> "Explained | Explanations":
    """Which parts of a picture the model's answer rests on; for several pictures, a sequence of explanations.

    An export can be explained by occlusion only. A single picture that cannot be explained is an error; one of several
    is listed in `failures`.

    Args:
        model: A checkpoint, as for `vitrail predict`. In Python, also a loaded model.
        pictures: [MODEL] PICTURES…, as for `vitrail predict`.
        method: How to explain; auto scores every method but occlusion on up to four of the pictures and uses the best.
        target: The class, label or value to explain, by name or number [default: the most likely one; of values, the
            first].
        layers: Layers for the method attention and for the sheet of heads, counted from 0, such as 0,5,-1 [default: the
            last].
        heads: Heads for the same two, such as 0,3 [default: all].
        score: Also measure the method's deletion and insertion scores on every picture.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps, …
        out: The folder to write to [default: runs/explain-N]. In Python, nothing is written by default.
    """
    check_out(out)
    found = resolve_pictures(pictures)
    source = resolve_model(model, device=device)
    gathered = found.gather()
    from vitrail.explanation import METHODS
    from vitrail.explanation.gallery import Explained, Explanations, unique_stems
    from vitrail.explanation.raw_attention import check_choice
    from vitrail.explanation.saliency import target_index

    if method != "auto" and method not in METHODS:
        raise ConfigError(f"unknown method {method!r}; {suggest(str(method), ('auto', *METHODS))}")
    predictor = source.open(speaks=progress is not False)
    if not predictor.in_torch:
        method = _for_export(predictor, method, layers, heads, score)
    work = _Work(predictor, target, _numbers(layers), _numbers(heads), score)
    target_index(predictor, target)
    if predictor.in_torch:
        check_choice(predictor.model, work.layers, work.heads)
    show = pick_progress(progress)
    choice = work.choose(gathered, show) if method == "auto" else None
    chosen: Method = choice.method if choice is not None else cast("Method", method)
    explained: list[Explained] = []
    failures: dict[str, str] = {}
    kinds: set[type[Exception]] = set()
    with show("explaining", len(gathered)) as advance:
        for stem, (name, picture) in zip(unique_stems(gathered), gathered.items(), strict=True):
            try:
                explained.append(work.explain(name, stem, picture, chosen))
            except (VitrailError, OSError) as error:
                failures[name] = reason(error)
                kinds.add(type(error))
            advance(1)
    if not explained:
        kind = ExplanationError if kinds == {ExplanationError} else ConfigError
        raise kind("no picture could be explained: " + " ".join(dict.fromkeys(failures.values())))
    explanations = Explanations(
        model=source.name,
        method=chosen,
        choice=choice,
        pictures=tuple(explained),
        failures=failures,
        source=source.source,
        targeted=target is not None,
    )
    if (folder := make_out(out, "explain")) is not None:
        explanations = replace(explanations, written=explanations.save(folder, progress=progress))
    return _only(explanations) if found.is_single else explanations


def _only(explanations: "Explanations") -> "Explained":
    """The explanation of a single picture, with how its method was chosen."""
    only, choice = explanations[0], explanations.choice
    judged = choice.each[choice.method][0] if choice is not None and choice.each else None  # of the only picture
    return replace(only, choice=choice, faithfulness=only.faithfulness or judged)


@dataclass(frozen=True)
class _Work:
    """The settings that all pictures share."""

    predictor: Predictor
    target: int | str | None
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    score: bool

    def choose(self, gathered: "dict[str, Picture]", show: Progress) -> "MethodChoice":
        """Score the methods on a few pictures, spread evenly over all of them; broken files are skipped here."""
        from vitrail.explanation import choose
        from vitrail.explanation.faithfulness import CANDIDATES, JUDGED

        named = list(gathered.items())
        spread = [named[index * len(named) // JUDGED] for index in range(JUDGED)] if len(named) > JUDGED else named
        subjects: list[Subject] = []
        errors: list[str] = []
        for source, picture in spread:
            try:
                subjects.append(self.open(source, picture))
            except (VitrailError, OSError) as error:
                errors.append(reason(error))
        if not subjects:
            raise ConfigError("no picture to score the methods on: " + " ".join(errors))
        with show("scoring methods", len(CANDIDATES) + 1) as advance:
            return choose(self.predictor, subjects, self.target, self.layers, self.heads, progress=advance)

    def explain(self, source: str, stem: str, picture: "Picture", method: "Method") -> "Explained":
        from vitrail.explanation import explain_by, measure
        from vitrail.explanation.gallery import Explained

        subject = self.open(source, picture)
        explanation = explain_by(self.predictor, subject, method, self.target, self.layers, self.heads)
        faithfulness = None
        if self.score and explanation.target is not None:
            model, task = self.predictor.model, self.predictor.task
            faithfulness = measure(model, subject.image, explanation.target, explanation.map, task=task)
        return Explained(
            source=source,
            stem=stem,
            explanation=explanation,
            faithfulness=faithfulness,
            layers=self.layers,
            heads=self.heads,
            picture=picture,
            predictor=self.predictor,
        )

    def open(self, source: str, picture: "Picture") -> "Subject":
        from vitrail.explanation import open_subject

        return open_subject(picture, self.predictor.preprocess, Path(source).name)


def _for_export(
    predictor: Predictor,
    method: "Method | Literal['auto']",
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    score: bool,
) -> "Method":
    """Of the methods, an export has only occlusion; settings that need the model itself are refused."""
    from vitrail.explanation.saliency import check_explainable

    chosen: Method = "occlusion" if method == "auto" else method
    check_explainable(predictor, chosen)
    given = [name for name, value in (("`layers=`", layers), ("`heads=`", heads), ("`score=`", score or None)) if value]
    if given:
        raise ConfigError(f"{' and '.join(given)} cannot be used with an export; use the checkpoint it was made from.")
    return chosen


def _numbers(values: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures that were drawn."""

    written: tuple[Path, ...]  # a PDF and a PNG of each
    notes: tuple[str, ...] = ()  # the figures that could not be drawn, and why
    failures: Mapping[str, str] = field(default_factory=dict[str, str])  # picture → why it could not be read
    following: str = field(default="", repr=False)  # a command to try next

    @property
    def exit_code(self) -> int:
        """1: some pictures could not be read."""
        return int(bool(self.failures))

    @property
    def remarks_on_all(self) -> list[str]:
        """The notes, and what was left out."""
        left_out = (f"left out {why if path in why else f'{path}: {why}'}" for path, why in self.failures.items())
        return [*self.notes, *left_out]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"written": [str(path) for path in self.written], "notes": self.remarks_on_all}

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        for note in self.remarks_on_all:
            yield f"note: {plain(note)}"
        pictured = ", ".join(plain(str(path)) for path in self.written if path.suffix == ".png")
        yield f"wrote {pictured} and a .pdf of each"
        yield f"next: {plain(self.following)}"


def figures(
    model: Predictor | str | Path | None,
    out: Out,
    pictures: Pictures | None = None,
    *,
    device: "str | torch.device" = "auto",
    progress: bool | Progress = False,
) -> Figures:
    """Draw filters, positions, attention distance and attention into the folder `out`, each as PDF and PNG.

    Attention distance is averaged over the first 128 pictures, and the first six are shown.

    Args:
        model: A checkpoint, as for `vitrail predict`. In Python, also a loaded model.
        pictures: [MODEL] PICTURES…, as for `vitrail predict`; 128 at most, the first six are shown [default: two
            photographs].
        device: Where to compute: auto, cpu, cuda, cuda:1, mps, …
        out: The folder to write to [default: runs/figures-N].
    """
    check_out(out)
    found = None if pictures is None else resolve_pictures(pictures)
    source = resolve_model(model, device=device)
    gathered = None if found is None else found.gather()
    from vitrail.verbs.figures import look

    shown = look(source.open(speaks=progress is not False), gathered, progress=progress)
    folder = make_out(out or True, "figures")
    assert folder is not None
    drawn = shown.draw(folder, progress=progress)
    names = [str(name) for name in found.given if isinstance(name, str | Path)][:2] if found is not None else []
    return replace(drawn, following=shlex.join(["vitrail", "explain", source.source, *(names or ["PICTURES"])]))
