"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail import schema

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

Runtime = Annotated[
    Literal["auto", "torch", "onnx", "openvino"],
    Parameter(
        help="What computes; auto: the fastest whose answers equal torch's, measured once if there is enough to do."
    ),
]
Precision = Annotated[
    Literal["float32", "bf16", "auto"],
    Parameter(help="Numbers to compute in; auto: bf16 where it is measured to be faster, and how well it agrees."),
]

Classes = Annotated[
    Path | None,
    Parameter(
        name="--classes",
        help="A file with the names of the model's classes, one per line in its order, or JSON (index → name).",
    ),
]

# What a foreign checkpoint may not say, or what the user knows better.
Heads = Annotated[int | None, Parameter(help="Number of heads, where the file does not tell.")]
Pooling = Annotated[Literal["cls", "mean", "map"] | None, Parameter(help="Pooling, instead of what the keys suggest.")]
Activation = Annotated[Literal["gelu", "gelu_tanh"] | None, Parameter(help="GELU, instead of the format's own.")]
AttentionScale = Annotated[
    float | None, Parameter(help="What scores are multiplied with before the softmax, instead of 1 / √(head size).")
]
NormEps = Annotated[float | None, Parameter(help="LayerNorm's epsilon, instead of the format's own.")]
Ema = Annotated[
    bool | None, Parameter(help="Of a torch file with both: take the moving average of the weights, or not.")
]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """The height and width that a `Size` option means."""
    return None if text is None else schema.parse_size(text)
