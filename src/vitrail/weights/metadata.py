"""What belongs to a model besides its weights: preprocessing, class names, origin, notes.

Needs no torch: exports are loaded without it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from vitrail.data.preprocess import Preprocess
from vitrail.errors import WeightsError
from vitrail.schema import IF_USED
from vitrail.tasks.familiarity import UNFAMILIAR_RATE
from vitrail.tasks.one import ONE, Scores, pick_labels, probabilities, restore_logits
from vitrail.tasks.task import Answer, Array, Task, Trust
from vitrail.untrusted import read_bytes
from vitrail.weights.resolve import FormatName
from vitrail.wording import counted, hint_path

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where weights came from, and what it takes to write the same file again."""

    format: FormatName = "vitrail"  # of the file that they were first read from
    dialect: dict[str, str] = field(default_factory=dict[str, str])  # spellings that vary within the format
    source: str = ""  # as the user named it
    sha256: dict[str, str] = field(default_factory=dict[str, str])  # file name → checksum of what was read
    outliers: bool = field(default=False, metadata=IF_USED)  # whether they were trained with some, to be unsure of them

    def dialect_of(self, format_name: FormatName) -> dict[str, str]:
        """The spellings to write a format with: those of the file, if the weights come from this format."""
        return self.dialect if self.format == format_name else {}


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What belongs to a model besides its weights, and goes with it to every file and every runtime."""

    preprocess: Preprocess
    classes: tuple[str, ...] | None = None  # names in the order of the logits; None: unknown
    file_format: FormatName = "vitrail"  # of the file that it was read from
    origin: Origin = field(default_factory=Origin)  # of the weights, however often they have been converted since
    notes: tuple[str, ...] = ()  # what the reader had to assume or choose; opening a foreign file warns about it
    remarks: tuple[str, ...] = ()  # other facts: spellings, what was left out, what the format implies
    trust: Trust | None = field(default=None, metadata=IF_USED)  # what a calibration found; None without one
    scores: Scores = field(default="softmax", metadata=IF_USED)  # what makes probabilities of logits without one
    task: Task = field(default=ONE, metadata=IF_USED)  # what the outputs mean; older files have one class per picture

    def label(self, index: int) -> str:
        """The name of a class; its number if the checkpoint has no names."""
        return self.classes[index] if self.classes else str(index)

    @property
    def suits_older_readers(self) -> bool:
        """Whether versions that know only one class per picture, and familiarity by distances, understand it."""
        known = None if self.trust is None else self.trust.familiarity
        marks_more = known is not None and known.unfamiliar_rate != UNFAMILIAR_RATE
        return self.task.kind == "one" and not self.is_unsure and not marks_more

    @property
    def is_unsure(self) -> bool:
        """Whether familiarity shows in the logits too: the model was trained with outliers, to be unsure of them."""
        known = None if self.trust is None else self.trust.familiarity
        return self.origin.outliers or (known is not None and known.usual is not None)

    @property
    def by_itself(self) -> bool:
        """Whether each label's probability is its own, as of models that were trained to match texts."""
        return self.trust is None and self.scores == "sigmoid"

    def probabilities(self, logits: Any) -> Array:
        """What the logits of pictures mean: (…, classes), each."""
        if self.by_itself:
            return probabilities(logits, None, self.scores)
        return self.task.probabilities(logits, self.trust)

    def graph(self, logits: "Tensor") -> "Tensor":
        """The same as a part of a graph."""
        return logits.sigmoid() if self.by_itself else self.task.graph(logits, self.trust)

    def restore(self, meanings: Any) -> Array:
        """Logits of which `probabilities` makes these."""
        if self.by_itself:
            return restore_logits(meanings, None, self.scores)
        return self.task.restore(meanings, self.trust)

    def answer(self, logits: Array, *, top_k: int, coverage: float | None) -> Answer:
        """What the logits (classes,) of one picture say."""
        names = self.classes or _numbers(len(logits))
        if self.by_itself:
            return pick_labels(self.probabilities(logits), names, None, top_k=top_k, coverage=coverage)
        return self.task.answer(logits, names, self.trust, top_k=top_k, coverage=coverage)

    def facts(self) -> dict[str, Any]:
        """These fields by name, without what a checkpoint or a predictor adds to them."""
        return {each.name: getattr(self, each.name) for each in fields(Metadata)}


@lru_cache(maxsize=8)
def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


F = TypeVar("F", bound=Metadata)
MAX_BYTES = 20 * 2**20
SHOWN = 3  # names in a message

ClassNames = Sequence[str] | str | Path  # the names in the order of the head, or the file that has them


def read_class_names(names: ClassNames) -> tuple[str, ...]:
    """The names in the order of the head; a file has one per line, or JSON: a list, or an object index → name."""
    if not isinstance(names, str | Path):
        return check_names(names, "the class names")
    path = Path(names)
    text = _read(path)
    if path.suffix.lower() == ".json":
        return check_names(_parse_json(path, text), str(path))
    lines = [line.strip() for line in text.rstrip().splitlines()]
    for number, line in enumerate(lines, start=1):
        if not line:
            raise WeightsError(f"{path} must have one class name per line; line {number} is empty.")
    return check_names(lines, str(path))


def name_classes(metadata: F, count: int, names: Sequence[str], where: str = "class_names") -> F:
    """The same with these names for its `count` classes, in the order of its head, which stays as it is."""
    old, new = metadata.classes, tuple(names)
    if len(new) != count:
        raise WeightsError(
            f"{where} must have one name for each class of the head: it has {counted(len(new), 'name')}, and the head "
            f"of {metadata.origin.source or 'the checkpoint'} has {counted(count, 'class')}."
        )
    if old is None or old == new:
        return replace(metadata, classes=new)
    if set(old) == set(new):
        raise WeightsError(
            f"{where} has the names that the checkpoint has, in another order: {_show(new)} instead of {_show(old)}; "
            "omit it, since the checkpoint has its own order."
        )
    note = f"the classes were renamed, in their order: {_show(old)} are now {_show(new)}"
    return replace(metadata, classes=new, notes=(*metadata.notes, note))


def _read(path: Path) -> str:
    if not path.exists():
        hint = hint_path(str(path))
        raise WeightsError(f"there is no file of class names {path}{f'; {hint}' if hint else '.'}")
    try:
        return read_bytes(path, MAX_BYTES, WeightsError).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WeightsError(f"{path} must be UTF-8 text with one class name per line, or JSON.") from error


def _parse_json(path: Path, text: str) -> list[Any]:
    try:
        facts: Any = json.loads(text, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON: {error}") from error
    if isinstance(facts, list):
        return cast("list[Any]", facts)
    if not isinstance(facts, Mapping):
        raise WeightsError(f"{path} must hold a list of class names, or an object from index to name.")
    return _order(path, cast("Mapping[str, Any]", facts))


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    facts = dict(pairs)
    if len(facts) != len(pairs):
        twice = next(key for key in facts if sum(other == key for other, _ in pairs) > 1)
        raise ValueError(f"the index {twice!r} is in it twice.")
    return facts


def _order(path: Path, facts: Mapping[str, Any]) -> list[Any]:
    """The values in the order of their indices, none of which may be missing."""
    wrong = [key for key in facts if not (key.isascii() and key.isdecimal() and str(int(key[:9])) == key)]
    if wrong:
        hint = "; swap names and indices" if all(type(value) is int for value in facts.values()) else ""
        raise WeightsError(f"{path} must map an index to a name, as in {{'0': 'cat'}}; got {wrong[0]!r}{hint}.")
    missing = [index for index in range(len(facts)) if str(index) not in facts]
    if missing:
        raise WeightsError(f"{path} must have every index from 0 to {len(facts) - 1}; {missing[0]} is missing.")
    return [facts[str(index)] for index in range(len(facts))]


def check_names(names: Sequence[Any], where: str) -> tuple[str, ...]:
    """The names, each of which must be one line of text, and no two the same."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or len(name.splitlines()) != 1:
            raise WeightsError(f"{where}: the name of class {index} must be one line of text; got {name!r}.")
        if name in first:
            raise WeightsError(f"{where}: the classes {first[name]} and {index} are both called {name!r}.")
        first[name] = index
    if not first:
        raise WeightsError(f"{where} must have at least one class name.")
    return tuple(names)


def _show(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
