"""What a checkpoint format is: a value that says how its files are told, read and written, and what they can hold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vitrail.model import ViTConfig
from vitrail.weights.catalogue import FormatName
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.holding import Holds, refusals
from vitrail.weights.infer import Hints, Raw


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format that we write.

    Attributes:
        suffixes: of its files; "" is a folder. The first one is the usual one.
        holds: what it can hold of a model like this one; None for everything.
        write: writes to a path that nobody reads yet, once everything is known to fit.
        how_to_load: the line with which its own users load what was written.
        self_describing: the suffixes of files that hold their preprocessing too.
        resamples: whether its own library takes pictures of another size than the model's positions are for.
    """

    name: FormatName
    suffixes: tuple[str, ...]
    holds: Callable[[ViTConfig], Holds] | None
    write: Callable[[Checkpoint, Path], None]
    how_to_load: Callable[[Checkpoint, Path], str] = lambda checkpoint, path: ""
    self_describing: tuple[str, ...] = ()
    resamples: Callable[[ViTConfig], bool] = lambda config: True

    def refusals(self, config: ViTConfig) -> list[str]:
        """Why the format cannot hold a model of this config; nothing where it can."""
        return [] if self.holds is None else refusals(config, self.holds(config))


@dataclass(frozen=True, kw_only=True)
class ForeignFormat(Format):
    """A format of somebody else's.

    Attributes:
        recognises: whether these are the keys of its files.
        read: the checkpoint in a file whose keys it recognises; hints settle what the file leaves open.
        family: whose mean and std its models were trained with (`data/preprocess.py`); None where they differ.
    """

    recognises: Callable[[Mapping[str, Tensor]], bool]
    read: Callable[[Raw, Hints], Checkpoint]
    family: str | None = None
