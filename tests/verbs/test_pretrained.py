"""Photographs start from pretrained weights, from a hub on loopback: downloaded once, resumed, verified, cached, and
each way to fail is one line.

Everything that talks to the hub is in a process of its own: huggingface_hub reads its environment when it is imported.
"""

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import randomize
from fuzzing import in_fuzz_only
from hub_server import Hub, serve_hub
from processes import run
from vitrail.data.preprocess import preset
from vitrail.model import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import read_native
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint
from weights_fixtures import TINY_DINO

NAME = "facebook/dinov2-small"


def command(arguments: list[str], output: Path) -> None:
    """As `vitrail ARGUMENTS`, its output in a file."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        from huggingface_hub import constants

        from vitrail.cli.main import main

        constants.DOWNLOAD_CHUNK_SIZE = 1000  # what is kept of a broken download; our files are small
        code = main(arguments)
        file.flush()
        os._exit(code)


@pytest.fixture
def hub(tmp_path: Path) -> Generator[Hub]:
    model = randomize(ViT(TINY_DINO))
    spec = preset("dinov2", (56, 56))
    write_checkpoint(Checkpoint(config=TINY_DINO, tensors=model.state_dict(), preprocess=spec), tmp_path / "hub", "hf")
    with serve_hub(NAME, tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, colour in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
        for split, count in (("train", 12), ("val", 4)):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                noise = np.array(colour) + rng.integers(-40, 40, (64, 70, 3))
                Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.png")
    return tmp_path / "photos"


class Shell:
    """Runs commands in processes that have this hub and this cache."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address

    def __call__(self, *arguments: str, code: int = 0, **environment: str) -> str:
        settings = {
            "HF_ENDPOINT": self.address,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_CACHE": str(self.folder / "cache"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "VITRAIL_CACHE": str(self.folder / "vitrail"),
        }
        output = self.folder / "output.txt"
        assert run(command, list(arguments), output, environment=settings | environment) == code, output.read_text()
        text = output.read_text()
        assert "Traceback" not in text
        return text


@pytest.fixture
def shell(tmp_path: Path, hub: Hub) -> Shell:
    return Shell(tmp_path, hub.address)


def lines_of(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if word in line]


@in_fuzz_only
def test_the_default_downloads_once_and_works_offline_afterwards(
    shell: Shell, hub: Hub, photographs: Path, tmp_path: Path
) -> None:
    hub.cut_at = 5000
    text = shell("train", str(photographs), "--out", str(tmp_path / "run"), "--no-check", "--patience", "2")
    assert len(lines_of(text, "downloading DINOv2-S (hf://facebook/dinov2-small, 88 MB, Apache-2.0)")) == 1
    assert re.search(r"chosen +DINOv2-S .* --minutes allows fine-tuning too", text), text
    assert "recipe linear" in text
    size = (hub.folder / "model.safetensors").stat().st_size
    assert (hub.ranges, hub.sent) == (["", "bytes=5000-"], size), "a broken download goes on where it stopped"
    best = read_native(tmp_path / "run" / "weights" / "best.safetensors")
    start = read_checkpoint(hub.folder)
    name = "blocks.1.mlp.fc1.weight"
    assert torch.equal(best.tensors[name], start.tensors[name])
    assert best.config.image_size == (224, 224)
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Chosen: DINOv2-S" in report

    hub.asked.clear()
    again = json.loads(shell("train", str(photographs), "--dry-run", "--json", "--no-check", HF_HUB_OFFLINE="1"))
    assert again["config"]["start"]["weights"] == f"hf://{NAME}"
    assert "DINOv2-S" in again["chosen"]
    assert hub.asked == []


def dry(shell: Shell, photographs: Path, **environment: str) -> tuple[str, dict[str, bool]]:
    """What is said, and the plan."""
    text = shell("train", str(photographs), "--dry-run", "--no-check", **environment)
    return text, {"scratch": "recipe scratch" in text, "pretrained": "recipe linear" in text}


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_is_one_line(status: int, shell: Shell, hub: Hub, photographs: Path) -> None:
    hub.gated = status
    text, plan = dry(shell, photographs)
    assert plan == {"scratch": True, "pretrained": False}
    assert len(lines_of(text, "it is gated; accept its terms at https://huggingface.co/facebook/dinov2-small")) == 1


@pytest.mark.slow
def test_a_refused_connection_is_one_line(shell: Shell, photographs: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        shell.address = f"http://127.0.0.1:{taken.getsockname()[1]}"  # nobody listens there
        text, plan = dry(shell, photographs)
    assert plan == {"scratch": True, "pretrained": False}
    lines = lines_of(text, "the hub cannot be reached")
    assert len(lines) == 1
    assert "hf download facebook/dinov2-small --local-dir dinov2-small" in lines[0]
    assert "--weights" in lines[0]


@pytest.mark.slow
def test_damaged_weights_are_not_kept(shell: Shell, hub: Hub, photographs: Path) -> None:
    hub.damage = True
    text, plan = dry(shell, photographs)
    assert plan["scratch"]
    assert len(lines_of(text, "model.safetensors was damaged on its way and is removed")) == 1
    hub.damage = False
    assert dry(shell, photographs)[1]["pretrained"]


@pytest.mark.slow
def test_a_full_disk_is_one_line(shell: Shell, photographs: Path, tmp_path: Path) -> None:
    place, mount = tmp_path / "small", shutil.which("mount")
    place.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        text, plan = dry(shell, photographs, HF_HUB_CACHE=str(place))
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert plan["scratch"]
    assert len(lines_of(text, f"no space is left for the hub's cache in {place}")) == 1
