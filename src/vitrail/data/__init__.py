"""From pictures on disk to batches.

preprocess    `Preprocess`: a picture → a model's input, as data, with a preset per family of weights
pixels        any picture → pixels, opened without trusting it, without torch; transform: in torch
source        what every source provides; sources/ has one file per kind; datasets decides which (`open_data`)
label_kinds   a class, a set of labels or values: how each is stored, counted and written; label_columns reads them
labels        what the names of classes give away
split         stratified splits and split.csv; agreement: the same data on all ranks
augment/      augmentation, batched and deterministic
chunks        samples → finished pictures; loader yields batches of them
check/        likely problems of a data set; sheet draws it, and what the model sees
shard_writer  a data set as webdataset shards; download fetches published files

The names below load their module when first used: the config classes need no torch.
"""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy_names

if TYPE_CHECKING:
    from vitrail.data.config import Augment as Augment
    from vitrail.data.config import DataConfig as DataConfig
    from vitrail.data.config import LoaderConfig as LoaderConfig
    from vitrail.data.datasets import open_data as open_data
    from vitrail.data.datasets import write_split_file as write_split_file
    from vitrail.data.loader import Batch as Batch
    from vitrail.data.loader import Loader as Loader
    from vitrail.data.preprocess import Preprocess as Preprocess
    from vitrail.data.preprocess import preset as preset
    from vitrail.data.source import ArraySource as ArraySource
    from vitrail.data.source import Dataset as Dataset
    from vitrail.data.source import Source as Source
    from vitrail.data.transform import denormalize as denormalize
    from vitrail.data.transform import fit as fit
    from vitrail.data.transform import normalize as normalize
    from vitrail.data.transform import prepare as prepare


__getattr__, __dir__, __all__ = lazy_names(__name__)
