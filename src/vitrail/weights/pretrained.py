"""A checkpoint from anywhere as a model, adapted: what prediction and training start from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import WeightsError
from vitrail.model import ViT
from vitrail.model.config import Pair
from vitrail.weights import bundled
from vitrail.weights.adapt import Kernel, adapt
from vitrail.weights.checkpoint import Checkpoint, FormatName, Origin
from vitrail.weights.formats import SUFFIXES, find_files, read_checkpoint
from vitrail.weights.hub import fetch, settle_google
from vitrail.weights.infer import Hints

_SUFFIXES = {suffix for suffixes in SUFFIXES.values() for suffix in suffixes if suffix}


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A model in eval mode with what belongs to it."""

    model: ViT
    preprocess: Preprocess
    classes: tuple[str, ...] | None
    origin: Origin

    def __call__(self, images: Tensor | Sequence[Tensor]) -> Tensor:
        """Logits of prepared pictures (B, C, H, W), without gradients."""
        with torch.inference_mode():
            return self.model(images)


def names_checkpoint(text: str) -> bool:
    """Whether a text is a checkpoint's by its looks: an address, a bundled name, a suffix, or a folder with weights."""
    if text in bundled.NAMES or text.startswith(("hf://", "google://")) or Path(text).suffix.lower() in _SUFFIXES:
        return True
    try:
        return Path(text).is_dir() and bool(find_files(Path(text)))
    except (WeightsError, OSError):
        return False


def open_checkpoint(
    source: str | Path,
    *,
    format_name: FormatName | None = None,
    hints: Hints | None = None,
    allow_pickle: bool = False,
    verify: bool = True,
) -> Checkpoint:
    """The checkpoint at a path, a run folder, `hf://owner/name` or `google://NAME`, or a bundled one by its name."""
    path = fetch(source, allow_pickle)
    checkpoint = read_checkpoint(path, format_name=format_name, hints=hints, allow_pickle=allow_pickle, verify=verify)
    return settle_google(source, checkpoint, hints)


def load(
    source: str | Path,
    *,
    num_classes: int | None = None,
    classes: Sequence[str] | None = None,
    image_size: int | Pair | None = None,
    channels: int | None = None,
    drop_representation: bool | None = None,
    resample: Kernel | None = None,
    hints: Hints | None = None,
    dtype: torch.dtype | None = torch.float32,
    verify: bool = True,
) -> Pretrained:
    """A model with the weights of `source`, adapted as asked; see `adapt` for what each argument does.

    A new head drops the representation layer too, as in the paper, unless `drop_representation` is False. Pickles are
    refused: convert them once with `vitrail convert`. `verify=False` skips the checksums of a file that you trust, and
    with them the reading of weights before they are used.
    """
    checkpoint = open_checkpoint(source, hints=hints, verify=verify)
    new_head = (num_classes if classes is None else len(classes)) not in (None, checkpoint.config.num_classes)
    if classes is not None and checkpoint.classes is not None:
        new_head = set(classes) != set(checkpoint.classes)
    checkpoint = adapt(
        checkpoint,
        num_classes=num_classes,
        classes=classes,
        image_size=image_size,
        channels=channels,
        drop_representation=new_head if drop_representation is None else drop_representation,
        resample=resample,
    )
    return Pretrained(
        model=checkpoint.build(dtype),
        preprocess=checkpoint.preprocess,
        classes=checkpoint.classes,
        origin=checkpoint.origin,
    )
