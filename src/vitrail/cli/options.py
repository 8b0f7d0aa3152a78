"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail import schema

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON instead of a table, for programs.")]
Raw = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Write the cells of CSV files unchanged, for programs. By default, a cell that a spreadsheet would take "
        "for a formula gets a leading apostrophe, and control characters are spelled out.",
    ),
]
Size = str | None  # 384, or HEIGHTxWIDTH such as 224x320
Device = Annotated[str, Parameter(help="Where to compute: auto, cpu, cuda, cuda:1, mps, …")]

Classes = Annotated[
    Path | None,
    Parameter(
        name="--classes",
        help="A file with the names of the model's classes, one per line in the model's order, or JSON (index → name).",
    ),
]

# What a foreign checkpoint may leave open, or what the user knows better.
Heads = Annotated[int | None, Parameter(help="Number of attention heads, if the file does not state it.")]
Pooling = Annotated[Literal["cls", "mean", "map"] | None, Parameter(help="Pooling, instead of what the keys suggest.")]
Activation = Annotated[Literal["gelu", "gelu_tanh"] | None, Parameter(help="GELU's form, instead of the format's own.")]
AttentionScale = Annotated[
    float | None, Parameter(help="The factor on attention scores before the softmax, instead of 1 / √(head size).")
]
NormEps = Annotated[float | None, Parameter(help="LayerNorm's epsilon, instead of the format's own.")]
Ema = Annotated[
    bool | None, Parameter(help="For a torch file with both: use the moving average of the weights, or the weights.")
]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """The height and width that a `Size` stands for."""
    return None if text is None else schema.parse_size(text)
