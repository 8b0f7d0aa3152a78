"""Options that several verbs share."""

import re
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.errors import ConfigError

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON for machines instead of a table.")]
Raw = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Write the cells of CSV files as they are, for programs: without it, what a spreadsheet would take for a "
        "formula gets a leading apostrophe, and control characters are spelled out.",
    ),
]
Size = Annotated[str | None, Parameter(help="Pixels: 384, or HEIGHTxWIDTH such as 224x320.")]
Device = Annotated[str, Parameter(help="Where to compute: auto, cpu, cuda, cuda:1, mps, …")]

# What a foreign checkpoint may not say, or what the user knows better.
Heads = Annotated[int | None, Parameter(help="Number of heads, where the file does not tell.")]
Pooling = Annotated[Literal["cls", "mean", "map"] | None, Parameter(help="Pooling, instead of what the keys suggest.")]
Activation = Annotated[Literal["gelu", "gelu_tanh"] | None, Parameter(help="GELU, instead of the format's own.")]
NormEps = Annotated[float | None, Parameter(help="LayerNorm's epsilon, instead of the format's own.")]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """The height and width that a `Size` option means."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+(x\d+)?", text):
        raise ConfigError(f"a size must be one number or HEIGHTxWIDTH, such as 384 or 224x320; got {text!r}.")
    height, _, width = text.partition("x")
    return int(height), int(width or height)
