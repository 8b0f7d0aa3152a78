"""`vitrail models`: the table of variants."""

from rich.table import Table

from vitrail.cli.options import Json
from vitrail.cli.printing import SteadyConsole, print_json


def models(*, as_json: Json = False) -> None:
    """List the model variants: patch, layers, width, heads, parameters, GMACs."""
    from vitrail.model import summarize, variants

    rows = [(name, summarize(config)) for name, config in variants().items()]
    if as_json:
        facts = [{"name": name, "parameters": row.parameters, "macs": row.macs} for name, row in rows]
        print_json(facts)
        return
    table = Table("model", "pixels", "patch", "layers", "width", "MLP", "heads", "parameters", "GMACs", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in rows:
        config = row.config
        table.add_row(
            name,
            str(config.image_size[0]),
            str(config.stride[0]),
            str(config.depth),
            str(config.width),
            str(config.hidden_width),
            str(config.heads),
            f"{row.parameters / 1e6:,.1f} M",
            f"{row.macs / 1e9:,.2f}",
        )
    console = SteadyConsole(highlight=False)
    console.print(table)
    console.print('\nDetails of one:  vitrail summary vit-b16\nIn Python: vitrail.create("vit-b16", num_classes=10)')
