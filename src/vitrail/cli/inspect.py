"""`vitrail inspect`: what a checkpoint is, and likely problems with it."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from vitrail.cli.commands import NO_HINTS, HintFlags, Json, flags_of_configs
from vitrail.cli.printing import SteadyConsole, print_json
from vitrail.cli.usage import as_flags
from vitrail.weights.resolve import FormatName

if TYPE_CHECKING:
    from vitrail.verbs.inspect import Inspection

UNUSABLE = 1


def inspect(
    source: str,
    *,
    source_format: Annotated[FormatName | None, Parameter(name="--from")] = None,
    hints: Annotated[HintFlags, Parameter(name="*")] = NO_HINTS,
    as_json: Json = False,
) -> int:
    """Show what a checkpoint is, and likely problems with it.

    Parameters
    ----------
    source
        A file, a folder, hf://owner/name or google://NAME.
    source_format
        The format of the source, if its keys do not identify it.
    """
    from vitrail.verbs import inspect as verb

    inspection = verb.inspect(source, source_format=source_format, **dataclasses.asdict(hints))
    if as_json:
        print_json(inspection.facts)
    else:
        _print(inspection)
    return 0 if inspection.usable else UNUSABLE


def _print(inspection: "Inspection") -> None:
    console = SteadyConsole(highlight=False, markup=False)
    table = Table(box=None, show_header=False)
    for name, value in inspection.rows:
        table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    console.print(inspection.source, style="bold")
    console.print(table)
    for finding in inspection.findings:
        style = {"error": "red", "warning": "yellow", "note": ""}[finding.severity]
        message = as_flags(finding.message, flags_of_configs(HintFlags))
        console.print(Text(f"{finding.severity}: ", style=style) + Text(message), soft_wrap=True)
