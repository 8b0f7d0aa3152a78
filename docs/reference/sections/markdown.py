"""Markdown that reads well as text, too."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain

WIDTH = 120


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars within cells are escaped."""
    lines = [list(heads), ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def code(text: str) -> str:
    """Text as code."""
    return f"`{text}`"


def link(name: str, page: str = "") -> str:
    """A link to the heading of that name, as GitHub and the site name its anchor."""
    return f"[{name}]({page}#{re.sub(r'[^a-z0-9_ -]', '', name.lower()).replace(' ', '-')})"


def listed(items: Sequence[str], last: str = "or") -> str:
    """Items as a sentence lists them."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def sentence(text: str) -> str:
    """With a capital letter, unless it starts with code or a name of mixed case, and a full stop."""
    first = text.split(" ", 1)[0].rstrip(";")
    text = text[:1].upper() + text[1:] if first.islower() and first.isalpha() else text
    return text if not text or text.endswith((".", "?", "…")) else f"{text}."


def protected(text: str) -> str:
    """Text that Markdown shows as it is: paths with stars, dollars, brackets before brackets."""
    return re.sub(r"([*$<]|\[(?=[^\]]*\]))", r"\\\1", text)


def wrapped(text: str) -> str:
    """A paragraph in lines of the usual length, broken between words."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def joined(*parts: Iterable[str]) -> str:
    """Blocks with an empty line between them."""
    return "\n\n".join(part for part in chain(*parts) if part)
