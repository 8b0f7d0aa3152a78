"""Photographs and figures as encoded pictures of a page."""

from collections.abc import Callable
from io import BytesIO

from matplotlib.figure import Figure
from PIL import Image

from vitrail.drawing import DARK, LIGHT, Theme, any_script
from vitrail.report.page import TINY, Picture

PHOTO_SIDE, FIGURE_SIDE = 320, 1400  # pixels, at most
FIGURE_BYTES = 400_000  # a larger drawing becomes a JPEG
DPI = 140


def encode_photo(image: Image.Image, alt: str, caption: str = "") -> Picture:
    """A photograph, no longer than `PHOTO_SIDE`, as a JPEG; a tiny one without loss."""
    small = image.convert("RGB")
    small.thumbnail((PHOTO_SIDE, PHOTO_SIDE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    if max(small.size) <= TINY:
        small.save(buffer, "PNG", optimize=True)
    else:
        small.save(buffer, "JPEG", quality=82, optimize=True)
    return Picture(data=buffer.getvalue(), alt=alt, width=small.width, height=small.height, caption=caption)


def encode_figure(draw: Callable[[Theme], Figure], alt: str, caption: str = "") -> Picture:
    """A drawing for light and for dark pages, each as a PNG of few colours, or as a JPEG if that is still large."""
    light, size = _encode(draw(LIGHT))
    dark, _ = _encode(draw(DARK))
    return Picture(data=light, dark=dark, alt=alt, width=size[0], height=size[1], caption=caption)


def _encode(figure: Figure) -> tuple[bytes, tuple[int, int]]:
    buffer = BytesIO()
    with any_script(figure):
        figure.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.05, metadata={"Software": None})
    image = Image.open(buffer).convert("RGB")
    image.thumbnail((FIGURE_SIDE, FIGURE_SIDE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    if buffer.tell() > FIGURE_BYTES:
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=80, optimize=True)
    return buffer.getvalue(), image.size
