"""Pictures of 16 bits and five channels from training to the service, through every door."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

import vitrail
from vitrail.cli.main import main
from vitrail.data.preprocess import preset
from vitrail.errors import ConfigError, InputError, VitrailError
from vitrail.model import ViT
from vitrail.prediction import Prediction
from vitrail.training.result import Run
from vitrail.verbs.predict import Predictions
from vitrail.verbs.train import train
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint
from vitrail.weights.read import open_checkpoint

RANGE = (0.0, 4095.0)


def deep(number: int, label: int, channels: int = 5) -> np.ndarray:
    """Noise of 12 bits in 16, (H, W, C), darker or brighter."""
    low = 500 + 2000 * label
    return np.random.default_rng(number).integers(low, low + 1000, (36, 40, channels)).astype(np.uint16)


def write_folders(root: Path) -> None:
    """Arrays and TIFF files in one folder per class."""
    for label, name in enumerate(("dark", "light")):
        (root / name).mkdir(parents=True)
        for number in range(6):
            values = deep(number, label)
            np.save(root / name / f"{number}.npy", values.transpose(2, 0, 1) if number % 3 else values)
            kind = {"photometric": "minisblack", "planarconfig": "contig"}
            tifffile.imwrite(root / name / f"{number}.tif", deep(number + 50, label), **kind)


def several(model: str, pictures: list[str]) -> Predictions:
    predictions = vitrail.predict(model, pictures)
    assert isinstance(predictions, Predictions)
    return predictions


@pytest.fixture
def run(save_model: Callable[..., str], no_report: None) -> Run:
    write_folders(Path("data"))
    weights = save_model()
    return train("data", weights=weights, channels=5, value_range=RANGE, epochs=1, batch_size=4, check=False, out="run")


def test_from_training_to_an_export(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = open_checkpoint(str(run.best))
    assert (checkpoint.preprocess.value_range, checkpoint.config.channels) == (RANGE, 5)
    pictures = ["data/light/0.npy", "data/light/1.npy", "data/dark/1.tif"]
    rows = several("run", pictures)
    assert main(["predict", "run", *pictures, "--format", "jsonl"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["labels"], row["scores"]) for row in printed] == [(list(row.labels), list(row.scores)) for row in rows]
    in_memory = vitrail.predict("run", deep(0, 1))
    assert isinstance(in_memory, Prediction)
    assert np.allclose(in_memory.scores, rows[0].scores, atol=1e-6)
    measured = vitrail.evaluate("run", "data", split="all")
    assert measured.measurement is not None
    assert measured.measurement.broken == {}
    vitrail.export("run", "run.onnx")
    for exported, row in zip(several("run.onnx", pictures), rows, strict=True):
        assert exported.labels == row.labels
        assert np.allclose(exported.scores, row.scores, atol=1e-4)
    with pytest.raises(ConfigError, match="5 channels|8 bits"):
        vitrail.export("run", "other.onnx", with_preprocess=True)
    assert main(["explain", "run", pictures[0], "--method", "occlusion", "--out", "why"]) == 0
    with pytest.raises(InputError, match="has 3 channels; the model expects 5"):
        vitrail.predict("run", Image.new("RGB", (40, 40)))


def test_training_refuses_what_it_has_no_rule_for(save_model: Callable[..., str]) -> None:
    write_folders(Path("data"))
    weights = save_model()
    with pytest.raises(ConfigError, match=r"the pictures have 5 channels, and the model 3; pass channels=5"):
        train("data", weights=weights, value_range=RANGE)
    with pytest.raises(
        ConfigError, match=r"16 of 16 .* 16 bits, with values from 5\d\d to 34\d\d.*value_range=\(0, 4095\)"
    ):
        train("data", weights=weights, channels=5)
    assert not Path("runs").exists()


def test_a_model_without_a_range_refuses_deep_pictures(save_model: Callable[..., str]) -> None:
    for picture in (deep(0, 0, 3), Image.fromarray(deep(0, 0, 1)[..., 0])):
        with pytest.raises(VitrailError, match=r"16 bits, from \d+ to \d+, .*`value_range`"):
            vitrail.predict(save_model(), picture)


def test_exports_with_preprocessing_are_for_eight_bits(make_model: Callable[..., ViT], inside: Path) -> None:
    model = make_model()
    spec = replace(preset("timm", 32), value_range=RANGE)
    save_checkpoint(Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=spec), "deep.safetensors")
    with pytest.raises(ConfigError, match="pictures of 8 bits"):
        vitrail.export("deep.safetensors", "deep.onnx", with_preprocess=True)


def test_data_check_and_show(inside: Path) -> None:
    write_folders(Path("data"))
    checked = vitrail.check_data("data")
    assert {fact.kind for fact in checked.facts} == {"NPY", "TIFF"}
    assert {fact.traits for fact in checked.facts} == {("16 bits", "5 channels")}
    assert not any(fact.trouble for fact in checked.facts)
    assert {(fact.width, fact.height) for fact in checked.facts} == {(40, 36)}
    assert main(["data", "show", "data", "--channels", "5", "--value-range", "0,4095", "--out", "shown"]) == 0
    with pytest.raises(ConfigError, match="value_range"):
        vitrail.show_data("data", channels=5, value_range=(4095, 0))


def test_shards_keep_the_files(inside: Path) -> None:
    write_folders(Path("data"))
    assert vitrail.shard_data("data", "shards").skipped == {}
    dataset = vitrail.open_data("shards")
    assert sum(len(source) for source in dataset.splits.values()) == 24
