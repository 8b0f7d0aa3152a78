"""What was measured once, kept in the user's cache: a file for each model, machine and installation."""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

from vitrail.cache import cache_folder, make_room
from vitrail.errors import VitrailError
from vitrail.files import atomic_path
from vitrail.reading import parse_json, read_bytes
from vitrail.runtimes.opening import Numbers, RuntimeName, label_of
from vitrail.schema import from_dict, to_dict
from vitrail.wording import counted

MOST_DECISIONS = 500
LARGEST = 64 * 1024  # bytes of one
WORTH = 1.05  # another runtime must be this much faster to be taken
WORTH_OTHER = 1.1  # and other numbers, which change the answers a little, this much


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one way to compute did."""

    runtime: RuntimeName
    precision: Numbers
    seconds: float = 0.0  # for one picture, when all cores are busy; 0 if there is a problem
    difference: float = 0.0  # the largest from float32 in torch, relative to the largest number
    top1: float = 1.0  # the share of `pictures` with the same class as in float32
    pictures: int = 0  # that were compared for `top1`
    export: str = ""  # of int8: the path of the export; `top1` is then what was measured when it was made
    problem: str = ""  # why it is not to be taken

    @property
    def label(self) -> str:
        return label_of(self.runtime, self.precision)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was measured for a key; the first outcome is what runs where nothing is measured."""

    key: str
    outcomes: tuple[Outcome, ...]

    @property
    def best(self) -> Outcome:
        """The fastest whose answers are the same; bf16 and int8 only if they gain more."""
        best = self.outcomes[0]
        for worth, precision in ((WORTH, best.precision), (WORTH_OTHER, "bf16"), (WORTH_OTHER, "int8")):
            usable = [each for each in self.outcomes if not each.problem and each.precision == precision]
            fastest = min(usable, key=lambda each: each.seconds, default=best)
            if worth * fastest.seconds <= best.seconds:
                best = fastest
        return best

    def describe(self) -> str:
        """One line for people: what is taken, and why."""
        best, plain = self.best, self.outcomes[0]
        if best is plain:
            others = [_compare(each, plain) for each in self.outcomes[1:]]
            return f"staying on {plain.label}; here {', '.join(others)} (measured)"
        text = f"running on {best.label}, {plain.seconds / best.seconds:.2f}× {plain.label} here (measured)"
        if best.export:
            text += f"; {best.export} gave {best.top1:.1%} of held-out pictures the same class as float32"
        elif best.precision == "bf16" and plain.precision != "bf16":
            same = f"the same class as in float32 for {best.top1:.0%} of {counted(best.pictures, 'picture')}"
            text += f"; {same if best.pictures else f'differs by up to {best.difference:.1e} of the largest number'}"
        return text


def _compare(outcome: Outcome, plain: Outcome) -> str:
    if outcome.problem:
        return f"{outcome.label} {outcome.problem}"
    return f"{outcome.label} gives {plain.seconds / outcome.seconds:.2f}×"


def read_decision(key: str) -> Decision | None:
    """What was measured for this key; anything odd in the file counts as nothing."""
    try:
        decision = from_dict(Decision, parse_json(read_bytes(_path(key), LARGEST)), "decision")
    except (VitrailError, OSError, ValueError, TypeError, OverflowError):
        return None
    good = [0 < each.seconds < math.inf or (each.problem and each.seconds == 0) for each in decision.outcomes]
    if decision.key != key or not decision.outcomes or decision.outcomes[0].problem or not all(good):
        return None
    return decision


def write_decision(decision: Decision) -> None:
    """Keep a decision; a cache that cannot be written keeps none."""
    path = _path(decision.key)
    try:
        make_room(path.parent, MOST_DECISIONS * LARGEST, MOST_DECISIONS - 1)
        with atomic_path(path) as draft:
            draft.write_text(json.dumps(to_dict(decision), indent=1, allow_nan=False), encoding="utf-8")
    except OSError:
        pass


def has_decisions() -> bool:
    """Whether there is any at all."""
    try:
        return any(decisions_folder().iterdir())
    except OSError:
        return False


def decisions_folder() -> Path:
    return cache_folder() / "decisions"


def _path(key: str) -> Path:
    return decisions_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
