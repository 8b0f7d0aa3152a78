"""What `vitrail.check_data` and `show_data` return: they show themselves, and can be written."""

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import RenderableType
from rich.text import Text

from vitrail.data.check.findings import Report, sum_up
from vitrail.data.datasets import write_split_file
from vitrail.data.sheet import contact_sheet
from vitrail.errors import ConfigError
from vitrail.files import atomic_path
from vitrail.progress import ending, table
from vitrail.registry import labels_of
from vitrail.schema import to_dict
from vitrail.wording import counted, markdown_cell, plain, reason, word_arguments

STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
MAX_ROWS = 30


@dataclass(frozen=True, kw_only=True, repr=False)
class DataCheck(Report):
    """What is in a data set, and what problems it has."""

    where: tuple[str, ...] = field(default=(), repr=False)  # the data set and its settings, as arguments of a command
    written: tuple[Path, ...] = field(default=(), repr=False)

    def write(self, folder: str | Path, *, raw: bool = False) -> tuple[Path, ...]:
        """Write check.csv, contact_sheet.png and, if vitrail made the splits, split.csv; returns the paths.

        `raw` leaves the cells unchanged, for programs rather than spreadsheets.
        """
        folder = Path(folder)
        written = [folder / "check.csv", folder / "contact_sheet.png"]
        try:
            with atomic_path(written[0]) as draft:
                self.write_csv(draft, raw=raw)
            with atomic_path(written[1]) as draft:
                contact_sheet(self).save(draft)
            if self.dataset.made_split:
                written.append(folder / "split.csv")
                write_split_file(self.dataset, written[-1])
        except OSError as error:
            raise ConfigError(f"{folder}: the check cannot be written there ({reason(error)}).") from error
        return tuple(written)

    def _repr_markdown_(self) -> str:
        pictures, classes = counted(len(self.facts), "picture"), self.dataset.described_outputs
        about = f"; {self.split_note}" if self.split_note else ""
        lines = [f"**{markdown_cell(self.dataset.name)}**: {pictures}, {classes}{about}", ""]
        lines += [line for note in self.dataset.assumed for line in (markdown_cell(word_arguments(note)), "")]
        if not self.findings:
            return "\n".join([*lines, "No problems were found."])
        lines += ["| severity | finding | count | example |", "|---|---|--:|---|"]
        for finding, count in self.summary():
            example = f"{finding.key} ({finding.detail})" if finding.detail else finding.key
            lines.append(
                f"| {finding.severity} | {markdown_cell(finding.what)} | {count:,} | {markdown_cell(example)} |"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.dataset.name,
            "task": self.dataset.task,
            "assumed": [word_arguments(note) for note in self.dataset.assumed],
            "counts": self.counts(),
            "split": self.split_note,
            "findings": to_dict(sum_up(self))["findings"],
            "exit_code": self.exit_code,
            "written": [str(path) for path in self.written],
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        yield self._count_table()
        yield self._describe_sizes()
        yield from self.dataset.assumed
        if self.split_note:
            yield self.split_note
        if excluded := sum(map(len, self.dataset.excluded.values())):
            yield f"{counted(excluded, 'picture')} excluded"
        yield ""
        for item, count in self.summary():  # lines rather than a table, which would cut paths off
            example = f"{'' if count == 1 else 'for example '}{plain(item.key)}"
            line = Text(f"{item.severity:7}", STYLES[item.severity]) + Text(f"  {item.what}: {count:,}, {example}")
            yield line + Text(f"  {plain(item.detail)}", "dim") if item.detail else line
        if not self.findings:
            yield Text("No problems were found.", "green")
        yield from ending(self.written, shlex.join(["vitrail", "data", "show", *self.where]))

    def _count_table(self) -> RenderableType:
        if labels_of(self.dataset.task) == "values":
            return self._value_table()
        counts, noun = self.counts(), self.dataset.labelling.noun
        splits = list(self.dataset.splits)
        rows: list[list[str | Text]] = []
        for name in list(counts)[:MAX_ROWS]:
            row = [counts[name][split] for split in splits]
            rows.append([name, *(f"{count:,}" for count in (*row, sum(row)))])
        if len(counts) > MAX_ROWS:
            rows.append([f"… {counted(len(counts) - MAX_ROWS, f'more {noun}')}"])
        totals = [len(source) for source in self.dataset.splits.values()]
        rows.append(
            [
                Text("all" if noun == "class" else "pictures", "bold"),
                *(Text(f"{count:,}", "bold") for count in (*totals, sum(totals))),
            ]
        )
        return table(rows, noun, *splits, "all", edge=False)

    def _value_table(self) -> RenderableType:
        """The range of each value, over all splits."""
        labels = np.concatenate([source.labels for source in self.dataset.splits.values()])
        rows: list[list[str | Text]] = []
        for place, name in enumerate(self.dataset.classes[:MAX_ROWS]):
            numbers = np.quantile(labels[:, place], (0, 0.5, 1))
            rows.append([name, *(f"{number:.4g}" for number in (*numbers, labels[:, place].mean()))])
        return table(rows, "value", "smallest", "median", "largest", "mean", edge=False)

    def _describe_sizes(self) -> str:
        """One line: the kinds of files, and the smallest, median and largest picture."""
        facts = sorted((fact for fact in self.facts if not fact.trouble), key=lambda fact: fact.width * fact.height)
        if not facts:
            return "no picture could be read"
        kinds = Counter(fact.kind for fact in facts).most_common()
        names = ", ".join(f"{kind} {count:,}" for kind, count in kinds)
        if labels_of(self.dataset.task) == "values":  # whose table has no counts
            splits = ", ".join(f"{split} {len(source):,}" for split, source in self.dataset.splits.items())
            names = f"{counted(len(self.facts), 'picture')}: {splits}; {names}"
        sizes = [f"{fact.width}×{fact.height}" for fact in (facts[0], facts[len(facts) // 2], facts[-1])]
        return f"\n{names}; sizes {sizes[0]} (smallest), {sizes[1]} (median), {sizes[2]} (largest)"


class AugmentedSheet(Image.Image):
    """A sheet of augmented pictures that was written to a file."""

    where: tuple[str, ...] = ()  # the data set and its settings, as arguments of a command
    written: tuple[Path, ...] = ()
    exit_code = 0

    def lines(self) -> Iterator[str]:
        """What the command prints."""
        yield from ending(self.written, shlex.join(["vitrail", "data", "check", *self.where]))


def write_sheet(image: Image.Image, folder: Path, where: tuple[str, ...]) -> AugmentedSheet:
    """The same picture, which knows its file."""
    path = folder / "augmented.png"
    with atomic_path(path) as draft:
        image.save(draft)
    sheet = AugmentedSheet()
    sheet.__dict__.update(image.__dict__)
    sheet.where, sheet.written = where, (path,)
    return sheet
