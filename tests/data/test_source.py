"""What data are called."""

from pathlib import Path

import pytest

from vitrail.data import open_data
from vitrail.data.source import name_after


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/x/flowers", "flowers"),
        ("/x/flowers/dataset", "flowers"),
        ("/x/flowers/data/images", "flowers"),
        ("/x/Flowers/Dataset", "Flowers"),
        ("/dataset", "dataset"),
        ("/tmp/dataset", "dataset"),
        ("/home/data/dataset", "dataset"),
    ],
)
def test_a_folder_that_is_called_dataset_is_named_after_the_one_above(path: str, name: str) -> None:
    assert name_after(Path(path)) == name


def test_the_current_folder_has_a_name_too(make_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder("train/cat", "train/dog", root="flowers/dataset")
    assert open_data(root).name == "flowers"
    monkeypatch.chdir(root)
    assert open_data(".").name == "flowers"
    (root.parent / "labels.csv").write_text("picture,label\n" + "dataset/train/cat/000.jpg,cat\n" * 1)
    assert name_after(root.parent / "labels.csv") == "flowers"
