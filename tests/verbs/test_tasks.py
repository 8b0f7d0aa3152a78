"""Each task from its table to its service: what Python makes, the command makes, and everyone answers the same."""

import csv
import json
import signal
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn import metrics as sk
from tests.task_runs import (
    BEST,
    KINDS,
    LABELS,
    QUICK,
    SPLITS,
    VALUES,
    Kind,
    answer_of,
    check_same,
    draw_pictures,
    names_of,
    serve_inside,
)
from tests.tasks.toy_task import KIND

import vitrail
from fuzzing import in_fuzz_only
from processes import run
from serving.test_gate import ask
from shortcuts import leave_blank
from training.victims import train_until_killed
from vitrail.cli.main import main
from vitrail.errors import ConfigError, VitrailError
from vitrail.explanation import METHODS
from vitrail.explanation.gallery import Explained
from vitrail.registry import TASKS, register_task
from vitrail.tasks.several import SeveralTrust
from vitrail.training.run_folder import read_config
from vitrail.weights.native import save_checkpoint
from vitrail.weights.read import open_checkpoint


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    """Of each task, a run that Python made, with its report."""
    root = tmp_path_factory.mktemp(request.param)
    made = Kind(request.param, root, draw_pictures(request.param, root))
    with pytest.MonkeyPatch.context() as patch:
        leave_blank(patch)
        assert vitrail.train(made.data, out=made.run, **QUICK, **made.reading).problem == ""
    return made


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def without_time(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in ("seconds", "images_per_second")}


def numbers(folder: Path) -> dict[str, Any]:
    """metrics.json without what a clock says, and without what only a report adds."""
    facts = without_time(json.loads((folder / "metrics.json").read_text()))
    facts.pop("evaluation", None)
    return facts


def replace_trust(source: Path, target: Path) -> None:
    """The same model, as if it had not been calibrated."""
    save_checkpoint(replace(open_checkpoint(source), trust=None), target)


# Learning -----------------------------------------------------------------------------------------------------------


def test_the_command_makes_the_same_run(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", kind.data, *kind.flags, "--out", "command", "--no-report"]) == 0
    assert Path("command", BEST).read_bytes() == (kind.run / BEST).read_bytes()
    assert numbers(Path("command")) == numbers(kind.run)
    assert f"val {kind.metric} " in capsys.readouterr().out
    page = (kind.run / "report.html").read_text(encoding="utf-8")
    assert {"several": "mean average precision", "number": "mean absolute error"}[kind.name] in page.lower()
    assert ("--robustness" in page) == (kind.name == "several"), "what it suggests can be done"


@in_fuzz_only
def test_a_killed_run_is_continued_to_the_same_bits(kind: Kind) -> None:
    assert run(train_until_killed, read_config(kind.run), Path("killed"), 3) == -signal.SIGKILL
    assert not Path("killed/metrics.json").exists()
    assert main(["train", "--resume", "killed", "--no-report"]) == 0
    assert Path("killed", BEST).read_bytes() == (kind.run / BEST).read_bytes()


# Measuring ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raw(kind: Kind) -> np.ndarray:
    """What the model means by its outputs for the test pictures: probabilities or values, by formulas written out."""
    predictor = vitrail.load(kind.run)
    rows = [row for _, row in predictor.logits((path.name, path) for path in kind.tests)]
    outputs = np.stack([row for row in rows if not isinstance(row, str)]).astype(np.float64)
    if kind.name == "several":
        assert isinstance(predictor.trust, SeveralTrust)
        return expit(outputs * predictor.trust.slopes + predictor.trust.offsets)
    truth = kind.labels("train")
    return outputs * truth.std(axis=0) + truth.mean(axis=0)


@pytest.mark.usefixtures("no_report")
def test_its_numbers_are_scikit_learns(kind: Kind, raw: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    found = vitrail.evaluate(kind.run, kind.data, out="python")  # by the columns of the run
    assert main(["eval", str(kind.run), kind.data, "--out", "command", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert without_time(printed) == without_time(found.to_dict() | {"written": printed["written"]})
    assert Path("command/predictions.csv").read_text() == Path("python/predictions.csv").read_text()
    facts, truth = found.facts, kind.labels("test")
    assert facts == json.loads(Path("python/metrics.json").read_text())
    with Path("python/predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["picture"] for row in rows] == [f"{kind.name}/{path.name}" for path in kind.tests]
    if kind.name == "number":
        spread = kind.labels("train").std(axis=0)
        for name, score in (("mae", sk.mean_absolute_error), ("rmse", sk.root_mean_squared_error), ("r2", sk.r2_score)):
            each = score(truth, raw, multioutput="raw_values")
            assert [value[name]["value"] for value in facts["values"]] == pytest.approx(each, rel=1e-5)
            mean = (each if name == "r2" else each / spread).mean()
            assert facts[name]["value"] == pytest.approx(mean, rel=1e-5)
        cells = [[float(row[f"{name}_predicted"]) for name in VALUES] for row in rows]
        np.testing.assert_allclose(cells, raw, rtol=1e-4)
        return
    trust: Any = vitrail.load(kind.run).trust
    predicted = raw > trust.thresholds
    assert 0.4 < facts["map"] < 1
    assert facts["map"] == pytest.approx(sk.average_precision_score(truth, raw))
    assert facts["micro_f1"] == pytest.approx(sk.f1_score(truth, predicted, average="micro"))
    assert facts["macro_f1"] == pytest.approx(sk.f1_score(truth, predicted, average="macro"))
    assert facts["exact_match"]["value"] == pytest.approx(sk.accuracy_score(truth, predicted))
    assert facts["hamming_loss"] == pytest.approx(sk.hamming_loss(truth, predicted))
    for row, true, applies in zip(rows, truth, predicted, strict=True):
        assert row["true"] == "|".join(names_of(true))
        assert set(filter(None, row["predicted"].split("|"))) == set(names_of(applies))


@in_fuzz_only
def test_its_numbers_are_torchmetrics(kind: Kind, raw: np.ndarray) -> None:
    from benchmarks.peers import torchmetrics  # it takes five seconds

    facts = vitrail.evaluate(kind.run, kind.data, **kind.reading).facts
    predicted, truth = torch.from_numpy(raw), torch.from_numpy(kind.labels("test"))
    if kind.name == "number":
        expected = torchmetrics.functional.r2_score(predicted, truth)
        assert facts["r2"]["value"] == pytest.approx(float(expected), rel=1e-5)
    else:
        from torchmetrics.functional.classification import multilabel_average_precision

        found = multilabel_average_precision(predicted, truth, 3)
        assert facts["map"] == pytest.approx(float(found), rel=1e-5)


# Trusting and answering ---------------------------------------------------------------------------------------------


def test_a_calibration_goes_into_the_answers(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    plain = vitrail.load(kind.run)
    replace_trust(kind.run / BEST, Path("plain.safetensors"))
    with pytest.raises(ConfigError, match="needs a calibrated model"):
        vitrail.load("plain.safetensors").predict(kind.tests[0], coverage=0.9)
    done = vitrail.calibrate("plain.safetensors", kind.data, out="python.safetensors")  # values have their columns
    flags = ["plain.safetensors", kind.data, "--out", "command.safetensors", "--json"]
    assert main(["calibrate", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {**done.to_dict(), "path": "command.safetensors"}
    assert Path("command.safetensors").read_bytes() == Path("python.safetensors").read_bytes()
    calibrated = vitrail.load("python.safetensors")
    assert replace(calibrated.trust, data="") == replace(plain.trust, data="", familiarity=None)


def test_answers_with_a_coverage(kind: Kind, raw: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(vitrail.predict(kind.run, kind.tests, coverage=0.8))
    trust: Any = vitrail.load(kind.run).trust
    assert main(["predict", str(kind.run), *map(str, kind.tests), "--coverage", "0.8", "--format", "jsonl"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for answer, line, meanings in zip(found, printed, raw, strict=True):
        if kind.name == "several":
            order = sorted(range(3), key=lambda index: -meanings[index])
            expected = [LABELS[index] for index in order if meanings[index] > trust.thresholds[index]]
            assert list(answer.labels) == line["labels"] == expected
            assert list(answer.scores) == line["scores"]
            held = {label for label, share in zip(LABELS, meanings, strict=True) if share >= trust.sets.threshold(0.8)}
            assert set(answer.label_set or ()) == set(line["label_set"]) == held
            continue
        assert answer.intervals is not None
        np.testing.assert_allclose(answer.values, meanings, rtol=1e-4)
        assert [line[name] for name in VALUES] == list(answer.values)
        half = trust.half_widths[trust.levels.index(0.8)]
        np.testing.assert_allclose(np.diff(answer.intervals)[:, 0], 2 * np.array(half), rtol=1e-6)
        assert [[line[f"{name}_low"], line[f"{name}_high"]] for name in VALUES] == [list(x) for x in answer.intervals]


# Explaining, and shipping -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_one_label_or_value_is_explained_by_its_name(
    kind: Kind, method: Any, raw: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    name = kind.names[1]
    found = vitrail.explain(kind.run, kind.tests[0], method=method, target=name)
    assert isinstance(found, Explained)
    flags = ["--method", method, "--target", name, "--out", "command", "--json"]
    assert main(["explain", str(kind.run), str(kind.tests[0]), *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    (only,) = printed["pictures"]
    assert (only["target"], only["probability"]) == (name, found.explanation.probability)
    assert found.explanation.probability == pytest.approx(raw[0, 1], rel=1e-4)
    with np.load(f"command/{found.stem}.npz") as file:
        np.testing.assert_array_equal(file["map"], found.explanation.map.numpy())


@in_fuzz_only
@pytest.mark.parametrize("with_preprocess", [False, True])
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_exports_answer_as_the_run_does(kind: Kind, to: Any, with_preprocess: bool) -> None:
    vitrail.export(kind.run, path := Path("export" + ".onnx" * (to == "onnx")), to=to, with_preprocess=with_preprocess)
    exported = vitrail.load(path).predict(kind.tests, coverage=0.9)
    for ours, theirs in zip(vitrail.predict(kind.run, kind.tests, coverage=0.9), exported, strict=True):
        check_same(ours, theirs)


def test_the_service_answers_as_the_run_does(kind: Kind) -> None:
    app = serve_inside(kind.run)
    answers = ask(app, lambda client: client.post("/v1/predict?coverage=0.9", files=kind.uploads)).json()
    for row, expected in zip(answers["predictions"], vitrail.predict(kind.run, kind.tests, coverage=0.9), strict=True):
        check_same(expected, answer_of(row))
    described = ask(app, lambda client: client.get("/v1/models")).json()["models"][0]
    assert (described["task"], described["classes"]) == (kind.name, len(kind.names))
    assert described["highest_coverage"] == 0.98
    listed = ask(app, lambda client: client.get("/v1/labels")).json()
    assert listed["labels"] == list(kind.names)
    trust: Any = vitrail.load(kind.run).trust
    assert listed["thresholds"] == (list(trust.thresholds) if kind.name == "several" else None)


# A new task ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def graded() -> Generator[Path]:
    """A table of grades, and the task that learns them."""
    register_task(KIND)
    root = Path("grades")
    draw_pictures("several", Path.cwd())
    with Path("several.csv").open(newline="") as file:
        rows = [(row["picture"], f"grade {row['label'].count('s')}", row["split"]) for row in csv.DictReader(file)]
    with root.with_suffix(".csv").open("w", newline="") as file:
        csv.writer(file).writerows([("picture", "label", "split"), *rows])
    yield root.with_suffix(".csv")
    del TASKS[KIND.name]


@pytest.mark.usefixtures("no_report")
def test_a_task_of_one_file_goes_from_its_table_to_its_service(
    graded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = vitrail.train(graded, task="grade", out="run", **QUICK)
    assert made.test is not None
    facts = vitrail.evaluate("run", graded).facts
    assert facts["calibration"]["pictures"] == SPLITS.count("val")
    pictures = [Path("several", f"{number:03}.png") for number in range(3)]
    found = list(vitrail.predict("run", pictures))
    assert main(["predict", "run", *map(str, pictures), "--format", "jsonl"]) == 0
    assert [json.loads(line)["labels"] for line in capsys.readouterr().out.splitlines()] == [
        list(row.labels) for row in found
    ]
    app = serve_inside(Path("run"))
    for path, expected in zip(pictures, found, strict=True):
        answer = ask(app, lambda client, path=path: client.post("/v1/predict", content=path.read_bytes())).json()
        check_same(expected, answer_of(answer["predictions"][0]))
    assert ask(app, lambda client: client.get("/v1/models")).json()["models"][0]["task"] == "grade"


@in_fuzz_only
@pytest.mark.usefixtures("no_report")
def test_a_task_of_one_file_is_exported(graded: Path) -> None:
    vitrail.train(graded, task="grade", out="run", **QUICK)
    pictures = [Path("several", f"{number:03}.png") for number in range(3)]
    for with_preprocess in (False, True):
        vitrail.export("run", "grades.onnx", with_preprocess=with_preprocess, overwrite=True)
        for ours, theirs in zip(*(vitrail.predict(path, pictures) for path in ("run", "grades.onnx")), strict=True):
            check_same(ours, theirs)


# Mistakes -----------------------------------------------------------------------------------------------------------


def fit(kind: Kind, **settings: Any) -> Any:
    return vitrail.train(kind.data, out="x", check=False, **(QUICK | kind.reading | settings))


MISTAKES: dict[str, tuple[Callable[[Kind], Any], str]] = {
    "evaluate": (lambda kind: vitrail.evaluate(kind.run, "digits"), r"the model learned .*these data have one class"),
    "calibrate": (lambda kind: vitrail.calibrate(kind.run, "digits", out="x.safetensors"), "the model learned"),
    "coverage": (lambda kind: vitrail.predict(kind.run, kind.tests, coverage=0.999), "at most 0.98"),
    "top_k": (lambda kind: vitrail.predict(kind.run, kind.tests, top_k=0), "top_k= must be at least 1; got 0"),
    "balance": (lambda kind: fit(kind, balance="sample"), "balance= has no 'sample' for this task"),
    "loss": (lambda kind: fit(kind, loss="cross-entropy"), "loss= has no 'cross-entropy' for this task"),
    "best": (lambda kind: fit(kind, best="accuracy"), "best= has no 'accuracy' for this task"),
    "convert": (lambda kind: vitrail.convert(kind.run, "x.safetensors", format="timm"), "timm cannot hold this model"),
    "target": (lambda kind: vitrail.explain(kind.run, kind.tests[0], target="nothing"), "unknown .* 'nothing'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(kind: Kind, name: str) -> None:
    call, message = MISTAKES[name]
    with pytest.raises(VitrailError, match=message):
        call(kind)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("what", ["all", "head"])
def test_label_smoothing_of_values_is_refused_before_features_are_computed(
    kind: Kind, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.name != "number":
        return
    monkeypatch.setattr("vitrail.model.ViT.features", lambda *_: pytest.fail("features were computed"))
    settings = {"model": None, "weights": str(kind.run), "train": what, "label_smoothing": 0.1}
    with pytest.raises(VitrailError, match="label_smoothing= must be 0 for measured values"):
        fit(kind, **settings)
    assert list(Path().iterdir()) == []


def test_the_command_names_its_flags(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, message in (
        (["--coverage", "0.999"], "--coverage 0.999"),
        (["--top-k", "0"], "--top-k must be at least 1; got 0"),
    ):
        assert main(["predict", str(kind.run), str(kind.tests[0]), *flags]) == 2
        assert message in capsys.readouterr().err
    assert main(["convert", str(kind.run), "x.safetensors", "--to", "timm"]) == 2
