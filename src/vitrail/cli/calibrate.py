"""`vitrail calibrate`: measure how far to trust a checkpoint, and write that into it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from vitrail.cli.commands import Classes, Device, Json
from vitrail.cli.printing import SteadyConsole, plain, print_end, print_json, print_note
from vitrail.data.config import DataConfig

if TYPE_CHECKING:
    from vitrail.verbs.calibrate import Calibrated

_PLAIN = DataConfig()


def calibrate(
    model: str,
    data: str,
    *,
    out: Path | None = None,
    in_place: Annotated[bool, Parameter(negative=())] = False,
    split: str = "val",
    config: Annotated[DataConfig, Parameter(name="*")] = _PLAIN,
    by_position: Annotated[bool, Parameter(negative=())] = False,
    classes: Classes = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure how far to trust a checkpoint, and write that into it.

    Parameters
    ----------
    model
        A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name.
    data
        Pictures that the model was not trained on: a folder, a table, or a name such as cifar10 or digits.
    out
        The file to write [default: the model's name with -calibrated.safetensors, beside it, or in this folder for a
        model of the hub].
    in_place
        Write into the model's own file, which must be one of ours.
    split
        The pictures to measure on.
    by_position
        For a checkpoint without class names: its classes are those of the data, in the same order.
    """
    from vitrail.verbs import calibrate as verb
    from vitrail.verbs.settings import changed_settings

    calibrated = verb.calibrate(
        model,
        data,
        out=out,
        in_place=in_place,
        split=split,
        by_position=by_position,
        classes=classes,
        device=device,
        progress=True,
        **changed_settings(config),
    )
    for note in calibrated.notes:
        print_note(note)
    if as_json:
        print_json(calibrated.facts())
        return
    _print(calibrated)
    print_end([calibrated.path], shlex.join(["vitrail", "eval", str(calibrated.path), data]))


def _print(calibrated: "Calibrated") -> None:
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    for line in calibrated.trust.describe():
        console.print(plain(line))
    table = Table("on these pictures", "before", "after", box=None)
    measured = (calibrated.before.metrics, calibrated.after.metrics)
    table.add_row(Text("calibration error", style="bold"), *(f"{each.calibration.error:.2%}" for each in measured))
    table.add_row(Text("NLL", style="bold"), *(f"{each.nll:.4f}" for each in measured))
    console.print(table)
