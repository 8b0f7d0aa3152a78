"""`vitrail.explain`: which parts of a picture the model's answer rests on, and how far to trust the explanation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import torch

from vitrail.data.pixels import Picture
from vitrail.errors import ConfigError, ExplanationError, VitrailError, suggest
from vitrail.explanation import METHODS, MethodChoice, choose, explain_by, measure, open_subject
from vitrail.explanation.faithfulness import CANDIDATES, JUDGED
from vitrail.explanation.heatmap import Explained, Explanations, unique_stems
from vitrail.explanation.raw_attention import check_choice
from vitrail.explanation.saliency import Method, Subject, check_explainable, target_index
from vitrail.prediction import Predictor
from vitrail.progress import Progress, pick_progress
from vitrail.verbs.call import Pictures, gather_pictures, is_single
from vitrail.verbs.loading import name_of, open_model
from vitrail.wording import reason


def explain(
    model: Predictor | str | Path | None,
    pictures: Pictures,
    *,
    method: Method | Literal["auto"] = "auto",
    target: int | str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    score: bool = False,
    device: str | torch.device = "auto",
    progress: bool | Progress = False,
) -> Explained | Explanations:
    """Which parts of a picture the model's answer rests on; for several pictures, a sequence of explanations.

    `method` is attention, rollout, gradient-rollout, relevance or occlusion; "auto" scores all but occlusion on up to
    four of the pictures and uses the best. `target` is the class to explain, by name or number; by default
    the predicted one. `layers` and `heads` choose what "attention" averages and what the sheet of heads shows.
    `score` measures deletion and insertion on every picture. An export can be explained by occlusion only.

    A single picture that cannot be explained is an error; one of several is listed in `failures`. A folder and a
    pattern such as `photos/*.jpg` stand for several.
    """
    if method != "auto" and method not in METHODS:
        raise ConfigError(f"unknown method {method!r}; {suggest(str(method), ('auto', *METHODS))}")
    gathered = gather_pictures(pictures)
    predictor = open_model(model, device, progress=progress)
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
        for stem, (source, picture) in zip(unique_stems(gathered), gathered.items(), strict=True):
            try:
                explained.append(work.explain(source, stem, picture, chosen))
            except (VitrailError, OSError) as error:
                failures[source] = reason(error)
                kinds.add(type(error))
            advance(1)
    if not explained:
        kind = ExplanationError if kinds == {ExplanationError} else ConfigError
        raise kind("no picture could be explained: " + " ".join(dict.fromkeys(failures.values())))
    explanations = Explanations(
        model=name_of(model), method=chosen, choice=choice, pictures=tuple(explained), failures=failures
    )
    return _only(explanations) if is_single(pictures) else explanations


def _only(explanations: Explanations) -> Explained:
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

    def choose(self, gathered: dict[str, Picture], show: Progress) -> MethodChoice:
        """Score the methods on a few pictures, spread evenly over all of them; broken files are skipped here."""
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

    def explain(self, source: str, stem: str, picture: Picture, method: Method) -> Explained:
        subject = self.open(source, picture)
        explanation = explain_by(self.predictor, subject, method, self.target, self.layers, self.heads)
        faithfulness = None
        if self.score and explanation.target is not None:
            faithfulness = measure(self.predictor.model, subject.image, explanation.target, explanation.map)
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

    def open(self, source: str, picture: Picture) -> Subject:
        return open_subject(picture, self.predictor.preprocess, Path(source).name)


def _for_export(
    predictor: Predictor,
    method: Method | Literal["auto"],
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    score: bool,
) -> Method:
    """Of the methods, an export has only occlusion; settings that need the model itself are refused."""
    chosen: Method = "occlusion" if method == "auto" else method
    check_explainable(predictor, chosen)
    given = [name for name, value in (("`layers=`", layers), ("`heads=`", heads), ("`score=`", score or None)) if value]
    if given:
        raise ConfigError(f"{' and '.join(given)} cannot be used with an export; use the checkpoint it was made from.")
    return chosen


def _numbers(values: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
