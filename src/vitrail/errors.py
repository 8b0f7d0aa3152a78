"""Everything that vitrail raises for a user's mistake, and what it warns of.

VitrailError                     caught by the command line: one message, exit code 2
├── ConfigError                  a field or a combination of fields that cannot work
│   └── OutOfMemoryError         a model or a batch that does not fit into the memory of the device
├── InputError                   a picture, tensor or mask of the wrong kind or shape
│   └── SamplesError             an X or y that an estimator cannot use; a ValueError too, as scikit-learn expects
├── DataError                    a data set that is missing, broken or inconsistent
├── WeightsError                 a checkpoint that is damaged, unknown or does not fit
├── ExplanationError             an explanation without information: empty, constant or not a number
├── ResumableError               a training run that has stopped, or exists already, and can be continued
└── MissingExtraError            an optional dependency is needed but not installed

UserWarning
└── AssumptionWarning            a checkpoint left something open that a convention decided

A message states what must hold, what we got, and what to do. It marks arguments, `weights=`: Python reads weights=, the
command's user --weights. Our own broken invariants are `assert`s, not these.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Any

from vitrail.wording import word_arguments


class VitrailError(Exception):
    """Something the user can fix; `field` is the argument that it is about, if there is one."""

    def __init__(self, *details: Any, field: str = "") -> None:
        super().__init__(*((f"`{field}=` {details[0]}", *details[1:]) if field else details))
        self.field = field

    @property
    def message(self) -> str:
        """The text with its arguments marked, `weights=`: whoever shows it spells them as its reader does."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return word_arguments(self.message)


class ConfigError(VitrailError):
    """A field, or a combination of fields, that cannot work."""


class OutOfMemoryError(ConfigError):
    """A model or a batch that does not fit into the memory of the device."""


class InputError(VitrailError):
    """A picture, tensor or mask of the wrong kind or shape."""


class SamplesError(InputError, ValueError):
    """An X or y that an estimator cannot learn from or predict; scikit-learn expects a ValueError."""


class DataError(VitrailError):
    """A data set that is missing, broken or inconsistent."""


class WeightsError(VitrailError):
    """A checkpoint that is damaged, of an unknown kind, or does not fit the model."""


class ExplanationError(VitrailError):
    """An explanation without information: empty, constant or not a number."""


class ResumableError(VitrailError):
    """A training run that has stopped, or exists already, and can be continued from its folder."""

    def __init__(self, reason: str, folder: Path) -> None:
        super().__init__(reason, folder)  # so that it can be sent to other processes
        self.reason, self.folder = reason, folder
        self.how = f'vitrail.resume("{folder}")'

    @property
    def message(self) -> str:
        return f"{self.reason}; continue the run with {self.how}."


class MissingExtraError(VitrailError):
    """An optional dependency is needed but not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs an optional part of vitrail; run: pip install "vitrail[{extra}]"')


class AssumptionWarning(UserWarning):
    """A checkpoint left something open that a convention decided; `notes` lists it, one sentence each."""

    def __init__(self, source: str, notes: tuple[str, ...]) -> None:
        super().__init__(source, notes)
        self.source, self.notes = source, notes

    def __str__(self) -> str:
        return f"{self.source}: {'; '.join(self.notes)} (`hints=` settles most of these)"


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known ones, or all of them."""
    names = sorted(known)
    near = get_close_matches(name[:_LONGEST], names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}."


_LONGEST = 100  # characters of a value that a message quotes


class _ShortRepr(Repr):
    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 200:  # Python refuses to write out some of them
            return f"a whole number of about {x.bit_length() * 3 // 10:,} digits"
        return repr(x)


_short = _ShortRepr()
_short.maxlevel = 4
_short.maxdict = _short.maxlist = _short.maxtuple = _short.maxset = _short.maxfrozenset = 8
_short.maxstring = _short.maxother = _LONGEST


def shorten(value: Any) -> str:
    """A value as a message quotes it: its `repr`, cut off where it is long, wide or deep, in little time."""
    text = _short.repr(value)
    return text if len(text) <= 3 * _LONGEST else f"{text[: 3 * _LONGEST]}…"


def list_names(names: Sequence[str], most: int = 10) -> str:
    """Names as a message lists them: the first few, each no longer than a line."""
    some = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…" for name in names[:most]]
    return ", ".join(some) + (f" and {len(names) - most:,} more" if len(names) > most else "")
