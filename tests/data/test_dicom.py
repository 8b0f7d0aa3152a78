"""DICOM files, written by pydicom, whose own functions are the oracle."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels.processing import apply_rescale
from pydicom.uid import (
    UID,
    CTImageStorage,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    JPEGLSLossless,
    generate_uid,
)

from fuzzing import attack, cases, damaged
from vitrail.data.preprocess import Preprocess, preset
from vitrail.data.transform import pixels
from vitrail.errors import InputError, MissingExtraError

SIDE = (20, 30)
CT = (-1000.0, 2000.0)


def spec_of(channels: int = 1, **changes: object) -> Preprocess:
    return replace(preset("timm", 16, channels), **{"value_range": CT, **changes})


def scan_of(dtype: str = "int16") -> np.ndarray:
    high = {"uint8": 256, "int16": 4096}[dtype]
    return np.random.default_rng(0).integers(0, high, SIDE).astype(dtype)


def make(values: np.ndarray, syntax: UID = ExplicitVRLittleEndian, **fields: object) -> FileDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid(entropy_srcs=["a"])
    meta.TransferSyntaxUID = syntax
    dataset = FileDataset("a.dcm", {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.Modality, dataset.PhotometricInterpretation = "CT", "MONOCHROME2"
    dataset.Rows, dataset.Columns = values.shape[:2]
    dataset.SamplesPerPixel = 1 if values.ndim == 2 else values.shape[2]
    dataset.BitsAllocated = dataset.BitsStored = 8 * values.dtype.itemsize
    dataset.HighBit, dataset.PixelRepresentation = dataset.BitsStored - 1, int(values.dtype.kind == "i")
    if values.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.PixelData = values.tobytes()
    for name, value in fields.items():
        setattr(dataset, name, value)
    return dataset


def encoded(dataset: FileDataset) -> bytes:
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def test_values_are_those_of_the_modality() -> None:
    dataset = make(scan_of(), RescaleSlope="1.5", RescaleIntercept="-1024", WindowCenter="40", WindowWidth="400")
    units = apply_rescale(dataset.pixel_array, dataset)
    expected = 255 * np.clip((units - CT[0]) / (CT[1] - CT[0]), 0, 1)
    assert np.allclose(pixels(encoded(dataset), spec_of()).numpy()[0], expected, atol=1e-3)
    assert pixels(encoded(dataset), spec_of(3)).shape == (3, *SIDE)
    dataset.PhotometricInterpretation = "MONOCHROME1"
    assert np.allclose(pixels(encoded(dataset), spec_of()).numpy()[0], 255 - expected, atol=1e-3)


def test_a_window_is_advice_and_is_not_used() -> None:
    dataset = make(
        scan_of(), RescaleSlope="1", RescaleIntercept="-1024", WindowCenter=[40, 300], WindowWidth=[400, 2000]
    )
    with pytest.raises(InputError, match=r"\(its window is -160 to 240\), and .* no `value_range`"):
        pixels(encoded(dataset), spec_of(value_range=None))


def test_eight_bits_need_no_range() -> None:
    values = scan_of("uint8")
    usual = spec_of(value_range=None)
    assert np.array_equal(pixels(encoded(make(values)), usual).numpy()[0], values)
    assert np.array_equal(pixels(encoded(make(values, RescaleSlope="1", RescaleIntercept="0")), usual)[0], values)
    inverted = make(values, PhotometricInterpretation="MONOCHROME1")
    assert np.array_equal(pixels(encoded(inverted), usual).numpy()[0], 255 - values)
    colours = np.stack([values, values // 2, 255 - values], axis=-1)
    data = encoded(make(colours, PhotometricInterpretation="RGB"))
    assert np.array_equal(pixels(data, Preprocess()).numpy(), colours.transpose(2, 0, 1))


def test_files_of_others() -> None:
    """A CT slice and an RLE-compressed MR slice that come with pydicom."""
    for name in ("CT_small.dcm", "MR_small_RLE.dcm"):
        path = get_testdata_file(name)
        dataset = pydicom.dcmread(path)
        units = apply_rescale(dataset.pixel_array, dataset)
        expected = 255 * np.clip((units - CT[0]) / (CT[1] - CT[0]), 0, 1)
        assert np.allclose(pixels(path, spec_of()).numpy()[0], expected, atol=1e-3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"NumberOfFrames": 7}, "has 7 frames"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR"),
        ({"Rows": 65535, "Columns": 65535}, "over the limit"),
        ({"Rows": 40}, "cannot be"),
        ({"PixelData": bytes(1 << 17)}, "more bytes of pixels than its 30×20 pixels"),
    ],
)
def test_what_cannot_be_read_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pixels(encoded(make(scan_of(), **fields)), spec_of())


def test_compressions_without_a_decoder_and_deflated_files() -> None:
    dataset = make(scan_of())
    dataset.PixelData = encapsulate([b"\xff\xd8 not really \xff\xd9"])
    dataset["PixelData"].is_undefined_length = True
    dataset.file_meta.TransferSyntaxUID = JPEGLSLossless
    with pytest.raises(InputError, match=r"its compression \(JPEG-LS Lossless.*\) cannot be decoded here"):
        pixels(encoded(dataset), spec_of())
    with pytest.raises(InputError, match="deflated as a whole"):
        pixels(encoded(make(scan_of(), DeflatedExplicitVRLittleEndian)), spec_of())


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(make(scan_of()))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingExtraError, match=r"vitrail\[dicom\]"):
        pixels(data, spec_of())


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore::UserWarning")  # pydicom's, about values
def test_damaged_files_are_refused() -> None:
    plain = encoded(make(scan_of(), RescaleSlope="1.5", RescaleIntercept="-1024"))
    packed = Path(str(get_testdata_file("MR_small_RLE.dcm"))).read_bytes()
    outcomes = attack(lambda data: pixels(data, spec_of()), damaged([plain, packed]), cases(60))
    assert outcomes["refused"]
