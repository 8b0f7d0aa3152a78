"""What the facts of a data set mean: findings with a severity, counts, and the files that keep and show them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from vitrail.data.check.duplicates import exact_groups, near_pairs, partners
from vitrail.data.check.scan import PictureFacts, scan
from vitrail.data.source import Dataset, refuse_broken
from vitrail.errors import DataError, VitrailError
from vitrail.files import atomic_path, open_csv
from vitrail.registry import LabelKind, labels_of
from vitrail.rng import Integers
from vitrail.schema import from_dict, to_dict
from vitrail.untrusted import parse_json, read_bytes
from vitrail.wording import agree, counted, cut

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

TINY_SIDE = 32
HUGE_PIXELS = 25_000_000
FEW_PICTURES = 10  # per class, in training
IMBALANCE = 10.0  # largest class over smallest
OUTLYING = 10.0  # median absolute deviations from the median
UNBALANCED = f"unbalanced classes (over {IMBALANCE:.0f}:1)"
IGNORED = "file ignored (not a known picture format, or no class)"

RECORD = "data_check.json"
MOST_TEXT = 300  # characters of an example or a detail in a record
MOST_BYTES = 1_000_000  # a record is a few hundred bytes


@dataclass(frozen=True)
class DataFinding:
    """One problem, or something worth knowing, and where it is."""

    severity: Severity
    what: str
    key: str
    split: str = ""
    label: str = ""
    detail: str = ""
    pair: tuple[PictureFacts, PictureFacts] | None = field(default=None, repr=False)  # which are the same


@dataclass(frozen=True, kw_only=True)
class Report:
    """The facts and findings of a data set."""

    dataset: Dataset
    facts: Sequence[PictureFacts]
    findings: Sequence[DataFinding]

    def __repr__(self) -> str:
        counts = [counted(sum(item.severity == level for item in self.findings), level) for level in SEVERITIES]
        pictures = counted(len(self.facts), "picture")
        return f"<{type(self).__name__} of {self.dataset.name}: {pictures}; {', '.join(counts)}>"

    @property
    def exit_code(self) -> int:
        """0: fine, perhaps with notes; 1: something needs attention; 2: training would refuse these data."""
        try:
            self.dataset.refuse_labels()
            self.refuse_broken()
        except DataError:
            return 2
        return int(any(finding.severity != "note" for finding in self.findings))

    def refuse_broken(self) -> None:
        """Raise if training would stop because too many pictures of a split cannot be read."""
        broken = {fact.key: fact.trouble for fact in self.facts if fact.trouble}
        counts = Counter(fact.split for fact in self.facts if fact.trouble)
        share = max(counts[split] / len(source) for split, source in self.dataset.splits.items())
        refuse_broken(broken, len(self.facts), self.dataset.max_broken_rate, share)

    @property
    def split_note(self) -> str:
        """Which splits were checked, where training may use others; "" where the data have all of their own."""
        if self.dataset.made_split:
            return "the splits were made here, as train makes them with the same val_rate, test_rate and split_seed"
        if "val" not in self.dataset.splits:
            return "there is no validation split; train takes one out of the training pictures, unless val_rate is 0"
        return ""

    def counts(self) -> dict[str, dict[str, int]]:
        """Class, label or value → split → number of pictures."""
        counts = count_labels(self.dataset)
        return {
            name: {split: int(numbers[place]) for split, numbers in counts.items()}
            for place, name in enumerate(self.dataset.classes)
        }

    def summary(self) -> list[tuple[DataFinding, int]]:
        """(an example, how many there are) of each kind of finding, the worst first."""
        groups: dict[str, list[DataFinding]] = {}
        for finding in self.findings:
            groups.setdefault(finding.what, []).append(finding)
        rows = [(some[0], len(some)) for some in groups.values()]
        return sorted(rows, key=lambda row: (SEVERITIES.index(row[0].severity), -row[1], row[0].what))

    def write_csv(self, path: Path, *, raw: bool = False) -> None:
        """One row per finding."""
        with open_csv(path, ("severity", "finding", "key", "split", "class", "detail"), raw=raw) as write:
            for item in self.findings:
                write((item.severity, item.what, item.key, item.split, item.label, item.detail))


def check_data(dataset: Dataset, workers: int, progress: Callable[[int], None] = lambda _: None) -> Report:
    """Examine every picture of a data set and report problems."""
    facts = list(scan(dataset, workers, progress))
    findings = [
        *(finding for fact in facts for finding in _judge_picture(fact, dataset)),
        *_judge_duplicates(facts, dataset),
        *judge_labels(dataset),
        *JUDGES[labels_of(dataset.task)](dataset),
        *(DataFinding("note", IGNORED, name) for name in dataset.ignored),
    ]
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), finding.what, finding.split, finding.key))
    return Report(dataset=dataset, facts=facts, findings=findings)


def judge_labels(dataset: Dataset) -> Iterator[DataFinding]:
    """Whether the classes are what is to be learned; no picture is read for that."""
    if (doubt := dataset.doubt_labels()) is not None:
        severity = "error" if doubt.certain else "warning"
        yield DataFinding(severity, doubt.what, doubt.example, label=doubt.example, detail=doubt.detail)


def _judge_picture(fact: PictureFacts, dataset: Dataset) -> Iterator[DataFinding]:
    where = fact.key, fact.split, dataset.caption(fact.split, fact.index)
    if fact.trouble:
        yield DataFinding("error", "cannot be read", *where, fact.trouble)
        return
    if fact.extension:
        yield DataFinding("warning", "wrong extension", *where, f"is {fact.kind}, named {fact.extension}")
    if fact.kind != "array":
        size = f"{fact.width}×{fact.height}"
        if min(fact.width, fact.height) < TINY_SIDE:
            yield DataFinding("note", f"tiny (a side below {TINY_SIDE})", *where, size)
        if fact.width * fact.height > HUGE_PIXELS:
            yield DataFinding("note", f"huge (over {HUGE_PIXELS // 1_000_000} megapixels)", *where, size)
    for trait in fact.traits:
        yield DataFinding("note", trait, *where)


def _judge_duplicates(facts: Sequence[PictureFacts], dataset: Dataset) -> Iterator[DataFinding]:
    in_two = TWO_LABELS[labels_of(dataset.task)]

    def find(severity: Severity, what: str, how: str, first: PictureFacts, other: PictureFacts) -> DataFinding:
        label, detail = dataset.caption(other.split, other.index), f"{how} {first.key}"
        return DataFinding(severity, what, other.key, other.split, label, detail, pair=(first, other))

    for group in exact_groups(facts):
        for first, other in partners(facts, group):
            if first.label != other.label:
                yield find("error", in_two, "same as", first, other)
            elif first.split != other.split:
                yield find("error", "the same picture in two splits", "same as", first, other)
            else:
                yield find("warning", "duplicate in the same split", "same as", first, other)
    for first, other in near_pairs(facts):
        if first.split != other.split:
            yield find("warning", "nearly the same picture in two splits", "like", first, other)
        else:
            yield find("note", "near duplicate in the same split", "like", first, other)


def count_labels(dataset: Dataset) -> dict[str, Integers]:
    """Split → the pictures that have each class, label or value."""
    labelling, outputs = dataset.labelling, len(dataset.classes)
    return {split: labelling.counts(source.labels, outputs) for split, source in dataset.splits.items()}


def _judge_counts(dataset: Dataset) -> Iterator[DataFinding]:
    """Of classes and of labels: those with few pictures, or none in a split, and how even they are."""
    counts, noun = count_labels(dataset), dataset.labelling.noun
    train = counts["train"]
    for label, name in enumerate(dataset.classes):
        if train[label] < FEW_PICTURES:
            what = f"fewer than {FEW_PICTURES} training pictures"
            yield DataFinding("warning", what, name, "train", name, f"{train[label]}")
        for split in counts:
            if not counts[split][label]:
                yield DataFinding("warning", f"a {noun} without pictures", name, split, name)
    if train.max() > IMBALANCE * train.min():
        largest, smallest = dataset.classes[train.argmax()], dataset.classes[train.argmin()]
        detail = f"{largest} has {train.max()}, {smallest} has {train.min()}"
        what = UNBALANCED if noun == "class" else f"unbalanced {agree(2, noun)} (over {IMBALANCE:.0f}:1)"
        yield DataFinding("warning", what, smallest, "train", smallest, detail)


def _judge_sets(dataset: Dataset) -> Iterator[DataFinding]:
    yield from _judge_counts(dataset)
    for split, counts in count_labels(dataset).items():
        pictures = len(dataset.splits[split])
        for place in np.flatnonzero(counts == pictures).tolist() if split == "train" else ():
            name = dataset.classes[place]
            yield DataFinding("warning", "a label that every picture has", name, split, name, f"{pictures:,}")
        empty = int((dataset.splits[split].labels.sum(axis=1) == 0).sum())
        if empty:
            yield DataFinding("note", "pictures without a label", split, split, detail=f"{empty:,} of {pictures:,}")


def _judge_values(dataset: Dataset) -> Iterator[DataFinding]:
    """Of each value: whether it varies, and which pictures are far outside the range of the others."""
    for place, name in enumerate(dataset.classes):
        train = dataset.splits["train"].labels[:, place].astype(np.float64)
        if np.ptp(train) == 0:
            yield DataFinding("error", "a value that never changes", name, "train", name, f"always {train[0]:.4g}")
            continue
        median = float(np.median(train))
        spread = float(np.median(np.abs(train - median)))
        for split, source in dataset.splits.items():
            away = np.abs(source.labels[:, place] - median)
            for index in np.flatnonzero(away > OUTLYING * spread).tolist() if spread else ():
                value = f"{source.labels[index, place]:.4g}"
                detail = f"{name} is {value}, {away[index] / spread:.0f} median deviations from the median {median:.4g}"
                yield DataFinding("warning", "a value far from all others", source.key(index), split, value, detail)


def _judge_nothing(_: Dataset) -> Iterator[DataFinding]:
    yield from ()


JUDGES: dict[LabelKind, Callable[[Dataset], Iterator[DataFinding]]] = {
    "class": _judge_counts,
    "set": _judge_sets,
    "values": _judge_values,
    "none": _judge_nothing,
}
TWO_LABELS: dict[LabelKind, str] = {
    "class": "the same picture in two classes",
    "set": "the same picture with two sets of labels",
    "values": "the same picture with two values",
    "none": "",
}


@dataclass(frozen=True)
class Trouble:
    """One kind of finding: how many pictures or classes it concerns, and an example."""

    severity: Severity
    finding: str
    count: int
    example: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckRecord:
    """All kinds of findings, the worst first."""

    data: str
    pictures: int  # that were examined
    findings: tuple[Trouble, ...] = ()

    @property
    def serious(self) -> tuple[Trouble, ...]:
        """Errors and warnings, without notes."""
        return tuple(item for item in self.findings if item.severity != "note")


def sum_up(report: Report) -> CheckRecord:
    """The record of a check."""
    findings = tuple(
        Trouble(item.severity, item.what, count, cut(item.key, MOST_TEXT), cut(item.detail, MOST_TEXT))
        for item, count in report.summary()
    )
    return CheckRecord(data=report.dataset.name, pictures=len(report.facts), findings=findings)


def write_record(record: CheckRecord, path: Path) -> None:
    """Write it as JSON."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(to_dict(record), indent=1), encoding="utf-8")


def read_record(path: Path) -> CheckRecord | None:
    """What `write_record` wrote, or None if there was no check."""
    if not path.is_file():
        return None
    try:
        return from_dict(CheckRecord, parse_json(read_bytes(path, MOST_BYTES)))
    except (ValueError, VitrailError) as error:
        raise DataError(f"{path} must be the record of a data check; it cannot be read ({error}). Delete it.") from None
