"""The mean of checkpoints of one model: a "model soup" (Wortsman et al., 2022).

The mean of models that were trained from the same start, or of checkpoints of one run, is often better than any of
them, at the cost of one. Whatever else they state must be the same: a mean of different things is nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import Rates
from vitrail.weights.adapt import adapt, without_trust
from vitrail.weights.causes import differing_fields, show
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Origin
from vitrail.weights.read import open_checkpoint
from vitrail.weights.resolve import Located, checksums_of
from vitrail.weights.sanity import check_numbers

FAR = 0.7  # times the length of the first one's weights: unrelated models are about 1.4 apart


@dataclass(frozen=True, kw_only=True)
class Soup:
    """A mean, and how far its parts are from each other."""

    checkpoint: Checkpoint
    distances: tuple[float, ...]  # of each one's weights from the first one's, relative to the length of these
    notes: tuple[str, ...]


def mix_checkpoints(sources: Sequence[Located], shares: Sequence[float]) -> Soup:
    """The mean of at least two; one after the other is read, and all sums are in float64."""
    first, sums, distances, checksums = None, dict[str, Tensor](), list[float](), dict[str, str]()
    outliers = True
    for located, share in zip(sources, shares, strict=True):
        checkpoint = open_checkpoint(located)
        outliers = outliers and checkpoint.is_unsure
        check_numbers(checkpoint, located.name)
        first = first or checkpoint
        checkpoint = _aligned(first, checkpoint, sources[0].name, located.name)
        distances.append(_distance(first.tensors, checkpoint.tensors))
        for name, tensor in {**checkpoint.tensors, **checkpoint.extras}.items():
            if not tensor.is_floating_point():  # a batch norm's counter
                sums[name] = torch.maximum(sums.get(name, tensor), tensor)
            else:
                sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + share * tensor.double()
        own = checksums_of(located.fetch())
        checksums |= {located.name if len(own) == 1 else f"{located.name}/{name}": sha for name, sha in own.items()}
    assert first is not None
    means = {name: sums[name].to(tensor.dtype) for name, tensor in {**first.tensors, **first.extras}.items()}
    notes = tuple(_notes(first, distances))
    what = ", ".join(f"{located.name} ({share:.3g})" for located, share in zip(sources, shares, strict=True))
    mixed = replace(
        without_trust(first, "the weights are a mean"),
        tensors={name: means[name] for name in first.tensors},
        extras={name: means[name] for name in first.extras},
        origin=Origin(
            format=first.origin.format,
            dialect=first.origin.dialect,
            source=f"the mean of {what}",
            sha256=checksums,
            outliers=outliers,
        ),
    )
    return Soup(checkpoint=replace(mixed, remarks=(*mixed.remarks, *notes)), distances=tuple(distances), notes=notes)


def _aligned(first: Checkpoint, other: Checkpoint, a: str, b: str) -> Checkpoint:
    """The other one with its classes in the order of the first; whatever else differs is refused by name."""
    if first.classes is not None and other.classes is not None and set(first.classes) == set(other.classes):
        other = adapt(other, classes=first.classes)
    if differences := list(_differences(first, other)):
        raise WeightsError(
            f"{b} cannot be averaged with {a}: {'; '.join(differences[:8])}. Average checkpoints of one model, for the "
            "same classes."
        )
    return other


def _differences(a: Checkpoint, b: Checkpoint) -> Iterator[str]:
    """What must be the same; rates count only in training."""
    if a.classes != b.classes:
        yield f"the classes are {_names(a.classes)} and {_names(b.classes)}"
    configs = (replace(each.config, rates=Rates()) for each in (a, b))
    for prefix, own, others in (("", *configs), ("preprocess.", a.preprocess, b.preprocess)):
        for path, mine, other in differing_fields(own, others, prefix):
            yield f"{path} is {show(mine)} and {show(other)}"
    if a.task != b.task:
        same = a.task.kind == b.task.kind
        yield f"the task is {a.task.kind}{', fitted to other labels' if same else f' and {b.task.kind}'}"
    if a.scores != b.scores:
        yield f"the scores are {a.scores} and {b.scores}"
    types = [sorted({str(tensor.dtype) for tensor in each.tensors.values()}) for each in (a, b)]
    if types[0] != types[1]:
        one, other = (", ".join(name.removeprefix("torch.") for name in each) for each in types)
        yield f"their numbers are {one} and {other}"
    shapes = [{name: tuple(tensor.shape) for name, tensor in each.extras.items()} for each in (a, b)]
    if shapes[0] != shapes[1]:
        yield "what they hold beside the model, such as a decoder, has other names or shapes"


def _names(classes: Sequence[str] | None) -> str:
    if classes is None:
        return "without names"
    return ", ".join(classes[:3]) + (f", … ({len(classes)})" if len(classes) > 3 else "")


def _distance(first: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Between the matrices and filters, which carry what was learned."""
    matrices = [name for name, tensor in first.items() if tensor.ndim > 1]
    apart = sum(float((first[name].double() - other[name].double()).square().sum()) for name in matrices)
    length = sum(float(first[name].double().square().sum()) for name in matrices)
    return (apart / max(length, 1e-300)) ** 0.5


def _notes(first: Checkpoint, distances: Sequence[float]) -> Iterator[str]:
    if max(distances) > FAR:
        yield (
            f"the models are far apart (up to {max(distances):.2f} times their own length), as models from different "
            "starts are, whose mean is rarely of use; evaluate it before you use it"
        )
    if len(first.parameters) < len(first.tensors):
        yield (
            "the running statistics of its batch norms are averaged too; they were not measured with the averaged "
            "weights"
        )
    if first.classes is None and first.config.num_classes:
        yield "the classes have no names, and were taken to be in the same order"
