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
