"""One picture explained by one method: a map of which patches counted, or an error that explains why there is none."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vitrail.data.pixels import Picture
from vitrail.data.preprocess import Preprocess
from vitrail.data.transform import fit_tensor, normalize, pixels
from vitrail.errors import ConfigError, ExplanationError, suggest
from vitrail.explanation.occlusion import occlude
from vitrail.explanation.raw_attention import attention_maps
from vitrail.explanation.relevance import gradient_rollout, relevance, rollout
from vitrail.model import ViT
from vitrail.model.parts import Pair
from vitrail.prediction import Predictor
from vitrail.tasks.one import ONE
from vitrail.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class View:
    """The rectangle of a picture that became the model's input, in pixels of the picture (fractions are normal)."""

    picture: Pair  # (height, width) of the upright picture
    top: float
    left: float
    height: float
    width: float

    @property
    def seen(self) -> tuple[int, int, int, int]:
        """The (top, left, bottom, right) of the pixels whose centres the model saw."""
        sides = ((self.top, self.height, self.picture[0]), (self.left, self.width, self.picture[1]))
        starts = [max(math.ceil(start - 0.5), 0) for start, _, _ in sides]
        ends = [min(math.ceil(start + length - 0.5), limit) for start, length, limit in sides]
        return starts[0], starts[1], ends[0], ends[1]

    def scaled(self, picture: Pair) -> "View":
        """The same part of the picture at another size."""
        down, across = (new / old for new, old in zip(picture, self.picture, strict=True))
        sides = {"top": self.top * down, "left": self.left * across}
        return View(picture=picture, **sides, height=self.height * down, width=self.width * across)


def view_of(spec: Preprocess, picture: Pair) -> View:
    """What `spec` cuts out of an upright picture of this (height, width)."""
    resized = spec.resized(*picture)
    top, left = spec.corner(*resized)
    return View(picture=resized, top=top, left=left, height=spec.size[0], width=spec.size[1]).scaled(picture)


def spread(cells: Tensor, view: View, how: Literal["smooth", "blocks"] = "smooth", rows: Pair | None = None) -> Tensor:
    """A map over the patches (h, w) → over the `view.seen` pixels of the picture, each patch where the model saw it.

    "smooth" is linear between the centres of the patches; "blocks" shows the patches themselves. `rows` keeps those
    rows of the picture only.
    """
    top, left, bottom, right = view.seen
    top, bottom = (top, bottom) if rows is None else rows
    shares = _weights(cells.shape[0], top, bottom, view.top, view.height, how).to(cells.dtype).to(cells.device)
    columns = _weights(cells.shape[1], left, right, view.left, view.width, how).to(cells.dtype).to(cells.device)
    return shares @ cells @ columns.T


def _weights(count: int, start: int, end: int, origin: float, length: float, how: str) -> Tensor:
    """How much of each of `count` cells is in each pixel of one axis: (pixels, cells), rows sum to 1."""
    pixels = torch.arange(start, end, dtype=torch.float64) + 0.5
    places = ((pixels - origin) / length * count).clamp(0, count)  # in cells; cell i reaches from i to i + 1
    if how == "blocks":
        return torch.nn.functional.one_hot(places.long().clamp(max=count - 1), count).double()
    centres = (places - 0.5).clamp(0, count - 1)
    below = centres.floor().long().clamp(max=max(count - 2, 0))
    share = (centres - below)[:, None]
    above = (below + 1).clamp(max=count - 1)
    one_hot = torch.nn.functional.one_hot
    return one_hot(below, count) * (1 - share) + one_hot(above, count) * share


Method = Literal["attention", "rollout", "gradient-rollout", "relevance", "occlusion"]
METHODS: tuple[Method, ...] = get_args(Method)
ROUNDING = 1e-5  # of a map's largest value: differences below it are float noise

BY_GRADIENTS: dict[Method, Callable[[ViT, Tensor, Tensor | None, Task], tuple[Tensor, Tensor]]] = {
    "gradient-rollout": gradient_rollout,
    "relevance": relevance,
}
TARGETED: tuple[Method, ...] = (*BY_GRADIENTS, "occlusion")  # explain one class; the others, all of them together


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A picture ready to be explained."""

    name: str
    pixels: Tensor  # (C, H, W), bytes: the whole upright picture
    image: Tensor  # (C, height, width): what the model sees of it
    view: View  # where that is in the picture


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Which patches of one picture counted for one class, label or value."""

    map: Tensor  # (h, w), float, on the CPU; higher counted more
    method: Method
    view: View  # where the map is in the picture
    target: int | None = None  # the class that is explained; None for a model without classes
    label: str = ""  # its name
    probability: float = torch.nan  # or the value itself
    predicted: str = ""  # the name of the class that the model predicts; of values, of the first
    confidence: float = torch.nan  # and its probability, or the value
    task: Task = ONE

    @property
    def grid(self) -> Pair:
        return self.map.shape[0], self.map.shape[1]

    def over_picture(self, how: Literal["smooth", "blocks"] = "smooth") -> Tensor:
        """The map over the pixels of the whole picture (H, W); NaN where the model did not look."""
        canvas = torch.full(self.view.picture, torch.nan)
        top, left, bottom, right = self.view.seen
        canvas[top:bottom, left:right] = spread(self.map, self.view, how)
        return canvas


def open_subject(picture: Picture | Subject, spec: Preprocess, name: str = "picture") -> Subject:
    """Decode a picture once: all of it to draw on, and what the model sees of it."""
    if isinstance(picture, Subject):
        return picture
    whole = pixels(picture, spec, name)
    height, width = whole.shape[-2:]
    image = normalize(fit_tensor(whole, spec), spec)
    return Subject(name=name, pixels=whole, image=image, view=view_of(spec, (height, width)))


def explain_by(
    predictor: Predictor,
    picture: Picture | Subject,
    method: Method,
    target: int | str | None = None,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
) -> Explanation:
    """Explain one picture by one method; `layers` and `heads` choose what method "attention" averages."""
    check_explainable(predictor, method)
    subject = open_subject(picture, predictor.preprocess)
    task, wanted = predictor.task, target_index(predictor, target)
    batch = subject.image[None]
    if wanted is None and predictor.num_classes and task.labels != "class":
        wanted = leading_output(predictor, predictor(batch)[0].float().cpu())
    targets = None if wanted is None else torch.tensor([wanted])
    if method == "attention":
        attention = attention_maps(predictor.model, batch)
        maps, logits = attention.select(layers, heads).maps.nanmean(dim=(1, 2)), attention.logits
    elif method == "rollout":
        maps, logits = rollout(predictor.model, batch)
    elif method in BY_GRADIENTS:
        maps, logits = BY_GRADIENTS[method](predictor.model, batch, targets, task)
    elif method == "occlusion":
        maps, logits = occlude(predictor, predictor.num_classes, predictor.grid, batch, targets, task)
    else:
        raise ConfigError(f"unknown method {method!r}; {suggest(method, METHODS)}")
    return _describe(predictor, subject, method, wanted, maps[0].float().cpu(), logits[0].float().cpu())


def check_explainable(predictor: Predictor, method: str) -> None:
    """Refuse a method that looks into a model where there is none to look into."""
    if not predictor.in_torch and method != "occlusion":
        raise ConfigError(
            f"method {method!r} needs the attention or the gradients of a model in torch, and an export has neither; "
            'use `method="occlusion"`, or the checkpoint that was exported.'
        )


def _describe(
    predictor: Predictor, subject: Subject, method: Method, wanted: int | None, cells: Tensor, logits: Tensor
) -> Explanation:
    if not torch.isfinite(logits).all():
        raise ExplanationError(
            f"{subject.name}: the model's own output is not a number, so nothing can be explained; its weights are "
            "damaged, or overflow in this precision: check them with `vitrail inspect`, or load the model in float32."
        )
    if not predictor.num_classes:
        check_map(cells, subject.name, method, "the picture")
        return Explanation(map=cells, method=method, view=subject.view)
    shares = predictor.probabilities(logits.numpy())
    task = predictor.task
    predicted = leading_output(predictor, logits)
    target = predicted if wanted is None else wanted
    label = predictor.label(target)
    check_map(cells, subject.name, method, f"{task.noun[0]} {label}")
    return Explanation(
        map=cells,
        method=method,
        view=subject.view,
        target=target,
        label=label,
        probability=float(shares[target]),
        predicted=predictor.label(predicted),
        confidence=float(shares[predicted]),
        task=task,
    )


def leading_output(predictor: Predictor, logits: Tensor) -> int:
    """The output whose reasons are shown unless another is named: the most probable, or the first value."""
    if predictor.task.explained is not None:
        return predictor.task.explained
    # A calibration keeps the order of classes, but scales each of several labels by itself.
    return int(predictor.probabilities(logits.numpy()).argmax() if predictor.task.labels == "set" else logits.argmax())


def check_map(cells: Tensor, name: str, method: str, what: str) -> None:
    """Raise, with the reason, unless the map distinguishes patches."""
    if cells.numel() < 2:
        raise ExplanationError(f"{name}: the model sees a single patch, so there is nothing to compare.")
    if not torch.isfinite(cells).all():
        raise ExplanationError(
            f"{name}: the map of {method} is not a number, although the output is; its gradients overflow: load the "
            "model in float32, or use method rollout."
        )
    high, low = cells.max().item(), cells.min().item()
    if high - low <= ROUNDING * max(abs(high), abs(low)):
        if high == low == 0 and method in TARGETED:
            why = f"no patch counts for {what} (its head may be zero, as before training)"
        elif method in TARGETED:
            why = f"every patch counts the same for {what}"
        else:
            why = "the model attends to all patches alike, as before training or for a picture of one colour"
        raise ExplanationError(f"{name}: {method} gives every patch the same value, {high:.3g}: {why}.")


def target_index(predictor: Predictor, target: int | str | None) -> int | None:
    """The number of the class, label or value that `target` names; numbers may be given as text."""
    if target is None:
        return None
    noun = predictor.task.noun[0]
    count, names = predictor.num_classes, predictor.classes or ()
    if not count:
        raise ConfigError("this model has no head, so there is no class to explain; omit `target=`.")
    if isinstance(target, str) and target in names:
        return names.index(target)
    if isinstance(target, str) and not target.isdecimal():
        known = suggest(target, names) if names else f"this checkpoint has no names; pass a number below {count}."
        raise ConfigError(f"unknown {noun} {target!r}; {known}")
    if not 0 <= int(target) < count:
        raise ConfigError(f"target must be a {noun} number from 0 to {count - 1}, or a name; got {target}.")
    return int(target)
