"""`vitrail.convert` and the command write the same bytes; unknown names are answered before anything is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from vitrail.cli.main import main
from vitrail.errors import ConfigError, VitrailError, WeightsError
from vitrail.verbs.convert import convert

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.AssumptionWarning")
FIXTURE = Path(__file__).parents[1] / "weights" / "fixtures" / "google_token.npz"
CLASSES = tuple("abcdefg")

CASES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("a.safetensors", [], {}),
    ("a.safetensors", ["--to", "timm", "--activation", "gelu"], {"format": "timm", "activation": "gelu"}),
    ("folder", ["--to", "hf"], {"format": "hf"}),
    (
        "a.safetensors",
        ["--resize", "48x64", "--resample", "timm", "--channels", "1", "--dtype", "float16"],
        {"resize": (48, 64), "resample": "timm", "channels": 1, "dtype": "float16"},
    ),
    ("a.safetensors", ["--num-classes", "3", "--attention-scale", "0.3"], {"num_classes": 3, "attention_scale": 0.3}),
    ("a.safetensors", ["--from", "google", "--image-size", "32"], {"source_format": "google", "image_size": 32}),
    ("a.npz", ["--to", "big_vision", "--fold-class-position"], {"format": "big_vision", "fold_class_position": True}),
    ("a.safetensors", ["--compute-periods"], {"compute_periods": True}),
    ("a.safetensors", ["--class-names", "CLASSES"], {"class_names": CLASSES}),
]


@pytest.mark.parametrize(("name", "flags", "arguments"), CASES)
def test_both_doors_write_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, flags: list[str], arguments: dict[str, Any]
) -> None:
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    flags = [str(tmp_path / "classes.txt") if flag == "CLASSES" else flag for flag in flags]
    by_command, by_python = tmp_path / "command" / name, tmp_path / "python" / name
    for target in (by_command, by_python):
        target.parent.mkdir()
    assert main(["convert", str(FIXTURE), str(by_command), *flags, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    conversion = convert(FIXTURE, by_python, **arguments)
    assert capsys.readouterr() == ("", "")
    assert _contents(by_command) == _contents(by_python)
    assert printed["agreement"]["difference"] == conversion.agreement.difference
    assert tuple(printed["notes"]) == conversion.notes


def _contents(target: Path) -> dict[str, bytes]:
    if target.suffix == ".npz":  # the archive holds the time at which it was written
        import numpy as np

        with np.load(target) as arrays:
            return {key: arrays[key].tobytes() for key in arrays}
    files = sorted(target.iterdir()) if target.is_dir() else [target]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"head": 3}, ConfigError, "convert has no setting 'head'; did you mean heads"),
        ({"overwrit": True}, ConfigError, "convert has no setting 'overwrit'; did you mean overwrite"),
        ({"dtype": "float8"}, ConfigError, "dtype must be one of float32, float16, bfloat16; got 'float8'"),
        ({"resize": "3 x 4"}, ConfigError, "resize must be one number or HEIGHTxWIDTH"),
        ({"format": "tim"}, WeightsError, "unknown format 'tim'; did you mean timm"),
        ({"source_format": "googel"}, WeightsError, "unknown format 'googel'; did you mean google"),
        ({"class_names": "nowhere.txt"}, WeightsError, "there is no file of class names nowhere.txt"),
        ({"pictures": ["nowhere.jpg"]}, VitrailError, "nowhere.jpg"),
        ({"format": "timm"}, WeightsError, "exists; choose another name, or pass overwrite= to replace it"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    tmp_path: Path, arguments: dict[str, Any], error: type[VitrailError], message: str
) -> None:
    target = tmp_path / "a.safetensors"
    if "exists" in message:
        target.write_text("precious")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(error, match=message):
        convert(FIXTURE, target, **arguments)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_format_of_no_name_is_answered_before_the_source_is_read(tmp_path: Path) -> None:
    (tmp_path / "damaged.npz").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="unknown format 'tim'"):
        convert(tmp_path / "damaged.npz", tmp_path / "a.pth", "tim")  # pyright: ignore
    with pytest.raises(WeightsError, match="a torchvision checkpoint must have .pth"):
        convert(tmp_path / "damaged.npz", tmp_path / "a.npz", "torchvision")
