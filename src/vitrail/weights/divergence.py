"""Where two models first differ, from pixels to outputs, and why.

At the first place that differs, options and weights of the first model are changed until it computes what the second
does: that names the cause, with the difference before and after. Then the search goes on behind it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.data.transform import prepare
from vitrail.errors import ConfigError, list_names
from vitrail.model.config import Pair
from vitrail.weights.causes import Change, changes, differing_fields, differing_tensors, show
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.peers import GREY_LEVEL, peer_pixels
from vitrail.weights.places import OUTPUT, Place, Subject, is_coarse, library_subject, our_subject, watch
from vitrail.weights.proof import SAME_PIXELS, photograph_files

LARGEST = 200_000_000  # parameters of a model that is compared in double precision
# The share of the largest number from which two models do not only round differently.
ROUNDING = {torch.float64: 2e-7, torch.float32: 3e-6}
EXPLAINED = 0.01  # of a difference may be left by the change that explains it
MOST = 6  # causes, one behind the other, that are looked for
FEATURES = Place(module="head", side="in")
SIZES = ("width", "depth", "mlp_width", "patch_size", "image_size", "registers", "class_token", "num_classes")

Align = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # the logits of A and B → those of the same classes


@dataclass(frozen=True, kw_only=True)
class Step:
    """How far two models are apart at one place, or two tensors of one name."""

    name: str
    difference: float  # largest difference of two numbers; infinite if there are not as many, or one is no number
    scale: float  # largest number

    @property
    def relative(self) -> float:
        return self.difference / self.scale if self.scale else self.difference


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A place at which two models differ although they agree before it, and why."""

    place: str
    before: float  # their difference there, as a share of the largest number; infinite for other shapes
    after: float | None  # what is left of it without the cause; None if none was found
    cause: str

    def describe(self) -> str:
        """In one line."""
        amount = f", by {self.before:.1e} of the largest number" if isfinite(self.before) else ""
        if self.after is None:
            return f"{self.place}{amount}; {self.cause}"
        return f"{self.place}{amount}; likely cause: {self.cause}; without it: {self.after:.1e}"


def measure(name: str, ours: Tensor, theirs: Tensor) -> Step:
    """Compare what should be the same numbers."""
    if ours.shape != theirs.shape:
        return Step(name=name, difference=inf, scale=1.0)
    difference = (ours - theirs).abs().max().item()
    scale = max(ours.abs().max().item(), theirs.abs().max().item())
    return Step(name=name, difference=difference if difference < inf else inf, scale=scale)  # NaN is no number


def pick_dtype(*checkpoints: Checkpoint) -> torch.dtype:
    """Double precision, in which rounding hides no difference, unless a model is large."""
    counts = [sum(tensor.numel() for tensor in each.tensors.values()) for each in checkpoints]
    return torch.float64 if max(counts) <= LARGEST else torch.float32


def cast_tensors(checkpoint: Checkpoint, dtype: torch.dtype) -> Checkpoint:
    """With weights of the type in which the model is to compute; two of one type can be compared."""
    floats = {name: tensor.to(dtype) for name, tensor in checkpoint.tensors.items() if tensor.is_floating_point()}
    return replace(checkpoint, tensors={**checkpoint.tensors, **floats})


def compare_tensors(a: Checkpoint, b: Checkpoint) -> tuple[Step, ...]:
    """The tensors of one name and shape that differ, the largest difference first."""
    names = differing_tensors(a.tensors, b.tensors)
    steps = [measure(name, a.tensors[name], b.tensors[name]) for name in names]
    return tuple(sorted(steps, key=lambda step: -step.relative))


def compare_pixels(
    a: Checkpoint, b: Checkpoint, pictures: Sequence[Path] = (), library_files: Path | None = None
) -> tuple[Step | None, Finding | None]:
    """What both see of the same picture files, and which setting makes it differ."""
    files = photograph_files(a, pictures) if a.preprocess.channels == b.preprocess.channels else []
    if library_files is None:
        theirs = [prepare(file, b.preprocess) for file in files]
    else:
        theirs = peer_pixels(b, library_files, files if b.preprocess.channels == 3 else ())
    if not theirs:
        return None, None

    def apart(spec: Preprocess) -> Step:
        pairs = zip(files, theirs, strict=True)
        steps = [measure("the pixels", prepare(file, spec), pixels) for file, pixels in pairs]
        return max(steps, key=lambda step: step.relative)

    step = apart(a.preprocess)
    allowed = SAME_PIXELS if library_files is None else GREY_LEVEL / min(b.preprocess.std) / step.scale
    if step.relative <= allowed:
        return step, None
    settings = list(differing_fields(a.preprocess, b.preprocess))
    for some in [*([each] for each in settings), settings]:
        try:
            left = apart(replace(a.preprocess, **{name: other for name, _, other in some})).relative
        except ConfigError:  # settings that only go together
            continue
        if left <= allowed:
            listed = "; ".join(f"{name} is {show(mine)} in A and {show(other)} in B" for name, mine, other in some)
            cause = f"the preprocessing: {listed}"
            return step, Finding(place="the pixels", before=step.relative, after=left, cause=cause)
    cause = "nothing that the files state about their preprocessing explains it"
    return step, Finding(place="the pixels", before=step.relative, after=None, cause=cause)


def align_classes(a: Checkpoint, b: Checkpoint) -> tuple[str, Align | None]:
    """How the classes of two models compare, and how to bring their logits together; None if that cannot be done."""
    counts = f"{a.config.num_classes} in A, {b.config.num_classes} in B"
    if a.classes is None or b.classes is None or a.classes == b.classes:
        if a.config.num_classes != b.config.num_classes:
            return counts, None
        names = "the same names" if a.classes and b.classes else f"named only by {'A' if a.classes else 'B'}"
        known = names if a.classes or b.classes else "without names"
        words = f"{a.config.num_classes} in both, {known}" if a.config.num_classes else "none in both"
        return words, lambda ours, theirs: (ours, theirs)
    both = [name for name in a.classes if name in b.classes]
    if not both:
        return f"{counts}, with no name in common", None
    ours, theirs = ([each.index(name) for name in both] for each in (a.classes, b.classes))
    words = f"{len(both)} in both, compared by name{'' if ours == theirs else ': they are in another order'}"
    for who, own, other in (("A", a.classes, b.classes), ("B", b.classes, a.classes)):
        if rest := [name for name in own if name not in other]:
            words += f"; only in {who}: {list_names(rest, 5)}"
    return words, lambda left, right: (left[:, ours], right[:, theirs])


def compare_classes(a: Checkpoint, b: Checkpoint) -> Finding | None:
    """Other classes, by their names if both have names, or else by how many there are."""
    if a.classes is None or b.classes is None:
        differ = a.config.num_classes != b.config.num_classes
    else:
        differ = set(a.classes) != set(b.classes)
    cause = align_classes(a, b)[0]
    return Finding(place="the classes", before=inf, after=None, cause=cause) if differ else None


def refuse_sizes(a: Checkpoint, b: Checkpoint, size: Pair) -> Finding | None:
    """Why the same pixels cannot be given to both models, if they cannot."""
    channels = a.config.channels, b.config.channels
    cause = f"A reads pictures of {channels[0]} channels and B of {channels[1]}" if channels[0] != channels[1] else ""
    for who, checkpoint in (("A", a), ("B", b)):
        try:
            checkpoint.config.grid_of(size)
        except ConfigError as error:
            cause = f"{who} cannot read pictures of {size[0]}×{size[1]} pixels: {error.message}"
    return Finding(place="the pictures that they can read", before=inf, after=None, cause=cause) if cause else None


def find_causes(
    a: Checkpoint, b: Subject, images: Tensor, tolerance: float, align: Align | None
) -> tuple[list[Step], list[Finding]]:
    """The difference at each place outside of the blocks, and the causes one behind the other.

    Args:
        a: with weights of the type of the images, like those of B's checkpoint.
        tolerance: for the outputs, as a share of the largest.
        align: brings the logits of the same classes together; without it, the features are compared last.
    """
    search = _Search(a=a, b=b, images=images, tolerance=tolerance, align=align)
    theirs = search.look(b, images, is_coarse)
    changed, shown, findings = a, list[Step](), list[Finding]()
    while len(findings) < MOST:
        ours = search.look(our_subject(changed, images.dtype), images, is_coarse)
        steps = search.measure_all(ours, theirs)
        shown = shown or list(steps.values())
        if list(steps.values())[-1].relative <= tolerance:
            break
        finding, change = search.explain(changed, ours, theirs, steps)
        findings.append(finding)
        if change is None:
            break
        changed = change.checkpoint
    return shown, findings


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Two models on the same pixels."""

    a: Checkpoint
    b: Subject
    images: Tensor
    tolerance: float
    align: Align | None

    def look(
        self, subject: Subject, images: Tensor, wanted: Callable[[Place], bool], until: Place | None = None
    ) -> dict[Place, Tensor]:
        """What a model computes; the output of one without a head are features, if the other one has a head."""
        seen = watch(subject, images, wanted, until)
        other = self.b.checkpoint if subject is not self.b else self.a
        if subject.checkpoint.config.num_classes == 0 < other.config.num_classes and OUTPUT in seen:
            seen[FEATURES] = seen.pop(OUTPUT)
        return seen

    def measure_all(self, ours: Mapping[Place, Tensor], theirs: Mapping[Place, Tensor]) -> dict[Place, Step]:
        """The places that can be compared, in our order."""
        steps = {place: self.measure(place, seen, theirs[place]) for place, seen in ours.items() if place in theirs}
        if self.a.config.stem.kind == "patch":
            steps.pop(Place(module="embed.patches", side="in"), None)  # the pixels themselves
        return {place: step for place, step in steps.items() if step is not None}

    def measure(self, place: Place, ours: Tensor, theirs: Tensor) -> Step | None:
        """The difference at one place; None for logits of other classes, and where a library has another shape."""
        if place == OUTPUT:
            if self.align is None:
                return None
            ours, theirs = self.align(ours, theirs) if self.a.config.num_classes else (ours, theirs)
        if place.module == "embed.patches" and place.side == "out":  # (B, D, h, w), or tokens already
            ours, theirs = (each.flatten(2).mT if each.ndim == 4 else each for each in (ours, theirs))
        if place.module == "norm":  # of all tokens, or only of those that are read
            ours, theirs = _cut(ours, theirs), _cut(theirs, ours)
        if ours.shape[1:] == theirs.shape[1:] and 1 in (len(ours), len(theirs)):  # the probe of attention pooling
            ours, theirs = torch.broadcast_tensors(ours, theirs)
        if self.b.library and place != OUTPUT and ours.shape != theirs.shape:
            return None
        return measure(place.describe(self.a.config), ours, theirs)

    def explain(
        self,
        changed: Checkpoint,
        ours: Mapping[Place, Tensor],
        theirs: Mapping[Place, Tensor],
        steps: Mapping[Place, Step],
    ) -> tuple[Finding, Change | None]:
        """The first place that differs, and what explains it.

        A library may compute parts in lower precision than asked: a difference that only that explains is passed over.
        """
        for threshold in (min(ROUNDING[self.images.dtype], self.tolerance), self.tolerance):
            place, step, seen = self._first(changed, ours, theirs, steps, threshold)
            finding, change = self._explain_at(changed, place, step, seen, threshold)
            if finding.after is not None or step.relative > self.tolerance:
                break
        return finding, change

    def _first(
        self,
        changed: Checkpoint,
        ours: Mapping[Place, Tensor],
        theirs: Mapping[Place, Tensor],
        steps: Mapping[Place, Step],
        threshold: float,
    ) -> tuple[Place, Step, tuple[Tensor, Tensor]]:
        """The first place above a threshold, inside of a block if it lies in one, and what both models have there."""
        places = list(steps)
        index = next(index for index, place in enumerate(places) if steps[place].relative > threshold)
        before = places[index - 1].module if index else ""
        if before.endswith(".norm1"):  # what entered this block was the same

            def within(place: Place) -> bool:
                return place.module.startswith(before.removesuffix("norm1"))

            inner = self.look(our_subject(changed, self.images.dtype), self.images, within)
            outer = self.look(self.b, self.images, within)
            for place, step in self.measure_all(inner, outer).items():
                if step.relative > threshold and place in inner and place != OUTPUT:
                    return place, step, (inner[place], outer[place])
        place = places[index]
        return place, steps[place], (ours[place], theirs[place])

    def _explain_at(
        self, changed: Checkpoint, place: Place, step: Step, seen: tuple[Tensor, Tensor], threshold: float
    ) -> tuple[Finding, Change | None]:
        """The change that makes the difference vanish at one place, for the picture that shows it best."""

        def finding(cause: str, after: float | None) -> Finding:
            return Finding(place=step.name, before=step.relative, after=after, cause=cause)

        allowed = max(threshold, EXPLAINED * step.relative if isfinite(step.relative) else 0.0)
        if place == OUTPUT and seen[0].shape == seen[1].shape:
            left = measure("", *seen).relative
            if left <= allowed:
                return finding("the class names are in another order, beside the same rows of the head", left), None
        worst = _worst_picture(*seen)
        image, theirs = self.images[worst : worst + 1], seen[1][worst : worst + 1]
        for group in changes(changed, self.b.checkpoint):
            tried = [(self._left(change, place, image, theirs), change) for change in group]
            left, best = min(tried, key=lambda each: each[0], default=(inf, None))
            if best is not None and left <= allowed:
                return finding(best.words, left), best
        sizes = [each for each in differing_fields(self.a.config, self.b.checkpoint.config) if each[0] in SIZES]
        if sizes:
            listed = "; ".join(f"{name} is {show(mine)} in A and {show(other)} in B" for name, mine, other in sizes)
            return finding(f"the models have different sizes: {listed}", None), None
        return finding("no single option, tensor or layout explains it", None), None

    def _left(self, change: Change, place: Place, image: Tensor, theirs: Tensor) -> float:
        """What is left of the difference at a place."""
        subject = our_subject(change.checkpoint, self.images.dtype)
        ours = self.look(subject, image, lambda each: each == place, until=place)
        step = self.measure(place, ours[place], theirs) if place in ours else None
        return inf if step is None else step.relative


def _cut(tokens: Tensor, other: Tensor) -> Tensor:
    """All tokens (B, N, D), cut to those that the other model has kept: the first few, or only [cls] as (B, D)."""
    if tokens.ndim == 3 and other.ndim == 2:
        return tokens[:, 0]
    return tokens[:, : other.shape[1]] if tokens.ndim == other.ndim == 3 else tokens


def _worst_picture(ours: Tensor, theirs: Tensor) -> int:
    if ours.shape != theirs.shape:
        return 0
    return int((ours - theirs).abs().flatten(1).amax(dim=1).argmax())


def explain_failure(a: Checkpoint, b: Checkpoint, images: Tensor, tolerance: float, library_files: Path | None) -> str:
    """Where two models first differ and the likely cause, as a sentence for the error of a failed proof."""
    if refuse_sizes(a, b, (images.shape[2], images.shape[3])) or not tolerance >= 0:
        return ""
    dtype = pick_dtype(a, b)
    a, b = cast_tensors(a, dtype), cast_tensors(b, dtype)
    try:
        other = our_subject(b, dtype) if library_files is None else library_subject(b, library_files, dtype)
        _, findings = find_causes(a, other, images.to(dtype), tolerance, align_classes(a, b)[1])
    except Exception:  # whatever a library raises: what could not be explained must not hide that the proof failed
        return ""
    who = other.library or "what was written"
    return f" They first differ in {findings[0].describe()} (A: the model as we read it, B: {who})." if findings else ""
