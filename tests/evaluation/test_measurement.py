from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.evaluation.conftest import make_class_folders
from tests.prediction.conftest import CLASSES, make_predictor

from processes import run_ranks
from vitrail.data import Dataset, open_data, prepare
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.measurement import (
    Measurement,
    align_classes,
    choose,
    measure_split,
    order_by_position,
    pick_split,
    views,
)
from vitrail.prediction import Predictor


def straightforward(predictor: Predictor, dataset: Dataset, sample: int) -> torch.Tensor:
    """The logits of one test picture, in the order of the data's classes, one step after the other."""
    with torch.inference_mode():
        logits = predictor.model(prepare(dataset.split("test").picture(sample), predictor.preprocess)[None])[0]
    assert predictor.classes is not None
    return torch.stack([logits[predictor.classes.index(name)] for name in dataset.classes])


@pytest.mark.parametrize("threads", [1, 3])
def test_classes_align_by_name(
    predictor: Predictor, arrays: Dataset, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(predictor.runtime), "threads", threads)
    monkeypatch.setattr(type(predictor.runtime), "batch_size", 16)
    found = measure_split(predictor, arrays)
    assert arrays.classes != predictor.classes
    expected = torch.stack([straightforward(predictor, arrays, sample) for sample in range(100)])
    np.testing.assert_allclose(found.logits, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.targets, arrays.split("test").labels)
    assert found.keys[5] == "arrays/5"
    assert found.metrics.top1.correct == int((expected.argmax(1).numpy() == found.targets).sum())
    assert found.seconds is not None
    assert found.images_per_second == 100 / found.seconds


def test_a_broken_picture_is_left_out_and_named(predictor: Predictor, folder: Dataset) -> None:
    found = measure_split(predictor, folder)
    assert list(found.broken) == ["test/cat/007.png"]
    assert len(found.logits) == len(found.targets) == len(found.keys) == 209
    assert "test/cat/007.png" not in found.keys
    place = found.keys.index("test/cat/008.png")
    assert folder.classes[found.targets[place]] == "cat"
    np.testing.assert_allclose(
        found.logits[place], straightforward(predictor, folder, int(found.samples[place])), rtol=1e-4, atol=1e-4
    )


def test_all_splits_together_can_be_taken_apart_again(arrays: Dataset) -> None:
    everything = pick_split(arrays, "all")
    sizes = [len(source) for source in arrays.splits.values()]
    assert len(everything) == sum(sizes)
    last = list(arrays.splits.values())[-1]
    part = everything.select([sizes[0] + 1, 0, len(everything) - 1]).select([2, 0])
    assert part.labels.tolist() == [last.labels[-1], everything.labels[sizes[0] + 1]]
    assert [part.key(0), part.key(1)] == [last.key(len(last) - 1), everything.key(sizes[0] + 1)]
    np.testing.assert_array_equal(part.picture(0), last.picture(len(last) - 1))


def test_too_many_broken_pictures_are_an_error(predictor: Predictor, tmp_path: Path) -> None:
    root = make_class_folders(tmp_path / "few", count=8)
    with pytest.raises(DataError, match=r"1 of 56 pictures cannot be read, more than 1 %.*\n.*cat/007.png: "):
        measure_split(predictor, open_data(root))


def test_all_splits_at_once(predictor: Predictor, folder: Dataset) -> None:
    found = measure_split(predictor, folder, "all")
    assert len(found.keys) == 14 + 209
    counts = np.bincount(found.targets, minlength=7)
    assert sorted(counts) == [31, *[32] * 6]
    for place in (0, 13, 14, 200):
        assert found.keys[place].split("/")[1] == folder.classes[found.targets[place]]


def test_some_of_the_pictures(predictor: Predictor, arrays: Dataset) -> None:
    found = measure_split(predictor, arrays, limit=10)
    everything = measure_split(predictor, arrays)
    assert len(found.samples) == 10
    assert list(found.samples) == sorted(set(found.samples))
    np.testing.assert_allclose(found.logits, everything.logits[found.samples], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(choose(5, 9), np.arange(5))
    with pytest.raises(ConfigError, match="at least 1; got 0"):
        choose(5, 0)


@pytest.mark.parametrize(("kind", "count"), [("flip", 2), ("shift", 5), ("full", 10)])
def test_test_time_augmentation_averages_probabilities(
    predictor: Predictor, arrays: Dataset, kind: Any, count: int
) -> None:
    images = prepare(arrays.split("test").picture(0), predictor.preprocess)[None]
    seen = views(images, kind)
    assert len(seen) == count
    assert len({view.numpy().tobytes() for view in seen}) == count
    assert all(view.shape == images.shape for view in seen)
    found = measure_split(predictor, arrays, tta=kind, limit=100)
    with torch.inference_mode():
        mean = torch.stack([predictor.model(view)[0].softmax(0) for view in seen]).mean(0)
    order = align_classes(predictor, arrays.classes)
    np.testing.assert_allclose(np.exp(found.logits[0]), mean[order], rtol=1e-4)
    with pytest.raises(ConfigError, match="tta= has no 'filp'; did you mean flip"):
        views(images, "filp")  # pyright: ignore


def test_flips_and_shifts_by_hand() -> None:
    image = torch.arange(32 * 32, dtype=torch.float32).view(1, 1, 32, 32)
    seen = views(image, "full")
    torch.testing.assert_close(seen[5], image.flip(-1))
    torch.testing.assert_close(seen[4][..., :-2, :-2], image[..., 2:, 2:])  # down and right by 1/16, so 2 pixels


def test_other_classes_are_named(predictor: Predictor, arrays: Dataset) -> None:
    with pytest.raises(DataError, match="the data have yak, which the model lacks; the model has ant"):
        align_classes(predictor, [*CLASSES[1:], "yak"])
    with pytest.raises(DataError, match=r"the model has fox, gnu, which the data lack\."):
        align_classes(predictor, CLASSES[:5])
    nameless = replace(predictor, classes=None)
    with pytest.raises(DataError, match="no class names.*by_position="):
        measure_split(nameless, arrays)
    assert align_classes(nameless, arrays.classes, by_position=True) == list(range(7))
    with pytest.raises(DataError, match="7 classes and the data have 2"):
        align_classes(nameless, ["a", "b"], by_position=True)


def _evaluate_on_a_rank(folder: str) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = measure_split(make_predictor(), open_data(Path(folder) / "animals"))
    arrays = {"logits": found.logits, "targets": found.targets, "samples": found.samples}
    np.savez(f"{folder}/rank-{rank}.npz", keys=np.array(found.keys), broken=np.array(list(found.broken)), **arrays)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_give_the_same_bits_as_one(tmp_path: Path, folder: Dataset, world_size: int) -> None:
    alone = measure_split(make_predictor(), folder)
    assert run_ranks(_evaluate_on_a_rank, str(tmp_path), count=world_size) == [0] * world_size
    for rank in range(world_size):
        found = np.load(tmp_path / f"rank-{rank}.npz")
        for name in ("logits", "targets", "samples"):
            np.testing.assert_array_equal(found[name], getattr(alone, name))
        assert found["keys"].tolist() == list(alone.keys)
        assert found["broken"].tolist() == list(alone.broken)
    assert isinstance(alone, Measurement)


def test_classes_that_are_numbers_are_ordered_as_numbers_by_position() -> None:
    assert order_by_position(["0", "1", "10", "100", "2"]) == ["0", "1", "2", "10", "100"]
    assert order_by_position(["a", "10", "2"]) == ["a", "10", "2"]
