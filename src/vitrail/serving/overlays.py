"""Explanations as a served model's worker gives them: maps ready for JSON, or a drawn overlay.

Method "auto" is the first of `CANDIDATES` that has something to show: relevance, which is the most faithful where it
was measured (docs/explain.md), in one forward and one backward pass. Scoring every method on the picture, as
`vitrail.explain` does, would take 130 passes. A layer or a head belongs to attention, so "auto" means that then.
"""

from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.data.pixels import Picture
from vitrail.data.transform import to_pil, to_tensor
from vitrail.errors import ConfigError, ExplanationError, InputError, suggest
from vitrail.explanation.faithfulness import CANDIDATES
from vitrail.explanation.heatmap import overlay, png_bytes, scale_map, shrink
from vitrail.explanation.raw_attention import check_choice, patch_attention
from vitrail.explanation.saliency import (
    METHODS,
    Method,
    Subject,
    View,
    explain_by,
    open_subject,
)
from vitrail.prediction import Predictor

AUTO = "auto"
LONGEST = 1280  # pixels of the longer side of a drawn overlay
MOST_PATCHES = 2048  # whose attention to one another is sent: 4 MB
DIGITS = 4  # of the numbers of a map


def methods_of(predictor: Predictor) -> tuple[Method, ...]:
    """How a model can be explained: on torch in every way, elsewhere by occlusion; without classes, by attention."""
    if not predictor.in_torch:
        return ("occlusion",) if predictor.num_classes else ()
    return METHODS if predictor.num_classes else ("attention", "rollout")


def explain_picture(
    predictor: Predictor,
    picture: Picture,
    *,
    method: str = AUTO,
    layer: int | None = None,
    head: int | None = None,
    target: str | None = None,
    as_png: bool = False,
) -> dict[str, Any] | bytes:
    """One encoded picture's explanation: its map and the labels, ready for JSON, or the overlay as a PNG."""
    candidates = _candidates(predictor, method, layer, head)
    subject = open_subject(picture, predictor.preprocess)
    layers, heads = (None if number is None else (number,) for number in (layer, head))
    for candidate in candidates[:-1]:  # the first whose map distinguishes patches
        with suppress(ExplanationError):
            explanation = explain_by(predictor, subject, candidate, target, layers, heads)
            break
    else:
        explanation = explain_by(predictor, subject, candidates[-1], target, layers, heads)
    if as_png:
        return _png(subject, explanation.map)
    answer: dict[str, Any] = {"method": explanation.method, "target": None, "labels": [], "values": []}
    if (target_index := explanation.target) is not None:
        logits = predictor.runtime.logits(subject.image[None].numpy())[0]
        named = predictor.name_scores(logits)
        score = float(predictor.probabilities(logits)[target_index])
        answer["target"] = {"label": explanation.label, "index": target_index, "score": score}
        answer["labels"] = [
            {"label": label, "index": index, "score": score}
            for label, index, score in zip(named.labels, named.indices, named.scores, strict=True)
        ]
        answer["values"] = named.values
    cells = [[round(value, DIGITS) for value in row] for row in scale_map(explanation.map).tolist()]
    return {**answer, "grid": list(explanation.grid), **_geometry(subject.view), "map": cells}


def attend(
    predictor: Predictor, picture: Picture, *, layer: int | None = None, head: int | None = None
) -> dict[str, Any]:
    """What each patch of one encoded picture attends to, in one layer (the last) and one head (the mean of all).

    `data` holds a byte for each two patches, row by row, base64; each row is scaled to its own largest value.
    """
    if not predictor.in_torch:
        raise ConfigError(_no_torch(predictor, "cannot show what its patches attend to"))
    model = predictor.model
    _check_choice(predictor, layer, head)
    rows, columns = predictor.grid
    if rows * columns > MOST_PATCHES:
        raise ConfigError(
            f"attention between patches is sent for up to {MOST_PATCHES:,} of them; this model has {rows * columns:,}."
        )
    subject = open_subject(picture, predictor.preprocess)
    attention = patch_attention(model, subject.image[None], -1 if layer is None else layer, head)
    cls = attention.cls
    return {
        "grid": [rows, columns],
        **_geometry(subject.view),
        "layers": model.config.depth,
        "heads": model.config.heads,
        "layer": attention.layer,
        "head": attention.head,
        "data": _as_bytes(attention.patches[0]),
        "cls": None if cls is None else _as_bytes(cls[0]),
    }


def _candidates(predictor: Predictor, method: str, layer: int | None, head: int | None) -> tuple[Method, ...]:
    """The methods to try, in their order, or what is wrong with the request, before the picture is decoded."""
    if method != AUTO and method not in METHODS:
        raise ConfigError(f"unknown method {method!r}; {suggest(method, (AUTO, *METHODS))}")
    available = methods_of(predictor)
    if not available:
        raise ConfigError(_no_torch(predictor, "cannot be explained"))
    if layer is not None or head is not None:
        if method not in (AUTO, "attention"):
            raise ConfigError(f"layer and head choose whose attention is shown; omit them with method {method!r}.")
        method = "attention"
    if method == AUTO:
        return tuple(each for each in CANDIDATES if each in available) or available
    chosen: tuple[Method, ...] = tuple(each for each in available if each == method)
    if not chosen:
        if not predictor.in_torch:
            raise ConfigError(_no_torch(predictor, f"has no method {method!r}, only occlusion"))
        raise ConfigError(f"this model has no classes, so it has no method {method!r}; use {' or '.join(available)}.")
    if method == "attention":
        _check_choice(predictor, layer, head)
    return chosen


def _no_torch(predictor: Predictor, what: str) -> str:
    return (
        f"this model runs on {predictor.runtime.name}, which gives answers but no attention, so it {what}; serve the "
        "checkpoint that it was exported from."
    )


def _check_choice(predictor: Predictor, layer: int | None, head: int | None) -> None:
    try:
        check_choice(predictor.model, None if layer is None else (layer,), None if head is None else (head,))
    except InputError as error:  # of the request, not of the picture
        raise ConfigError(error.message) from None


def _geometry(view: View) -> dict[str, Any]:
    """Where the grid lies in the upright picture, in its pixels: [left, top, right, bottom] and [width, height]."""
    sides = (view.left, view.top, view.left + view.width, view.top + view.height)
    return {"box": [round(side, DIGITS) for side in sides], "picture_size": [view.picture[1], view.picture[0]]}


def _as_bytes(rows: Tensor) -> str:
    """Shares as bytes from 0 to 255, each row scaled to its largest value, base64."""
    scaled = rows.float() / rows.float().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return b64encode((scaled * 255).round().to(torch.uint8).cpu().numpy().tobytes()).decode()


def _png(subject: Subject, cells: Tensor) -> bytes:
    return png_bytes(overlay(_smaller(subject), cells))


def _smaller(subject: Subject) -> Subject:
    """A large picture at a size that is quickly drawn and sent."""
    if max(subject.view.picture) <= LONGEST:
        return subject
    part = shrink(to_pil(subject.pixels), LONGEST)
    return replace(subject, pixels=to_tensor(part), view=subject.view.scaled((part.height, part.width)))
