"""The table of pretrained weights against timm's registry: names, licences, sizes of pictures, parameters."""

import pytest
import torch
from benchmarks.peers import timm

from vitrail.weights.pretrained import Pretrained, table

ROWS = [row for row in table() if "/vit" in row.repository or row.repository.startswith("timm/")]
SPELLED = {
    "Apache-2.0": "apache-2.0",
    "MIT": "mit",
    "DINOv3": "dinov3-license",
    "CC-BY-NC-4.0": "cc-by-nc-4.0",
    "Apple ASCL": "apple-ascl",
    "FAIR non-commercial": "fair-noncommercial-research-license",
}


def name_of(row: Pretrained) -> str:
    return row.repository.partition("/")[2]


def test_timm_has_every_name_with_this_licence_and_size() -> None:
    assert len(ROWS) > 60
    for row in ROWS:
        facts = timm.get_pretrained_cfg(name_of(row))
        assert facts.hf_hub_id in (row.repository, "timm/")
        assert facts.input_size[-1] == row.pixels, row
        if row.family != "CLIP":  # OpenAI's own licence is MIT: github.com/openai/CLIP
            assert facts.license == SPELLED[row.licence], row


@pytest.mark.parametrize("family", sorted({row.family for row in ROWS}))
def test_the_parameters_are_those_of_timm(family: str) -> None:
    """Of the smallest of each family; timm has a bias in CLIP's projection, and none for keys."""
    row = min((row for row in ROWS if row.family == family), key=lambda row: row.parameters)
    with torch.device("meta"):
        model = timm.create_model(name_of(row))
    assert row.parameters == pytest.approx(sum(weight.numel() for weight in model.parameters()), rel=5e-4)
