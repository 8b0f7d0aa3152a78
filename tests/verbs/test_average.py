"""`vitrail.average` and the command; oracle: numpy's mean of what safetensors reads."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.prediction.conftest import CLASSES, write_tiny

import vitrail
from vitrail.cli.main import main
from vitrail.errors import ConfigError, DataError, WeightsError
from vitrail.model import ConvStem, Rates
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import read_native, save_checkpoint


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def vary(checkpoint: Checkpoint, seed: int, size: float = 0.1) -> Checkpoint:
    """As if it had been trained further."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: tensor + size * tensor.abs().mean() * torch.randn(tensor.shape, generator=generator)
        if tensor.is_floating_point()
        else tensor + seed
        for name, tensor in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)


def write_some(count: int = 3, **changes: Any) -> list[str]:
    """Varieties of one model, in files."""
    base = read_native(write_tiny(Path("0.safetensors"), **changes))
    for number in range(1, count):
        save_checkpoint(vary(base, number), f"{number}.safetensors")
    return [f"{number}.safetensors" for number in range(count)]


@pytest.mark.parametrize(("flags", "shares"), [([], (1, 1, 1)), (["--shares", "1,2,0.5"], (1, 2, 0.5))])
def test_the_mean_is_numpys(flags: list[str], shares: tuple[float, ...], capsys: pytest.CaptureFixture[str]) -> None:
    files = write_some()
    result = vitrail.average(files, out="python.safetensors", shares=() if not flags else shares)
    parts, mean = [load_file(name) for name in files], load_file("python.safetensors")
    for name, tensor in mean.items():
        expected = np.average([part[name].astype(np.float64) for part in parts], axis=0, weights=shares)
        np.testing.assert_allclose(tensor, expected, rtol=1e-6, atol=1e-8)
    assert main(["average", *files, "--out", "command.safetensors", *flags]) == 0
    assert Path("command.safetensors").read_bytes() == Path("python.safetensors").read_bytes()
    printed = capsys.readouterr().out
    assert "wrote command.safetensors" in printed
    assert "vitrail calibrate command.safetensors DATA" in printed
    assert result.shares == pytest.approx(np.array(shares) / sum(shares))
    assert result.distances[0] == 0 < result.distances[1] < 0.2
    origin = read_native(Path("python.safetensors")).origin
    assert origin.source.startswith("the mean of 0.safetensors (0.")
    assert origin.sha256.keys() == set(files)


def test_classes_are_aligned_by_name() -> None:
    files = write_some(2)
    order = [3, 1, 2, 0, 6, 5, 4]
    other = read_native(Path(files[1]))
    heads = {name: other.tensors[name][order] for name in ("head.weight", "head.bias")}
    names = tuple(CLASSES[index] for index in order)
    save_checkpoint(replace(other, tensors={**other.tensors, **heads}, classes=names), "reordered.safetensors")
    vitrail.average(files, out="plain.safetensors")
    vitrail.average([files[0], "reordered.safetensors"], out="aligned.safetensors")
    one, two = (load_file(name) for name in ("plain.safetensors", "aligned.safetensors"))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert read_native(Path("aligned.safetensors")).classes == CLASSES


def test_statistics_of_batch_norms_are_averaged_and_that_is_said() -> None:
    stem = ConvStem(widths=(8, 16), strides=(2, 2))
    files = write_some(stem=stem, patch_size=(2, 2))
    result = vitrail.average(files, out="mean.safetensors")
    parts, mean = [load_file(name) for name in files], load_file("mean.safetensors")
    name = "embed.stem.1.running_mean"
    np.testing.assert_allclose(mean[name], np.mean([part[name] for part in parts], axis=0), rtol=1e-5)
    assert mean["embed.stem.1.num_batches_tracked"] == max(part["embed.stem.1.num_batches_tracked"] for part in parts)
    assert any("running statistics of its batch norms" in note for note in result.notes)
    assert any("running statistics" in remark for remark in read_native(Path("mean.safetensors")).remarks)


def test_a_mean_without_a_head_is_to_be_trained_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"headless-{index}.safetensors" for index in range(2)]
    for source, target in zip(write_some(2), files, strict=True):
        vitrail.convert(source, target, num_classes=0)
    assert main(["average", *files, "--out", "mean.safetensors"]) == 0
    assert "next: vitrail train LABELLED_PICTURES --weights mean.safetensors" in capsys.readouterr().out
    with pytest.raises(DataError, match="has no head, so it names no class; pass probe= to measure its features"):
        vitrail.evaluate("mean.safetensors", "digits")


Change = Callable[[Checkpoint], Checkpoint]
REFUSED: list[tuple[Change, str]] = [
    (lambda c: replace(c, classes=(*CLASSES[:6], "yak")), "the classes are ant, bee, cat, … (7) and ant, bee, cat"),
    (lambda c: replace(c, classes=None), "the classes are ant, bee, cat, … (7) and without names"),
    (lambda c: replace(c, preprocess=replace(c.preprocess, mean=(0.1, 0.2, 0.3))), "preprocess.mean is"),
    (lambda c: replace(c, config=replace(c.config, heads=2)), "heads is 4 and 2"),
    (lambda c: replace(c, scores="sigmoid"), "the scores are softmax and sigmoid"),
    (lambda c: c.rounded(torch.float16), "their numbers are float32 and float16"),
    (lambda c: replace(c, extras={"mask_token": torch.zeros(2)}), "what they hold beside the model, such as a decoder"),
    (lambda c: with_several_labels(c), "the task is one and several"),
    (lambda c: replace(c, tensors={**c.tensors, "norm.bias": torch.full((32,), torch.nan)}), "NaN or infinite numbers"),
]


def with_several_labels(checkpoint: Checkpoint) -> Checkpoint:
    from vitrail.tasks.several import Several

    return replace(checkpoint, task=Several())


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_differs_is_refused_by_name(change: Change, message: str) -> None:
    first, second = write_some(2)
    save_checkpoint(change(read_native(Path(second))), "other.safetensors")
    with pytest.raises(WeightsError) as refused:
        vitrail.average([first, "other.safetensors"], out="mean.safetensors")
    assert message in str(refused.value)
    assert "other.safetensors" in str(refused.value)
    assert not Path("mean.safetensors").exists()


def test_rates_of_training_may_differ() -> None:
    first, second = write_some(2)
    other = read_native(Path(second))
    save_checkpoint(replace(other, config=replace(other.config, rates=Rates(path=0.1))), "other.safetensors")
    assert vitrail.average([first, "other.safetensors"], out="mean.safetensors").exit_code == 0


def test_models_from_different_starts_are_pointed_out() -> None:
    first, second = write_some(2)
    other = read_native(Path(second))
    save_checkpoint(vary(other, 5, size=3.0), "far.safetensors")
    near = vitrail.average([first, second], out="near.safetensors")
    far = vitrail.average([first, "far.safetensors"], out="mean.safetensors")
    assert not any("far apart" in note for note in near.notes)
    assert any("far apart" in note for note in far.notes)


def test_mistakes_are_told_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    files = write_some(2)
    for arguments, message in (
        ({"model": files[:1], "out": "m.safetensors"}, "at least 2 checkpoints; got 1"),
        ({"model": files}, "out= must be the file to write"),
        ({"model": files, "out": "m.npz"}, "ends in .safetensors; got m.npz"),
        ({"model": files, "out": files[0]}, "0.safetensors exists"),
        ({"model": files, "out": "m.safetensors", "shares": (1, 2, 3)}, "for each of the 2 checkpoints"),
        ({"model": files, "out": "m.safetensors", "shares": (1, 0)}, "must have one number above 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            vitrail.average(**arguments)  # pyright: ignore[reportArgumentType]
    assert main(["average", *files]) == 2
    assert "--out must be the file to write" in capsys.readouterr().err
    assert main(["average", *files, "--out", files[0], "--overwrite", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [part["share"] for part in facts["sources"]] == [0.5, 0.5]


@pytest.mark.parametrize("others", [True, False])
def test_the_mean_of_models_that_learned_from_outliers_is_one(others: bool) -> None:
    files = write_some()
    for file in files if others else files[:2]:
        learned = read_native(Path(file))
        save_checkpoint(replace(learned, origin=replace(learned.origin, outliers=True)), file)
    vitrail.average(files, out="mean.safetensors")
    assert read_native(Path("mean.safetensors")).is_unsure is others
