"""Oracle: what torch itself loads from the archives that it writes."""

import io
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitrail.errors import WeightsError
from vitrail.weights.tensor_files import read_pickle


class Parts(nn.Module):
    """Shared numbers, views of them, and types of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.Parameter(torch.randn(3, 4).half())
        self.transposed = nn.Parameter(torch.randn(4, 3).T)
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("part", torch.arange(10.0)[2:5])
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.layers[1].weight = self.layers[0].weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs) + self.halves.float().sum() + self.transposed.sum() + self.part.sum() * self.count  # pyright: ignore


def save(model: nn.Module, example: Tensor, path: Path) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced: Any = torch.jit.trace(model.eval(), example)
        traced.save(str(path))
        return dict(torch.jit.load(str(path)).state_dict())


def test_every_tensor_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    expected = save(Parts(), torch.randn(2, 4), tmp_path / "a.pt")
    read = read_pickle(tmp_path / "a.pt")
    assert read.keys() == expected.keys()
    assert all(
        torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in expected.items()
    )


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("this must never run",)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (pickle.dumps(Harmful(), protocol=2), r"needs no (__builtin__|builtins)\.print; it was not run"),
        (pickle.dumps({"a": 1}, protocol=2), "must hold a tree of modules; got dict"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "names memory that it cannot need"),
        (b"\x80\x02K", "cannot be read as a torch checkpoint"),
    ],
)
def test_nothing_else_is_done_with_an_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tree: bytes, message: str
) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for name, content in (("constants.pkl", b""), ("data.pkl", tree), ("code/model.py", b"1 / 0")):
            archive.writestr(f"a/{name}", content)
    with pytest.raises(WeightsError, match=message):
        read_pickle(tmp_path / "a.pt")
    assert capsys.readouterr().out == ""


def test_numbers_that_are_missing(tmp_path: Path) -> None:
    save(nn.Linear(4, 4), torch.randn(2, 4), tmp_path / "a.pt")
    kept = io.BytesIO()
    with zipfile.ZipFile(tmp_path / "a.pt") as archive, zipfile.ZipFile(kept, "w") as other:
        for name in archive.namelist():
            content = archive.read(name)
            other.writestr(name, content[:8] if "/data/" in name else content)
    (tmp_path / "b.pt").write_bytes(kept.getvalue())
    with pytest.raises(WeightsError, match="cannot be read as a torch checkpoint file; it is damaged"):
        read_pickle(tmp_path / "b.pt")
