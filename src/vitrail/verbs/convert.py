"""`vitrail.convert`: a checkpoint from one format to another, with proof."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Unpack

import torch

from vitrail.errors import ConfigError, suggest
from vitrail.progress import working
from vitrail.verbs.settings import HintSettings, Size, read_hints, read_size
from vitrail.weights import adapt
from vitrail.weights import write as conversion
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import ClassNames, name_classes, read_class_names
from vitrail.weights.peft import add_adapter
from vitrail.weights.resolve import FormatName
from vitrail.weights.write import Conversion

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
DtypeName = Literal["float32", "float16", "bfloat16"]


def convert(
    source: str | Path,
    target: str | Path,
    format: FormatName = "vitrail",  # noqa: A002
    *,
    source_format: FormatName | None = None,
    adapter: str | Path | None = None,
    resize: Size | None = None,
    resample: adapt.Kernel | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    classes: ClassNames | None = None,
    drop_representation: bool = False,
    fold_class_position: bool = False,
    pictures: Sequence[str | Path] = (),
    dtype: DtypeName | None = None,
    tolerance: float | None = None,
    verify_with_peer: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    **settings: Unpack[HintSettings],
) -> Conversion:
    """Convert a checkpoint to another format and prove that its outputs stay the same.

    Nothing is left at `target` unless the proof succeeds. The `settings` are the fields of `Hints`, each for
    what the source leaves open: `heads`, `image_size`, `pooling`, `activation`, `norm_eps`, `attention_scale`, `ema`.

    Args:
        source: a file, a folder, hf://owner/name or google://NAME; pickles are read without running them.
        target: what to write: a file, or a folder for hf.
        format: the format to write.
        source_format: the format of the source, if its keys do not identify it.
        adapter: a folder with a LoRA adapter of PEFT for the source, which is merged into its weights first.
        resize: resample the positions for pictures of this size.
        resample: the resampling kernel for the positions, instead of the checkpoint's own.
        channels: turn the 3 input channels of RGB into this many.
        num_classes: replace the head with a new one of zeros for this many classes; 0 removes it.
        classes: the names of the classes, in the order of the head, or a file with them.
        drop_representation: remove the representation layer (Linear + tanh) and start with a new head, as the paper
            does for fine-tuning.
        fold_class_position: add the position of [cls] to its token, for formats without a position for it.
        pictures: pictures on which both models must agree; by default, two photographs.
        dtype: write the weights in this number type, instead of their own.
        tolerance: largest allowed difference between two logits, relative to the largest; 1e-5 unless `dtype` rounds.
        verify_with_peer: also run the source format's own library on the source, and the target's on the result.
        overwrite: replace the target if it exists.
        progress: show progress on the error stream.
    """
    hints = read_hints(convert, settings)
    size = read_size(resize, "resize")
    names = None if classes is None else read_class_names(classes)
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}; {suggest(str(dtype), DTYPES)}")

    def change(checkpoint: Checkpoint) -> Checkpoint:
        changed = adapt.adapt(
            checkpoint if adapter is None else add_adapter(checkpoint, adapter),
            image_size=size,
            resample=resample,
            channels=channels,
            num_classes=num_classes,
            drop_representation=drop_representation,
        )
        changed = adapt.fold_class_position(changed) if fold_class_position else changed
        where = str(classes) if isinstance(classes, str | Path) else "classes"
        return changed if names is None else name_classes(changed, changed.config.num_classes, names, where)

    with working("converting", speaks=progress):
        return conversion.convert(
            source,
            target,
            format,
            source_format=source_format,
            hints=hints,
            change=change,
            dtype=None if dtype is None else DTYPES[dtype],
            tolerance=tolerance,
            pictures=[Path(picture) for picture in pictures],
            verify_with_peer=verify_with_peer,
            overwrite=overwrite,
        )
