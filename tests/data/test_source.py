"""What data are called, and parts of a source."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data import open_data
from vitrail.data.copies import Copies
from vitrail.data.source import ArraySource, FileSource, Source, name_after
from vitrail.data.sources.hf_datasets import HubSource
from vitrail.data.sources.shards import Shard, ShardSource
from vitrail.storage import Disk


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


@pytest.mark.parametrize(
    "source",
    [
        ArraySource(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), [0, 1, 0], "a"),
        FileSource(["a/0", "a/1", "a/2"], [0, 1, 0], Path()),
        HubSource([], "image", [0, 1, 0], "a"),
        ShardSource(
            [Shard(Copies(Disk(""), Path()), name) for name in ("x.tar", "y.tar")], [1, 2], np.array([0, 1, 0])
        ),
    ],
    ids=lambda source: type(source).__name__,
)
def test_parts_keep_names_and_may_be_empty(source: Source) -> None:
    keys = source.keys()
    part = source.select([2, 1]).select(np.array([1, 0]))
    assert part.keys() == keys[1:]
    assert part.labels.tolist() == [1, 0]
    assert source.keys() == keys
    assert len(source.select([])) == 0
