"""`vitrail.pretrain` from the pictures to the files of its run, and what the model is then good for."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitrail
from vitrail.errors import ConfigError
from vitrail.training.budget import REPORT_PICTURES, pictures_at_the_end
from vitrail.training.listener import Plan
from vitrail.weights.native import read_native

QUICK: dict[str, Any] = {"model": "compact-8", "epochs": 1, "batch_size": 128, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> "vitrail.Run":
    return vitrail.pretrain("digits", out=tmp_path_factory.mktemp("run") / "run", check=False, **QUICK)


def test_a_run_writes_its_files(run: "vitrail.Run") -> None:
    names = {path.name for path in run.folder.iterdir()}
    assert {"config.yaml", "results.csv", "results.png", "reconstructions.jpg", "report.html", "metrics.json"} <= names
    assert run.problem == ""
    (row,) = csv.DictReader((run.folder / "results.csv").read_text(encoding="utf-8").splitlines())
    assert 0 < float(row["val_knn_accuracy"]) <= 1
    facts = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))
    assert (facts["method"], facts["val_chose_epoch"], facts["test"]) == ("mae", False, None)
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Reconstructions" in page
    assert "without their labels" in page
    assert "vitrail train LABELLED_PICTURES --weights" in page
    with Image.open(run.folder / "reconstructions.jpg") as sheet:
        assert sheet.width > 480


def test_frozen_filters_are_whitened_first(tmp_path: Path) -> None:
    """Each sees what varies as much as what the others see, rather than whatever it was at random."""
    whitened = vitrail.pretrain("digits", out=tmp_path / "w", check=False, report=False, whiten="frozen", **QUICK)
    filters = read_native(whitened.best).tensors["embed.stem.0.weight"]
    assert torch.equal(filters[:9], -filters[9:18])  # the directions, then their negatives


def test_a_budget_leaves_time_for_a_report_only() -> None:
    splits = {"train": range(1900), "val": range(100)}
    assert pictures_at_the_end(splits, pretrains=True) == REPORT_PICTURES < pictures_at_the_end(splits)


def test_what_is_shown_at_the_end(run: "vitrail.Run") -> None:
    shown = "\n".join(str(line) for line in run.lines())
    assert "kNN accuracy" in shown
    assert f"vitrail train LABELLED_PICTURES --weights {run.folder}" in shown
    assert "chose the epoch" not in shown


def test_a_finished_run_is_returned_as_it_is(run: "vitrail.Run") -> None:
    again = vitrail.resume(run.folder)
    assert "the last of which is kept" in again.ended
    assert (again.method, again.kept_last) == ("mae", True)
    with pytest.raises(ConfigError, match="mask_rate"):
        vitrail.resume(run.folder, mask_rate=0.5)


def test_the_model_is_an_ordinary_one_without_a_head(run: "vitrail.Run", tmp_path: Path) -> None:
    assert read_native(run.best).config.num_classes == 0
    copied = tmp_path / "copied.safetensors"
    vitrail.convert(run.best, copied)
    assert read_native(copied).extras.keys() == read_native(run.best).extras.keys()
    trained = vitrail.train(
        "digits", weights=run.folder, recipe="digits", epochs=1, out=tmp_path / "t", check=False, report=False
    )
    assert trained.test is not None


def test_pre_training_goes_on_with_the_decoder(run: "vitrail.Run", tmp_path: Path) -> None:
    plan = vitrail.plan("digits", weights=run.folder, method="mae", check=False)
    assert isinstance(plan, Plan)
    again = vitrail.pretrain(
        "digits", weights=run.folder, epochs=1, lr=0.0, weight_decay=0.0, out=tmp_path / "b", check=False, report=False
    )
    before, after = read_native(run.best), read_native(again.best)
    assert run.val is not None
    assert again.val is not None
    assert again.val.loss == pytest.approx(run.val.loss, rel=1e-4)  # with another decoder it would be far higher
    assert before.extras.keys() == after.extras.keys()


def folder_of_pictures(folder: Path) -> Path:
    for number in range(24):
        place = folder if number % 2 else folder / "trip" / "day 1"
        place.mkdir(parents=True, exist_ok=True)
        Image.radial_gradient("L").rotate(15 * number).resize((32, 32)).convert("RGB").save(place / f"{number}.png")
    return folder


def test_any_folder_of_pictures_will_do(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "album")
    out = tmp_path / "run"
    settings: dict[str, Any] = {"model": "cifar-tiny", "epochs": 1, "device": "cpu", "val_rate": 0.25, "test_rate": 0.0}
    run = vitrail.pretrain(folder, out=out, **settings)
    assert run.problem == ""
    assert run.val is not None
    assert (run.val.count, dict(run.val.metrics)) == (6, {})
    assert vitrail.resume(out).ended
    with pytest.raises(vitrail.VitrailError, match="at least two classes"):
        vitrail.train(folder, out=tmp_path / "t", model="cifar-tiny", weights="none")


def test_a_table_without_labels_or_with_some(tmp_path: Path) -> None:
    folder = folder_of_pictures(tmp_path / "album")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    for text in (
        "path\n" + "\n".join(names),
        "path,label\n" + "\n".join(f"{name},{'cat' * (n < 4)}" for n, name in enumerate(names)),
    ):
        (folder / "table.csv").write_text(text + "\n", encoding="utf-8")
        dataset = vitrail.open_data(folder / "table.csv", task="none")
        assert dataset.num_pictures == 24
        assert dataset.classes == ()
    plan = vitrail.plan(folder / "table.csv", method="mae", model="cifar-tiny", check=False)
    assert sum(plan.pictures.values()) == 24
    assert "Not every picture has a label" in plan.chosen


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"folds": 3}, "pretrain has no setting 'folds'"),
        ({"method": "mae"}, "pretrain has no setting 'method'"),
        ({"mask_rate": 1.5}, "mask_rate= must be between"),
        ({"decoder_width": 40}, "multiple of 32"),
        ({"recipe": "digits"}, "learns from labels"),
        ({"best": "accuracy"}, "pre-training"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        vitrail.pretrain("digits", out=tmp_path / "run", **{**QUICK, **settings})
    assert not (tmp_path / "run").exists()


def test_train_does_not_pre_train(tmp_path: Path, run: "vitrail.Run") -> None:
    with pytest.raises(ConfigError, match="use vitrail pretrain"):
        vitrail.train("digits", recipe="mae")
    with pytest.raises(ConfigError, match="use vitrail pretrain"):
        vitrail.train("digits", config=run.folder / "config.yaml")
    with pytest.raises(ConfigError, match="has no setting 'mask_rate'"):
        vitrail.train("digits", mask_rate=0.5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigError, match="no labels to train on"):
        vitrail.train("digits", task="none")
