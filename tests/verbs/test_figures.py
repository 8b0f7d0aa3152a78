"""`vitrail.figures` draws what the command draws, on any device."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from accelerator import DEVICE, pretending
from fuzzing import in_fuzz_only
from shortcuts import leave_blank
from vitrail import load
from vitrail.cli.main import main
from vitrail.errors import ConfigError, InputError
from vitrail.model import ConvStem, PositionConfig, Rope
from vitrail.verbs.explain import figures

NAMES = ["filters", "positions", "distance", "attention"]


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.mark.draws
def test_both_doors_draw_the_same(save_model, photos, capsys: pytest.CaptureFixture[str]) -> None:
    Path("photos/broken.png").write_bytes(b"no picture")
    model = save_model()
    assert main(["figures", model, "photos", "--out", "command", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    drawn = figures(model, "python", "photos")
    assert contents("command") == contents("python")
    assert [path.name for path in drawn.written] == [f"{name}.{kind}" for name in NAMES for kind in ("pdf", "png")]
    assert [Path(path).name for path in told["written"]] == [path.name for path in drawn.written]
    assert list(drawn.failures) == ["photos/broken.png"]
    assert len(told["notes"]) == 1
    assert told["notes"][0].startswith("left out photos/broken.png")
    assert capsys.readouterr() == ("", ""), "Python is quiet"


def test_without_pictures(save_model) -> None:
    drawn = figures(load(save_model(positions=PositionConfig(kind="none"))), "out")
    assert [path.stem for path in drawn.written if path.suffix == ".png"] == ["filters", "distance", "attention"]
    assert "two photographs" in drawn.notes[0]
    assert "no figure of position embeddings: this model has no positions" in drawn.notes[1]
    rotary = figures(load(save_model(positions=PositionConfig(kind="none"), relative=Rope())), "out2")
    assert "this model has rotary positions" in rotary.notes[1]


def test_mistakes_are_found_before_a_folder_is_made(save_model, photos) -> None:
    Path("photos/broken.png").write_bytes(b"no picture")
    model = save_model()
    for pictures, message in (("nothing.png", "no such picture"), ("photos/broken.png", "no picture could be read")):
        with pytest.raises((InputError, ConfigError), match=message):
            figures(model, "out", pictures)
    assert not Path("out").exists()
    with pytest.raises(ConfigError, match="must be a folder"):
        figures("no model at all", photos[0])


@in_fuzz_only
@pytest.mark.draws
@pytest.mark.parametrize(
    "changes",
    [{}, {"positions": PositionConfig(kind="sincos")}, {"stem": ConvStem(widths=(8, 16), strides=(2, 2))}],
    ids=["learned", "sincos", "conv stem"],
)
def test_on_a_device(changes: dict, save_model, photos, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_blank(monkeypatch, only_pdf=True)
    model = save_model(**changes, **({"patch_size": (2, 2)} if "stem" in changes else {}))
    figures(model, "cpu", photos, device="cpu")
    with pretending() as pretence:
        assert main(["figures", model, *photos, "--device", str(DEVICE), "--out", "device"]) == 0
        assert pretence.seen > 50
    for name in NAMES:
        pixels = []
        for folder in ("cpu", "device"):
            with Image.open(f"{folder}/{name}.png") as image:
                pixels.append(np.asarray(image.convert("RGB")).astype(int))
        assert np.abs(pixels[0] - pixels[1]).mean() < 0.5, name


def test_a_full_disk_leaves_no_half_written_figure(save_model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    model = save_model()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail)
        with pytest.raises(ConfigError, match="the figures cannot be written there"):
            figures(model, "drawn")
    assert not list(Path("drawn").iterdir())
