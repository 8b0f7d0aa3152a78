"""What proves a conversion: two models on the same pictures, and photographs from their files to the outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.data.transform import prepare
from vitrail.errors import ConfigError, WeightsError
from vitrail.model.config import Pair
from vitrail.weights.checkpoint import Checkpoint
from vitrail.wording import counted

What = str  # logits, features, or another output of an export
# What belongs to the library that resizes, not to a file: here the target may differ, and a note says by how much.
KERNEL = ("kernel", "antialias", "anchor", "alpha", "orient", "animated")
SAME_PIXELS = 1e-5  # of the largest
TOLERANCE = 1e-5  # of the largest logit


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far two models are apart on the same pictures."""

    what: What  # features if there is no head, or one of zeros
    difference: float  # largest difference of two numbers
    scale: float  # largest number
    top1: float  # share of pictures with the same largest number, that is the same class; or with the same answer
    pictures: int

    @property
    def relative(self) -> float:
        return self.difference / self.scale if self.scale else self.difference

    def describe(self) -> str:
        """In a line."""
        return (
            f"largest difference {self.difference:.2e} in {self.what} up to {self.scale:.3g} ({self.relative:.1e}), "
            f"same {'top class' if self.what == 'logits' else 'largest feature'} for {self.top1:.0%} of "
            f"{counted(self.pictures, 'picture')}"
        )


def outputs(checkpoint: Checkpoint, images: Tensor) -> dict[What, Tensor]:
    """Logits where there is a head, and the features before it."""
    model = checkpoint.build()
    with torch.inference_mode():
        features = model.features(images)
        return (
            {"features": features} if model.head is None else {"logits": model.classify(features), "features": features}
        )


def agree(
    expected: Mapping[What, Tensor],
    actual: Mapping[What, Tensor],
    tolerance: float,
    who: str,
    why: Callable[[], str] = str,
) -> Agreement:
    """The agreement of all outputs: of the logits, or of the features where the logits are all zeros.

    `why` is asked for a sentence if they do not agree.
    """
    agreements = [compare(what, expected[what], actual[what]) for what in expected if what in actual]
    for agreement in agreements:
        if not agreement.relative <= tolerance:  # so that a tolerance of NaN accepts nothing
            raise WeightsError(
                f"{who} gives different {agreement.what}: they differ by up to {agreement.difference:.3g}, "
                f"{agreement.relative:.1e} of the largest; the tolerance is {tolerance:.0e}.{why()} "
                "Nothing was written."
            )
    telling = [agreement for agreement in agreements if agreement.scale > 0]
    if not telling:
        raise WeightsError(f"{who} gives only zeros, as the source does, which proves nothing; train the head first.")
    return telling[0]


def compare(what: What, expected: Tensor, actual: Tensor) -> Agreement:
    """Compare the outputs of two models for the same pictures."""
    if expected.shape != actual.shape:
        raise WeightsError(f"the written model gives {tuple(actual.shape)} instead of {tuple(expected.shape)} numbers.")
    difference = (expected - actual).abs().max().item()
    if not difference < float("inf"):  # NaN too
        raise WeightsError(
            f"the model gives NaN or infinite {what}; `vitrail inspect` shows the weights that cause it."
        )
    same = (expected.argmax(dim=1) == actual.argmax(dim=1)).float().mean().item()
    scale = expected.abs().max().item()
    return Agreement(what=what, difference=difference, scale=scale, top1=same, pictures=len(expected))


def sample_images(checkpoint: Checkpoint, pictures: Sequence[Path] = (), size: Pair | None = None) -> Tensor:
    """Prepared pictures at the model's own size, or another: the user's, or two photographs and their mirrors."""
    config, size = checkpoint.config, size or checkpoint.config.image_size
    spec = replace(checkpoint.preprocess, size=size, resize="squash", crop=1.0, resize_to=None)
    if pictures:
        return torch.stack([prepare(picture, spec) for picture in pictures])
    if config.channels != 3:
        return torch.randn(4, config.channels, *size, generator=torch.Generator().manual_seed(0))
    photos = torch.stack([prepare(photo, spec) for photo in sample_photos()])
    return torch.cat([photos, photos.flip(-1)])


def sample_photos() -> list[Path]:
    """Two photographs that every installation has; finding them does not import scikit-learn, which is large."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "datasets" / "images"
    return [folder / "china.jpg", folder / "flower.jpg"]


def photograph_files(checkpoint: Checkpoint, pictures: Sequence[Path] = ()) -> list[Path]:
    """The user's pictures, or the two photographs; none where no picture file has the model's channels."""
    return list(pictures or (sample_photos() if checkpoint.preprocess.channels in (1, 3) else []))


class Photographs:
    """The outputs for photographs from their files, with the checkpoint's own preprocessing, kept for comparison."""

    def __init__(self, checkpoint: Checkpoint, pictures: Sequence[Path]) -> None:
        self.spec = checkpoint.preprocess
        self.files = photograph_files(checkpoint, pictures)
        self.answers = self._answers(checkpoint)

    def _answers(self, checkpoint: Checkpoint) -> dict[What, Tensor]:
        if not self.files:
            return {}
        return outputs(checkpoint, torch.stack([prepare(file, checkpoint.preprocess) for file in self.files]))

    def prove(self, written: Checkpoint, tolerance: float, to: str) -> tuple[Agreement | None, tuple[str, ...]]:
        """How far a checkpoint's outputs for the files are from ours; a note if only the resize kernels differ.

        What a file can say about its preprocessing must be the same, or it is an error.
        """
        if not self.files:
            return None, ()
        actual = self._answers(written)
        if written.preprocess == self.spec:
            return agree(self.answers, actual, tolerance, f"{to}, from a photograph's file to the outputs,"), ()
        agreements = [compare(what, self.answers[what], actual[what]) for what in self.answers]
        agreement = next((each for each in agreements if each.scale > 0), agreements[-1])
        self._require_same_pixels(written.preprocess, agreement, to)
        if agreement.relative <= tolerance:
            return agreement, ()
        changed = describe_changes(self.spec, written.preprocess, KERNEL)
        note = (
            f"{to} resizes pictures in its own way ({changed}): for {len(self.files)} photographs from their files, "
            f"the {agreement.what} differ by up to {agreement.relative:.1e} of the largest"
        )
        return agreement, (note,)

    def _require_same_pixels(self, theirs: Preprocess, agreement: Agreement, to: str) -> None:
        try:
            ours = replace(self.spec, **{name: getattr(theirs, name) for name in KERNEL})
        except ConfigError as error:
            raise WeightsError(f"{to} cannot hold this preprocessing: {error.message}") from error
        for file in self.files:
            expected, actual = prepare(file, ours), prepare(file, theirs)
            if not same_pixels(expected, actual, SAME_PIXELS * max(1.0, expected.abs().max().item())):
                rest = tuple(field.name for field in fields(theirs) if field.name not in KERNEL)
                raise WeightsError(
                    f"{to} cannot hold this preprocessing: {describe_changes(self.spec, theirs, rest)}; the "
                    f"{agreement.what} of a photograph differ by up to {agreement.relative:.1e} of the largest. "
                    "Nothing was written."
                )


def same_pixels(expected: Tensor, actual: Tensor, tolerance: float) -> bool:
    return expected.shape == actual.shape and (expected - actual).abs().max().item() <= tolerance


def describe_changes(old: Any, new: Any, names: Sequence[str] | None = None) -> str:
    """The fields of two dataclasses that differ, as `field old → new`."""
    chosen = names or [field.name for field in fields(old)]
    return ", ".join(
        f"{name} {getattr(old, name)} → {getattr(new, name)}"
        for name in chosen
        if getattr(old, name) != getattr(new, name)
    )
