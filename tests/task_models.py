"""A tiny calibrated model of each task other than one class per picture, made directly."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from conftest import TINY, randomize
from vitrail.data.preprocess import preset
from vitrail.evaluation.ood import fit_familiarity
from vitrail.model import ViT
from vitrail.tasks.number import Number, NumberTrust
from vitrail.tasks.several import MissRates, Several, SeveralTrust
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.write import write_checkpoint

LABELS, VALUES = ("sky", "sea", "sand", "ship"), ("age", "height")
MEAN, STD = (30.0, 170.0), (10.0, 8.0)
SLOPES, OFFSETS, THRESHOLDS = (1.5, 0.5, 1.0, 2.0), (0.25, -0.5, 0.0, 1.0), (0.5, 0.3, 0.7, 0.4)
HALF_WIDTHS = ((4.0, 2.0), (6.0, 3.0))
KINDS = ("several", "number")


def make_checkpoint_of(kind: str) -> Checkpoint:
    names = LABELS if kind == "several" else VALUES
    model = randomize(ViT(replace(TINY, num_classes=len(names)))).eval()
    with torch.inference_mode():
        noise = torch.randn(100, 3, *TINY.image_size, generator=torch.Generator().manual_seed(0))
        features = model.features(noise).numpy()
    known = fit_familiarity(features, np.arange(100) % 2, features)
    shared = {"data": "noise, val", "pictures": 100, "familiarity": known}
    several = SeveralTrust(
        **shared,
        slopes=SLOPES,
        offsets=OFFSETS,
        thresholds=THRESHOLDS,
        sets=MissRates(levels=(0.8, 0.9), thresholds=(0.3, 0.1)),
    )
    number = NumberTrust(**shared, levels=(0.8, 0.9), half_widths=HALF_WIDTHS, spread=(3.0, 1.5))
    return Checkpoint(
        config=model.config,
        tensors=model.state_dict(),
        preprocess=preset("timm", TINY.image_size),
        classes=names,
        task=Several() if kind == "several" else Number(mean=MEAN, std=STD),
        trust=several if kind == "several" else number,
    )


def write_model_of(kind: str, folder: Path) -> Path:
    path = folder / f"{kind}.safetensors"
    write_checkpoint(make_checkpoint_of(kind), path)
    return path
