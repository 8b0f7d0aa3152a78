"""`vitrail summary`: one model, step by step."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from vitrail.cli.commands import Json, Size
from vitrail.cli.printing import SteadyConsole, print_json

if TYPE_CHECKING:
    from vitrail.model import Summary


def summary(
    model: str = "vit-b16",
    *,
    image_size: Size = None,
    num_classes: int | None = None,
    as_json: Json = False,
) -> None:
    """Show a model step by step: the shape after each step, parameters and MACs.

    Parameters
    ----------
    model
        A name from `vitrail models`, a checkpoint (a file, a run folder, hf://owner/name, …), or a YAML file with the
        fields of ViTConfig.
    image_size
        The size of the pictures: 384, or HEIGHTxWIDTH such as 224x320 [default: the model's own].
    num_classes
        Number of classes of the head; 0 for none [default: the model's own].
    """
    from vitrail.schema import to_dict
    from vitrail.verbs import inspect as verb

    facts = verb.summary(model, image_size=image_size, num_classes=num_classes)
    if as_json:
        print_json(to_dict(facts))
    else:
        _print_table(model, facts)


def _print_table(name: str, facts: "Summary") -> None:
    table = Table("step", "shape", "", "parameters", "MACs", box=None)
    table.columns[3].justify = table.columns[4].justify = "right"
    for cells in facts.rows:
        table.add_row(*map(Text, cells))
    table.add_section()
    table.add_row(*facts.total, style="bold")
    console = SteadyConsole(highlight=False, markup=False)  # [cls] is a token, not a style
    console.print(name, style="bold")
    console.print(table)
    if facts.forward_macs < facts.macs:
        saved = 1 - facts.forward_macs / facts.macs
        console.print(
            f"\nforward computes {facts.forward_macs / 1e6:,.1f} M MACs, {saved:.1%} fewer: "
            "only [cls] is read, so the last block computes only that token."
        )
