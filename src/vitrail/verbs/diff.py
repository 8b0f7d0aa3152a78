"""`vitrail.diff`: where two models first differ, from pixels to outputs, and why."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from vitrail.errors import AssumptionWarning, ConfigError, WeightsError, list_names
from vitrail.progress import table, working
from vitrail.verbs.keywords import Size, read_size
from vitrail.weights.hints import Hints
from vitrail.weights.resolve import Located, find_files, locate
from vitrail.wording import counted, markdown_cell

if TYPE_CHECKING:
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.divergence import Finding, Step

ARCHITECTURE = "timm:"  # before the name of an architecture
SHOWN = 8  # tensors in a table
HEADINGS = ("largest difference", "of the largest number")


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """What two models have in common, where they first differ, and why."""

    a: str
    b: str
    library: str  # that ran B; "" if we did
    options: tuple[tuple[str, str, str], ...]  # that differ: each with its value in A and in B
    classes: str
    tensors: int  # of the same name and shape in both
    other_tensors: "tuple[Step, ...]"  # those with other numbers, the largest difference first
    only_a: tuple[str, ...]  # tensors that B does not have, or not in this shape
    only_b: tuple[str, ...]
    pictures: int
    image_size: tuple[int, int]
    steps: "tuple[Step, ...]"  # from the pixels to the outputs
    findings: "tuple[Finding, ...]"  # empty if the models compute the same
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both compute the same from the same picture."""
        return not self.findings

    @property
    def exit_code(self) -> int:
        """1: they differ."""
        return 0 if self.same else 1

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinite numbers: None."""
        facts = asdict(self)
        for name in ("other_tensors", "steps", "findings"):
            facts[name] = [{key: _finite(value) for key, value in each.items()} for each in facts[name]]
        return {"same": self.same, **facts}

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        yield f"A: {self.a}\nB: {self.b}{f', run by {self.library}' if self.library else ''}"
        yield self._verdict()
        for index, finding in enumerate(self.findings):
            yield f"{'with that removed, the next' if index else 'first difference'}: {finding.describe()}"
        yield ""
        if self.options:
            yield table(self.options, "option", "A", "B", left=3)
        yield f"classes: {self.classes}"
        others = f"{len(self.other_tensors)} of them with other numbers" if self.other_tensors else "the same numbers"
        yield f"weights: {counted(self.tensors, 'tensor')} in both, {others}"
        if self.other_tensors:
            yield table(_rows(self.other_tensors[:SHOWN]), "tensor", *HEADINGS)
        for who, names in (("A", self.only_a), ("B", self.only_b)):
            if names:
                yield f"only in {who}, or of another shape there: {list_names(names, 5)}"
        if self.steps:
            yield ""
            yield table(_rows(self.steps), "place", *HEADINGS)
        yield from (f"note: {note}" for note in self.notes)

    def _verdict(self) -> str:
        height, width = self.image_size
        on = f"on {counted(self.pictures, 'picture')} of {height}×{width} pixels"
        return f"They {'compute the same' if self.same else 'differ'} {on}."

    def _repr_markdown_(self) -> str:
        cells = [("place", *HEADINGS), ("---", "--:", "--:"), *_rows(self.steps)]
        rows = [f"| {' | '.join(map(markdown_cell, row))} |" for row in cells] if self.steps else []
        findings = [f"- {finding.describe()}" for finding in self.findings]
        return "\n".join([f"**{self.a}** and **{self.b}**: {self._verdict()}", "", *findings, "", *rows])


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


def _rows(steps: "Sequence[Step]") -> list[tuple[str, str, str]]:
    return [(step.name, _number(step.difference), _number(step.relative)) for step in steps]


def _number(value: float) -> str:
    return (f"{value:.1e}" if value else "0") if isfinite(value) else "other shape"


def diff(
    a: str | Path,
    b: str | Path,
    *,
    library: bool = False,
    pictures: Sequence[str | Path] = (),
    image_size: Size | None = None,
    tolerance: float | None = None,
    progress: bool = False,
) -> Divergence:
    """Compare two models: what they state, their weights, and what they compute from the same pixels, step by step.

    The first place at which they differ is named, and options, layouts and weights are tried there until one explains
    the difference.

    Args:
        a: A file, a folder, hf://owner/name or google://NAME. Pickles are read without running them.
        b: Another one; or timm:NAME, timm's architecture of that name with the weights of A.
        library: Let B's own library (timm, transformers or torchvision) run B, instead of us.
        pictures: Pictures on which to compare [default: two photographs].
        image_size: The size of the pictures: 384, or HEIGHTxWIDTH such as 224x320 [default: A's own, or B's where its
            library runs it].
        tolerance: Largest difference between outputs that counts as none, relative to the largest [default: 1e-5].
        progress: Show progress on the error stream.
    """
    from vitrail.weights.peers import LIBRARIES, write_architecture
    from vitrail.weights.read import read_checkpoint

    if tolerance is not None and not tolerance >= 0:  # NaN too
        raise ConfigError(f"tolerance must be 0 or more; got {tolerance}.")
    size, files = read_size(image_size, "image_size"), [Path(picture) for picture in pictures]
    with working("comparing", speaks=progress), TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)  # what is assumed is among the notes
        first = _open(a)
        if str(b).startswith(ARCHITECTURE):
            path, library, name = Path(folder), True, str(b).removeprefix(ARCHITECTURE)
            write_architecture(first, name, path)
            try:
                second = read_checkpoint(path)
            except WeightsError as error:
                reason = error.message.removeprefix(f"{path}, read as timm: ")
                raise WeightsError(f"timm's {name} cannot hold the weights of {a}: {reason}") from error
        else:
            located = locate(b, allow_pickle=True)
            second = _open(located)
            weights = find_files(located.fetch(allow_pickle=True))[0]
            path = weights.parent if second.file_format == "hf" else weights
        if library and second.file_format not in LIBRARIES:
            raise ConfigError(f"no library that runs on PyTorch reads {second.file_format} files; omit `library=`.")
        return _compare((str(a), str(b)), first, second, path if library else None, files, size, tolerance)


def _open(source: "str | Path | Located") -> "Checkpoint":
    """A checkpoint; what its file does not state must be settled by a conversion before it can be compared."""
    from vitrail.weights.read import open_checkpoint

    try:
        return open_checkpoint(source, allow_pickle=True)
    except WeightsError as error:
        if not any(f"`{hint.name}=" in error.message for hint in fields(Hints)):
            raise
        raise WeightsError(f"{error.message.rstrip('.')}; convert it with that, and compare the result.") from error


def _compare(
    names: tuple[str, str],
    a: "Checkpoint",
    b: "Checkpoint",
    library_files: Path | None,
    pictures: Sequence[Path],
    image_size: tuple[int, int] | None,
    tolerance: float | None,
) -> Divergence:
    from vitrail.weights.causes import differing_fields, show
    from vitrail.weights.divergence import (
        align_classes,
        cast_tensors,
        compare_classes,
        compare_pixels,
        compare_tensors,
        find_causes,
        pick_dtype,
        refuse_sizes,
    )
    from vitrail.weights.peers import LIBRARIES
    from vitrail.weights.places import library_subject, our_subject
    from vitrail.weights.proof import TOLERANCE, sample_images

    size = image_size or (a.config.image_size if library_files is None else b.config.image_size)
    pixels, seen = compare_pixels(a, b, pictures, library_files)
    words, align = align_classes(a, b)
    stated = [("", a.config, b.config), ("preprocess.", a.preprocess, b.preprocess)]
    options = [
        (path, show(mine), show(other))
        for prefix, own, others in stated
        for path, mine, other in differing_fields(own, others, prefix)
    ]
    dtype = pick_dtype(a, b)
    images = sample_images(a, pictures, size).to(dtype)
    a, b = cast_tensors(a, dtype), cast_tensors(b, dtype)
    shared = [name for name, tensor in a.tensors.items() if name in b.tensors and b.tensors[name].shape == tensor.shape]
    steps, findings = [] if pixels is None else [pixels], [] if seen is None else [seen]
    if refusal := refuse_sizes(a, b, size):
        findings.append(refusal)
    else:
        other = our_subject(b, dtype) if library_files is None else library_subject(b, library_files, dtype)
        computed, causes = find_causes(a, other, images, TOLERANCE if tolerance is None else tolerance, align)
        steps, findings = steps + computed, findings + causes
    if others := compare_classes(a, b):
        findings.append(others)
    return Divergence(
        a=names[0],
        b=names[1],
        library="" if library_files is None else LIBRARIES[b.file_format],
        options=tuple(options),
        classes=words,
        tensors=len(shared),
        other_tensors=compare_tensors(a, b),
        only_a=tuple(name for name in a.tensors if name not in shared),
        only_b=tuple(name for name in b.tensors if name not in shared),
        pictures=len(images),
        image_size=size,
        steps=tuple(steps),
        findings=tuple(findings),
        notes=(*_assumed(a, b), *(() if refusal else _notes(a, b, size, len(findings)))),
    )


def _assumed(a: "Checkpoint", b: "Checkpoint") -> Iterator[str]:
    """What the files left open; ours settled that when they were written."""
    for who, checkpoint in (("A", a), ("B", b)):
        if checkpoint.file_format != "vitrail":
            yield from (f"{who}: {note}" for note in checkpoint.notes)


def _notes(a: "Checkpoint", b: "Checkpoint", size: tuple[int, int], findings: int) -> tuple[str, ...]:
    """What the comparison does not show."""
    from vitrail.weights.divergence import MOST

    notes = ["there may be more differences: the search ended here"] if findings >= MOST else []
    for who, checkpoint in (("A", a), ("B", b)):
        own = checkpoint.config.image_size
        if own != size and checkpoint.config.positions.kind in ("learned", "axes"):
            notes.append(f"{who} is a model for {own[0]}×{own[1]} pixels: its positions were resampled")
    kernels = a.config.positions.resample, b.config.positions.resample
    if kernels[0] != kernels[1] and a.config.image_size == b.config.image_size == size:
        notes.append(
            f"for pictures of other sizes, A resamples its positions as {kernels[0]} does and B as {kernels[1]} does: "
            "compare that with `image_size=`"
        )
    if a.trust != b.trust:
        notes.append("their calibrations differ, and so may their probabilities; logits are compared here")
    return tuple(notes)
