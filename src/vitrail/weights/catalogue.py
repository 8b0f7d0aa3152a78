"""The list of formats. A new one is a file of its own that defines a `ForeignFormat`, and two lines here.

Importing this loads no torch, so that the command's help can name the formats.
"""

from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from vitrail.weights.format import ForeignFormat

FormatName = Literal["vitrail", "google", "big_vision", "timm", "hf", "torchvision", "dinov2"]


@cache
def foreign_formats() -> "tuple[ForeignFormat, ...]":
    """Every format but our own."""
    from vitrail.weights import big_vision, dinov2, google, huggingface, timm, torchvision

    return (
        google.FORMAT,
        big_vision.FORMAT,
        timm.FORMAT,
        huggingface.FORMAT,
        torchvision.FORMAT,
        dinov2.FORMAT,
    )
