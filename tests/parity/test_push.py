"""A pushed folder in the libraries that its card names: the code of the card runs, with the same classes and logits."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.peers import timm, transformers
from PIL import Image

import vitrail
from vitrail.data.preprocess import preset
from vitrail.model import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint

CLASSES = tuple("abcdefg")


@pytest.fixture
def folder(tmp_path: Path, make_model: Callable[..., ViT], monkeypatch: pytest.MonkeyPatch) -> Path:
    """What would be pushed of a small model, and a picture."""
    monkeypatch.chdir(tmp_path)
    model = make_model(num_classes=len(CLASSES))
    spec = preset("timm", model.config.image_size)
    checkpoint = Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=spec, classes=CLASSES)
    save_checkpoint(checkpoint, "model.safetensors")
    noise = np.random.default_rng(0).integers(0, 255, (90, 70, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((50, 60)).save("picture.jpg")
    vitrail.push("model.safetensors", "anna/flowers", dry_run=True, out="flowers", verify_with_peer=True)
    return tmp_path / "flowers"


def test_the_card_loads_it_in_three_libraries(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = (folder / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(blocks) == 3
    answers: list[dict[str, Any]] = []
    for block in blocks:
        for address in ("hf://anna/flowers", "hf-hub:anna/flowers", "anna/flowers"):
            block = block.replace(f'"{address}"', f'"{"local-dir:" * address.startswith("hf-hub")}{folder}"')
        names: dict[str, Any] = {}
        exec(block, names)
        answers.append(names)
    ours = vitrail.load(folder).predict("picture.jpg", top_k=3)
    _, timms, pipeline = capsys.readouterr().out.splitlines()
    assert timms == ours.labels[0]
    logits = torch.softmax(answers[1]["answers"], dim=0)
    assert logits[list(ours.indices)].tolist() == pytest.approx(ours.scores, abs=1e-5)
    theirs = eval(pipeline)
    assert [each["label"] for each in theirs[:3]] == list(ours.labels)
    assert [each["score"] for each in theirs[:3]] == pytest.approx(ours.scores, abs=1e-5)


def test_transformers_gives_the_same_logits(folder: Path) -> None:
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    assert type(model).__name__ == "TimmWrapperForImageClassification"
    assert tuple(model.config.id2label.values()) == CLASSES
    own = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert own.pretrained_cfg["label_names"] == list(CLASSES)
    images = torch.randn(2, 3, *vitrail.load(folder).preprocess.size)
    with torch.inference_mode():
        expected = vitrail.load(folder).model(images)
        for logits in (model(images).logits, own(images)):
            assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
