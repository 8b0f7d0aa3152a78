"""What is found out about deep pictures before training."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.depth import check_channels, observe_depth, refuse_unknown_range
from vitrail.data.source import FileSource
from vitrail.errors import ConfigError


def source_of(folder: Path, arrays: list[np.ndarray]) -> FileSource:
    names = [f"{number}.npy" for number in range(len(arrays))]
    for name, array in zip(names, arrays, strict=True):
        np.save(folder / name, array)
    return FileSource(names, np.zeros(len(names), dtype=np.int64), folder)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "expected"),
    [
        (3, 700, "uint16", (0, 1023)),
        (3, 4095, "uint16", (0, 4095)),
        (3, 4096, "uint16", (0, 16383)),
        (0, 65535, "uint16", (0, 65535)),
        (-1000, 400, "int16", (-1000, 400)),
        (0.25, 0.75, "float32", (0.25, 0.75)),
        (5, 5, "float32", (5, 6)),
    ],
)
def test_a_range_is_suggested(
    low: float, high: float, dtype: str, expected: tuple[float, float], tmp_path: Path
) -> None:
    array = np.full((8, 9, 5), low).astype(dtype)
    array[2, 3, 1] = high
    depth = observe_depth(source_of(tmp_path, [array, array]), 5)
    assert depth is not None
    assert (depth.low, depth.high, depth.num_deep, depth.suggested_range) == (low, high, 2, expected)
    with pytest.raises(
        ConfigError, match=f"2 of 2 pictures that were looked at have .*value_range=\\({expected[0]:g}, "
    ):
        refuse_unknown_range(depth, "data")
    with pytest.raises(ConfigError, match="5 channels, and the model 3; pass channels=5"):
        check_channels(depth, "data", 3)


def test_usual_pictures_need_nothing(tmp_path: Path) -> None:
    for number, mode in enumerate(("RGB", "L", "RGBA", "1")):
        Image.new(mode, (9, 8)).save(tmp_path / f"{number}.png")
    (tmp_path / "4.png").write_text("broken")
    source = FileSource([f"{number}.png" for number in range(5)], np.zeros(5, dtype=np.int64), tmp_path)
    depth = observe_depth(source)
    assert depth is not None
    assert depth.num_deep == 0
    refuse_unknown_range(depth, "data")
    check_channels(depth, "data", 3)
