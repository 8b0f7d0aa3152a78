"""Where classes are uneven, their recalls come before the accuracy; everywhere else, nothing changes."""

import numpy as np
import pytest
import sklearn.metrics as sk

from vitrail.tasks.one_results import OneResults

EVEN, TRAINED, MEASURED = ((30, 30, 30), ()), ((30, 30, 30), (100, 100, 20)), ((90, 90, 9), (50, 50, 50))


def make_results(counts: tuple[int, ...], trained: tuple[int, ...]) -> OneResults:
    generator = np.random.default_rng(0)
    targets = np.repeat(np.arange(len(counts)), counts)
    logits = generator.normal(size=(len(targets), len(counts))).astype(np.float32)
    logits[np.arange(len(targets)), targets] += np.where(targets == 2, 0.2, 3.0)
    return OneResults(logits, targets, ("cat", "dog", "axolotl"), None, 0.95).trained_on(trained)


@pytest.mark.parametrize(("counts", "trained"), [TRAINED, MEASURED])
def test_uneven_classes_begin_with_their_recalls(counts: tuple[int, ...], trained: tuple[int, ...]) -> None:
    results = make_results(counts, trained)
    predicted = results.logits.argmax(axis=1)
    balanced = f"{sk.balanced_accuracy_score(results.targets, predicted):.2%}"
    recalls = sk.recall_score(results.targets, predicted, average=None)
    first, second, third, *_ = results.headline()
    assert (first.name, first.value) == ("balanced accuracy", balanced)
    assert (second.name, second.value, second.note) == ("lowest recall", f"{recalls[2]:.2%}", "axolotl")
    assert (third.name, third.value) == ("top-1 accuracy", f"{sk.accuracy_score(results.targets, predicted):.2%}")
    rows = results.rows()
    assert [name for name, _ in rows][:3] == ["balanced accuracy", "lowest recalls", "top-1"]
    assert rows[1][1].startswith(f"axolotl {recalls[2]:.1%}, ")
    assert [name for name, _ in rows].count("balanced accuracy") == 1
    assert f"their mean recall is {balanced}" in results.verdict("m", "n pictures")


@pytest.mark.parametrize(
    ("counts", "trained"),
    [EVEN, ((8, 7, 2), (50, 50, 50)), ((30, 30, 30), (60, 50, 20))],
    ids=["even", "by chance", "nearly even"],
)
def test_even_classes_begin_with_the_accuracy(counts: tuple[int, ...], trained: tuple[int, ...]) -> None:
    results = make_results(counts, trained)
    assert results.headline()[0].name == "top-1 accuracy"
    assert [name for name, _ in results.rows()][:3] == ["top-1", "macro F1", "balanced accuracy"]
    assert "uneven" not in results.verdict("m", "n pictures")
