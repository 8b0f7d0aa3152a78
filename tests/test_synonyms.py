"""The field's usual names lead to ours, and nothing absurd is suggested."""

from pathlib import Path

import pytest
from tests.cli.test_usage import flags_of_verb

from vitrail.cli.main import main
from vitrail.errors import ConfigError
from vitrail.synonyms import SYNONYMS, suggest_option
from vitrail.training.changes import flatten
from vitrail.training.recipes import read_changes

TRAIN = {
    "lr": "learning_rate lr0",
    "epochs": "num_epochs epoch",
    "image_size": "img_size imgsz input_size",
    "batch_size": "bs batch batchsize",
    "weight_decay": "wd",
    "weights": "pretrained checkpoint ckpt",
    "out": "output_dir outdir save_dir project name",
    "device": "gpu",
    "precision": "amp fp16",
    "workers": "num_workers",
    "seed": "random_seed",
    "data": "dataset",
    "model": "arch model_name",
    "patience": "early_stopping",
    "track": "tensorboard wandb mlflow",
}
PAIRS = [(typed, ours) for ours, names in TRAIN.items() for typed in names.split()]


@pytest.mark.parametrize(("typed", "ours"), PAIRS)
def test_the_usual_names_lead_to_ours(typed: str, ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = f"--{ours.replace('_', '-')}"
    assert main(["train", "photos", f"--{typed.replace('_', '-')}", "1"]) == 2
    assert f"did you mean {flag}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=f"train has no setting '{typed}'; did you mean {ours}"):
        read_changes("train", None, None, {typed: 1})
    if ours not in ("out", "track"):  # which a file does not hold
        with pytest.raises(ConfigError, match=f"there is no field '{typed}'; did you mean {ours}"):
            flatten({typed: 1}, "run.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "x", "--wandb"], "did you mean --track?"),
        (["train", "x", "--neptune"], "vitrail does not know this service; --track names those that it knows."),
        (["train", "x", "--class-weights", "1"], "vitrail has no class weights; a table may list"),
        (["train", "x", "--zebra"], "vitrail train has no option --zebra; see vitrail train --help."),
        (["train", "x", "--epohcs=3"], "did you mean --epochs?"),
        (["predict", "x", "--topk", "1"], "did you mean --top-k? See vitrail predict --help. A picture of that name"),
        (["predict", "x", "--input", "y"], "did you mean PICTURES?"),
        (["predict", "x", "--weights", "y"], "did you mean --model?"),
        (["serve", "--model", "x"], "did you mean MODELS?"),
        (["export", "a", "b", "--half"], "did you mean --precision?"),
        (["benchmark", "a", "--batch-size", "3"], "did you mean --batch?"),
        (["data", "check", "x", "--num-workers", "3"], "did you mean --workers?"),
    ],
)
def test_each_verb_suggests_its_own(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_table_leads_only_to_what_there_is() -> None:
    verbs = (
        "train",
        "predict",
        "eval",
        "export",
        "convert",
        "serve",
        "benchmark",
        "explain",
        "data check",
        "data show",
        "average",
    )
    flags: set[str] = set().union(*(flags_of_verb(verb) for verb in verbs))
    assert set(SYNONYMS) <= {flag.strip("-").replace("-", "_").lower() for flag in flags}


def test_nothing_near_is_nothing() -> None:
    assert suggest_option("learning_rat", ["flip_rate", "lr"]) == ""
    assert suggest_option("--learningRate", ["--flip-rate", "--lr"]) == "did you mean --lr?"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 0", "epochs= must be between 1"),
        ("optim:\n  learning_rate: 1", "optim has no field 'learning_rate'; did you mean lr"),
        ("optim:\n  epochs: 1", "optim has no field 'epochs'; it belongs to schedule"),
    ],
)
def test_mistakes_in_a_file_are_found_without_reading_data(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_changes("train", None, file, {})
