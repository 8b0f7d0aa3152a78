"""`vitrail data check | show | shard`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.table import Table

from vitrail.cli.commands import Raw
from vitrail.cli.printing import SteadyConsole, escape, print_end, print_json
from vitrail.cli.usage import show_examples
from vitrail.data.config import Augment, DataConfig
from vitrail.files import atomic_path, check_run_folder, new_run_folder
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.data.check.findings import Report

data = App(
    name="data",
    help_format="plaintext",
    help_prologue=show_examples(("vitrail data check photos", "vitrail data show photos --policy rand")),
    default_parameter=Parameter(negative=()),
)

Flags = Annotated[DataConfig, Parameter(name="*")]
STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
MAX_ROWS = 30
_PLAIN = DataConfig()
_FLIP = Augment()


@data.command
def check(
    where: str,
    *,
    config: Flags = _PLAIN,
    out: Path | None = None,
    workers: int | None = None,
    raw: Raw = False,
    json_output: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Check every picture: counts, sizes, damaged files, duplicates, leakage between splits, imbalance.

    Exit code 0: no problems (there may be notes). 1: warnings or errors that need attention. 2: the data cannot be
    used, more pictures of a split cannot be read than --max-broken-rate allows, or the labels are no classes.

    Parameters
    ----------
    where
        The data set: a path, an address or a name.
    out
        The folder to write to [default: runs/data-check-N].
    workers
        Threads that decode pictures [default: one per core].
    json_output
        Print one JSON object instead of tables.
    """
    from vitrail.verbs.data import check_data
    from vitrail.verbs.settings import settings_of

    check_run_folder(out)
    report = check_data(where, workers=workers, progress=True, **settings_of(config))
    paths = report.write(new_run_folder("data-check", out), raw=raw)
    if json_output:
        print_json(_as_json(report, paths))
    else:
        _print_report(report)
        print_end(paths, shlex.join(["vitrail", "data", "show", where]))
    return report.exit_code


@data.command
def show(
    where: str,
    *,
    config: Flags = _PLAIN,
    augment: Annotated[Augment, Parameter(name="*")] = _FLIP,
    preset: str | None = None,
    size: int | None = None,
    pictures: int = 8,
    seed: int = 0,
    out: Path | None = None,
) -> int:
    """Draw what the model really sees: training pictures after preprocessing and augmentation, epoch after epoch.

    Parameters
    ----------
    where
        The data set: a path, an address or a name.
    preset
        The preprocessing: google, timm, timm-imagenet, hf, torchvision, dinov2 or clip.
    size
        The side of the model's input, in pixels [default: 224, or the pictures' own size for data sets in memory].
    pictures
        How many pictures to show.
    seed
        The seed for choosing pictures and for augmentation.
    out
        The folder to write to [default: runs/data-show-N].
    """
    from vitrail.verbs.data import show_data
    from vitrail.verbs.settings import settings_of

    check_run_folder(out)
    sheet = show_data(where, preset=preset, size=size, pictures=pictures, seed=seed, **settings_of(config, augment))
    folder = new_run_folder("data-show", out)
    with atomic_path(folder / "augmented.png") as draft:
        sheet.save(draft)
    print_end([folder / "augmented.png"], shlex.join(["vitrail", "data", "check", where]))
    return 0


@data.command
def shard(where: str, out: Path, *, config: Flags = _PLAIN, max_megabytes: int = 200, seed: int = 0) -> int:
    """Write the data set as webdataset tar shards, shuffled, with a shards.json beside them.

    Exit code 1: some pictures could not be read and were left out.

    Parameters
    ----------
    where
        The data set: a path, an address or a name.
    out
        An empty or new folder.
    max_megabytes
        The largest size of one shard, in megabytes.
    seed
        The seed for the order of the pictures.
    """
    from vitrail.verbs.data import shard_data
    from vitrail.verbs.settings import settings_of

    written = shard_data(where, out, max_megabytes=max_megabytes, seed=seed, progress=True, **settings_of(config))
    console = SteadyConsole(highlight=False)
    console.print(f"{counted(written.num_samples, 'picture')} in {counted(len(written.files) - 1, 'shard')}")
    for key, why in list(written.skipped.items())[:10]:
        console.print(f"[yellow]left out[/] {escape(key)}: {escape(why)}", soft_wrap=True)
    if len(written.skipped) > 10:
        console.print(f"… and {len(written.skipped) - 10} more")
    print_end([written.files[-1]], shlex.join(["vitrail", "data", "check", str(out)]))
    return int(bool(written.skipped))


def _as_json(report: "Report", paths: tuple[Path, ...]) -> dict[str, object]:
    from vitrail.data.check.findings import sum_up
    from vitrail.schema import to_dict

    return {
        "name": report.dataset.name,
        "counts": report.counts(),
        "split": report.split_note,
        "findings": to_dict(sum_up(report))["findings"],
        "exit_code": report.exit_code,
        "written": [str(path) for path in paths],
    }


def _print_report(report: "Report") -> None:
    console = SteadyConsole(highlight=False)
    console.print(_count_table(report))
    console.print(_describe_sizes(report))
    if report.split_note:
        console.print(report.split_note, soft_wrap=True)
    console.print()
    for item, count in report.summary():  # lines rather than a table, which would cut paths off
        detail = f"  [dim]{escape(item.detail)}[/]" if item.detail else ""
        severity = f"[{STYLES[item.severity]}]{item.severity:7}[/]"
        example = f"{'' if count == 1 else 'for example '}{escape(item.key)}{detail}"
        console.print(f"{severity}  {item.what}: {count:,}, {example}", soft_wrap=True)
    if not report.findings:
        console.print("[green]No problems were found.[/]")


def _count_table(report: "Report") -> Table:
    counts = report.counts()
    splits = list(report.dataset.splits)
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    for split in (*splits, "all"):
        table.add_column(split, justify="right")
    shown = list(counts)[:MAX_ROWS]
    for name in shown:
        row = [counts[name][split] for split in splits]
        table.add_row(escape(name), *(f"{count:,}" for count in (*row, sum(row))))
    if len(counts) > MAX_ROWS:
        table.add_row(f"… {counted(len(counts) - MAX_ROWS, 'more class')}")
    totals = [sum(row[split] for row in counts.values()) for split in splits]
    table.add_row("[bold]all[/]", *(f"[bold]{count:,}[/]" for count in (*totals, sum(totals))))
    return table


def _describe_sizes(report: "Report") -> str:
    """One line: the kinds of files, and the smallest, median and largest picture."""
    facts = sorted((fact for fact in report.facts if not fact.trouble), key=lambda fact: fact.width * fact.height)
    if not facts:
        return "no picture could be read"
    kinds: dict[str, int] = {}
    for fact in facts:
        kinds[fact.kind] = kinds.get(fact.kind, 0) + 1
    names = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))
    sizes = [f"{fact.width}×{fact.height}" for fact in (facts[0], facts[len(facts) // 2], facts[-1])]
    return f"\n{names}; sizes {sizes[0]} (smallest), {sizes[1]} (median), {sizes[2]} (largest)"
