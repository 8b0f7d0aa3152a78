"""`vitrail data audit` from the pictures to the files that `--exclude` reads."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.cli.main import main
from vitrail.data import open_data
from vitrail.errors import ConfigError, DataError
from vitrail.files import new_run_folder

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (210, 50, 40)}


def draw(colour: str, seed: int) -> Image.Image:
    """A picture of a colour, with a texture of its own."""
    random = np.random.default_rng(seed)
    texture = Image.fromarray(random.integers(0, 90, (6, 6), dtype=np.uint8)).resize((48, 40), Image.Resampling.BICUBIC)
    levels = np.array(COLOURS[colour]) + np.asarray(texture, dtype=np.float32)[:, :, None] - 45
    return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))


@pytest.fixture
def flawed(inside: Path) -> Path:
    """Colours as classes: one picture in the wrong class, a mirror image in another split, a copy, and noise."""
    for number, colour in enumerate(COLOURS):
        for split, count in (("train", 24), ("val", 8)):
            folder = inside / "data" / split / colour
            folder.mkdir(parents=True)
            for index in range(count):
                draw(colour, 1000 * number + index + 500 * (split == "val")).save(folder / f"{index:02d}.png")
    root = inside / "data"
    draw("red", 1).save(root / "train/green/wrong.png")
    copy = draw("blue", 2).transpose(Image.Transpose.FLIP_LEFT_RIGHT).resize((96, 80))
    draw("blue", 2).save(root / "train/blue/original.png")
    copy.save(root / "val/blue/mirrored.jpg", quality=80)
    (root / "train/red/copy.png").write_bytes((root / "train/red/03.png").read_bytes())
    noise = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "val/red/noise.png")
    return root


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def model(save_model: Any) -> str:
    return save_model("model.safetensors", num_classes=0)


def test_what_was_planted_is_found_and_can_be_excluded(
    flawed: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "audit", "data", "--weights", model]) == 1
    output = capsys.readouterr().out
    folder = Path("runs/data-audit-1")
    names = ("duplicates.csv", "duplicates.jpg", "labels.csv", "labels.jpg", "outliers.csv", "outliers.jpg")
    assert tuple(sorted(path.name for path in folder.iterdir())) == names
    labels, duplicates, outliers = (read(folder / f"{name}.csv") for name in ("labels", "duplicates", "outliers"))
    assert labels[0] | {"probability": "", "label_probability": ""} == {
        "key": "train/green/wrong.png",
        "split": "train",
        "class": "green",
        "suggested": "red",
        "probability": "",
        "label_probability": "",
    }
    assert float(labels[0]["probability"]) > 0.5 > float(labels[0]["label_probability"])
    found = {(row["key"], row["likeness"], row["other"]) for row in duplicates}
    assert {
        ("train/blue/original.png", "mirrored", "val/blue/mirrored.jpg"),
        ("train/red/copy.png", "same", "train/red/03.png"),
    } <= found
    assert len(found) <= 4
    assert outliers[0]["key"] == "val/red/noise.png"
    for text in ("101 pictures, 3 classes", "is labelled green; probes say red", "is the mirror image of"):
        assert text in output
    files = f"{folder / 'labels.csv'},{folder / 'duplicates.csv'}"
    assert f"next: vitrail train data --exclude {files}" in output.replace("\n", "")
    for name in ("labels", "duplicates", "outliers"):
        with Image.open(folder / f"{name}.jpg") as sheet:
            assert sheet.format == "JPEG"
            assert sheet.width > 400
    gone = {row["key"] for row in (*labels, *duplicates)}
    left = vitrail.open_data(flawed, exclude=files.split(","))
    assert left.num_pictures == open_data(flawed).num_pictures - len(gone)
    quick = ["--recipe", "digits", "--image-size", "8", "--epochs", "1", "--batch-size", "8", "--no-check"]
    assert main(["train", "data", "--exclude", files, *quick, "--out", "run"]) == 0
    unused = {row["key"] for row in read(Path("run/split.csv")) if row["split"] == "unused"}
    assert unused == gone


def test_python_returns_the_lists(flawed: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    dataset, predictor = open_data(flawed), vitrail.load(model)
    audit = vitrail.audit_data(dataset, weights=predictor)
    assert not audit.written
    assert not Path("runs").exists()
    assert audit.exit_code == 1
    assert audit.labels[0].sample.key == "train/green/wrong.png"
    assert [each.rank for each in audit.duplicates] == sorted(each.rank for each in audit.duplicates)
    scores = [each.score for each in audit.outliers]
    assert scores == sorted(scores, reverse=True)
    assert "| labels that may be wrong |" in audit._repr_markdown_()
    written = audit.write("out")
    assert main(["data", "audit", "data", "--weights", model, "--out", "same", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["counts"]["labels"] == len(audit.labels)
    assert facts["labels"][0]["suggested"] == "red"
    for path in written:
        assert path.read_bytes() == Path("same", path.name).read_bytes()


def test_nothing_is_found_where_nothing_is(inside: Path, model: str) -> None:
    for number, colour in enumerate(COLOURS):
        (inside / "data" / "train" / colour).mkdir(parents=True)
        for index in range(4):
            draw(colour, 10 * number + index).save(inside / "data" / "train" / colour / f"{index}.png")
    audit = vitrail.audit_data("data", weights=model, out=True)
    assert (audit.labels, audit.duplicates, audit.exit_code) == ((), (), int(bool(audit.outliers)))
    assert list(audit.lines())[-1] == "next: vitrail train data"
    assert new_run_folder("data-audit").name == "data-audit-2"


def test_a_class_with_one_picture_cannot_be_judged(inside: Path, model: str) -> None:
    for number, colour in enumerate(COLOURS):
        (inside / "data" / "train" / colour).mkdir(parents=True)
        for index in range(1 if colour == "red" else 5):
            draw(colour, 10 * number + index).save(inside / "data" / "train" / colour / f"{index}.png")
    audit = vitrail.audit_data("data", weights=model)
    assert audit.audit.unjudged == ("red",)
    assert "red" not in {each.sample.label for each in audit.labels}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass weights=: the checkpoint"),
        ({"weights": "m", "workers": -1}, "workers= must be between"),
        ({"weights": "m", "exclud": "x"}, "did you mean exclude"),
    ],
)
def test_what_cannot_be(inside: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        vitrail.audit_data("data", **options)


def test_weak_features_are_not_believed(inside: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels that have nothing to do with the pictures: the probes must not be trusted to correct them."""
    for index in range(60):
        folder = inside / "data" / ("heads", "tails")[np.random.default_rng(index).integers(2)]
        folder.mkdir(parents=True, exist_ok=True)
        draw("blue", index).save(folder / f"{index:02d}.png")
    audit = vitrail.audit_data("data", weights=model)
    assert audit.labels
    assert audit.audit.agreement < 0.7
    assert audit.to_dict()["agreement"] == audit.audit.agreement
    assert main(["data", "audit", "data", "--weights", model]) == 1
    printed = capsys.readouterr().out
    assert "that is too few to judge labels by: most of those listed are right; use better weights" in printed
    assert "labels.csv" not in printed.split("next: ")[1]


def test_other_labels_are_refused(inside: Path, model: str) -> None:
    for index in range(3):
        draw("red", index).save(inside / f"{index}.png")
    (inside / "t.csv").write_text("path,label\n0.png,a|b\n1.png,b\n2.png,a\n")
    with pytest.raises(DataError, match=r"an audit needs one class per picture; these data have several labels"):
        vitrail.audit_data("t.csv", weights=model, val_rate=0.0, test_rate=0.0)
