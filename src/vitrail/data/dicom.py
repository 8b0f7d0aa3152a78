"""DICOM files, by pydicom: one frame of grey levels or RGB.

Values are those of the modality (Hounsfield units for CT): the stored ones by the file's rescale slope and intercept. A
window in the file is advice for a viewer, and differs from file to file; it is named in the error, and never used.
"""

import io
import math
from importlib.util import find_spec
from typing import IO, Any

import numpy as np

from vitrail.data.rasters import BYTES_OF_A_PIXEL, Raster, check_size
from vitrail.errors import InputError, MissingExtraError
from vitrail.wording import counted, reason

DEFLATED = b"1.2.840.10008.1.2.1.99"  # which would be inflated, however long, before its header can be read
GREY = ("MONOCHROME1", "MONOCHROME2")
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")


def read_dicom(file: IO[bytes], _: int | None, limit: int, name: str) -> Raster:
    """The one picture of a file; the header is judged before a pixel is decoded."""
    if find_spec("pydicom") is None:
        raise MissingExtraError("reading DICOM", "dicom")
    if file.seek(0, io.SEEK_END) > BYTES_OF_A_PIXEL * limit:
        raise InputError(f"{name}: the file has {file.tell():,} bytes, over the limit of {BYTES_OF_A_PIXEL * limit:,}.")
    file.seek(0)
    if DEFLATED in file.read():
        raise InputError(f"{name}: is deflated as a whole, which is not read; save it uncompressed.")
    file.seek(0)
    try:
        return _read(file, limit, name)
    except (InputError, MissingExtraError):
        raise
    except Exception as error:  # pydicom may raise anything on hostile bytes
        raise InputError(f"{name}: cannot be read as DICOM ({reason(error)}).") from error


def _read(file: IO[bytes], limit: int, name: str) -> Raster:
    import pydicom
    from pydicom.pixels.processing import apply_modality_lut
    from pydicom.pixels.utils import pixel_array

    dataset: Any = pydicom.dcmread(file)
    if "PixelData" not in dataset:
        raise InputError(f"{name}: has no pixels (PixelData); leave it out.")
    if (frames := int(dataset.get("NumberOfFrames") or 1)) != 1:
        raise InputError(f"{name}: has {counted(frames, 'frame')}; save the one that counts, or each as a file.")
    colours = str(dataset.PhotometricInterpretation)
    if colours not in (*GREY, *COLOURS):
        raise InputError(f"{name}: its colours ({colours[:50]}) cannot be read; save it as MONOCHROME2 or RGB.")
    shape = (int(dataset.get("SamplesPerPixel", 1)), int(dataset.Rows), int(dataset.Columns))
    size = max(int(dataset.BitsAllocated) // 8, 1)
    check_size(shape, size, limit, name)
    if len(dataset.PixelData) > 2 * math.prod(shape) * size + (1 << 16):  # run lengths could become 64 times as many
        raise InputError(f"{name}: has more bytes of pixels than its {shape[2]}×{shape[1]} pixels take.")
    try:
        values: Any = pixel_array(dataset)
    except (RuntimeError, NotImplementedError) as error:
        syntax = dataset.file_meta.TransferSyntaxUID.name
        raise InputError(
            f"{name}: its compression ({syntax}) cannot be decoded here ({reason(error)}); install a plugin of "
            "pydicom, such as pylibjpeg, or save it uncompressed."
        ) from error
    hint = ""
    if colours in GREY:
        plain = "ModalityLUTSequence" not in dataset and _rescale(dataset) == (1, 0)
        values, hint = values if plain else apply_modality_lut(values, dataset), _hint(dataset)
    values = np.asarray(values)
    return Raster(
        values[None] if values.ndim == 2 else values.transpose(2, 0, 1), inverted=colours == GREY[0], hint=hint
    )


def _rescale(dataset: Any) -> tuple[float, float]:
    return float(dataset.get("RescaleSlope", 1)), float(dataset.get("RescaleIntercept", 0))


def _hint(dataset: Any) -> str:
    """What the file says about its range: the window for a viewer."""
    if "WindowCenter" not in dataset or "WindowWidth" not in dataset:
        return ""
    numbers = (np.asarray(dataset[tag].value, dtype=float) for tag in ("WindowCenter", "WindowWidth"))
    center, width = (float(np.atleast_1d(number)[0]) for number in numbers)  # of several windows, the first
    return f" (its window is {center - width / 2:g} to {center + width / 2:g})"
