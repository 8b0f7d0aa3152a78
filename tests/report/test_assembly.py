"""`train` and `eval` end with a report; a report that fails costs nothing else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.conftest import picture
from tests.evaluation.conftest import arrays  # noqa: F401
from tests.prediction.conftest import make_predictor
from tests.report.test_render import check_page

from fuzzing import in_fuzz_only
from vitrail.cli.main import main
from vitrail.data import Dataset, open_data
from vitrail.data.check.findings import read_record
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError
from vitrail.evaluation.measurement import measure_split
from vitrail.explanation import explain_by
from vitrail.model import ConvStem, PositionConfig
from vitrail.report import insights
from vitrail.report.assembly import report_on_run
from vitrail.report.command_lines import as_typed, run_commands
from vitrail.report.sections import training_section
from vitrail.tasks.one import ONE
from vitrail.training.curves import Choice, EpochRow
from vitrail.training.recipes import RECIPES, digits
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint

BESIDE = {"report.html", "confusion_matrix.png", "reliability.png", "top_losses.jpg", "predictions.csv", "metrics.json"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one epoch."""
    folder = tmp_path_factory.mktemp("runs") / "a <b> run"
    assert main(["train", "digits", "--epochs", "1", "--no-check", "--out", str(folder)]) == 0
    return folder


def read_page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_a_run_ends_with_a_report(run: Path) -> None:
    assert {path.name for path in run.iterdir()} >= BESIDE | {"config.yaml", "results.png", "weights"}
    page = check_page(read_page(run))
    whole = " ".join(page.text)
    facts = json.loads((run / "metrics.json").read_text())
    assert facts["evaluation"]["top1"]["value"] == pytest.approx(facts["test"]["accuracy"])
    for text in (
        f"compact-8 classifies {facts['test']['accuracy']:.2%} of 269 test pictures of digits correctly",
        "1 epoch in",
        "Worst mistakes",
        "Correct predictions",
        "which parts the prediction rests on (relevance)",
        "pixels in the first layer",
        f"vitrail train --config '{run}/config.yaml'",
        f"vitrail predict '{run}' PICTURES",
        "weight_decay: 0.05",
        "torch",
    ):
        assert text in whole, text
    assert len(page.all("svg")) == 6  # loss, two accuracies and learning rate; coverage and sizes of label sets
    rows = [row.split(",") for row in (run / "predictions.csv").read_text().splitlines()]
    assert sum(row[5] == "0" for row in rows) > insights.MISTAKES
    right = {row[1] for row in rows if row[5] == "1"}
    drawings, pairs = 5, insights.MISTAKES + min(len(right), insights.RIGHT)
    assert len(page.all("img")) == drawings + 2 * pairs + insights.STRANGEST


def test_eval_of_a_run_has_its_curves_too(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(run), "digits", "--split", "val"]) == 0
    assert "wrote runs/eval-1/report.html, " in capsys.readouterr().out
    page = check_page(read_page(Path("runs/eval-1")))
    assert "of 269 val pictures of digits correctly" in " ".join(page.text)
    assert len(page.all("svg")) == 6  # loss, two accuracies and learning rate; coverage and sizes of label sets


def test_what_the_check_found_is_printed_kept_and_reported_and_val_chose_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "flowers" / "dataset"
    for split in ("train", "val"):
        for number, name in enumerate(("rose", "=tulip")):
            (root / split / name).mkdir(parents=True)
            for index in range(12):
                picture(100 * number + index + 50 * (split == "val")).save(root / split / name / f"{index}.png")
    picture(0).save(root / "val/rose/0.png")  # the training picture of the same name
    assert main(["train", str(root), "--epochs", "2", "--batch-size", "8", "--out", "run"]) == 0
    printed = capsys.readouterr().out
    assert "error in the data: the same picture in two splits: 1, for example val/rose/0.png" in printed
    assert "training continues with these data; details: vitrail data check" in printed
    assert "24 pictures; val also chose the epoch)" in printed
    record = read_record(Path("run/data_check.json"))
    assert record is not None
    assert [item.finding for item in record.serious] == ["the same picture in two splits"]
    facts = json.loads(Path("run/metrics.json").read_text())
    assert facts["val_chose_epoch"]
    assert facts["evaluation"]["split_chose_epoch"]
    whole = " ".join(check_page(read_page(Path("run"))).text)
    for text in (
        "hybrid-32 on flowers",
        "the same picture in two splits",
        "val/rose/0.png",
        "Val also chose the epoch",
    ):
        assert text in whole, text
    assert "'=tulip" in Path("run/predictions.csv").read_text()
    assert main(["eval", "run", str(root), "--raw", "--out", "again"]) == 0
    assert "val also chose the epoch" in capsys.readouterr().out
    assert json.loads(Path("again/metrics.json").read_text())["split_chose_epoch"]
    assert "the same picture in two splits" in read_page(Path("again"))
    assert ",=tulip," in Path("again/predictions.csv").read_text()


def test_the_demo_shows_what_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = replace(digits(), schedule=replace(digits().schedule, epochs=1))
    monkeypatch.setitem(RECIPES, "digits", lambda: quick)
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    for text in (
        "val   accuracy",
        "test  accuracy",
        "wrote runs/demo-1/report.html, ",
        "open runs/demo-1/report.html in a browser",
        "vitrail predict runs/demo-1 PICTURES",
        "vitrail eval runs/demo-1 digits --robustness",
    ):
        assert text in printed, text
    assert len(Path("runs/demo-1/results.csv").read_text().splitlines()) == 2, "a header and one epoch"
    check_page(read_page(Path("runs/demo-1")))


def test_a_failed_report_does_not_cost_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise DataError("the [disk]\nis gone")

    monkeypatch.setattr("vitrail.report.assembly.data_section", fail)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--epochs", "1", "--no-check", "--out", "run"]) == 1
    printed = capsys.readouterr()
    assert "no report: the [disk] is gone (the model is in run/weights/best.safetensors)" in printed.err
    assert "next: vitrail predict run PICTURES" in printed.out
    assert Path("run/weights/best.safetensors").is_file()
    assert main(["eval", "run", "digits", "--json", "--out", "e"]) == 1
    assert json.loads(capsys.readouterr().out)["pictures"] == 269
    assert Path("e/metrics.json").is_file()


@in_fuzz_only
@pytest.mark.draws
def test_large_photos_and_hostile_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a test split, with names that would be markup, with pictures that must become thumbnails."""
    monkeypatch.chdir(tmp_path)
    for label, name in enumerate(("<img src=x onerror=alert(1)>", "b & 'c'")):
        for split, count in (("train", 8), ("val", 4)):
            place = Path("data") / split / name
            place.mkdir(parents=True)
            for index in range(count):
                picture(10 * label + index, (1600, 1200)).save(place / f"{index}<i>.jpg")
    flags = ["--model", "compact-8", "--image-size", "32", "--epochs", "1", "--batch-size", "4", "--no-check"]
    assert main(["train", "data", "--recipe", "scratch", *flags, "--out", "run"]) == 0
    page = check_page(read_page(Path("run")))
    assert "of 8 val pictures" in " ".join(page.text)
    assert (Path("run") / "report.html").stat().st_size < 1_500_000


def test_what_is_explained_is_what_was_said(arrays: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Averaged over views, the answer may be another than to the plain picture; and the data have another order."""
    explained: list[str] = []

    def spy(*arguments: Any) -> Any:
        found = explain_by(*arguments)
        explained.append(found.label or "")
        return found

    monkeypatch.setattr("vitrail.report.insights.explain_by", spy)
    predictor = make_predictor()
    found = measure_split(predictor, arrays, limit=3)
    averaged = replace(found, logits=-found.logits)
    tiles, _, failure = insights.explain_tiles(predictor, arrays, averaged, np.arange(3))
    said = [found.classes[int(row.argmax())] for row in averaged.logits]
    assert not failure
    assert explained == said
    assert all(tile.title.startswith(f"predicted {name} ") for tile, name in zip(tiles, said, strict=True))


def test_without_held_out_pictures_it_says_so(run: Path, tmp_path: Path) -> None:
    data = open_data("digits")
    (tmp_path / "run" / "weights").mkdir(parents=True)
    for name in ("config.yaml", "results.csv", "weights/best.safetensors"):
        (tmp_path / "run" / name).write_bytes((run / name).read_bytes())
    paths = report_on_run(tmp_path / "run", replace(data, splits={"train": data.split("train")}))
    assert paths == [tmp_path / "run" / "report.html"]
    page = check_page(read_page(tmp_path / "run"))
    assert "the accuracy of this model is unknown" in " ".join(page.text)


@pytest.mark.parametrize(("train_loss", "says"), [(0.9, True), (0.1, False)])
def test_a_training_loss_above_the_validations_is_explained(train_loss: float, says: bool) -> None:
    row = EpochRow(
        epoch=1,
        step=9,
        lr=0.1,
        train_loss=train_loss,
        val_loss=0.2,
        metrics={"accuracy": 0.9},
        images_per_second=1,
        seconds=3,
    )
    section = training_section([row], {"AdamW, all weights": 1e-3}, "1 epoch", Choice("accuracy", higher=True))
    assert ("on augmented pictures" in str(section)) == says


@pytest.mark.parametrize(
    ("ranks", "here", "start"),
    [
        (1, 1, "vitrail"),
        (2, 2, "torchrun --nproc-per-node 2 -m vitrail"),
        (8, 4, "torchrun --nnodes 2 --nproc-per-node 4 -m vitrail"),
    ],
)
def test_commands_are_as_a_person_types_them(ranks: int, here: int, start: str) -> None:
    told = {
        "command": ["/x/vitrail/__main__.py", "train", "my pictures"],
        "world_size": ranks,
        "local_world_size": here,
    }
    assert as_typed(told) == f"{start} train 'my pictures'"


@pytest.mark.draws
@pytest.mark.parametrize(
    "program", [["-c"], ["my_script.py", "my", "arguments"], ["/x/ipykernel/__main__.py"], [""], []]
)
def test_a_call_from_python_is_not_called_a_command(program: list[str]) -> None:
    assert "the command that was run" not in run_commands(Path("run"), ["photos"], {"command": program}, ONE)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"patch_size": (32, 32)}, "Not every picture could be explained: digits/"),
        ({"pooling": "map", "positions": PositionConfig(kind="none")}, "which parts the prediction rests on"),
        (
            {"stem": ConvStem(widths=(8, 16), strides=(2, 2)), "patch_size": (2, 2)},
            "which parts the prediction rests on",
        ),
    ],
    ids=["one patch", "no positions", "conv stem"],
)
def test_every_kind_of_model_gets_a_page(
    changes: dict[str, Any], text: str, make_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_model(num_classes=10, **changes)
    spec = Preprocess(size=model.config.image_size)
    classes = tuple("0123456789")
    save_checkpoint(
        Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=spec, classes=classes), "m.safetensors"
    )
    assert main(["eval", "m.safetensors", "digits", "--out", "e"]) == 0
    page = check_page(read_page(Path("e")))
    assert text in " ".join(page.text)
    assert not page.all("svg")  # no run, no curves
