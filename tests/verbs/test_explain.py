"""`vitrail.explain` does what the command does, on any device, and its results show and write themselves."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from accelerator import DEVICE, pretending
from fuzzing import in_fuzz_only
from vitrail import load
from vitrail.cli.main import main
from vitrail.errors import ConfigError, ExplanationError, InputError
from vitrail.explanation import METHODS
from vitrail.explanation.gallery import Explained, Explanations
from vitrail.verbs.explain import explain


def explain_one(model: Any, picture: Any, **options: Any) -> Explained:
    explained = explain(model, picture, method="rollout", **options)
    assert isinstance(explained, Explained)
    return explained


def files_of(folder: str) -> dict[str, object]:
    """File name → its bytes; of an archive of arrays, the arrays."""
    found: dict[str, object] = {}
    for path in sorted(Path(folder).iterdir()):
        if path.suffix == ".npz":
            found[path.name] = {name: values.tolist() for name, values in np.load(path).items()}
        else:
            found[path.name] = path.read_bytes()
    return found


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ([], {}),
        (
            ["--method", "attention", "--layers", "0,-1", "--heads", "3", "--score", "--target", "class 2"],
            {"method": "attention", "layers": [0, -1], "heads": [3], "score": True, "target": "class 2"},
        ),
    ],
)
def test_both_doors_write_the_same(
    flags: list[str], keywords: dict, save_model, photos, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("photos/broken.png").write_bytes(b"no picture")
    model = save_model()
    assert main(["explain", model, "photos", "--out", "command", "--json", *flags]) == 1
    told = json.loads(capsys.readouterr().out)
    explanations = explain(model, "photos", **keywords)
    assert isinstance(explanations, Explanations)
    assert len(explanations) == 3
    written = explanations.save("python")
    assert files_of("command") == files_of("python")
    assert [Path(path).name for path in told["written"]] == [path.name for path in written]
    assert told["failures"] == explanations.failures
    assert list(explanations.failures) == ["photos/broken.png"]
    assert told["method"] == explanations.method
    scores = [picture["faithfulness"] and picture["faithfulness"]["score"] for picture in told["pictures"]]
    assert scores == [explained.faithfulness and explained.faithfulness.score for explained in explanations]
    assert capsys.readouterr() == ("", ""), "Python is quiet"


def test_one_picture(save_model, photos) -> None:
    predictor = load(save_model())
    explained = explain(predictor, photos[0])
    assert isinstance(explained, Explained)
    assert explained.map.shape == (4, 4)
    assert explained.choice is not None
    assert explained.faithfulness == explained.choice.each[explained.method][0]
    assert explained.save("deep/why.png") == Path("deep/why.png")
    several = explain(predictor, [photos[0]])
    assert isinstance(several, Explanations)
    several.save("all")
    assert Path("deep/why.png").read_bytes() == Path("all/one-overlay.png").read_bytes()
    with Image.open(io.BytesIO(explained._repr_png_())) as shown:
        assert shown.size == explained.overlay.size
    with Image.open(io.BytesIO(several._repr_png_())) as shown:
        assert shown.width > 600
    assert several[0:1] == (several[0],)


def test_pictures_of_any_kind(save_model, photos) -> None:
    predictor = load(save_model())
    with Image.open(photos[0]) as image:
        opened = image.convert("RGB")
    array = np.asarray(opened)
    maps = [explain_one(predictor, kind).map for kind in (photos[0], Path(photos[0]), opened, array)]
    assert all(torch.equal(maps[0], other) for other in maps)
    several = explain(predictor, [opened, photos[1], array], method="rollout")
    assert isinstance(several, Explanations)
    assert [explained.stem for explained in several] == ["picture 0", "three", "picture 2"]
    stacked = explain(predictor, np.stack([array, array]), method="rollout")
    assert isinstance(stacked, Explanations)
    assert len(stacked) == 2


def test_a_large_overlay_is_small_in_a_notebook(save_model, inside) -> None:
    Image.new("RGB", (2000, 1000), "red").save("large.png")
    explained = explain_one(save_model(), "large.png")
    with Image.open(io.BytesIO(explained._repr_png_())) as shown:
        assert shown.size == (640, 320)
    assert explained.overlay.size == (2000, 1000)


@pytest.mark.parametrize(
    ("pictures", "keywords", "message"),
    [
        ("photos/none.png", {}, "no such picture"),
        ([], {}, "name at least one picture"),
        ("photos", {"method": "rolout"}, "did you mean rollout"),
        ("photos", {"target": "dog"}, "unknown class 'dog'"),
        ("photos", {"layers": [9]}, "layer must be between -3 and 2"),
        ("photos", {"device": "gpu"}, "cannot be used"),
        ("photos/broken.png", {}, "not a picture of a known format"),
        ("photos/broken.png", {"method": "rollout"}, "not a picture of a known format"),
        ([3], {}, "must be a path, bytes, PIL, array or tensor"),
        (3, {}, "a picture is a path"),
    ],
)
def test_mistakes(pictures, keywords: dict, message: str, save_model, photos) -> None:
    Path("photos/broken.png").write_bytes(b"no picture")
    with pytest.raises((ConfigError, InputError), match=message):
        explain(save_model(), pictures, **keywords)


def test_saving_where_nothing_can_be_saved(save_model, photos) -> None:
    explained = explain(save_model(), photos[0], method="rollout")
    with pytest.raises(ConfigError, match=r"such as why\.png"):
        explained.save("why")
    with pytest.raises(ConfigError, match="cannot be written"):
        explained.save(f"{photos[0]}/why.png")
    with pytest.raises(ConfigError, match="cannot be written there"):
        explain(save_model(), photos, method="rollout").save(photos[0])


def test_a_loaded_model_stays_where_it_is(save_model, photos) -> None:
    predictor = load(save_model())
    there = explain_one(predictor, photos[0], device="cpu")
    np.testing.assert_array_equal(there.map, explain_one(predictor, photos[0]).map)
    with pytest.raises(ConfigError, match="device= cannot change a loaded model"):
        explain(predictor, photos[0], device=DEVICE)


@in_fuzz_only
def test_on_a_device(save_model, photos) -> None:
    """A device without float64, whose tensors are no NumPy arrays: the same maps, up to rounding, and all files."""
    model = save_model()
    with pretending() as pretence:
        for method in METHODS:
            seen = pretence.seen
            on_device = explain(model, photos, method=method, score=True, device=DEVICE)
            assert pretence.seen > seen + 100, "it was computed on the device"
            on_device.save(f"device-{method}")
        explain(model, photos[0], device=DEVICE).save("why.png")
    for method in METHODS:
        explain(model, photos, method=method, score=True, device="cpu").save(f"cpu-{method}")
        assert files_of(f"device-{method}").keys() == files_of(f"cpu-{method}").keys()
        for stem in ("one", "two", "three"):
            maps = [np.load(f"{where}-{method}/{stem}.npz") for where in ("cpu", "device")]
            for name in ("map", "attention"):
                np.testing.assert_allclose(maps[0][name], maps[1][name], rtol=1e-4, atol=1e-5)


def test_the_command_takes_a_device(save_model, photos, capsys: pytest.CaptureFixture[str]) -> None:
    with pretending() as pretence:
        assert main(["explain", save_model(), *photos, "--method", "rollout", "--device", str(DEVICE)]) == 0
        assert pretence.seen > 100
    assert main(["explain", "model.safetensors", *photos, "--device", "gpu", "--out", "here"]) == 2
    assert "the device 'gpu' cannot be used" in capsys.readouterr().err
    assert not Path("here").exists()


def test_a_picture_without_information_is_an_error_of_its_own_kind(save_model, photos) -> None:
    untrained = load(save_model(), num_classes=3)  # whose new head is zero
    with pytest.raises(ExplanationError, match="gives every patch the same value"):
        explain(untrained, photos[0], method="relevance")
