"""Oracle: torch's own flop counter, and the shapes that the modules really give."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from families import FAMILIES
from vitrail.model import ConvStem, ViT, ViTConfig, summarize, variant

CONFIGS: list[dict[str, Any]] = [
    {},
    {"image_size": (32, 48), "registers": 3, "representation": 24},
    {"pooling": "map", "class_token": False},
    {"pooling": "mean", "pool_norm": "after", "num_classes": 0},
    {"stem": ConvStem(widths=(8, 16), strides=(2, 2)), "patch_size": 2},
    {"merge": (5, 3, 2)},
    {"merge": (0, 7, 4), "image_size": (40, 40), "registers": 2, "pooling": "mean"},
    {"merge": (8, 0, 1), "pooling": "map", "class_token": False},
]


@pytest.mark.parametrize("fields", [*CONFIGS, *FAMILIES], ids=str)
def test_macs_and_parameters_are_those_of_the_model(tiny: ViTConfig, fields: dict[str, Any] | str) -> None:
    config = FAMILIES[fields] if isinstance(fields, str) else ViTConfig(**{**tiny.__dict__, **fields})
    summary = summarize(config)
    with torch.device("meta"):
        model, images = ViT(config).eval(), torch.empty(1, 3, *config.image_size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    assert summary.forward_macs == counter.get_total_flops() // 2
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.classify(model.summarize(*model.encode(model.embed(images))))
    assert summary.macs == counter.get_total_flops() // 2
    assert summary.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert summary.parameters == sum(step.parameters for step in summary.steps)


def test_words_for_two_summary_tokens_and_rotary_positions() -> None:
    distilled = " ".join(str(part) for part in summarize(FAMILIES["deit-distilled"]).lines())
    assert "only the first 2 tokens are read, so the last block computes only those" in distilled
    notes = {step.name: step.note for step in summarize(FAMILIES["dinov3"]).steps}
    assert notes["[cls] + 4 registers + positions"] == "none; attention knows them"
    assert notes["  attention"] == "who attends to whom, rotary positions"


def test_the_five_steps_of_b16() -> None:
    shapes = {step.name.strip(): step.shape for step in summarize(variant("vit-b16")).steps}
    assert shapes["picture"] == (3, 224, 224)
    assert shapes["patches"] == (14, 14)
    assert shapes["patch embeddings"] == (196, 768)
    assert shapes["[cls] + positions"] == (197, 768)
    assert shapes["Q, K, V"] == (12, 197, 64)
    assert shapes["pooling"] == (768,)
    assert shapes["head"] == (1000,)
