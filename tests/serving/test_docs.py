"""docs/serve.md: its programs as they stand there, and that what it lists is what there is."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import httpx
import pytest
from PIL import Image

from serving.conftest import Running
from vitrail.serving.exchange import CODES
from vitrail.serving.settings import ServeSettings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
PROGRAMS = [block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "127.0.0.1:8000" in block]


@pytest.mark.parametrize("number", range(2))
def test_its_programs_classify_a_picture(number: int, running: Running, tmp_path: Path) -> None:
    assert len(PROGRAMS) == 2
    Image.open(ROOT / "docs" / "images" / "ship.png").convert("RGB").save(tmp_path / "cat.jpg", quality=95)
    program = PROGRAMS[number].replace("127.0.0.1:8000", f"127.0.0.1:{running.port}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    label, score = done.stdout.split()
    assert label == "ship"
    assert float(score) > 0.5


def test_it_lists_what_there_is(client: httpx.Client) -> None:
    statuses = set(re.findall(r"^\| ([45]\d\d(?:, [45]\d\d)?)\b", TEXT, re.MULTILINE))
    listed = {int(status) for group in statuses for status in group.split(", ")}
    assert listed == {status for status, _ in CODES.values()}
    exposed = client.get("/metrics").text
    for name in set(re.findall(r"`(vitrail_[a-z_]+)`", TEXT)):
        assert f"# TYPE {name.removesuffix('_total')}" in exposed or f"# TYPE {name}" in exposed, name
    flags = {f"--{field.name.replace('_', '-')}" for field in fields(ServeSettings)} | {"--no-access-log"}
    section = TEXT.split("## Statuses")[1].split("## Beyond")[0]
    assert set(re.findall(r"`(--[a-z-]+)", section)) - {"--merge"} <= flags
