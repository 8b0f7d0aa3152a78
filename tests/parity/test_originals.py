"""Authors' own files, converted to timm's and transformers': those libraries run the result, and give the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY, randomize
from vitrail.data.preprocess import preset
from vitrail.model import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints
from vitrail.weights.read import FORMATS
from vitrail.weights.write import convert, write_checkpoint
from weights_fixtures import FITTING

PAIRS = [
    ("dinov3", "timm"),
    ("dinov3", "hf"),
    ("clip", "timm"),
    ("clip", "hf"),
    ("pe", "timm"),
    ("eva", "timm"),
    ("beit", "timm"),
    ("beit", "hf"),
    ("aimv2", "timm"),
    ("aimv2", "hf"),
]


@pytest.mark.filterwarnings("ignore::vitrail.AssumptionWarning")
@pytest.mark.parametrize(("name", "to"), PAIRS)
def test_another_library_computes_the_same(tmp_path: Path, name: Any, to: Any) -> None:
    config = replace(TINY, depth=2, **FITTING[name])
    tensors = randomize(ViT(config)).state_dict()
    source = tmp_path / f"a{FORMATS[name].suffixes[0]}"
    write_checkpoint(Checkpoint(config=config, tensors=tensors, preprocess=preset("google", 32)), source, name)
    hints = Hints(heads=4, activation=config.block.activation)
    conversion = convert(source, tmp_path / "folder", to, hints=hints, verify_with_peer=True)
    assert conversion.source_format == name
    assert conversion.peer is not None
    assert conversion.peer.relative <= 1e-5
