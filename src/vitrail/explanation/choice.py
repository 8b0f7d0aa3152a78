"""Which method to trust on given pictures: each one's deletion and insertion beside a random map's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from vitrail.data.pixels import Picture
from vitrail.errors import ExplanationError
from vitrail.explanation.explanation import Explanation, Loaded, Method, Subject, explain_by, open_subject, target_index
from vitrail.explanation.faithfulness import STEPS, Faithfulness, measure, random_map
from vitrail.explanation.passes import grid_of, on_model
from vitrail.wording import counted

# What `auto` chooses from. Not occlusion: it costs a forward pass per patch, and was no better where it was measured.
CANDIDATES: tuple[Method, ...] = ("relevance", "gradient-rollout", "rollout", "attention")
JUDGED = 4  # pictures on which `auto` scores the methods, at most
MARGIN = 0.01  # by which a score must exceed the random map's to mean anything


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best method on some pictures, and how all of them did."""

    method: Method
    reason: str
    scores: dict[str, Faithfulness]  # method, or "random" → the mean over the pictures
    each: dict[str, list[Faithfulness]]  # the same for each picture
    failures: dict[str, str]  # method → why it cannot explain these pictures


def explain(
    loaded: Loaded,
    picture: Picture,
    method: Method | Literal["auto"] = "auto",
    target: int | str | None = None,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
) -> Explanation:
    """Which patches counted for the target (a class's name or number; without one, for the predicted class).

    `method` is attention, rollout, gradient-rollout, relevance or occlusion; "auto" uses the one that deletion and
    insertion favour on this picture, see `choose`. `layers` and `heads` choose what "attention" averages.
    """
    subject = open_subject(picture, loaded.preprocess)
    if method == "auto":
        method = choose(loaded, [subject], target, layers, heads).method
    return explain_by(loaded, subject, method, target, layers, heads)


def choose(
    loaded: Loaded,
    subjects: Sequence[Subject],
    target: int | str | None = None,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    candidates: Sequence[Method] = CANDIDATES,
    steps: int = STEPS,
    progress: Callable[[int], None] | None = None,
) -> Choice:
    """Score the candidates on the pictures and choose the best; one that fails on any picture is out."""
    if not loaded.model.config.num_classes:
        reason = "rollout, because a model without classes has no probability to score by"
        return Choice(method="rollout", reason=reason, scores={}, each={}, failures={})
    each: dict[str, list[Faithfulness]] = {}
    failures: dict[str, str] = {}
    for method in candidates:
        try:
            explanations = [explain_by(loaded, subject, method, target, layers, heads) for subject in subjects]
        except ExplanationError as error:
            failures[method] = str(error)
        else:
            each[method] = [judge(loaded, *pair, steps) for pair in zip(subjects, explanations, strict=True)]
        if progress:
            progress(1)
    if not each:
        raise ExplanationError("no method can explain these pictures: " + " ".join(dict.fromkeys(failures.values())))
    random = [judge_random(loaded, subject, target, seed, steps) for seed, subject in enumerate(subjects)]
    each["random"] = random
    if progress:
        progress(1)
    scores = {method: mean_of(results) for method, results in each.items()}
    usable: list[Method] = [method for method in candidates if method not in failures]
    best = max(usable, key=lambda method: scores[method].score)
    return Choice(method=best, reason=_reason(best, scores, len(subjects)), scores=scores, each=each, failures=failures)


def judge(loaded: Loaded, subject: Subject, explanation: Explanation, steps: int) -> Faithfulness:
    """Deletion and insertion of one explanation."""
    assert explanation.target is not None
    return measure(loaded.model, subject.image, explanation.target, explanation.map, steps)


def judge_random(loaded: Loaded, subject: Subject, target: int | str | None, seed: int, steps: int) -> Faithfulness:
    """Deletion and insertion of a random map, for the same class as the methods explain."""
    model, batch = loaded.model, subject.image[None]
    wanted = target_index(loaded, target)
    if wanted is None:
        with torch.inference_mode():
            wanted = int(model(on_model(model, batch)).argmax())
    return measure(model, subject.image, wanted, random_map(grid_of(model, batch), seed), steps)


def mean_of(results: Sequence[Faithfulness]) -> Faithfulness:
    """The mean of both areas."""
    count = len(results)
    return Faithfulness(
        deletion=sum(result.deletion for result in results) / count,
        insertion=sum(result.insertion for result in results) / count,
    )


def _reason(best: str, scores: dict[str, Faithfulness], count: int) -> str:
    on = counted(count, "picture")
    score, floor = scores[best].score, scores["random"].score
    numbers = f"insertion − deletion {score:.3f} on {on}, random {floor:.3f}"
    if score < floor + MARGIN:
        return f"{best}, the best of them ({numbers}); but none beats a random map, so trust none of them here"
    return f"{best}, the most faithful ({numbers})"
