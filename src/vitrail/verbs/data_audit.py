"""`vitrail.audit_data`: what is probably wrong in a labelled data set, by a model's features."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rich.console import RenderableType
from rich.text import Text

from vitrail.data.config import check_workers
from vitrail.data.source import Dataset
from vitrail.errors import ConfigError
from vitrail.prediction import Predictor
from vitrail.progress import Progress, ending, left_out, pick_progress, table
from vitrail.registry import PrecisionChoice, RuntimeChoice
from vitrail.verbs.call import (
    Out,
    RuntimeRequest,
    check_out,
    make_out,
    refuse_settings,
    resolve_dataset,
    resolve_model,
)
from vitrail.verbs.keywords import DataSettings, changed_settings, read_data_settings
from vitrail.wording import agree, counted, markdown_cell, plain, reason

if TYPE_CHECKING:
    from vitrail.evaluation.audit import Audit, DuplicatePicture, OutlierPicture, WrongLabel

WEAK = 0.7  # of the labels: if probes agree with fewer, nearly all of their doubts are their own mistakes
SHOWN = 3  # examples of each list on the terminal
MOST_LISTED = 1000  # of each list in JSON; the CSV files have them all


@dataclass(frozen=True, kw_only=True)
class DataAudit:
    """What was found in a data set: labels, duplicates and outliers, each with the worst first."""

    audit: "Audit" = field(repr=False)
    model: str  # whose features were used
    where: tuple[str, ...] = field(default=(), repr=False)  # the data set and its settings, as arguments of a command
    excluded: tuple[Path, ...] = field(default=(), repr=False)  # the files that were excluded already
    written: tuple[Path, ...] = ()

    @property
    def labels(self) -> "tuple[WrongLabel, ...]":
        """Labels that may be wrong."""
        return self.audit.labels

    @property
    def duplicates(self) -> "tuple[DuplicatePicture, ...]":
        """Pictures that are the same as another, or nearly."""
        return self.audit.duplicates

    @property
    def outliers(self) -> "tuple[OutlierPicture, ...]":
        """Pictures that are unlike every class."""
        return self.audit.outliers

    @property
    def exit_code(self) -> int:
        """0: nothing was found; 1: there is something to look at."""
        return int(bool(self.labels or self.duplicates or self.outliers or self.audit.broken))

    def write(self, folder: str | Path, *, raw: bool = False) -> tuple[Path, ...]:
        """Write each list as a CSV file, and as a sheet of pictures; returns the paths.

        `raw` leaves the cells unchanged, for programs rather than spreadsheets; `exclude=` takes either.
        """
        from vitrail.evaluation.audit_output import write_audit

        try:
            return tuple(write_audit(self.audit, Path(folder), raw=raw))
        except OSError as error:
            raise ConfigError(f"{folder}: the audit cannot be written there ({reason(error)}).") from error

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        lists = {"labels": self.labels, "duplicates": self.duplicates, "outliers": self.outliers}
        return {
            "name": self.audit.dataset.name,
            "model": self.model,
            "pictures": self.audit.pictures,
            "agreement": self.audit.agreement,
            "counts": {name: len(found) for name, found in lists.items()},
            **{name: [asdict(each) for each in found[:MOST_LISTED]] for name, found in lists.items()},
            "unjudged": list(self.audit.unjudged),
            "broken": self.audit.broken,
            "exit_code": self.exit_code,
            "written": [str(path) for path in self.written],
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        dataset, pictures = self.audit.dataset, self.audit.pictures
        size = f"{counted(pictures, 'picture')}, {counted(len(dataset.classes), 'class')}"
        yield f"{plain(dataset.name)}: {size}; features of {plain(self.model)}\n"
        rows = [(what, f"{count:,}", f"{count / pictures:.1%}") for what, count in self._counts().items()]
        yield table(rows, "found", "pictures", "share", edge=False)
        yield f"\nlinear probes on these features agree with {self.audit.agreement:.0%} of the labels"
        if self._is_weak:
            yield Text(
                "that is too few to judge labels by: most of those listed are right; use better weights", "yellow"
            )
        for title, examples in self._examples().items():
            if examples:
                yield Text(f"\n{title}", "bold")
                yield from (Text(f"  {plain(line)}") for line in examples)
        yield ""
        if self.audit.unjudged:
            one = agree(len(self.audit.unjudged), "class")
            names = ", ".join(self.audit.unjudged[:5]) + (", …" if len(self.audit.unjudged) > 5 else "")
            yield Text(f"the labels of the {one} {plain(names)} cannot be judged: too few pictures", "yellow")
        yield from left_out(self.audit.broken)
        if self._to_exclude():
            yield "look through the files and delete the rows that are fine, then leave the rest out:"
        yield from ending(self.written, self._following())

    @property
    def _is_weak(self) -> bool:
        return bool(self.labels) and self.audit.agreement < WEAK

    def _counts(self) -> dict[str, int]:
        """What was found → how often."""
        pairs = [(each.sample, each.other) for each in self.duplicates]
        return {
            "labels that may be wrong": len(self.labels),
            "duplicates, exact or near": len(pairs),
            "  with two different labels": sum(one.label != other.label for one, other in pairs),
            "  in two splits": sum(one.split != other.split for one, other in pairs),
            "outliers, unlike every class": len(self.outliers),
        }

    def _examples(self) -> dict[str, list[str]]:
        """Title → the worst of a list, a line each."""
        labels = [
            f"{each.sample.key} is labelled {each.sample.label}; probes say {each.suggested} ({each.probability:.0%})"
            for each in self.labels[:SHOWN]
        ]
        duplicates = [
            f"{each.sample.key} {LIKENESS[each.likeness]} {each.other.key} ({each.similarity:.2f})"
            for each in self.duplicates[:SHOWN]
        ]
        outliers = [
            f"{each.sample.key} ({each.sample.label}), score {each.score:.1f}" for each in self.outliers[:SHOWN]
        ]
        return {"labels": labels, "duplicates": duplicates, "outliers": outliers}

    def _to_exclude(self) -> list[Path]:
        """The lists that are worth a look, to leave out what is left of them."""
        # Outliers may be fine pictures, and so may what weak features suspect.
        lists = {"labels.csv": () if self._is_weak else self.labels, "duplicates.csv": self.duplicates}
        return [path for path in self.written if lists.get(path.name)]

    def _following(self) -> str:
        exclude = ",".join(map(str, (*self.excluded, *self._to_exclude())))
        data = shlex.join(self.where)
        return f"vitrail train {data} --exclude {shlex.quote(exclude)}" if exclude else f"vitrail train {data}"

    def _repr_markdown_(self) -> str:
        dataset = self.audit.dataset
        lines = [f"**{markdown_cell(dataset.name)}**: {counted(self.audit.pictures, 'picture')}", ""]
        lines += ["| found | pictures |", "|---|--:|"]
        lines += [f"| {what} | {count:,} |" for what, count in self._counts().items()]
        for title, examples in self._examples().items():
            lines += ["", f"{title}:", "", *(f"- {markdown_cell(line)}" for line in examples)] if examples else []
        return "\n".join(lines)


LIKENESS = {"same": "is the same as", "near": "is nearly the same as", "mirrored": "is the mirror image of"}


def audit_data(
    data: str | Path | Dataset,
    *,
    weights: Predictor | str | Path | None = None,
    out: Out = None,
    raw: bool = False,
    workers: int | None = None,
    runtime: RuntimeChoice = "auto",
    precision: PrecisionChoice = "float32",
    device: str = "auto",
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> DataAudit:
    """Find wrong labels, duplicates, leaks between splits and outliers in a data set, by a model's features.

    The `settings` are the fields of `DataConfig`.

    Args:
        data: The data set: a path, an address or a name. In Python, also an open one.
        weights: The checkpoint whose features are compared; it needs no head for these classes. A pretrained model is
            best: one that was trained on these labels has learned the wrong ones too. In Python, also a loaded model.
        out: The folder to write to [default: runs/data-audit-N]. In Python, nothing is written by default.
        raw: Write the cells of CSV files unchanged, for programs. By default, a cell that a spreadsheet would take
            for a formula gets a leading apostrophe, and control characters are spelled out.
        workers: Threads that decode pictures for thumbnails [default: one per core].
        runtime: The backend; auto: the fastest whose answers equal torch's, measured once if there is enough to do.
        precision: The number format; auto: bf16, or your int8 export of this model, if it is measured to be faster.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps, …
    """
    config = read_data_settings(audit_data, settings)
    if weights is None:
        raise ConfigError("pass `weights=`: the checkpoint whose features are compared, such as hf://timm/NAME.")
    check_workers(workers)
    check_out(out)
    changed = changed_settings(config)
    refuse_settings(data, changed)
    request = RuntimeRequest(runtime=runtime, precision=precision)
    model, argument = resolve_model(weights, device=device, request=request), resolve_dataset(data, config)
    show, shows = pick_progress(progress), progress is not False
    dataset = argument.open(speaks=shows)
    dataset.require_classes("an audit")
    from vitrail.evaluation.audit import audit
    from vitrail.report.command_lines import flags

    predictor = model.open(speaks=shows)
    pictures = (source.picture(index) for source in dataset.splits.values() for index in range(len(source)))
    predictor = model.put(predictor, dataset.num_pictures, pictures, speaks=shows)
    found = audit(dataset, predictor, workers or os.cpu_count() or 1, show)
    changed.pop("exclude", None)
    audited = DataAudit(audit=found, model=model.name, where=(argument.name, *flags(changed)), excluded=config.exclude)
    folder = make_out(out, "data-audit")
    return audited if folder is None else replace(audited, written=audited.write(folder, raw=raw))
