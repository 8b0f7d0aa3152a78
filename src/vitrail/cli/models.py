"""`vitrail models`: the table of variants."""

from rich.table import Table

from vitrail.cli.commands import Json
from vitrail.cli.printing import SteadyConsole, print_json


def models(*, as_json: Json = False) -> None:
    """List the model variants: patch, layers, width, heads, parameters, GMACs."""
    from vitrail.verbs import inspect as verb

    table = verb.models()
    if as_json:
        print_json([{"name": name, "parameters": row.parameters, "macs": row.macs} for name, row in table.items()])
        return
    shown = Table(*verb.COLUMNS, box=None)
    for column in shown.columns[1:]:
        column.justify = "right"
    for cells in table.rows:
        shown.add_row(*cells)
    console = SteadyConsole(highlight=False)
    console.print(shown)
    console.print('\nDetails of one:  vitrail summary vit-b16\nIn Python: vitrail.create("vit-b16", num_classes=10)')
