"""`vitrail convert`: a checkpoint from one format to another, with proof."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from vitrail.cli.options import NO_HINTS, Classes, HintFlags, Json
from vitrail.cli.printing import SteadyConsole, print_json
from vitrail.weights.catalogue import FormatName
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.weights.convert import Agreement, Conversion


def convert(
    source: str,
    target: Path,
    *,
    to: FormatName = "vitrail",
    source_format: Annotated[FormatName | None, Parameter(name="--from")] = None,
    resize: str | None = None,
    resample: Literal["google", "timm", "hf", "torchvision", "dinov2"] | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    classes: Classes = None,
    hints: Annotated[HintFlags, Parameter(name="*")] = NO_HINTS,
    drop_representation: bool = False,
    fold_class_position: bool = False,
    pictures: tuple[Path, ...] = (),
    dtype: Literal["float32", "float16", "bfloat16"] | None = None,
    tolerance: float | None = None,
    verify_with_peer: bool = False,
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Convert a checkpoint to another format and prove that it computes the same.

    Parameters
    ----------
    source
        A file, a folder, hf://owner/name or google://NAME.
    target
        What to write: a file, or a folder for hf.
    to
        The format to write.
    source_format
        The format of the source, where its keys do not tell.
    resize
        Resample the positions for pictures of this size: 384, or HEIGHTxWIDTH.
    resample
        The kernel for the positions, instead of the checkpoint's own.
    channels
        Make 1 or more input channels from the 3 of RGB.
    num_classes
        Replace the head by a new one of zeros; 0 for none.
    drop_representation
        Leave out Linear + tanh, and start the head anew, as the paper does for fine-tuning.
    fold_class_position
        Add the position of [cls] to its token, for formats that have none.
    pictures
        Pictures on which both must agree; without them, two photographs.
    dtype
        Write the weights with this many digits, instead of their own.
    tolerance
        Largest difference of two logits, relative to the largest logit [default: 1e-5; 5e-3 with float16, 5e-2 with
        bfloat16].
    verify_with_peer
        Also run the source's own library on the source, and the target's on what was written.
    overwrite
        Replace the target if it exists.
    """
    from vitrail.verbs import convert as verb

    conversion = verb.convert(
        source,
        target,
        to,
        source_format=source_format,
        resize=resize,
        resample=resample,
        channels=channels,
        num_classes=num_classes,
        classes=classes,
        drop_representation=drop_representation,
        fold_class_position=fold_class_position,
        pictures=pictures,
        dtype=dtype,
        tolerance=tolerance,
        verify_with_peer=verify_with_peer,
        overwrite=overwrite,
        progress=True,
        **dataclasses.asdict(hints),
    )
    if as_json:
        print_json({"target": str(target), **dataclasses.asdict(conversion)})
    else:
        _print(source, target, conversion)


def _print(source: str, target: Path, conversion: "Conversion") -> None:
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{source} ({conversion.source_format}) → {target} ({conversion.target_format})")
    if conversion.source_peer is not None:
        _print_agreement(console, f"{conversion.source_format}'s own library, on the source", conversion.source_peer)
    _print_agreement(console, "read again", conversion.agreement)
    if conversion.photographs is not None:
        _print_agreement(console, "from the files of photographs on", conversion.photographs)
    if conversion.peer is not None:
        _print_agreement(console, f"{conversion.target_format}'s own library", conversion.peer)
    for note in conversion.notes:
        if note not in conversion.assumed:  # the error stream has these already
            console.print(f"note: {note}")
    if conversion.how_to_load:
        console.print(f"load it: {conversion.how_to_load}")
    console.print(f"look at it: vitrail inspect {target}")


def _print_agreement(console: Console, who: str, agreement: "Agreement") -> None:
    console.print(
        f"{who}: largest difference {agreement.difference:.2e} of {agreement.what} up to {agreement.scale:.3g} "
        f"({agreement.relative:.1e}), same {'first class' if agreement.what == 'logits' else 'largest feature'} "
        f"for {agreement.top1:.0%} of {counted(agreement.pictures, 'picture')}"
    )
