"""`vitrail convert`: a checkpoint from one format to another, with proof."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from vitrail.cli.commands import NO_HINTS, Classes, HintFlags, Json, flags_of_configs
from vitrail.cli.printing import SteadyConsole, print_json
from vitrail.cli.usage import as_flags
from vitrail.weights.resolve import FormatName
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.weights.proof import Agreement
    from vitrail.weights.write import Conversion


def convert(
    source: str,
    target: Path,
    *,
    to: FormatName = "vitrail",
    source_format: Annotated[FormatName | None, Parameter(name="--from")] = None,
    adapter: Path | None = None,
    resize: str | None = None,
    resample: Literal["google", "timm", "hf", "torchvision", "dinov2"] | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    classes: Classes = None,
    hints: Annotated[HintFlags, Parameter(name="*")] = NO_HINTS,
    drop_representation: bool = False,
    fold_class_position: bool = False,
    pictures: Annotated[tuple[Path, ...], Parameter(show_default=False)] = (),
    dtype: Literal["float32", "float16", "bfloat16"] | None = None,
    tolerance: float | None = None,
    verify_with_peer: bool = False,
    overwrite: bool = False,
    as_json: Json = False,
) -> None:
    """Convert a checkpoint to another format and prove that its outputs stay the same.

    Parameters
    ----------
    source
        A file, a folder, hf://owner/name or google://NAME.
    target
        What to write: a file, or a folder for hf.
    to
        The format to write.
    source_format
        The format of the source, if its keys do not identify it.
    adapter
        A folder with a LoRA adapter of PEFT for the source, to be merged into its weights first.
    resize
        Resample the positions for pictures of this size: 384, or HEIGHTxWIDTH such as 224x320.
    resample
        The resampling kernel for the positions, instead of the checkpoint's own.
    channels
        Turn the 3 input channels of RGB into this many.
    num_classes
        Replace the head with a new one of zeros for this many classes; 0 removes it.
    drop_representation
        Remove the representation layer (Linear + tanh) and start with a new head, as the paper does for fine-tuning.
    fold_class_position
        Add the position of [cls] to its token, for formats without a position for it.
    pictures
        Pictures on which both models must agree; if omitted, two photographs.
    dtype
        Write the weights in this number type, instead of their own.
    tolerance
        Largest allowed difference between logits, relative to the largest [default: 1e-5, or more with --dtype].
    verify_with_peer
        Also run the source format's own library on the source, and the target format's on the result.
    overwrite
        Replace the target if it exists.
    """
    from vitrail.verbs import convert as verb

    conversion = verb.convert(
        source,
        target,
        to,
        source_format=source_format,
        adapter=adapter,
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
    _print_agreement(console, "read back", conversion.agreement)
    if conversion.photographs is not None:
        _print_agreement(console, "from photograph files to outputs", conversion.photographs)
    if conversion.peer is not None:
        _print_agreement(console, f"{conversion.target_format}'s own library", conversion.peer)
    for note in conversion.notes:
        if note not in conversion.assumed:  # these were printed on the error stream already
            console.print(f"note: {as_flags(note, flags_of_configs(HintFlags))}")
    if conversion.how_to_load:
        console.print(f"load it: {conversion.how_to_load}")
    console.print(f"inspect it: vitrail inspect {target}")


def _print_agreement(console: Console, who: str, agreement: "Agreement") -> None:
    console.print(
        f"{who}: largest difference {agreement.difference:.2e} in {agreement.what} up to {agreement.scale:.3g} "
        f"({agreement.relative:.1e}), same {'top class' if agreement.what == 'logits' else 'largest feature'} "
        f"for {agreement.top1:.0%} of {counted(agreement.pictures, 'picture')}"
    )
