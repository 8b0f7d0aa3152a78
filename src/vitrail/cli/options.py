"""Options that several verbs share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.errors import ConfigError

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

Runtime = Annotated[
    Literal["auto", "torch", "onnx", "openvino"],
    Parameter(
        help="What computes; auto: the fastest whose answers equal torch's, measured once if there is enough to do."
    ),
]
Precision = Annotated[
    Literal["float32", "bf16", "auto"],
    Parameter(
        help="The numbers to compute in; auto: bf16, or your int8 export of this model, if it is measured to be faster."
    ),
]

Classes = Annotated[
    Path | None,
    Parameter(
        name="--classes",
        help="A file with the names of the model's classes, one per line in the model's order, or JSON (index → name).",
    ),
]


@dataclass(frozen=True, kw_only=True)
class HintFlags:
    """What a foreign checkpoint may not say, or what the user knows better: `Hints`, as they are typed."""

    image_size: Annotated[
        str | None, Parameter(help="The size of the source's pictures, where the file does not tell (not square).")
    ] = None
    heads: Annotated[int | None, Parameter(help="Number of heads, where the file does not tell.")] = None
    pooling: Annotated[
        Literal["cls", "mean", "map"] | None, Parameter(help="Pooling, instead of what the keys suggest.")
    ] = None
    activation: Annotated[Literal["gelu", "gelu_tanh"] | None, Parameter(help="GELU, instead of the format's own.")] = (
        None
    )
    norm_eps: Annotated[float | None, Parameter(help="LayerNorm's epsilon, instead of the format's own.")] = None
    ema: Annotated[
        bool | None, Parameter(help="Of a torch file with both: take the moving average of the weights, or not.")
    ] = None
    attention_scale: Annotated[
        float | None, Parameter(help="What scores are multiplied with before the softmax, instead of 1 / √(head size).")
    ] = None


NO_HINTS = HintFlags()

Merge = Annotated[
    str | None,
    Parameter(
        help="Merge about this many similar patches away in each block, for speed, such as 8; or a number for each "
        "block, such as 8,8,4,4."
    ),
]


Preprocessing = Annotated[
    str | None,
    Parameter(
        help="For an ONNX file of another tool, how its pictures are prepared: google, timm, timm-imagenet, hf, "
        "torchvision, dinov2 or clip."
    ),
]


def read_merge(text: str | None) -> tuple[int, ...] | None:
    """The numbers of `--merge`."""
    if text is None:
        return None
    numbers = text.split(",")
    if not all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers):
        raise ConfigError(f"--merge must be a whole number, or one for each block such as 8,8,4,4; got {text!r}.")
    return tuple(map(int, numbers))
