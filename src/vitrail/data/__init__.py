"""From pictures on disk to batches.

preprocess  `Preprocess`: a picture → a model's input, as data, with a preset per family of weights
picture     opening pictures safely; transform carries a `Preprocess` out
source      what every source provides; sources/ has one file per kind; opening decides which (`open_data`)
naming      the names of data sets
agreement   the same data on all ranks
split       stratified splits and split.csv
augment/    augmentation, batched and deterministic
order       which samples are in which batch; chunks makes batches; loader yields them
check/      likely problems of a data set; view draws it, and what the model sees, on sheets
sharding    writing webdataset shards

The names below load their module when first used: the config classes need no torch.
"""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy_names

if TYPE_CHECKING:
    from vitrail.data.config import Augment, DataConfig, LoaderConfig
    from vitrail.data.datasets import open_data, write_split_file
    from vitrail.data.loader import Batch, Loader
    from vitrail.data.preprocess import Preprocess, preset
    from vitrail.data.source import ArraySource, Dataset, Source
    from vitrail.data.transform import denormalize, fit, normalize, prepare

# Module → the public names that it defines; pyright wants `__all__` spelled out too, and a test compares them.
_HOMES = {
    "config": (
        "Augment",
        "DataConfig",
        "LoaderConfig",
    ),
    "datasets": (
        "open_data",
        "write_split_file",
    ),
    "loader": (
        "Batch",
        "Loader",
    ),
    "preprocess": (
        "Preprocess",
        "preset",
    ),
    "source": (
        "ArraySource",
        "Dataset",
        "Source",
    ),
    "transform": (
        "denormalize",
        "fit",
        "normalize",
        "prepare",
    ),
}

__all__ = [
    "ArraySource",
    "Augment",
    "Batch",
    "DataConfig",
    "Dataset",
    "Loader",
    "LoaderConfig",
    "Preprocess",
    "Source",
    "denormalize",
    "fit",
    "normalize",
    "open_data",
    "prepare",
    "preset",
    "write_split_file",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
