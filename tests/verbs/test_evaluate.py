"""`vitrail.evaluate` and `vitrail eval` are the same thing through two doors."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from tests.data.conftest import picture
from tests.evaluation.conftest import make_class_folders
from tests.prediction.conftest import CLASSES, write_tiny
from tests.report.test_render import Page, check_page

import vitrail
from vitrail.blocks import Numbers
from vitrail.cli.main import main
from vitrail.data import DataConfig, open_data, write_split_file
from vitrail.errors import ConfigError, InputError
from vitrail.evaluation.measurement import measure_split
from vitrail.report.command_lines import flags
from vitrail.report.sections import result_section
from vitrail.verbs.evaluate import evaluate
from vitrail.verbs.scores import _rows

DIGITS = tuple("9876543210")


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def flat(inside: Path) -> Path:
    """A few pictures without splits."""
    for label, name in enumerate(CLASSES):
        (inside / "flat" / name).mkdir(parents=True)
        for index in range(6):
            picture(100 * label + index).save(inside / "flat" / name / f"{index}.png")
    write_tiny(inside / "run" / "weights" / "best.safetensors")
    return inside / "flat"


def numbers(folder: str) -> dict[str, Any]:
    facts = json.loads(Path(folder, "metrics.json").read_text())
    facts.pop("images_per_second")
    return facts


def sections(page: Path) -> list[str]:
    """The text of each section of a page, but for how fast it went."""
    text = " ".join(check_page(page.read_text(encoding="utf-8")).text)
    return re.sub(r"throughput\s+[\d,]+", "", text).split()


@pytest.mark.draws
def test_both_doors_give_the_same(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {
        "tta": "flip",
        "robustness": True,
        "robustness_pictures": 2,
        "probe": ("knn", "linear"),
        "val_rate": 0.2,
    }
    assert main(["eval", "run", "flat", *flags(options), "--out", "command"]) == 0
    capsys.readouterr()
    evaluation = evaluate("run", "flat", **options, out="python")
    assert not "".join(capsys.readouterr())  # quiet
    assert numbers("command") == numbers("python")
    assert json.loads(json.dumps(evaluation.facts)) == json.loads(Path("python/metrics.json").read_text())
    for name in ("predictions.csv", "classes.csv", "confusion.csv"):
        assert Path("command", name).read_bytes() == Path("python", name).read_bytes()
    assert sorted(path.name for path in Path("command").iterdir()) == sorted(path.name for path in evaluation.written)
    assert sections(Path("command/report.html")) == sections(Path("python/report.html"))
    again = "vitrail eval run flat --tta flip --robustness --robustness-pictures 2 --probe knn,linear --val-rate 0.2"
    assert again in Path("python/report.html").read_text(encoding="utf-8")


def test_test_time_augmentation_stands_beside_the_plain_figures(flat: Path) -> None:
    """In the JSON, on the console and in the report; the mean of the probabilities is written out here."""
    plain, both = evaluate("run", "flat", val_rate=0.2), evaluate("run", "flat", tta="flip", val_rate=0.2)
    change = {"change": lambda images, _: images.flip(-1)}
    mirrored = measure_split(both.predictor, both.dataset, both.split, **change)  # pyright: ignore[reportArgumentType]
    assert both.measurement is not None
    assert both.measurement.averaged is not None
    expected = (softmax(both.measurement.logits, axis=1) + softmax(mirrored.logits, axis=1)) / 2
    np.testing.assert_allclose(softmax(both.measurement.averaged.logits, axis=1), expected, atol=1e-5)
    assert "with_tta" not in plain.facts
    assert both.facts["top1"] == plain.facts["top1"]
    right = int((expected.argmax(1) == both.measurement.targets).sum())
    assert both.facts["with_tta"]["top1"]["correct"] == right
    rows = dict(_rows(both.measurement, both.facts))
    assert rows["top-1 with tta"].startswith(f"{right / len(expected):.2%}")
    assert rows["top-1 with tta"].endswith("the mean over 2 views of each picture (flip)")
    assert "top-1 accuracy with tta" in both._repr_html_()
    numbers = next(block for block in result_section(both.measurement).blocks if isinstance(block, Numbers))
    assert any(fact.name == "top-1 accuracy with tta" and "2 views" in fact.note for fact in numbers.facts)


def test_a_loaded_model_keeps_its_runs_split(flat: Path) -> None:
    """What the run was trained on must not be measured, whichever way the model comes."""
    data = open_data(flat, DataConfig(split_seed=5, test_rate=0.4))
    write_split_file(data, Path("run/split.csv"))
    keys = [data.split("test").key(index) for index in range(len(data.split("test")))]
    for model in ("run", vitrail.load("run"), vitrail.load("run/weights/best.safetensors")):
        evaluation = evaluate(model, flat)
        assert [row["picture"] for row in evaluation.predictions] == keys
        assert evaluation.facts["split_from"].endswith("run/split.csv")
        assert not evaluation.written
    assert evaluate("run", data).facts["split_from"].endswith("run/split.csv")
    other = open_data(flat, DataConfig(split_seed=6))
    assert evaluate("run", other).facts["split_from"].startswith("made now")


def test_excluded_pictures_are_not_measured(flat: Path) -> None:
    """With the run's own splits, which have them or name them as unused, and for data that are open already."""
    test = open_data(flat).split("test").keys()
    Path("labels.csv").write_text(f"key\n{test[0]}\n")
    data = open_data(flat, DataConfig(exclude=(Path("labels.csv"),)))
    for written in (open_data(flat), data):
        write_split_file(written, Path("run/split.csv"))
        evaluation = evaluate("run", flat, exclude="labels.csv")
        assert [row["picture"] for row in evaluation.predictions] == test[1:]
        assert evaluation.facts["split_from"].endswith("run/split.csv")
    for evaluation in (evaluate("run", flat), evaluate("run", data)):
        assert [row["picture"] for row in evaluation.predictions] == test[1:]
        assert evaluation.facts["split_from"].endswith("run/split.csv")


def test_the_result_shows_itself(flat: Path) -> None:
    evaluation = evaluate(vitrail.load("run"), open_data(flat))
    assert evaluation.folder is None
    assert not Path("runs").exists()
    page = Page(evaluation._repr_html_())
    (drawn,) = page.all("img")
    assert drawn["alt"] == "Which of 7 classes are taken for which"  # the confusion matrix
    assert "macro F1" in " ".join(page.text)
    assert f"{evaluation.metrics.top1.value:.2%}" in " ".join(page.text)
    assert sum(row["correct"] for row in evaluation.predictions) == evaluation.metrics.top1.correct
    assert check_page(evaluation.report("new/report.html").read_text(encoding="utf-8")).all("img")


def test_features_only(flat: Path) -> None:
    write_tiny(Path("digits.safetensors"), DIGITS)
    evaluation = evaluate("digits.safetensors", flat, probe="knn")
    assert evaluation.probes["knn"]["top1"]["total"] == 7
    assert "knn probe" in evaluation._repr_html_()
    with pytest.raises(InputError, match="only its features were measured"):
        _ = evaluation.metrics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_rat": 0.1}, "evaluate has no setting 'val_rat'; did you mean val_rate?"),
        ({"robustnes": True}, "did you mean robustness"),
        ({"shots": 3}, 'shots= goes with probe="shots"'),
        ({"robustness": True, "robustness_pictures": 0}, "robustness_pictures= must be at least 1; got 0"),
        ({"tta": "flap"}, "tta= has no 'flap'; did you mean flip"),
        ({"val_rate": "much"}, "DataConfig.val_rate must be a number"),
    ],
)
def test_settings_are_checked_before_anything_is_opened(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        evaluate("nowhere.safetensors", "nowhere", **options)


def test_what_is_open_already_cannot_be_changed(flat: Path) -> None:
    model, data = vitrail.load("run"), open_data(flat)
    with pytest.raises(ConfigError, match="class_names= cannot change a loaded model"):
        evaluate(model, data, class_names=CLASSES)
    with pytest.raises(ConfigError, match="split_seed= cannot change an open data set"):
        evaluate(model, data, split_seed=3)
    with pytest.raises(ConfigError, match="probe= has no 'kn'"):
        evaluate(model, data, probe="kn")  # pyright: ignore[reportArgumentType]


def test_broken_pictures_are_rows(inside: Path) -> None:
    write_tiny(inside / "animals.safetensors")
    make_class_folders(inside / "animals", 15)
    evaluation = evaluate("animals.safetensors", "animals")
    last = evaluation.predictions[-1]
    assert last["picture"] == "test/cat/007.png"
    assert last["error"]
    assert last["correct"] is None
