"""Explanations for the service, computed in the worker: the map of one picture, and what each patch attends to."""

import io
from typing import Any, cast

from vitrail.errors import VitrailError
from vitrail.explanation.choice import explain
from vitrail.explanation.explanation import METHODS, Method, open_subject
from vitrail.explanation.render import overlay
from vitrail.prediction import Predictor
from vitrail.prediction.predictor import torch_runtime_of


def methods_of(predictor: Predictor) -> tuple[str, ...]:
    """How a model can be explained."""
    return METHODS if torch_runtime_of(predictor.runtime) is not None else ()


def explain_picture(
    predictor: Predictor,
    data: bytes,
    *,
    method: str,
    layer: int | None,
    head: int | None,
    target: str | None,
    as_png: bool,
) -> dict[str, Any] | bytes:
    """One encoded picture's explanation: its map and the labels, ready for JSON, or the overlay as a PNG."""
    subject = open_subject(data, predictor.preprocess)
    chosen = "relevance" if method == "auto" else method
    layers, heads = (None if number is None else (number,) for number in (layer, head))
    explanation = explain(predictor, data, cast("Method", chosen), target, layers, heads)
    if as_png:
        stream = io.BytesIO()
        overlay(subject, explanation.map).save(stream, format="PNG")
        return stream.getvalue()
    view = explanation.view
    named = predictor.predict(data)
    cells = explanation.map - explanation.map.min()
    return {
        "method": explanation.method,
        "target": {"label": explanation.label, "index": explanation.target, "score": explanation.probability},
        "labels": [
            {"label": label, "index": index, "score": score}
            for label, index, score in zip(named.labels, named.indices, named.scores, strict=True)
        ],
        "grid": list(explanation.grid),
        "box": [view.left, view.top, view.left + view.width, view.top + view.height],
        "picture_size": [view.picture[1], view.picture[0]],
        "map": (cells / cells.max()).tolist(),
    }


def attend(predictor: Predictor, data: bytes, *, layer: int | None, head: int | None) -> dict[str, Any]:
    """What each patch of one encoded picture attends to."""
    raise VitrailError("attention between patches is not part of this build.")
