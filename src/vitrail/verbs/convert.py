"""`vitrail.convert`: a checkpoint from one format to another, with proof."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from vitrail.errors import ConfigError, suggest
from vitrail.progress import working
from vitrail.verbs.keywords import HintSettings, Size, read_hints, read_size, renamed
from vitrail.weights.hints import Kernel
from vitrail.weights.metadata import ClassNames, name_classes, read_class_names
from vitrail.weights.resolve import FormatName, locate

if TYPE_CHECKING:
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.write import Conversion

DTYPES = ("float32", "float16", "bfloat16")


@renamed(classes="class_names")
def convert(
    source: str | Path,
    target: str | Path,
    format: FormatName = "vitrail",  # noqa: A002
    *,
    source_format: FormatName | None = None,
    adapter: str | Path | None = None,
    resize: Size | None = None,
    resample: Kernel | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    class_names: ClassNames | None = None,
    texts: str | Path | None = None,
    prompts: str | Path | None = None,
    drop_representation: bool = False,
    fold_class_position: bool = False,
    compute_periods: bool = False,
    pictures: Sequence[str | Path] = (),
    dtype: Literal["float32", "float16", "bfloat16"] | None = None,
    tolerance: float | None = None,
    verify_with_peer: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    **settings: Unpack[HintSettings],
) -> "Conversion":
    """Convert a checkpoint to another format and prove that its outputs stay the same.

    Nothing is left at `target` unless the proof succeeds. The `settings` are the fields of `Hints`, each for
    what the source leaves open: `heads`, `image_size`, `patch_size`, `pooling`, `activation`, `norm_eps`,
    `attention_scale`, `ema`, `architecture`.

    Args:
        source: A file, a folder, hf://owner/name or google://NAME. Pickles are read without running them.
        target: What to write: a file, or a folder for hf.
        format: The format to write.
        source_format: The format of the source, if its keys do not identify it.
        adapter: A folder with a LoRA adapter of PEFT for the source, to be merged into its weights first.
        resize: Resample the positions for pictures of this size: 384, or HEIGHTxWIDTH such as 224x320.
        resample: The resampling kernel for the positions, instead of the checkpoint's own.
        channels: Turn the 3 input channels of RGB into this many.
        num_classes: Replace the head with a new one of zeros for this many classes; 0 removes it.
        class_names: A file with the names of the model's classes, one per line in the model's order, or JSON (index →
            name). In Python, also the names themselves.
        texts: Turn the tower of a CLIP or SigLIP into a classifier: a .npz with the `names` of labels and the
            `embeddings` of their texts, perhaps with the `scale` and `bias` of the model.
        prompts: The same, with texts that the source's own text tower embeds: a file with a label on each line, or
            "label: prompt". Needs transformers.
        drop_representation: Remove the representation layer (Linear + tanh) and start with a new head, as the paper
            does for fine-tuning.
        fold_class_position: Add the position of [cls] to its token, for formats without a position for it.
        compute_periods: Compute the periods of rotary positions, instead of DINOv3's stored ones, which are rounded,
            for formats that have no place for them.
        pictures: Pictures on which both models must agree [default: two photographs].
        dtype: Write the weights in this number type, instead of their own.
        tolerance: Largest allowed difference between logits, relative to the largest [default: 1e-5, or more where
            the number type rounds].
        verify_with_peer: Also run the source format's own library on the source, and the target format's on the result.
        overwrite: Replace the target if it exists.
        progress: Show progress on the error stream.
    """
    import torch

    from vitrail.weights import adapt, zero_shot
    from vitrail.weights import write as conversion
    from vitrail.weights.peft import add_adapter

    hints = read_hints(convert, settings)
    size = read_size(resize, "resize")
    names = None if class_names is None else read_class_names(class_names)
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}; {suggest(str(dtype), DTYPES)}")

    heads = [texts, prompts, class_names if num_classes is None else num_classes]
    if heads[:2] != [None, None] and sum(each is not None for each in heads) > 1:
        raise ConfigError(
            "makes a head of its own, with its labels: pass only one of `texts=` and `prompts=`, and neither "
            "`num_classes=` nor `class_names=`.",
            field="prompts" if texts is None else "texts",
        )
    labels = None if texts is None else zero_shot.read_texts(Path(texts))
    if prompts is not None:
        labels = zero_shot.embed_prompts(locate(source), zero_shot.read_prompts(Path(prompts)))

    def change(checkpoint: "Checkpoint") -> "Checkpoint":
        changed = adapt.adapt(
            checkpoint if adapter is None else add_adapter(checkpoint, adapter),
            image_size=size,
            resample=resample,
            channels=channels,
            num_classes=num_classes,
            drop_representation=drop_representation,
        )
        changed = adapt.fold_class_position(changed) if fold_class_position else changed
        changed = adapt.compute_periods(changed) if compute_periods else changed
        changed = changed if labels is None else zero_shot.add_texts(changed, labels)
        where = str(class_names) if isinstance(class_names, str | Path) else "class_names"
        return changed if names is None else name_classes(changed, changed.config.num_classes, names, where)

    with working("converting", speaks=progress):
        converted = conversion.convert(
            source,
            target,
            format,
            source_format=source_format,
            hints=hints,
            change=change,
            dtype=None if dtype is None else getattr(torch, dtype),
            tolerance=tolerance,
            pictures=[Path(picture) for picture in pictures],
            verify_with_peer=verify_with_peer,
            overwrite=overwrite,
        )
    return replace(converted, source=str(source), target=str(target))
