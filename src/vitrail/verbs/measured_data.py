"""The data that a model is measured on: opened for its task, with the splits of its run."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vitrail.data.config import AUTO, Columns, DataConfig
from vitrail.data.datasets import open_data
from vitrail.data.source import Dataset, Source
from vitrail.data.split import UNUSED, read_split
from vitrail.errors import DataError, VitrailError
from vitrail.evaluation.measurement import check_task, pick_split
from vitrail.evaluation.ood import is_unlabelled, open_unlabelled
from vitrail.tasks.task import Task
from vitrail.training.run_folder import read_config
from vitrail.verbs.call import DataArgument
from vitrail.weights.metadata import Metadata


def open_with_splits(data: DataArgument, run: Path, model: Metadata) -> tuple[Dataset, str]:
    """The data for a model, and the origin of their splits if they have none of their own: the run's, or new ones."""
    data, dataset = _open_as_trained(data, run, model)
    if not dataset.made_split:
        return dataset, ""
    file = run / "split.csv"
    new = "made now, from names and a seed; a model trained on these data may have seen the measured pictures"
    if data.opened is not None:
        return dataset, str(file) if _agrees(dataset, file) else new
    if not file.is_file():
        return dataset, new
    try:
        return open_data(data.where, replace(data.config, split_file=file)), str(file)
    except DataError:
        return dataset, f'{file} is for other pictures, so a new split was made; the split "all" uses every picture'


def _open_as_trained(data: DataArgument, run: Path, model: Metadata) -> tuple[DataArgument, Dataset]:
    """The data by the columns that the model was trained on, unless their user names others or they have none such."""
    columns = _trained_columns(run, model)
    if data.opened is not None or data.config.columns not in (Columns(), columns):
        return open_for_task(data, model.task)
    try:
        return open_for_task(replace(data, config=replace(data.config, columns=columns)), model.task)
    except DataError:
        with suppress(DataError):  # where this fails too, the first error tells what the model needs
            return open_for_task(data, model.task)
        raise


def _trained_columns(run: Path, model: Metadata) -> Columns:
    """Those of the model's run; without one, those that have the names of its values."""
    with suppress(VitrailError):
        return read_config(run).source.columns
    names = model.classes if model.task.labels == "values" else None
    return Columns(label=",".join(names)) if names else Columns()


def open_for_task(data: DataArgument, task: Task) -> tuple[DataArgument, Dataset]:
    """The data with labels as a model's task has them, unless their user names another; and how they were opened."""
    named = data
    if data.opened is None and data.config.task == AUTO:
        named = replace(data, config=replace(data.config, task=task.kind))
    try:
        dataset = named.open()
    except DataError:
        if named is not data:
            check_task(task, data.open())  # their labels may be of another kind
        raise
    check_task(task, dataset)
    return named, dataset


def _agrees(dataset: Dataset, file: Path) -> bool:
    """Whether an open data set has the splits that a run recorded, but for samples that either does not use."""
    if not file.is_file():
        return False
    sources = [*dataset.splits.items(), *((UNUSED, source) for source in dataset.excluded.values())]
    samples = [(source.key(index), name) for name, source in sources for index in range(len(source))]
    keys, names = zip(*samples, *((key, UNUSED) for key, _ in dataset.unused), strict=True)
    try:
        parts = read_split(file, keys)
    except DataError:
        return False
    pairs = ({names[index], name} for name, indices in parts.items() for index in indices)
    return all(len(pair) == 1 or UNUSED in pair for pair in pairs)


def open_others(data: Dataset | str | Path, config: DataConfig) -> tuple[str, Source]:
    """The pictures of other data, whatever their labels, and their name."""
    if not isinstance(data, Dataset):
        if is_unlabelled(Path(data)):
            return Path(data).name, open_unlabelled(Path(data))
        data = open_data(str(data), DataConfig(data_dir=config.data_dir))
    return data.name, pick_split(data, "all")


def default_split(dataset: Dataset) -> str:
    """Test, or val if there is no test split."""
    for name in ("test", "val"):
        if name in dataset.splits:
            return name
    raise DataError(f'{dataset.name} has no test or val split; pass `split="train"` or `split="all"`.')
