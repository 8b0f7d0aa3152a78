"""What several tests share: one tiny config, a model without a single zero weight, quiet threads."""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

# No test reaches out, and none finds what happens to be on a machine; before anything imports huggingface_hub.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": f"{tempfile.gettempdir()}/vitrail-tests-no-hub"}
os.environ["VITRAIL_CACHE"] = f"{tempfile.gettempdir()}/vitrail-tests-no-cache-{os.getpid()}"

import pytest
import torch
from torch import Tensor

from fuzzing import set_up_hypothesis
from shortcuts import leave_blank, skip_reports
from stores import KINDS, make_root, serve_s3
from vitrail.model import ViT, ViTConfig
from vitrail.model.attention import KeylessLinear
from vitrail.weights.native import fingerprint

set_up_hypothesis()  # before the tests are read

TINY = ViTConfig(image_size=(32, 32), patch_size=(8, 8), width=32, depth=3, heads=4, mlp_width=64, num_classes=7)


@pytest.fixture(autouse=True)
def _fixed_randomness() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Workers of a parallel run would fight for the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Generator[None]:
    """The tests kill processes, but cut nobody's power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_export_of_each_graph() -> Generator[None]:
    """torch takes seconds to trace a graph; of one that it has traced before, only our own part of the work is done."""
    programs: dict[tuple[str, ...], Any] = {}
    trace = torch.onnx.export

    def export(graph: torch.nn.Module, inputs: tuple[Tensor, ...], **options: Any) -> Any:
        own = [{name: value for name, value in vars(part).items() if name[0] != "_"} for part in graph.modules()]
        shapes = [each.shape for each in inputs]
        key = (fingerprint(graph.state_dict()), repr(graph), repr(own), repr(shapes), repr(options))
        if key not in programs:
            programs[key] = trace(graph, inputs, **options)
        return programs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.onnx.export", export)
        yield


DRAWING = ("evaluation", "explanation", "prediction")  # whose tests are about figures, among other things


@pytest.fixture(autouse=True)
def _blank_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure takes half a second to draw: where nobody looks at it, it is a blank picture of its size."""
    if request.path.parent.name not in DRAWING and request.node.get_closest_marker("draws") is None:
        leave_blank(monkeypatch)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and evaluation without a report, for tests that are about something else."""
    skip_reports(monkeypatch)


@pytest.fixture
def tiny() -> ViTConfig:
    return TINY


@pytest.fixture(scope="session")
def s3_server() -> Generator[str]:
    """An S3 on loopback, which s3:// means from now on; its bucket is `stores.BUCKET`."""
    with serve_s3() as address:
        yield address


@pytest.fixture(params=KINDS)
def store_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place for files, of each kind in turn: a folder's path, memory://…, s3://…."""
    return make_root(request.param, tmp_path, request)


class Clock:
    """Stands for the module `time`: on it, only sleeping takes time."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def make_model() -> Callable[..., ViT]:
    """A tiny model in eval mode with every weight random: zeros would hide a wrong wiring."""

    def make(**changes: Any) -> ViT:
        return randomize(ViT(dataclasses.replace(TINY, **changes))).eval()

    return make


def randomize(model: Any) -> Any:
    """Fill every parameter and float buffer with values that no two places share."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            one = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(one + 0.3 * noise if parameter.ndim <= 1 else noise / max(parameter[:1].numel(), 1) ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(generator=generator)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0, generator=generator)
        for module in model.modules():
            if isinstance(module, KeylessLinear):
                module.bias.chunk(3)[1].zero_()
    return model
