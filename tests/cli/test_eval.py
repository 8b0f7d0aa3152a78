"""`vitrail eval` from the outside."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import picture
from tests.evaluation.conftest import make_class_folders
from tests.prediction.conftest import CLASSES, write_tiny
from tests.training.victims import run_command

import vitrail
from fuzzing import in_fuzz_only
from processes import run_ranks
from vitrail.cli.main import main
from vitrail.data import DataConfig, open_data, write_split_file
from vitrail.errors import DataError
from vitrail.evaluation.measurement import measure_split
from vitrail.weights import resolve

FILES = [
    "classes.csv",
    "confusion.csv",
    "confusion_matrix.png",
    "metrics.json",
    "predictions.csv",
    "reliability.png",
    "report.html",
    "top_losses.jpg",
]
DIGITS = tuple("9876543210")


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(resolve, "BUNDLED_FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "digits.safetensors", DIGITS)
    return tmp_path


def as_arguments(text: str) -> str:
    """A message in one line that names arguments, whether it named them or their flags."""
    flat = " ".join(text.split())
    return re.sub("--([a-z-]+)", lambda match: match[1].replace("-", "_") + "=", flat)


@pytest.mark.draws
def test_it_prints_writes_and_ends_with_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "digits.safetensors", "digits"]) == 0
    printed = capsys.readouterr().out
    expected = measure_split(vitrail.load("digits.safetensors"), open_data("digits")).metrics
    assert f"{expected.top1.value:.2%}  (95 %: {expected.top1.low:.2%} to {expected.top1.high:.2%})" in printed
    for text in (
        "digits, test: 269 pictures",
        "macro F1",
        "calibration error",
        "most frequent",
        "next: vitrail predict",
    ):
        assert text in printed
    folder = Path("runs/eval-1")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    facts = json.loads((folder / "metrics.json").read_text())
    assert facts["top1"]["value"] == expected.top1.value
    np.testing.assert_array_equal(facts["confusion"], expected.confusion)
    with (folder / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 269
    assert sum(int(row["correct"]) for row in rows) == expected.top1.correct
    assert all((row["true"] == row["predicted"]) == (row["correct"] == "1") for row in rows)
    for name in ("confusion_matrix.png", "reliability.png", "top_losses.jpg"):
        with Image.open(folder / name) as image:
            assert min(image.size) > 150


@pytest.mark.usefixtures("no_report")
def test_everything_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tta", "shift", "--robustness", "--robustness-pictures", "20", "--probe", "knn", "linear", "shots"]
    assert main(["eval", "digits.safetensors", "digits", "--split", "val", *arguments, "--json", "--out", "x"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["split"] == "val"
    assert facts["tta"] == "shift"
    digits, loaded = open_data("digits").with_validation(), vitrail.load("digits.safetensors")
    for found, tta in ((facts, None), (facts["with_tta"], "shift")):  # never one in place of the other
        expected = measure_split(loaded, digits, "val", tta=tta).metrics
        assert found["top1"]["value"] == pytest.approx(expected.top1.value)
        assert found["nll"] == pytest.approx(expected.nll, rel=1e-4)
    assert facts["probes"]["knn"]["top1"]["total"] == facts["pictures"]
    assert set(facts["probes"]["linear"]) == {"top1", "C", "validation"}
    assert len(facts["probes"]["shots"]["trials"]) == 3
    assert facts["robustness"]["pictures"] == 20
    assert {len(curve) for curve in facts["robustness"]["curves"].values()} == {5}
    assert all(Path(path).is_file() for path in facts["written"])
    assert "x/robustness.png" in facts["written"]


@pytest.mark.usefixtures("no_report")
def test_one_argument_is_the_data_for_the_bundled_model(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "digits.safetensors").rename(inside / "cifar10.safetensors")
    assert main(["eval", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "cifar10"


@pytest.mark.usefixtures("no_report")
def test_a_broken_picture_is_a_row_and_exit_1(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(inside / "animals.safetensors")
    make_class_folders(inside / "animals")
    assert main(["eval", "animals.safetensors", "animals"]) == 1
    assert "left out test/cat/007.png: " in capsys.readouterr().out
    last = Path("runs/eval-1/predictions.csv").read_text().splitlines()[-1]
    assert last.startswith("test/cat/007.png,,,,,,")


def test_a_model_for_other_classes_is_probed_alone(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(inside / "animals.safetensors")
    assert main(["eval", "animals.safetensors", "digits", "--probe", "knn"]) == 0
    printed = capsys.readouterr().out
    assert "kNN probe" in printed
    assert "only its features were measured" in printed
    assert [path.name for path in Path("runs/eval-1").iterdir()] == ["metrics.json"]
    assert main(["eval", "animals.safetensors", "digits"]) == 2
    assert "the data have 0, 1, 2, 3, 4, 5, 6, 7 and 2 more, which the model lacks" in capsys.readouterr().err


def test_the_split_of_the_run_is_used(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(inside / "run" / "weights" / "best.safetensors", CLASSES)
    flat = make_class_folders(inside / "animals").joinpath("test").rename(inside / "flat")
    (flat / "cat" / "007.png").unlink()
    data = open_data(flat, DataConfig(split_seed=5, test_rate=0.3))
    write_split_file(data, inside / "run" / "split.csv")
    for source, out in (("run", "a"), ("run/weights/best.safetensors", "c")):
        assert main(["eval", source, "flat", "--out", out]) == 0
        assert "run/split.csv" in capsys.readouterr().out
        with Path(out, "predictions.csv").open() as file:
            keys = [row["picture"] for row in csv.DictReader(file)]
        assert keys == [data.split("test").key(index) for index in range(len(data.split("test")))]
        assert json.loads(Path(out, "metrics.json").read_text())["split_from"].endswith("run/split.csv")
    (flat / "cat" / "001.png").unlink()
    assert main(["eval", "run", "flat", "--out", "b"]) == 0
    assert "run/split.csv is for other pictures, so a new split was made" in capsys.readouterr().out
    assert "run/split.csv is for other pictures" in Path("b/report.html").read_text()


def test_a_split_that_is_made_here_is_said_everywhere(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(inside / "my weights.safetensors", CLASSES)
    flat = make_class_folders(inside / "animals", 10).joinpath("test").rename(inside / "flat")
    (flat / "cat" / "007.png").unlink()
    assert main(["eval", "my weights.safetensors", "flat", "--out", "a"]) == 0
    printed = capsys.readouterr().out
    assert "split: made now" in printed
    assert "next: vitrail predict 'my weights.safetensors' PICTURES…" in printed
    assert json.loads(Path("a/metrics.json").read_text())["split_from"].startswith("made now")
    assert "Splits: made now" in Path("a/report.html").read_text()
    assert main(["eval", "my weights.safetensors", "flat", "--by-position"]) == 2
    assert "by_position= is for checkpoints without class names" in as_arguments(capsys.readouterr().err)


@pytest.mark.usefixtures("no_report")
def test_probes_on_data_without_a_test_split(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(inside / "digits.safetensors", DIGITS)
    for split, count in (("train", 4), ("val", 3)):
        for name in ("a", "b"):
            Path("my data", split, name).mkdir(parents=True)
            for index in range(count):
                picture(index).save(Path("my data", split, name, f"{index}.png"))
    assert main(["eval", "digits.safetensors", "my data", "--probe", "knn", "linear", "shots", "--shots", "3"]) == 0
    assert "next: vitrail embed digits.safetensors --data 'my data'" in capsys.readouterr().out
    facts = json.loads(Path("runs/eval-1/metrics.json").read_text())
    assert (facts["data"], facts["split"]) == ("my data", "val")
    assert facts["probes"]["knn"]["k"] == 8  # all training pictures: the carved ones too
    assert facts["probes"]["linear"]["top1"]["total"] == 6
    assert facts["probes"]["shots"]["shots"] == 3
    flags = ["--probe", "knn", "--tta", "full", "--robustness"]
    assert main(["eval", "digits.safetensors", "my data", *flags]) == 2
    assert "tta= and robustness= cannot be used here" in as_arguments(capsys.readouterr().err)
    assert not Path("runs/eval-2").exists()


def test_what_is_measured_survives_what_fails_later(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **options: object) -> None:
        assert options["tta"] == "flip"
        raise DataError("the power is gone")

    monkeypatch.setattr("vitrail.verbs.scores.measure_robustness", fail)
    arguments = ["--tta", "flip", "--robustness", "--probe", "knn", "--out", "x"]
    assert main(["eval", "digits.safetensors", "digits", *arguments]) == 2
    assert "the power is gone" in capsys.readouterr().err
    facts = json.loads(Path("x/metrics.json").read_text())
    assert facts["pictures"] == facts["probes"]["knn"]["top1"]["total"] == 269
    assert len(Path("x/predictions.csv").read_text().splitlines()) == 270


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "digits.safetensors"], "digits.safetensors must be a folder; it is a file"),
        (["--out", "digits.safetensors/below"], "digits.safetensors is a file"),
        (["--robustness", "--robustness-pictures", "0"], "robustness_pictures= must be at least 1; got 0"),
        (["--robustness-pictures", "5"], "robustness_pictures= goes with robustness="),
        (["--probe", "shots", "--shots", "0"], "shots= must be at least 1; got 0"),
        (["--probe", "knn", "--shots", "5"], "shots= goes with probe="),
    ],
)
def test_options_are_checked_before_anything_is_opened(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "nowhere.safetensors", "digits", *options]) == 2
    assert message in as_arguments(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "nowhere.safetensors", "digits"], "there is no checkpoint"),
        (["eval", "cifra10", "digits"], "there is no checkpoint cifra10; did you mean cifar10?"),
        (["eval", "digits.safetensors", "nowhere"], "no such file or folder"),
        (["eval", "digits.safetensors", "digits", "--split", "tset"], "has no split 'tset'"),
        (["eval", "digits.safetensors", "digits", "--probe", "knn", "--split", "train"], "other than train"),
        (["eval", "digits.safetensors", "digits", "--probe", "svm"], "knn"),
        (["eval", "digits.safetensors", "digits", "--probe", "knn", "--split", "tset"], "has no split 'tset'"),
        (["eval", "digits.safetensors", "digits", "--probe", "shots", "--shots", "999"], "shots must be from 1 to"),
        (["eval", "digits"], "the bundled model cifar10 is missing from this installation"),
    ],
)
def test_mistakes_exit_with_2_and_leave_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()


@in_fuzz_only
@pytest.mark.usefixtures("no_report")
def test_of_two_ranks_one_speaks_and_the_result_is_the_same(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "digits.safetensors", "digits", "--json", "--out"]
    assert main([*command, "one"]) == 0
    alone = capsys.readouterr().out
    assert run_ranks(run_command, inside, [*command, "two"], "printed") == [0, 0]
    first, second = json.loads(alone), json.loads(Path("printed").read_text())
    for facts in (first, second):
        facts.pop("images_per_second")
        facts.pop("written")
    assert first == second
    assert Path("one/predictions.csv").read_bytes() == Path("two/predictions.csv").read_bytes()
