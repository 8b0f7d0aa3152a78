"""`vitrail.average`: the mean of checkpoints of one model."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from vitrail.errors import ConfigError
from vitrail.progress import ending, table, working
from vitrail.weights.resolve import locate


@dataclass(frozen=True, kw_only=True)
class Average:
    """What was averaged, and where the mean is."""

    path: Path
    sources: tuple[str, ...]
    shares: tuple[float, ...]  # which sum to 1
    distances: tuple[float, ...]  # of each one's weights from the first one's, relative to the length of these
    notes: tuple[str, ...]
    has_head: bool = True

    exit_code = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        parts = zip(self.sources, self.shares, self.distances, strict=True)
        return {
            "path": str(self.path),
            "sources": [{"source": source, "share": share, "distance": far} for source, share, far in parts],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        parts = zip(self.sources, self.shares, self.distances, strict=True)
        rows = [(source, f"{share:.3f}", f"{far:.3f}") for source, share, far in parts]
        yield table(rows, "checkpoint", "share", "distance from the first")
        yield from (f"note: {note}" for note in self.notes)
        path = shlex.quote(str(self.path))
        labelled = f"vitrail train LABELLED_PICTURES --weights {path}"
        yield from ending([self.path], f"vitrail eval {path} DATA" if self.has_head else labelled)


def average(
    model: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    shares: Sequence[float] = (),
    overwrite: bool = False,
    progress: bool = False,
) -> Average:
    """Write the mean of the weights of several checkpoints of one model, as one of our files.

    The mean of models that were trained from the same start is often better than any of them. Config, classes (by
    name), task and preprocessing must be the same. What calibrations found does not hold for the mean, and is dropped.

    Args:
        model: Two or more checkpoints: files, run folders, hf://owner/name or google://NAME.
        out: The file to write, which ends in .safetensors.
        shares: How much each checkpoint counts, such as 1,2,1 [default: all the same].
        overwrite: Replace the file if it exists.
        progress: Show progress on the error stream.
    """
    sources = [model] if isinstance(model, str | Path) else list(model or ())
    if len(sources) < 2:
        raise ConfigError(f"a mean needs at least 2 checkpoints; got {len(sources)}; pass more of them.")
    if len(shares) not in (0, len(sources)) or not all(share > 0 and isfinite(share) for share in shares):
        raise ConfigError(
            f"must have one number above 0 for each of the {len(sources)} checkpoints; got "
            f"{', '.join(f'{share:g}' for share in shares)}.",
            field="shares",
        )
    if out is None or Path(out).suffix != ".safetensors":
        got = "; got " + str(out) if out is not None else ""
        raise ConfigError(f"must be the file to write, which ends in .safetensors{got}.", field="out")
    target = Path(out)
    if target.exists() and not overwrite:
        raise ConfigError(f"{target} exists; choose another `out=`, or pass `overwrite=True` to replace it.")
    located = [locate(source) for source in sources]
    from vitrail.weights.native import save_checkpoint
    from vitrail.weights.soup import mix_checkpoints

    numbers = list(shares) or [1.0] * len(sources)
    portions = tuple(number / sum(numbers) for number in numbers)
    with working("averaging", speaks=progress):
        soup = mix_checkpoints(located, portions)
        save_checkpoint(soup.checkpoint, target)
    command = f"vitrail calibrate {shlex.quote(str(target))} DATA"
    calibrate = f"calibrations do not carry over to the mean; calibrate it: {command}"
    return Average(
        path=target,
        sources=tuple(each.name for each in located),
        shares=portions,
        distances=soup.distances,
        has_head=soup.checkpoint.config.num_classes > 0,
        notes=(*soup.notes, *((calibrate,) if soup.checkpoint.config.num_classes else ())),
    )
