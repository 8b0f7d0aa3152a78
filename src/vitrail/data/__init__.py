"""From pictures on disk to batches.

preprocess  `Preprocess`: a picture → a model's input, as data, with a preset per family of weights
picture     opening pictures safely; transform carries a `Preprocess` out
source      what every source provides; sources/ has one file per kind; opening decides which (`open_data`)
naming      the names of data sets
split       stratified splits and split.csv
augment/    augmentation, batched and deterministic
order       which samples are in which batch; chunks makes batches; loader yields them
check/      likely problems of a data set; view draws it, and what the model sees, on sheets
sharding    writing webdataset shards

The names below load their module when first used: the config classes need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.data.augment.config import Augment
    from vitrail.data.config import DataConfig, LoaderConfig
    from vitrail.data.loader import Batch, Loader
    from vitrail.data.opening import open_data, write_split_file
    from vitrail.data.preprocess import Preprocess, preset
    from vitrail.data.source import ArraySource, Dataset, Source
    from vitrail.data.transform import denormalize, fit, normalize, prepare

# Public name → the module that defines it.
_HOME = {
    "ArraySource": "vitrail.data.source",
    "Augment": "vitrail.data.augment.config",
    "Batch": "vitrail.data.loader",
    "DataConfig": "vitrail.data.config",
    "Dataset": "vitrail.data.source",
    "Loader": "vitrail.data.loader",
    "LoaderConfig": "vitrail.data.config",
    "Preprocess": "vitrail.data.preprocess",
    "Source": "vitrail.data.source",
    "denormalize": "vitrail.data.transform",
    "fit": "vitrail.data.transform",
    "normalize": "vitrail.data.transform",
    "open_data": "vitrail.data.opening",
    "prepare": "vitrail.data.transform",
    "preset": "vitrail.data.preprocess",
    "write_split_file": "vitrail.data.opening",
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


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'vitrail.data' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
