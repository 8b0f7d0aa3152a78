"""The pages of the documentation as the tests see them: their blocks, and what the comments before a block ask for.

Comments, which readers do not see, stand on a line of their own before the block:

    <!-- not run: REASON -->     what cannot run here (it needs the network, or hours)
    <!-- within 0.02 -->         the decimal numbers of this `text` block may differ by that much, or by `5 %`
    <!-- of real pictures -->    this `text` block is of pictures and weights that the tests replace by small ones:
                                 the words must be the same, and the numbers, classes and sets of classes need not be

A `text` block after a block that is run is what that block prints; a line `…` stands for any lines, and `…` at the end
of a line for any words.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
COMMENT = re.compile(r"<!-- (not run|within|of real pictures)(?::? ([^>]*?))? -->")
LABEL_SET = re.compile(r"\{[^{}\n]*\}")
# What only some pictures, epochs or runs have.
REMARK = re.compile(
    r"(;? ?0)? unlike anything seen in training(?=\n)| best(?=\n)|note: (no improvement|the adapters) .*\n"
)
MISTAKES = re.compile(r"NAME → NAME 0×(?:, NAME → NAME 0×)+")
DURATION = re.compile(r"\b0 (?:s|min|h)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int  # of its first line of text, counted from 1
    marks: dict[str, str] = field(default_factory=dict[str, str])  # kind of comment → what it says


def pages() -> list[Path]:
    """README.md and every page below docs/, by their paths in the repository."""
    return [Path("README.md"), *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    lines = iter(enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1))
    for number, line in lines:
        if line.startswith("```"):
            text = "".join(f"{inner}\n" for inner in iter(lambda: next(lines)[1], "```"))
            found.append(Block(line.removeprefix("```").strip(), text, number + 1, marks))
            marks = {}
        elif comment := COMMENT.fullmatch(line):
            marks = {**marks, comment[1]: comment[2] or ""}
        elif line.strip():
            marks = {}
    return found


def agree(printed: str, shown: str, within: str = "") -> bool:
    """Whether a program printed what its page shows: every word the same, every number as precise as it is written.

    Numbers with decimals may be one unit of their last digit apart, or `within` ("0.02", or "5 %" of the number).
    """
    if NUMBER.sub("0", _without_trailing_spaces(printed)) != NUMBER.sub("0", _without_trailing_spaces(shown)):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(_near(got, expected, within) for got, expected in pairs)


def agree_in_words(printed: str, shown: str, names: tuple[str, ...]) -> bool:
    """Whether a program printed the words of its page, whatever the numbers and whichever of the `names` they are."""
    pattern = "".join(_pattern(line) for line in _words(shown, names).splitlines())
    return re.fullmatch(pattern, _words(printed, names)) is not None


def _pattern(line: str) -> str:
    return "(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\n"


def _words(text: str, names: tuple[str, ...]) -> str:
    """Without numbers, units of time, names, the sizes of sets, columns, and remarks that only some lines have."""
    text = re.sub("|".join(map(re.escape, sorted(names, key=len, reverse=True))), "NAME", text)
    text = DURATION.sub("0 s", NUMBER.sub("0", text.replace(" – ", " 0 ")))
    text = re.sub(r"[ \t]+", " ", LABEL_SET.sub("{}", MISTAKES.sub("NAME → NAME 0×", text)))
    lines = (line.strip() for line in f"{text.strip()}\n".splitlines(keepends=False))
    return REMARK.sub("", "".join(f"{line}\n" for line in lines))


def _near(got: str, expected: str, within: str) -> bool:
    if not {".", "e"} & set(expected):  # a count
        return got == expected
    value, wanted = float(got.replace(",", "")), float(expected.replace(",", ""))
    if within.endswith("%"):
        allowed = float(within.removesuffix("%")) / 100 * abs(wanted)
    elif within:
        allowed = float(within)
    else:
        digits, _, exponent = expected.partition("e")
        allowed = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(value - wanted) <= allowed * 1.001


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
