"""Stratified splits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.config import DataConfig
from vitrail.data.split import UNUSED, read_split, split_samples, stratify, write_split
from vitrail.errors import ConfigError, DataError

RATES = {"val": 0.2, "test": 0.1}


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.integers(0, 5))
def test_every_sample_is_in_one_split_and_training_has_every_class(labels: list[int], seed: int) -> None:
    keys = [f"k{index}" for index in range(len(labels))]
    parts = stratify(keys, labels, RATES, seed)
    together = sorted(index for indices in parts.values() for index in indices.tolist())
    assert together == list(range(len(labels)))
    assert {labels[index] for index in parts["train"]} == set(labels)
    for label in set(labels):
        count = labels.count(label)
        for name, rate in RATES.items():
            share = sum(labels[index] == label for index in parts[name])
            assert abs(share - count * rate) <= 1.5


def test_the_split_follows_the_names_not_the_order() -> None:
    keys = [f"k{index}" for index in range(50)]
    labels = [index % 2 for index in range(50)]
    parts = stratify(keys, labels, RATES, seed=0)
    backwards = stratify(keys[::-1], labels[::-1], RATES, seed=0)
    for name in parts:
        assert {keys[i] for i in parts[name]} == {keys[::-1][i] for i in backwards[name]}
    assert any(not np.array_equal(parts[name], stratify(keys, labels, RATES, seed=1)[name]) for name in parts)


def test_small_classes() -> None:
    parts = stratify(["a", "b", "c"], [0, 0, 1], RATES, seed=0)
    assert len(parts["val"]) == 1  # of the class with two
    assert len(parts["train"]) == 2


def test_zero_rates_make_no_split() -> None:
    parts = split_samples(DataConfig(val_rate=0.5, test_rate=0.0), ["a", "b", "c", "d"], [0, 0, 1, 1])
    assert set(parts) == {"train", "val"}


@pytest.mark.parametrize("rates", [{"val": 1.0}, {"val": -0.1}, {"val": 0.6, "test": 0.5}])
def test_rates_that_cannot_be(rates: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="split rates"):
        stratify(["a"], [0], rates, seed=0)


def test_the_file_keeps_odd_names(tmp_path) -> None:
    keys = ['a,b"c.jpg', "új kép.jpg", "line\nbreak.jpg", "x.jpg"]
    write_split(tmp_path / "split.csv", {"train": [(key, "c") for key in keys[:3]], "val": [(keys[3], "d")]})
    parts = read_split(tmp_path / "split.csv", keys)
    assert {name: indices.tolist() for name, indices in parts.items()} == {"train": [0, 1, 2], "val": [3]}
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="needs the columns key and split"):
        read_split(tmp_path / "bad.csv", keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key,split\na,train\nb,vall\n", "b is in the split 'vall'; must be one of train, val, test"),
        ("key,split\na,train\nb\n", "b is in the split None"),
        ("key,split\na,train\nb,val\na,test\n", "a is in train and in test"),
        ("key,split\na,train\nb," + "v" * 200_000 + "\n", "not a table"),
    ],
)
def test_split_files_that_cannot_be(tmp_path, text: str, message: str) -> None:
    (tmp_path / "split.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_split(tmp_path / "split.csv", ["a", "b"])


def test_a_split_file_that_a_spreadsheet_wrote(tmp_path) -> None:
    (tmp_path / "split.csv").write_text("\ufeffkey,split\r\na,Train\r\nb,validation\r\n", encoding="utf-8")
    parts = read_split(tmp_path / "split.csv", ["a", "b"])
    assert {name: indices.tolist() for name, indices in parts.items()} == {"train": [0], "val": [1]}


def test_unused_samples_are_known_and_in_no_split(tmp_path) -> None:
    write_split(tmp_path / "split.csv", {"train": [("a", "x")], UNUSED: [("b", "x")]})
    assert {name: part.tolist() for name, part in read_split(tmp_path / "split.csv", ["a", "b"]).items()} == {
        "train": [0],
        UNUSED: [1],
    }


def random_sets(count: int, num_labels: int, seed: int) -> np.ndarray:
    """Label sets with a long tail, where labels come together."""
    random = np.random.default_rng(seed)
    rates = 0.5 / np.arange(1, num_labels + 1)
    topic = random.random((count, 1))
    return (random.random((count, num_labels)) < rates * (0.5 + topic)).astype(np.uint8)


def label_distribution(labels: np.ndarray, parts: dict[str, np.ndarray]) -> float:
    """How far the odds of each label differ between the splits and the whole: LD of Sechidis et al. (2011)."""

    def odds(some: np.ndarray) -> np.ndarray:
        positive = some.sum(axis=0, dtype=float)
        return positive / (len(some) - positive)

    return float(np.mean([np.abs(odds(labels[indices]) - odds(labels)) for indices in parts.values()]))


def test_sets_are_split_more_evenly_than_at_random() -> None:
    labels = random_sets(600, 12, seed=0)
    keys = [f"k{index}" for index in range(len(labels))]
    ours = stratify(keys, labels, RATES, seed=0)
    assert {name: len(part) for name, part in ours.items()} == {"train": 420, "val": 120, "test": 60}
    random = np.random.default_rng(0)
    others = [np.split(random.permutation(len(labels)), (420, 540)) for _ in range(20)]
    plain = [label_distribution(labels, dict(zip(("train", "val", "test"), parts, strict=True))) for parts in others]
    assert label_distribution(labels, ours) < 0.5 * min(plain)


sets = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 1), min_size=width, max_size=width), min_size=1, max_size=60)
)


@given(sets, st.integers(0, 5), st.randoms(use_true_random=False))
def test_sets_are_a_partition_whatever_their_order(rows: list[list[int]], seed: int, random) -> None:
    labels = np.array(rows, dtype=np.uint8)
    keys = [f"k{index}" for index in range(len(labels))]
    parts = stratify(keys, labels, RATES, seed)
    assert sorted(index for indices in parts.values() for index in indices.tolist()) == list(range(len(labels)))
    trained = labels[parts["train"]].any(axis=0)
    assert trained.tolist() == labels.any(axis=0).tolist(), "training has every label"
    order = random.sample(range(len(keys)), len(keys))
    again = stratify([keys[index] for index in order], labels[order], RATES, seed)
    for name, indices in parts.items():
        assert {keys[index] for index in indices} == {keys[order[index]] for index in again[name]}


def test_sets_of_one_picture_stay_together() -> None:
    labels = random_sets(120, 4, seed=1)
    keys = [f"k{index // 2}" for index in range(120)]
    parts = stratify(keys, labels, RATES, seed=0)
    assert sum(len({keys[index] for index in indices}) for indices in parts.values()) == 60


def test_unused_rates_and_pictures_without_labels() -> None:
    labels = np.zeros((20, 3), dtype=np.uint8)
    parts = stratify([str(index) for index in range(20)], labels, {"val": 0.0, "test": 0.25}, seed=0)
    assert {name: len(part) for name, part in parts.items()} == {"train": 15, "val": 0, "test": 5}


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=300), st.integers(0, 5))
def test_values_are_split_in_the_same_proportions(numbers: list[float], seed: int) -> None:
    values = np.array(numbers, dtype=np.float32)[:, None]
    keys = [f"k{index}" for index in range(len(values))]
    parts = stratify(keys, values, RATES, seed)
    assert sorted(index for indices in parts.values() for index in indices.tolist()) == list(range(len(values)))
    for name, rate in RATES.items():
        assert abs(len(parts[name]) - rate * len(values)) <= 6  # of at most ten quantiles, each rounded
    backwards = stratify(keys[::-1], values[::-1], RATES, seed)
    for name in parts:
        assert {keys[index] for index in parts[name]} == {keys[::-1][index] for index in backwards[name]}


def test_each_split_of_values_spans_their_range() -> None:
    values = np.random.default_rng(0).lognormal(size=(400, 2)).astype(np.float32)
    parts = stratify([str(index) for index in range(400)], values, RATES, seed=0)
    tenths = np.searchsorted(np.quantile(values[:, 0], np.arange(1, 10) / 10), values[:, 0], side="right")
    for name, count in (("val", 8), ("test", 4)):
        assert np.bincount(tenths[parts[name]], minlength=10).tolist() == [count] * 10


def test_pictures_without_labels_are_split_at_random() -> None:
    parts = stratify([str(index) for index in range(20)], np.zeros((20, 0), dtype=np.float32), RATES, seed=0)
    assert {name: len(part) for name, part in parts.items()} == {"train": 14, "val": 4, "test": 2}
