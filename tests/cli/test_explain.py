"""`vitrail explain` and `vitrail figures` from the outside."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.conftest import picture

from vitrail.cli.main import main
from vitrail.data.preprocess import Preprocess
from vitrail.explanation.faithfulness import CANDIDATES
from vitrail.explanation.gallery import unique_stems
from vitrail.model import ConvStem, PositionConfig, ViT
from vitrail.weights import resolve
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "BUNDLED_FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def save(make_model) -> Any:
    def save_model(name: str = "model.safetensors", spec: Preprocess | None = None, **changes: Any) -> str:
        model: ViT = make_model(**changes)
        classes = tuple(f"class [{index}]" for index in range(model.config.num_classes)) or None
        spec = spec or Preprocess(size=model.config.image_size)
        checkpoint = Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=spec, classes=classes)
        save_checkpoint(checkpoint, name)
        return name

    return save_model


@pytest.fixture
def photos() -> Path:
    for name, size in (("a/one.png", (300, 260)), ("b/one.png", (240, 400)), ("b/two.jpg", (64, 40))):
        Path(name).parent.mkdir(exist_ok=True)
        picture(len(name), size).save(name)
    return Path()


def test_explain_writes_all_pictures(save, photos, capsys: pytest.CaptureFixture[str]) -> None:
    model = save(spec=Preprocess(size=(32, 32), resize="shortest", crop=0.9))
    assert main(["explain", model, "a", "b/*.png", "b/two.jpg"]) == 0
    printed = capsys.readouterr().out
    for text in ("class [", "one.png", "two.jpg", "deletion", "random", "auto chose ", "runs/explain-1/sheet.png"):
        assert text in printed
    assert "next: vitrail figures model.safetensors a/one.png" in printed
    folder = Path("runs/explain-1")
    kinds = ("-heads.png", "-layers.png", "-overlay.png", ".npz")
    expected = {f"{name}{kind}" for name in ("one", "one-2", "two") for kind in kinds}
    assert {path.name for path in folder.iterdir()} == expected | {"sheet.png"}
    with Image.open(folder / "one-overlay.png") as image:
        assert image.size == (300, 260)
    with Image.open(folder / "one-2-overlay.png") as image:
        assert image.size == (240, 400)
    with Image.open(folder / "sheet.png") as image:
        assert image.width > 1000
    maps = np.load(folder / "one.npz")
    assert maps["map"].shape == (4, 4)
    assert maps["attention"].shape == (3, 4, 4, 4)
    assert maps["picture"].tolist() == [260, 300]
    assert maps["view"] == pytest.approx([13, 33, 234, 234], abs=9)


def test_json_and_choices(save, photos, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", save(), "a/one.png", "--method", "attention", "--layers", "0,-1", "--heads", "3"]
    assert main([*command, "--target", "class [2]", "--score", "--out", "here", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["method"] == "attention"
    (entry,) = result["pictures"]
    assert entry["target"] == "class [2]"
    assert set(entry["faithfulness"]) == {"deletion", "insertion", "score"}
    assert all(Path(path).is_file() for path in result["written"])
    maps = np.load("here/one.npz")
    assert np.allclose(maps["map"], maps["attention"][[0, 2], 3].mean(axis=0), atol=1e-6)
    assert maps["target"] == 2


def test_auto_in_json_lists_the_methods(save, photos, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", save(), "a/one.png", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["methods"]) == {*CANDIDATES, "random"}
    best = max(
        (name for name in result["methods"] if name != "random"), key=lambda name: result["methods"][name]["score"]
    )
    assert result["method"] == best


def test_a_broken_picture_does_not_cost_the_others(save, photos, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a/broken.png").write_bytes(b"no picture")
    assert main(["explain", save(), "a", "--method", "rollout"]) == 1
    printed = capsys.readouterr().out
    assert "not explained" in printed
    assert "not a picture of a known format" in printed
    assert Path("runs/explain-1/one-overlay.png").is_file()


def test_explanations_that_say_nothing_are_no_pictures(save, photos, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", save(image_size=(32, 32), patch_size=(32, 32)), "a", "--method", "rollout"]) == 2
    assert "single patch" in capsys.readouterr().err
    assert not list(Path("runs").rglob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a/one.png"], "name at least one picture"),
        (["a/one.png", "nothing.jpg"], "no such picture"),
        (["a/one.png", "none*.jpg"], "no picture matches this pattern"),
        (["a/one.png", "a", "--layers", "x"], "layers must be whole numbers"),
        (["a/one.png", "a", "--method", "attention", "--heads", "9"], "head must be between -4 and 3"),
        (["a/one.png", "a", "--method", "rolout"], "rollout"),
        (["a/one.png", "a", "--target", "dog"], "unknown class 'dog'"),
        (["a/one.png", "nothing.jpg", "--out", "a/one.png"], "must be a folder"),
    ],
)
def test_mistakes_exit_with_2(
    arguments: list[str], message: str, save, photos, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", save(), *arguments[1:]]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--target", "dog"], ["--layers", "99"], ["--heads", "9"]])
@pytest.mark.parametrize("method", ["auto", "rollout"])
def test_mistakes_are_found_before_a_folder_is_made(more: list[str], method: str, save, photos) -> None:
    assert main(["explain", save(), "a", "--method", method, "--out", "here", *more]) == 2
    assert not Path("here").exists()


@pytest.mark.draws
def test_names_of_any_length_and_letters(save, capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd").mkdir()
    for name in ("long" * 60, "red\033[31m"):
        picture(1, (40, 40)).save(f"odd/{name}.png")
    assert main(["explain", save(), "odd", "--method", "rollout", "--out", "here"]) == 0
    assert "\033" not in capsys.readouterr().out
    assert len(list(Path("here").glob("long*-overlay.png"))) == 1
    assert main(["figures", "model.safetensors", "odd", "--out", "there"]) == 0
    assert "\033" not in capsys.readouterr().out


def test_a_narrow_picture_is_not_blown_up(save) -> None:
    Path("narrow").mkdir()
    picture(1, (4000, 2)).save("narrow/line.png")
    assert main(["explain", save(), "narrow", "--method", "rollout", "--out", "here"]) == 0
    with Image.open("here/line-overlay.png") as image:
        assert image.width * image.height <= 4_000_000
        assert image.width % 4000 == 0


def test_commands_to_go_on_with_can_be_pasted(save, capsys: pytest.CaptureFixture[str]) -> None:
    picture(1, (40, 40)).save("my cat.png")
    assert main(["explain", save(), "my cat.png", "--method", "rollout"]) == 0
    assert "next: vitrail figures model.safetensors 'my cat.png'" in capsys.readouterr().out


def test_figures_leave_broken_pictures_out(save, photos, capsys: pytest.CaptureFixture[str]) -> None:
    Path("b/zz.png").write_text("junk")
    assert main(["figures", save(), "b"]) == 1
    assert "left out b/zz.png" in capsys.readouterr().out
    assert Path("runs/figures-1/attention.png").is_file()
    assert main(["figures", save(), "b/zz.png"]) == 2
    assert "no picture could be read" in capsys.readouterr().err


@pytest.mark.draws
def test_figures_of_classes_with_dollars(make_model, photos) -> None:
    model: ViT = make_model(num_classes=2)
    spec = Preprocess(size=model.config.image_size)
    names = ("$x_{$", "$5-$10")
    save_checkpoint(
        Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=spec, classes=names), "m.safetensors"
    )
    assert main(["figures", "m.safetensors", "a", "--out", "f"]) == 0


def test_without_a_model_it_is_the_bundled_one(save, photos, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "a/one.png", "--method", "rollout"]) == 2
    assert "the bundled model cifar10 is missing from this installation" in capsys.readouterr().err
    save("cifar10.safetensors")
    assert main(["explain", "a/one.png", "b", "b/two.jpg", "--method", "rollout", "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)["pictures"]]
    assert names == ["one.png", "one.png", "two.jpg"]  # two.jpg is named twice and explained once
    assert main(["figures", "--out", "f"]) == 0
    assert "next: vitrail explain cifar10 PICTURES" in capsys.readouterr().out


def test_a_picture_on_standard_input(save, photos, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(Path("a/one.png").read_bytes()))
    monkeypatch.setattr("sys.stdin", stream)
    assert main(["explain", save(), "-", "--method", "rollout", "--out", "here"]) == 0
    assert Path("here/stdin-overlay.png").is_file()


def test_figures(save, photos, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", save(), "a", "b"]) == 0
    printed = capsys.readouterr().out
    assert "note" not in printed
    assert "next: vitrail explain model.safetensors a b" in printed
    written = {path.name for path in Path("runs/figures-1").iterdir()}
    assert written == {
        f"{name}.{kind}" for name in ("filters", "positions", "distance", "attention") for kind in ("pdf", "png")
    }


def test_figures_say_what_a_model_has_not(save, capsys: pytest.CaptureFixture[str]) -> None:
    stem = ConvStem(widths=(8, 16), strides=(2, 2))
    model = save(stem=stem, patch_size=(2, 2), positions=PositionConfig(kind="none"), pooling="map")
    assert main(["figures", model, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    notes = " ".join(result["notes"])
    for text in ("first 3×3 convolution of the conv stem", "this model has no positions", "two photographs"):
        assert text in notes
    assert {Path(path).stem for path in result["written"]} == {"filters", "distance", "attention"}


def test_figures_of_many_channels_need_no_pictures(save, capsys: pytest.CaptureFixture[str]) -> None:
    spec = Preprocess(size=(32, 32), channels=5, mean=(0.5,) * 5, std=(0.5,) * 5)
    assert main(["figures", save(channels=5, spec=spec), "--out", "f"]) == 0
    assert "takes 5 channels" in capsys.readouterr().out
    assert {path.stem for path in Path("f").iterdir()} == {"filters", "positions"}


def test_small_parts(photos) -> None:
    assert unique_stems(["a/x.png", "b/x.png", "x-2.png"]) == ["x", "x-2", "x-2-2"]
    assert torch.is_grad_enabled()
