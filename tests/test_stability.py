"""What earlier versions wrote can still be read: a checkpoint of the first format, and a run that was stopped in it."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.cli.main import main

FIRST = Path(__file__).parent / "fixtures" / "version1"


def test_a_checkpoint_of_the_first_format_computes_what_it_did() -> None:
    model = vitrail.load(FIRST / "tiny.safetensors")
    logits = model(torch.linspace(-1, 1, 64).view(1, 1, 8, 8))
    np.testing.assert_allclose(logits.numpy()[0], np.loadtxt(FIRST / "tiny.logits.txt"), rtol=1e-5, atol=1e-6)
    assert model.classes == tuple("0123456789")
    assert model.preprocess.mean == (0.5,)


def test_a_run_of_the_first_format_is_resumed_to_the_end_it_had(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(FIRST / "run", run)
    assert main(["train", "--resume", str(run), "--weights", str(FIRST / "tiny.safetensors")]) == 0
    with (run / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    # What the version that began it wrote for the last epoch; another processor rounds otherwise.
    assert float(rows[-1]["train_loss"]) == pytest.approx(2.2956454, rel=1e-4)
    assert float(rows[-1]["val_loss"]) == pytest.approx(2.2907015, rel=1e-4)
    assert vitrail.load(run).classes == tuple("0123456789")
