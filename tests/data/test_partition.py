"""Folds are a partition in which labels have the same proportions and groups stay whole, whatever the pictures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from vitrail.data.config import DataConfig
from vitrail.data.datasets import open_data
from vitrail.data.partition import assign_folds, divide
from vitrail.errors import DataError

CLASSES = ("a", "b", "c")


def keys_of(count: int) -> list[str]:
    return [f"{index}.png" for index in range(count)]


@given(st.lists(st.integers(6, 40), min_size=2, max_size=3), st.integers(2, 5), st.integers(0, 3))
def test_folds_of_classes_are_as_even_as_sklearns(counts: list[int], folds: int, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    parts = assign_folds(keys_of(len(labels)), labels, CLASSES[: len(counts)], folds=folds, seed=seed)[0]
    ours = np.array(
        [[((parts == fold) & (labels == each)).sum() for each in range(len(counts))] for fold in range(folds)]
    )
    theirs = [
        np.bincount(labels[test], minlength=len(counts)) for _, test in StratifiedKFold(folds).split(labels, labels)
    ]
    assert np.array_equal(np.sort(ours, axis=0), np.sort(np.array(theirs), axis=0))
    sizes = np.bincount(parts, minlength=folds)
    assert sizes.max() - sizes.min() <= 1 + len(counts) // 2


@given(st.data())
def test_no_group_is_in_two_folds(data: st.DataObject) -> None:
    count, folds = data.draw(st.integers(60, 120)), data.draw(st.integers(2, 4))
    chance = np.random.default_rng(data.draw(st.integers(0, 1000)))
    labels, groups = chance.integers(0, 2, count), chance.integers(0, 20, count)
    named = {key: f"g{group}" for key, group in zip(keys_of(count), groups, strict=True)}
    parts = assign_folds(keys_of(count), labels, CLASSES[:2], folds=folds, groups=named)[0]

    def torn(folds_of: np.ndarray) -> int:
        return sum(len(set(folds_of[groups == group])) > 1 for group in set(groups.tolist()))

    theirs = np.zeros(count, dtype=int)
    for fold, (_, test) in enumerate(StratifiedGroupKFold(folds).split(labels, labels, groups)):
        theirs[test] = fold
    assert torn(parts) == torn(theirs) == 0

    def unevenness(folds_of: np.ndarray) -> float:
        return max(abs(labels[folds_of == fold].mean() - labels.mean()) for fold in range(folds))

    assert unevenness(parts) <= unevenness(theirs) + 0.12, "about as well stratified"


def test_names_and_the_seed_decide_and_nothing_else() -> None:
    labels = np.array([0, 1] * 30)
    keys = keys_of(60)
    parts = assign_folds(keys, labels, CLASSES[:2], folds=3, repeats=2, seed=1)
    order = np.random.default_rng(0).permutation(60)
    moved = assign_folds([keys[index] for index in order], labels[order], CLASSES[:2], folds=3, repeats=2, seed=1)
    assert np.array_equal(moved, parts[:, order])
    assert not np.array_equal(parts[0], parts[1]), "each repeat is another one"
    assert not np.array_equal(parts, assign_folds(keys, labels, CLASSES[:2], folds=3, repeats=2, seed=2))


def test_several_labels_and_values_are_even_too() -> None:
    chance = np.random.default_rng(0)
    sets = (chance.random((300, 3)) < (0.5, 0.2, 0.05)).astype(np.uint8)
    parts = divide(keys_of(300), sets, [1, 1, 1], 0)
    counts = np.array([sets[parts == fold].sum(axis=0) for fold in range(3)])
    assert (counts.max(axis=0) - counts.min(axis=0) <= 2).all()
    values = chance.normal(size=(300, 2)).astype(np.float32)
    parts = assign_folds(keys_of(300), values, ("x", "y"), folds=5)[0]
    means = [values[parts == fold, 0].mean() for fold in range(5)]
    shuffled = [values[fold::5, 0].mean() for fold in range(5)]
    assert np.std(means) < np.std(shuffled) / 2


def test_pictures_of_the_same_name_stay_together() -> None:
    keys = [f"{index // 2}.png" for index in range(40)]
    parts = divide(keys, np.array([0, 0, 1, 1] * 10), [1, 1], 0)
    assert np.array_equal(parts[::2], parts[1::2])


@pytest.mark.parametrize(
    ("labels", "groups", "folds", "message"),
    [
        ([0, 0, 0, 1], None, 2, "two pictures of each class.*b has fewer"),
        ([0, 1, 0, 1], "xxyy", 3, "at least as many groups; got 2 groups"),
        ([0, 0, 1, 1], "xyzz", 2, "two in two groups of each class"),
        ([0, 1], None, 3, "at least as many pictures; got 2 pictures"),
    ],
)
def test_what_cannot_be_folded_is_refused(labels: list[int], groups: str | None, folds: int, message: str) -> None:
    keys = keys_of(len(labels))
    named = None if groups is None else dict(zip(keys, groups, strict=True))
    with pytest.raises(DataError, match=message):
        assign_folds(keys, np.array(labels), CLASSES[:2], folds=folds, groups=named)


def test_a_column_of_a_table_keeps_groups_in_one_split(tmp_path) -> None:
    rows = [f"{index}.png,{'cat' if index % 3 else 'dog'},p{index % 12}" for index in range(120)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,label,patient", *rows]))
    dataset = open_data(table, DataConfig(group="patient"))
    homes = {
        split: {dataset.groups[key] for key in source.keys()}  # noqa: SIM118
        for split, source in dataset.splits.items()
    }
    assert set(homes) == {"train", "val", "test"}
    assert sum(map(len, homes.values())) == 12, "each is in one split"
    with pytest.raises(DataError, match="must be a column of the table; did you mean patient"):
        open_data(table, DataConfig(group="patients"))
    with pytest.raises(DataError, match="names a column of a table"):
        open_data("digits", DataConfig(group="patient"))
    table.write_text(
        "\n".join(["path,label,patient,split", *(f"{row},{'train' if row[0] < '5' else 'test'}" for row in rows)])
    )
    with pytest.raises(DataError, match="the group p\\d+ is in train and in test|is in train and in test"):
        open_data(table, DataConfig(group="patient"))
