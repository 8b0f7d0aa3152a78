"""What a checkpoint format is: a value that knows how to recognise, read and write its files, and what they hold."""

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
        suffixes: of its files, the usual one first; "" is a folder.
        holds: what it can hold of a model like this one; None for everything.
        write: writes to a temporary path, once everything is known to fit.
        how_to_load: the line of code with which users of its own library load the result.
        self_describing: the suffixes of files that hold their preprocessing too.
        resamples: whether its own library accepts pictures of another size than the model's positions.
    """

    name: FormatName
    suffixes: tuple[str, ...]
    holds: Callable[[ViTConfig], Holds] | None
    write: Callable[[Checkpoint, Path], None]
    how_to_load: Callable[[Checkpoint, Path], str] = lambda checkpoint, path: ""
    self_describing: tuple[str, ...] = ()
    resamples: Callable[[ViTConfig], bool] = lambda config: True

    def refusals(self, config: ViTConfig) -> list[str]:
        """Why the format cannot hold a model of this config; empty if it can."""
        return [] if self.holds is None else refusals(config, self.holds(config))


@dataclass(frozen=True, kw_only=True)
class ForeignFormat(Format):
    """Another project's format.

    Attributes:
        recognises: whether these are the keys of its files.
        read: the checkpoint in a file whose keys it recognises; hints settle what the file leaves open.
        family: whose mean and std its models were trained with (`data/preprocess.py`); None if they vary.
    """

    recognises: Callable[[Mapping[str, Tensor]], bool]
    read: Callable[[Raw, Hints], Checkpoint]
    family: str | None = None
