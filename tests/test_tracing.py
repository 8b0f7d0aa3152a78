"""A call is resolved once, and does not run to and fro between the rooms: real calls, traced."""

import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from PIL import Image

import vitrail
from fuzzing import in_fuzz_only
from vitrail.cli.main import main

ROOT = Path(vitrail.__file__).parent


class Trace:
    """The files of vitrail that a call runs, in the order of their first calls, and how often each function is called.

    Importing a module is not a call. The foundations, which every room stands on, and the command's own files are no
    rooms.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self.files: list[str] = []
        self.path: list[str] = []  # every step from file to file
        self.calls: Counter[str] = Counter()
        sys.setprofile(self._see)
        threading.setprofile(self._see)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or frame.f_code.co_name.startswith("<") or not path.is_relative_to(ROOT):
            return
        self.calls[frame.f_code.co_name] += 1
        name = str(path.relative_to(ROOT))
        if not self.path or name != self.path[-1]:
            self.path.append(name)
        if name not in self.files:
            self.files.append(name)

    @property
    def switches(self) -> int:
        """How often the next file that is first called is in another room."""
        rooms = [name.split("/")[0] for name in self.files if "/" in name and not name.startswith("cli/")]
        return sum(one != other for one, other in pairwise(rooms))


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos/a.png", "photos/b.png", *(f"data/{label}/{n}.png" for label in "ab" for n in range(9))):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(len(name) + ord(name[-5])).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)


# Verb → the call in Python, the command, how often pictures may be checked, and the most switches between rooms.
CALLS: dict[str, tuple[Callable[[], object], list[str], int, int]] = {
    "predict": (lambda: list(vitrail.predict("cifar10", "photos")), ["predict", "cifar10", "photos"], 1, 17),
    "embed": (lambda: vitrail.embed("cifar10", "photos"), ["embed", "cifar10", "photos", "--map", "none"], 1, 20),
    "explain": (
        lambda: vitrail.explain("cifar10", "photos", method="rollout"),
        ["explain", "cifar10", "photos", "--method", "rollout"],
        1,
        20,
    ),
    "export": (
        lambda: vitrail.export("cifar10", "a.onnx", overwrite=True),
        ["export", "cifar10", "a.onnx", "--overwrite"],
        0,
        20,
    ),
    "evaluate": (
        lambda: vitrail.evaluate("cifar10", "data", split="val", probe="knn"),
        ["eval", "cifar10", "data", "--split", "val", "--probe", "knn"],
        0,
        30,
    ),
}


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("door", ["python", "command"])
def test_a_call_is_resolved_once(verb: str, door: str, capsys: pytest.CaptureFixture[str]) -> None:
    in_python, command, checks, switches = CALLS[verb]

    def typed() -> None:
        assert main(command) == 0, capsys.readouterr().err

    call = in_python if door == "python" else typed
    call()  # what is imported and kept at the first call is no part of it
    trace = Trace(call)
    assert trace.calls["locate"] == 1
    assert trace.calls["check_pictures"] == checks
    assert trace.switches <= switches, " → ".join(trace.files)


ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"
WALKS: dict[str, list[str]] = {
    "predict": ["predict", "cifar10", "photos"],
    "explain": ["explain", "cifar10", "photos/a.png"],
    "convert": ["convert", "cifar10", "a.safetensors", "--overwrite"],
    "export": ["export", "cifar10", "a.onnx", "--overwrite"],
}


def walk_of(verb: str) -> list[str]:
    """The files that architecture.md names on the way of a call, but for those of the side paths."""
    text = ARCHITECTURE.read_text(encoding="utf-8").split(f"\n**{verb}** ")[1].split("\n\n")[0]
    found = re.findall(r"`([\w/]+\.py)`(?:\s\(([^)]*)\))?", re.split(r"With a\s", text)[0])
    return [file for file, remark in found if not remark.endswith("requested")]


@pytest.mark.parametrize("verb", WALKS)
def test_a_call_takes_the_walk_that_is_described(verb: str) -> None:
    walk = walk_of(verb)
    assert len(walk) > 4
    main(WALKS[verb])  # what is made and kept at the first call takes long to trace
    path = iter(Trace(lambda: main(WALKS[verb])).path)
    for step, file in enumerate(walk):
        assert file in path, f"after {' → '.join(walk[:step])}, {file} is not reached"


@in_fuzz_only
def test_training_takes_the_walk_that_is_described() -> None:
    path = iter(Trace(lambda: main(["train", "digits", "--epochs", "1"])).path)
    for file in walk_of("train"):
        assert file in path, file
