"""`vitrail train` and `demo` as their users meet them: plans, flags, files, mistakes, signals, resume."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from tests.training.victims import run_command

from fuzzing import in_fuzz_only
from processes import SECONDS, start, wait_for
from vitrail.cli.main import main
from vitrail.weights.read import open_checkpoint

QUICK = ["train", "digits", "--epochs", "1", "--no-check"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pictures(here: Path) -> Path:
    """Two classes that anybody can tell apart: reddish and bluish squares."""
    rng = np.random.default_rng(0)
    for name, colour in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
        (here / "pictures" / name).mkdir(parents=True)
        for index in range(24):
            noise = rng.integers(-30, 30, (40, 48, 3))
            Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(
                here / "pictures" / name / f"{index}.png"
            )
    return here / "pictures"


@pytest.mark.draws
@pytest.mark.usefixtures("no_report")
def test_a_folder_alone_is_enough(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(pictures), "--epochs", "4", "--batch-size", "16"]) == 0
    out = capsys.readouterr().out
    run = Path("runs/train-1")
    for name in ("config.yaml", "env.json", "split.csv", "results.csv", "results.png", "train_batch.jpg"):
        assert (run / name).is_file(), name
    assert f"{run}/weights/best.safetensors" in out
    assert "recipe scratch" in out
    assert "model   compact-64" in out
    assert open_checkpoint(run).classes == ("blue", "red")
    assert yaml.safe_load((run / "config.yaml").read_text())["schedule"]["epochs"] == 4
    assert json.loads((run / "metrics.json").read_text())["test"]["accuracy"] == 1.0
    with Image.open(run / "results.png") as curves:
        assert curves.size[0] > 600


@pytest.mark.usefixtures("no_report")
def test_the_head_alone_is_planned_and_trained(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", str(pictures), "--weights", "cifar10", "--recipe", "linear", "--epochs", "20"]
    assert main([*arguments, "--dry-run", "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["minutes"] < 5
    assert main([*arguments, "--out", "head"]) == 0
    out = capsys.readouterr().out
    assert "features once, in about" in out
    assert json.loads(Path("head/metrics.json").read_text())["test"]["accuracy"] == 1.0


@in_fuzz_only
@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ("data", "class blue is no longer in the data"),
        ("weights", "the features are not those of the run"),
    ],
)
def test_the_head_is_not_resumed_on_anything_else(
    changed: str, match: str, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", str(pictures), "--weights", "cifar10", "--no-check", "--batch-size", "8", "--epochs", "3"]
    assert main([*arguments, "--recipe", "linear", "--out", "head"]) == 0
    *_, newest = sorted(Path("head/weights/last").iterdir())
    shutil.rmtree(newest)  # as if it had been interrupted
    again = ["train", "--resume", "head"]
    if changed == "weights":
        assert main([*arguments, "--recipe", "finetune-adamw", "--no-probe", "--out", "other"]) == 0
        again += ["--weights", "other"]
    else:
        (pictures / "blue").rename(pictures / "azure")
    best = Path("head/weights/best.safetensors").read_bytes()
    capsys.readouterr()
    assert main(again) == 2
    assert match in capsys.readouterr().err
    assert Path("head/weights/best.safetensors").read_bytes() == best


def test_what_cannot_work_leaves_no_folder(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = ["train", str(pictures), "--weights", "cifar10", "--no-check", "--out", "run", "--recipe", "linear"]
    for arguments, match in (
        ([*head, "--batch-size", "500"], "more than the"),
        ([*head, "--mixup", "0.5"], "omit --mixup 0.5"),
        ([*head, "--drop-path", "0.1"], "omit --drop-path 0.1"),
        ([*QUICK, "--strategy", "fsdp", "--out", "run"], "needs several ranks"),
    ):
        assert main(arguments) == 2, arguments
        assert match in capsys.readouterr().err
        assert not Path("run").exists()


def test_flags_take_the_place_of_what_excludes_them(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("model: compact-64\nepochs: 2\n")
    dry = ["train", str(pictures), "--no-check", "--dry-run", "--json"]
    assert main([*dry, "--config", "run.yaml", "--weights", "cifar10"]) == 0
    start = json.loads(capsys.readouterr().out)["config"]["start"]
    assert (start["model"], start["weights"]) == (None, "cifar10")
    assert main([*dry, "--weights", "cifar10", "--recipe", "linear", "--train", "all"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["start"]["train"] == "all"


def test_without_validation_patience_is_said_to_rest(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--val-rate", "0", "--test-rate", "0", "--patience", "1"]
    assert main(["train", str(pictures), "--no-check", "--dry-run", *rates]) == 0
    assert "training does not stop early" in capsys.readouterr().out


def test_dry_run_prints_the_plan_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--lr", "0.5", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert yaml.safe_load(out[: out.index("data    ")])["optim"]["lr"] == 0.5
    assert "91,818 parameters" in out
    assert "memory" in out
    assert list(here.iterdir()) == []
    assert main([*QUICK, "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["config"]["schedule"]["epochs"] == 1
    assert 0 < facts["minutes"] < 5


def test_flags_beat_the_file_which_beats_the_recipe(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("optim: {lr: 0.25, clip: 3}\nepochs: 7\nrecipe: digits\ndata: digits\n")
    assert main(["train", "--config", "run.yaml", "--clip", "2", "--dry-run", "--json", "--no-check"]) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["optim"]["lr"], config["optim"]["clip"], config["schedule"]["epochs"]) == (0.25, 2.0, 7)
    assert config["start"]["model"] == "compact-8"


@pytest.mark.usefixtures("no_report")
def test_a_time_budget_decides_the_epochs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--minutes", "0.05", "--no-check", "--json", "--out", "short"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert 1 <= facts["epochs"] < 80, "three seconds decide, not the recipe"
    schedule = yaml.safe_load(Path("short/config.yaml").read_text())["schedule"]
    assert schedule["minutes"] == 0.05
    assert "epochs" not in schedule, "they follow, and are revised on the way"
    assert main(["train", "--config", "short/config.yaml", "--dry-run", "--no-check"]) == 0
    assert main(["train", "--resume", "short", "--epochs", "3"]) == 2
    assert "which has --minutes 0.05" in " ".join(capsys.readouterr().err.split())


def test_batch_size_auto(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--batch-size", "auto", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "batch size" in out
    assert "learning rate scaled by" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "pass the data to train on"),
        (["train", "nowhere"], "no such file or folder"),
        ([*QUICK, "--recipe", "digit"], "did you mean digits"),
        ([*QUICK, "--model", "vit-b17"], "did you mean"),
        ([*QUICK, "--warmup", "2"], "--warmup must be between 0 and 1"),
        ([*QUICK, "--minutes", "3"], "not both"),
        ([*QUICK, "--weights", "no.safetensors"], "no checkpoint no.safetensors"),
        (["train", "digits", "--recipe", "linear", "--no-check"], "--weights"),
        ([*QUICK, "--device", "cuda:77"], "--device cpu"),
        ([*QUICK, "--strategy", "fsdp"], "torchrun"),
        ([*QUICK, "--config", "missing.yaml"], "cannot read the config file"),
        (["train", "--resume", "nothing"], "not a training run"),
        (["train", "digits", "--recipe", "finetune", "--no-check"], "--weights"),
        ([*QUICK, "--batch-size", "5000"], "more than the 1,259 pictures"),
    ],
)
def test_mistakes_are_explained(arguments, message: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_none_turns_things_off(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--clip", "none", "--ema", "none", "--dry-run", "--json"]) == 0
    optim = json.loads(capsys.readouterr().out)["config"]["optim"]
    assert (optim["clip"], optim["ema"]) == (None, None)


@in_fuzz_only
@pytest.mark.usefixtures("no_report")
def test_the_config_of_a_run_makes_the_same_run_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--out", "one"]) == 0
    assert main(["train", "--config", "one/config.yaml", "--out", "two", "--no-check"]) == 0
    assert (here / "one" / "config.yaml").read_text() == (here / "two" / "config.yaml").read_text()
    weights = [(here / name / "weights" / "best.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]
    capsys.readouterr()
    assert main(["train", "--config", "one/config.yaml", "--minutes", "9", "--dry-run", "--no-check"]) == 0


@in_fuzz_only
@pytest.mark.usefixtures("no_report")
def test_a_recipe_with_a_model_takes_weights_instead(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--out", "first"]) == 0
    assert main([*QUICK, "--recipe", "digits", "--weights", "first", "--out", "second"]) == 0
    config = yaml.safe_load((here / "second" / "config.yaml").read_text())
    assert (config["start"]["model"], config["start"]["weights"]) == (None, "first")


def test_an_unknown_field_of_a_file_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("optim: {epochs: 3}\n")
    assert main([*QUICK, "--config", "run.yaml"]) == 2
    assert "optim has no field 'epochs'" in " ".join(capsys.readouterr().err.split())
    Path("run.yaml").write_text("epoch: 3\n")
    assert main([*QUICK, "--config", "run.yaml"]) == 2
    assert "did you mean epochs" in " ".join(capsys.readouterr().err.split())


def test_resume_rejects_other_flags_and_takes_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--out", "run"]) == 0
    before = (here / "run" / "weights" / "best.safetensors").read_bytes()
    assert main(["train", "--resume", "run", "--lr", "0.7"]) == 2
    assert "--lr 0.7 conflicts with the run" in " ".join(capsys.readouterr().err.split())
    assert main([*QUICK, "--out", "run"]) == 2
    assert "--resume run" in " ".join(capsys.readouterr().err.split())
    assert main(["train", "--resume", "run", "--dry-run"]) == 2
    assert main(["train", "--resume", "run", "--minutes", "9"]) == 2
    capsys.readouterr()
    assert main(["train", "digits", "--resume", "run", "--epochs", "1", "--workers", "0"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "run is finished: 1 epoch, the best of them 1; there is nothing left to train" in printed
    assert "wrote run/report.html" not in printed
    assert (here / "run" / "weights" / "best.safetensors").read_bytes() == before
    assert len((here / "run" / "results.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_save_and_say_how_to_go_on(number: signal.Signals, code: int, tmp_path: Path) -> None:
    command = ["train", "digits", "--epochs", "4000", "--no-check", "--out", "run dir"]
    process = start(run_command, tmp_path, command, "printed", number)
    rows = tmp_path / "run dir" / "results.csv"
    wait_for(lambda: rows.exists() or not process.is_alive())
    os.kill(process.pid or 0, number)
    process.join(SECONDS)
    assert process.exitcode == code
    out = (tmp_path / "printed").read_text()
    assert "vitrail train --resume 'run dir'" in " ".join(out.split())
    states = sorted((tmp_path / "run dir" / "weights" / "last").glob("step-*/state.json"))
    progress = json.loads(states[-1].read_text())["progress"]
    assert progress["step"] >= 9


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("place", ["vitrail.training.run.measure_test", "vitrail.verbs.runs.write_reports"])
def test_ctrl_c_after_the_last_step_says_how_to_go_on(
    place: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, interrupt)
        assert main(["train", "digits", "--epochs", "1", "--no-check", "--out", "run"]) == 130
    assert "vitrail train --resume run" in " ".join(capsys.readouterr().out.split())
    assert main(["train", "--resume", "run"]) == 0


@pytest.mark.usefixtures("no_report")
def test_demo_learns_and_shows_what_is_next(here: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    from vitrail.training import recipes
    from vitrail.training.changes import apply_changes

    quick = apply_changes(recipes.digits(), {"epochs": 1})
    monkeypatch.setitem(recipes.RECIPES, "digits", lambda: quick)
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "test  accuracy" in out
    assert "vitrail train PICTURES" in out
    assert (here / "runs" / "demo-1" / "weights" / "best.safetensors").is_file()
