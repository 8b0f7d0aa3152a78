"""The spec itself: presets, checks, geometry, and its way through a checkpoint's header."""

import json
import subprocess
import sys

import pytest

from vitrail.data.preprocess import PRESETS, Preprocess, preset
from vitrail.errors import ConfigError
from vitrail.schema import from_dict, to_dict


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("size", [None, 384, (160, 224)])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_round_trip_through_json(name: str, size: int | tuple[int, int] | None, channels: int) -> None:
    spec = preset(name, size, channels)
    assert from_dict(Preprocess, json.loads(json.dumps(to_dict(spec)))) == spec
    assert len(spec.mean) == channels


def test_the_facts_of_the_families() -> None:
    assert (PRESETS["google"].resize, PRESETS["google"].antialias, PRESETS["google"].mean[0]) == ("squash", False, 0.5)
    assert preset("timm").resized(500, 400) == (310, 248)  # floor(224 / 0.9) = 248
    assert preset("timm", 384).resized(500, 400) == (480, 384)
    assert preset("torchvision").resized(300, 400) == (256, 341)  # torchvision truncates
    assert preset("hf").resized(300, 400) == (224, 224)
    assert preset("dinov2", 518).resized(1000, 1000) == (592, 592)  # keeps the 0.875


def test_corner_of_an_odd_margin() -> None:
    assert Preprocess(size=(2, 2)).corner(5, 7) == (2, 2)  # 1.5 and 2.5, half to even
    assert Preprocess(size=(2, 2), anchor="floor").corner(5, 7) == (1, 2)
    assert Preprocess(size=(2, 2), anchor="corner").corner(5, 7) == (0, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": (0, 4)}, "both at least 1"),
        ({"channels": 0, "mean": (), "std": ()}, "channels must be at least 1"),
        ({"channels": 1}, "mean must have one value per channel"),
        ({"std": (0.5, 0.0, 0.5)}, "std above 0"),
        ({"mean": (0.5, float("nan"), 0.5)}, "must be finite"),
        ({"crop": 0.0}, "crop must be above 0"),
        ({"resize_to": 256}, "goes with resize='shortest'"),
        ({"resize": "shortest", "anchor": "corner"}, "goes with resize='squash'"),
        ({"resize": "shortest", "resize_to": 256, "crop": 0.9}, "not both"),
        ({"resize": "shortest", "resize_to": 200}, "at least the size"),
        ({"antialias": False}, "always antialiases"),
        ({"interpolation": "lanczos", "kernel": "float"}, "needs kernel='pillow'"),
        ({"interpolation": "nearest_exact"}, "needs kernel='bytes' or 'float'"),
    ],
)
def test_settings_that_cannot_work(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocess(**fields)


def test_unknown_preset_suggests() -> None:
    with pytest.raises(ConfigError, match="did you mean torchvision"):
        preset("torchvison")


def test_configs_need_no_torch() -> None:
    names = "d.Preprocess, d.Augment, d.DataConfig, d.LoaderConfig"
    code = f"import sys, vitrail.data as d; {names}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
