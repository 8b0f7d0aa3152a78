"""Conversion with proof: what was written is read again, and must compute the same."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.data.transform import prepare
from vitrail.errors import WeightsError
from vitrail.model import ViTConfig
from vitrail.weights.checkpoint import Checkpoint, FormatName
from vitrail.weights.files import atomic_path
from vitrail.weights.formats import (
    FORMATS,
    check_replaceable,
    check_writable,
    checksums_of,
    read_checkpoint,
    write_draft,
)
from vitrail.weights.hub import fetch
from vitrail.weights.infer import Hints
from vitrail.weights.opening import open_checkpoint
from vitrail.weights.peers import peer_logits

TOLERANCE = 1e-5  # of the largest logit
ROUNDED = {torch.float16: 5e-3, torch.bfloat16: 5e-2}  # the same where the weights are written with fewer digits
What = Literal["logits", "features"]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far two models are apart on the same pictures."""

    what: What  # features where there is no head, or one of zeros
    difference: float  # largest difference of two numbers
    scale: float  # largest number
    top1: float  # share of pictures with the same largest one: the same class
    pictures: int

    @property
    def relative(self) -> float:
        return self.difference / self.scale if self.scale else self.difference


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What a conversion read, wrote and proved."""

    source_format: FormatName
    target_format: FormatName
    agreement: Agreement
    peer: Agreement | None
    notes: tuple[str, ...]
    assumed: tuple[str, ...]  # those of the notes that opening the source warned of
    how_to_load: str


def convert(
    source: str | Path,
    target: str | Path,
    to: FormatName = "vitrail",
    *,
    source_format: FormatName | None = None,
    hints: Hints | None = None,
    change: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint,
    dtype: torch.dtype | None = None,
    tolerance: float | None = None,
    pictures: Sequence[Path] = (),
    verify_with_peer: bool = False,
    overwrite: bool = False,
) -> Conversion:
    """Read, `change` (see `adapt`), write and check; nothing is left at `target` unless the check passes.

    With a `dtype`, the weights are rounded to it; the check compares with what they were.
    """
    if tolerance is None:
        tolerance = TOLERANCE if dtype is None else ROUNDED.get(dtype, TOLERANCE)
    place = Path(target)
    if place.exists() and not overwrite:
        raise WeightsError(f"{place} exists; choose another name, or allow it with --overwrite.")
    check_replaceable(place)
    if place.is_dir() and place.resolve() in (Path(source).resolve(), *Path(source).resolve().parents):
        raise WeightsError(f"{place} holds the source itself; choose another name.")
    checkpoint = change(_open(source, source_format, hints))
    check_writable(checkpoint.config, place, to)
    images = sample_images(checkpoint, pictures)
    expected = _outputs(checkpoint, images)
    before = replace(
        checkpoint, tensors=_no_numbers(checkpoint)
    )  # the facts, to compare with after the numbers are gone
    with atomic_path(place) as draft:
        write_draft(checkpoint if dtype is None else checkpoint.rounded(dtype), draft, to)
        del checkpoint  # makes room for what is read again
        _return_memory()
        written, unsaid = _read_again(draft, to, before)
        agreement = _agree(expected, _outputs(written, images), tolerance, f"reading {to} again")
        peer = None
        if verify_with_peer:
            what: What = "logits" if before.config.num_classes else "features"
            answers: dict[What, Tensor] = {what: peer_logits(to, before.config, draft, images)}
            peer = _agree(expected, answers, tolerance, f"{to}'s own library")
    return Conversion(
        source_format=before.file_format,
        target_format=to,
        agreement=agreement,
        peer=peer,
        notes=(*before.notes, *before.remarks, *unsaid, *_losses(before, written)),
        assumed=() if before.file_format == "vitrail" else before.notes,
        how_to_load=how_to_load_of(before, place, to),
    )


def _open(source: str | Path, source_format: FormatName | None, hints: Hints | None) -> Checkpoint:
    """The source, with the checksums of its files in its origin."""
    checkpoint = open_checkpoint(source, format_name=source_format, hints=hints, allow_pickle=True)
    if checkpoint.file_format == "vitrail":
        return checkpoint  # it remembers where it came from
    local = fetch(source, allow_pickle=True)
    return replace(checkpoint, origin=replace(checkpoint.origin, sha256=checksums_of(local)))


def _return_memory() -> None:
    """Let glibc give freed weights back to the system; elsewhere they go back by themselves, or stay."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _no_numbers(checkpoint: Checkpoint) -> dict[str, Tensor]:
    return {name: tensor.to("meta") for name, tensor in checkpoint.tensors.items()}


def _losses(before: Checkpoint, after: Checkpoint) -> list[str]:
    """What the target format does not keep, although it computes the same."""
    notes: list[str] = []
    for what, old, new in (
        ("preprocessing", before.preprocess, after.preprocess),
        ("kernel for other picture sizes", before.config.positions, after.config.positions),
    ):
        changed = [
            f"{field.name} {getattr(old, field.name)} → {getattr(new, field.name)}"
            for field in fields(old)
            if getattr(old, field.name) != getattr(new, field.name)
        ]
        if changed:
            notes.append(f"the target has another {what}: {', '.join(changed)}")
    if before.classes and not after.classes:
        notes.append("the target does not keep the class names")
    if before.config.rates != after.config.rates:
        notes.append("the target does not keep all dropout rates, which matter in training only")
    if lost := sorted(before.extras.keys() - after.extras.keys()):
        notes.append(f"the target does not keep {', '.join(lost)}, which no forward pass reads")
    return notes


def _read_again(draft: Path, to: FormatName, before: Checkpoint) -> tuple[Checkpoint, tuple[str, ...]]:
    """What was written, as a stranger reads it; or with what the file does not say, and a note that says so."""
    known = _unsaid_in_some(before.config)
    try:
        written = read_checkpoint(draft, format_name=to, allow_pickle=True)
    except WeightsError:
        unsaid = list(known)
    else:
        unsaid = [name for name, value in _unsaid_in_some(written.config).items() if known[name] != value]
        if not unsaid:
            return written, ()
    written = read_checkpoint(draft, format_name=to, hints=Hints(**known), allow_pickle=True)
    told = ", ".join(f"{name} {known[name]}" for name in unsaid)
    return written, (f"such a file does not say all of this, so its readers must know it: {told}",)


def _unsaid_in_some(config: ViTConfig) -> dict[str, Any]:
    """What the files of some formats do not say, as hints."""
    hints = {"heads": config.heads, "pooling": config.pooling, "image_size": config.image_size}
    return {**hints, "activation": config.block.activation}


def _outputs(checkpoint: Checkpoint, images: Tensor) -> dict[What, Tensor]:
    """Logits where there is a head, and the features before it."""
    model = checkpoint.build()
    with torch.inference_mode():
        features = model.features(images)
        return (
            {"features": features} if model.head is None else {"logits": model.classify(features), "features": features}
        )


def _agree(expected: Mapping[What, Tensor], actual: Mapping[What, Tensor], tolerance: float, who: str) -> Agreement:
    """The agreement of all outputs: of the logits, or of the features where the logits are all zeros."""
    agreements = [compare(what, expected[what], actual[what]) for what in expected if what in actual]
    for agreement in agreements:
        if not agreement.relative <= tolerance:  # so that a tolerance of NaN accepts nothing
            raise WeightsError(
                f"{who} gives other {agreement.what}: they differ by up to {agreement.difference:.3g}, "
                f"{agreement.relative:.1e} of the largest; the tolerance is {tolerance:.0e}. Nothing was written."
            )
    telling = [agreement for agreement in agreements if agreement.scale > 0]
    if not telling:
        raise WeightsError(f"{who} gives zeros alone, as the source does, which proves nothing; train the head first.")
    return telling[0]


def compare(what: What, expected: Tensor, actual: Tensor) -> Agreement:
    """Compare what two models give for the same pictures."""
    if expected.shape != actual.shape:
        raise WeightsError(f"the written model gives {tuple(actual.shape)} instead of {tuple(expected.shape)} numbers.")
    difference = (expected - actual).abs().max().item()
    if not difference < float("inf"):  # NaN too
        raise WeightsError(
            f"the model gives NaN or infinite {what}; `vitrail inspect` shows which weights are to blame."
        )
    same = (expected.argmax(dim=1) == actual.argmax(dim=1)).float().mean().item()
    scale = expected.abs().max().item()
    return Agreement(what=what, difference=difference, scale=scale, top1=same, pictures=len(expected))


def sample_images(checkpoint: Checkpoint, pictures: Sequence[Path] = ()) -> Tensor:
    """Prepared pictures at the model's own size: the user's, or scikit-learn's two photographs and their mirrors."""
    config = checkpoint.config
    spec = replace(checkpoint.preprocess, size=config.image_size, resize="squash", crop=1.0, resize_to=None)
    if pictures:
        return torch.stack([prepare(picture, spec) for picture in pictures])
    if config.channels != 3:
        return torch.randn(4, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    photos = torch.stack([prepare(photo, spec) for photo in sample_photos()])
    return torch.cat([photos, photos.flip(-1)])


def sample_photos() -> list[Path]:
    """Two photographs that every installation has; finding them does not import scikit-learn, which is large."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "datasets" / "images"
    return [folder / "china.jpg", folder / "flower.jpg"]


def how_to_load_of(checkpoint: Checkpoint, path: Path, format_name: FormatName) -> str:
    """The line with which the target's own users load the file."""
    if format_name == "vitrail":
        return f'vitrail.load("{path}")'
    how = getattr(FORMATS[format_name], "how_to_load", None)
    return how(checkpoint, path) if how else ""
