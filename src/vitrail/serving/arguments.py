"""The arguments in a request's address: known names only, each once, each of its own kind."""

import math
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from vitrail.errors import suggest
from vitrail.serving.problems import Problem

MOST = 20
LONGEST = 200


def read_arguments(request: Request, *known: str) -> dict[str, str]:
    """Name → text; a name that is unknown or there twice is an error."""
    try:
        pairs = parse_qsl(
            request.scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            max_num_fields=MOST,
            errors="strict",
        )
    except ValueError:
        raise Problem("invalid_argument", "the arguments in the address cannot be read.") from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            told = suggest(name[:50], known) if known else "this address takes none."
            raise Problem("invalid_argument", f"unknown argument {name[:50]!r}; {told}")
        if name in values:
            raise Problem("invalid_argument", f"{name} is given twice.")
        if len(value) > LONGEST:
            raise Problem("invalid_argument", f"{name} must have at most {LONGEST} characters.")
        values[name] = value
    return values


def read_share(name: str, value: str) -> float:
    """A share between 0 and 1."""
    try:
        share = float(value) if value.isascii() else math.nan
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise Problem("invalid_argument", f"{name} must be between 0 and 1; got {repr(value)[:50]}.")
    return share


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """A whole number within limits, as a number of JSON or as text."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdecimal() and len(digits) < 10:
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Problem(
            "invalid_argument",
            f"{name} must be a whole number from {least:,} to {most:,}; got {repr(value)[:50]}.",
        )
    return value
