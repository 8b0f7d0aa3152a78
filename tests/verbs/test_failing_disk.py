"""Verbs on a disk whose n-th call fails: each file is the old or the new one, and nothing else is left."""

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from tests.data.conftest import make_folder  # noqa: F401 - a fixture

import vitrail
from faults import check_every_failure
from fuzzing import in_fuzz_only
from vitrail.canvas import save_figure
from vitrail.cli.main import main
from vitrail.explanation.paper_figures import save_paper_figure
from vitrail.files import atomic_path
from vitrail.prediction.feature_table import FeaturesInMemory
from vitrail.prediction.neighbours import Neighbour
from vitrail.verbs.embed import Embeddings
from vitrail.verbs.predict import Predictions
from vitrail.verbs.search import Found, SearchResults
from vitrail.weights.tensor_files import write_npz, write_pickle, write_safetensors


def old_files(*names: str) -> Callable[[Path], None]:
    def begin(folder: Path) -> None:
        for name in names:
            (folder / name).write_text("old")

    return begin


def test_figures(tmp_path: Path) -> None:
    figure = Figure(figsize=(1, 1))
    check_every_failure(
        lambda folder: save_paper_figure(figure, folder, "f"), tmp_path / "a", old_files("f.pdf", "f.png")
    )
    check_every_failure(lambda folder: save_figure(figure, folder / "f.png"), tmp_path / "b")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_embed(suffix: str, tmp_path: Path) -> None:
    embeddings = Embeddings(table=FeaturesInMemory(np.ones((3, 4), np.float32), picture=("a", "b", "c")))
    names = [f"f{suffix}", *(["f.csv"] if suffix == ".npy" else [])]
    check_every_failure(lambda folder: embeddings.save(folder / f"f{suffix}"), tmp_path, old_files(*names))


def test_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found(query="a", neighbours=(Neighbour(picture="b", similarity=1.0, row=0),))
    results = SearchResults(where="out", method="exact", queries=(found,), searched=1, broken=0)
    monkeypatch.setattr("vitrail.data.sheet.draw_sheet", lambda *_, **__: Image.new("RGB", (8, 8)))
    check_every_failure(results.save, tmp_path, old_files("search.jpg", "search.json", "search.csv"))


@pytest.mark.parametrize("write", [write_npz, write_pickle, lambda path, tensors: write_safetensors(path, tensors, {})])
def test_weights(write: Callable[..., None], tmp_path: Path) -> None:
    def act(folder: Path) -> None:
        with atomic_path(folder / "weights") as draft:
            write(draft, {"a": torch.ones(3, 4), "b": torch.zeros(2)})

    check_every_failure(act, tmp_path, old_files("weights"))


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_predict(name: str, save_model: Callable[..., str], photos: list[str], tmp_path: Path) -> None:
    model = vitrail.load(save_model())
    rows = vitrail.predict(model, photos)
    assert isinstance(rows, Predictions)
    check_every_failure(lambda folder: rows.save(folder / name), tmp_path / "runs", old_files(name))


def test_explain(
    save_model: Callable[..., str], photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = vitrail.explain(save_model(), photos[:1], method="rollout")
    for name in ("heads_sheet", "layers_sheet", "explanation_sheet", "draw_pair"):  # drawing takes long
        monkeypatch.setattr(f"vitrail.explanation.gallery.{name}", lambda *_: Image.new("RGB", (8, 8)))
    check_every_failure(explained.save, tmp_path / "runs", old_files("sheet.png", "one.npz", "one-overlay.png"))


def test_data_check(make_folder: Callable[..., Path], tmp_path: Path) -> None:  # noqa: F811
    check = vitrail.check_data(make_folder("cat", "dog", count=4))
    check_every_failure(check.write, tmp_path / "runs", old_files("check.csv", "contact_sheet.png", "split.csv"))


def test_data_show_exits_with_2(
    make_folder: Callable[..., Path],  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = make_folder("cat", "dog", count=4)

    def act(folder: Path) -> None:
        code = main(["data", "show", str(data), "--size", "16", "--pictures", "1", "--out", str(folder)])
        _, said = capsys.readouterr()
        assert code == 0 or (code == 2 and "Traceback" not in said), said
        if code:
            assert re.fullmatch(r"error: .*/runs/\d+(/augmented\.png)?\b.*(No space|Permission|Input/output).*\n", said)

    check_every_failure(act, tmp_path / "runs", old_files("augmented.png"))


@pytest.mark.parametrize("target", ["new.safetensors", "folder"])
def test_convert(target: str, save_model: Callable[..., str], tmp_path: Path) -> None:
    model = save_model(depth=1)
    options: dict[str, Any] = {"format": "hf" if target == "folder" else "vitrail", "overwrite": True}
    begin = old_files(target) if "." in target else lambda _: None
    check_every_failure(lambda folder: vitrail.convert(model, folder / target, **options), tmp_path / "runs", begin)


@in_fuzz_only
def test_export(save_model: Callable[..., str], tmp_path: Path) -> None:
    model = save_model(depth=1)
    check_every_failure(
        lambda folder: vitrail.export(model, folder / "m.onnx", overwrite=True), tmp_path / "runs", old_files("m.onnx")
    )


@in_fuzz_only
@pytest.mark.usefixtures("no_report")
def test_evaluate(
    save_model: Callable[..., str],
    make_folder: Callable[..., Path],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = count()
    data = make_folder(*(f"class {index}" for index in range(3)), count=4)
    model = vitrail.load(save_model(depth=1, num_classes=3))
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks) / 8)  # the files say how long it took
    check_every_failure(
        lambda folder: vitrail.evaluate(model, data, out=folder), tmp_path / "runs", old_files("metrics.json")
    )
