"""The programs of docs/fast.md, exactly as they stand there, where importing torch or vitrail fails."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data.conftest import picture
from tests.trusting import with_trust

import vitrail

DOCS = Path(__file__).parents[2] / "docs" / "fast.md"
ALONE = """
import sys
sys.modules["torch"] = sys.modules["vitrail"] = None  # importing them is an ImportError now
exec(compile(sys.argv.pop(1), "docs/fast.md", "exec"))
"""


def programs() -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    return [block for block in blocks if "onnxruntime" in block]


@pytest.mark.parametrize(("with_preprocess", "calibrated"), [(False, False), (False, True), (True, True)])
def test_an_export_runs_without_vitrail_and_torch(
    with_preprocess: bool, calibrated: bool, exports: Path, tmp_path: Path
) -> None:
    program = programs()[with_preprocess]
    assert len(programs()) == 2
    model, checkpoint = exports / "tiny.onnx", vitrail.load(exports / "tiny.safetensors")
    if calibrated:
        model, checkpoint = tmp_path / "whole.onnx", with_trust(checkpoint, smoothing=0.3)
        vitrail.export(checkpoint, model, with_preprocess=with_preprocess)
    photo = tmp_path / "photo.png"
    picture(5, (70, 50)).save(photo)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, program, str(model), str(photo)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    label, score = done.stdout.split()
    expected = checkpoint.predict(photo)
    assert label == expected.label
    assert float(score) == pytest.approx(expected.score, abs=0.02)
