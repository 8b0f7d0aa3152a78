"""What belongs to a model beside its weights. Needs no torch: exports are loaded without it."""

from dataclasses import dataclass, field, fields
from typing import Any

from vitrail.data.preprocess import Preprocess
from vitrail.schema import IF_USED
from vitrail.weights.catalogue import FormatName
from vitrail.weights.trust import Trust


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where weights came from, and what it takes to write the same file again."""

    format: FormatName = "vitrail"  # of the file that they were first read from
    dialect: dict[str, str] = field(default_factory=dict[str, str])  # spellings that vary within the format
    source: str = ""  # as the user named it
    sha256: dict[str, str] = field(default_factory=dict[str, str])  # file name → checksum of what was read


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What belongs to a model besides its weights, and goes with it to every file and every runtime."""

    preprocess: Preprocess
    classes: tuple[str, ...] | None = None  # names in the order of the logits; None: unknown
    file_format: FormatName = "vitrail"  # of the file that it was read from
    origin: Origin = field(default_factory=Origin)  # of the weights, however often they have been converted since
    notes: tuple[str, ...] = ()  # what the reader had to assume or choose; opening a foreign file warns about it
    remarks: tuple[str, ...] = ()  # other facts: spellings, what was left out, what the format implies
    trust: Trust | None = field(default=None, metadata=IF_USED)  # what a calibration found; None without one

    def label(self, index: int) -> str:
        """The name of a class; its number if the checkpoint has no names."""
        return self.classes[index] if self.classes else str(index)

    def facts(self) -> dict[str, Any]:
        """These fields by name, without what a checkpoint or a predictor adds to them."""
        return {each.name: getattr(self, each.name) for each in fields(Facts)}
