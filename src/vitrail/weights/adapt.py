"""Fitting a checkpoint to another task: other classes, another resolution, other channels."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, WeightsError
from vitrail.model import ConvStem, ResNetStem, ViTConfig
from vitrail.model.parts import Pair, Rope
from vitrail.model.positions import POSITIONS
from vitrail.model.relative import RELATIVE
from vitrail.tasks.task import Task
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.hints import Kernel

HEADS = ("head.", "distilled_head.")


def adapt(
    checkpoint: Checkpoint,
    *,
    num_classes: int | None = None,
    classes: Sequence[str] | None = None,
    image_size: int | Pair | None = None,
    channels: int | None = None,
    drop_representation: bool = False,
    resample: Kernel | None = None,
    task: Task | None = None,
) -> Checkpoint:
    """The checkpoint with only the requested parts changed.

    Args:
        num_classes: a new head of zeros, as the paper starts fine-tuning; 0 removes the head. The same number as
            before keeps it.
        classes: the names of the classes; they imply `num_classes`. If the checkpoint has these names, each
            keeps its part of the head, in the new order; other names start a new head; a head without names gets these.
        image_size: resample the positions, and preprocess to this size.
        channels: 1 or more; filters are summed over RGB, or repeated and shared out, so that grey pictures keep theirs.
        drop_representation: remove Linear + tanh (and the head that reads it), as the paper does for fine-tuning.
        resample: the kernel for the positions, here and at run time, instead of the checkpoint's own.
        task: what the outputs are to mean; another kind than the checkpoint's starts a new head.
    """
    if classes is not None:
        _check_classes(classes, num_classes)
        num_classes = len(classes)
    if resample is not None:
        positions = replace(checkpoint.config.positions, resample=resample)
        checkpoint = replace(checkpoint, config=replace(checkpoint.config, positions=positions))
    if drop_representation and checkpoint.config.representation:
        checkpoint = _drop_representation(checkpoint)
    if task is not None and task.kind != checkpoint.task.kind:
        checkpoint = _change_task(checkpoint, task)
    if classes is not None:
        checkpoint = _name_classes(checkpoint, tuple(classes))
    elif num_classes is not None and num_classes != checkpoint.config.num_classes:
        checkpoint = _change_head(checkpoint, num_classes)
    if channels is not None and channels != checkpoint.config.channels:
        checkpoint = _change_channels(checkpoint, channels)
    if image_size is not None:
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        checkpoint = _change_size(checkpoint, size)
    return checkpoint


def _check_classes(classes: Sequence[str], num_classes: int | None) -> None:
    if isinstance(classes, str) or {type(name) for name in classes} - {str}:
        raise ConfigError(f"classes must be a list of names; got {classes!r}.")
    if num_classes is not None and num_classes != len(classes):
        raise ConfigError(f"num_classes {num_classes} and the number of class names {len(classes)} must agree.")


def _name_classes(checkpoint: Checkpoint, classes: tuple[str, ...]) -> Checkpoint:
    """The head for these classes, by name and never by position."""
    old = checkpoint.classes
    if old is None and len(classes) == checkpoint.config.num_classes:
        return replace(checkpoint, classes=classes)
    if old is None or set(old) != set(classes):
        return _change_head(checkpoint, len(classes), classes)
    order = torch.tensor([old.index(name) for name in classes])
    head = {name: tensor[order] for name, tensor in checkpoint.tensors.items() if name.startswith(HEADS)}
    places = order.tolist()
    return replace(
        checkpoint,
        tensors={**checkpoint.tensors, **head},
        classes=classes,
        task=checkpoint.task.reordered(places),
        trust=None if checkpoint.trust is None else checkpoint.trust.reordered(places),
    )


def _change_task(checkpoint: Checkpoint, task: Task) -> Checkpoint:
    """A new head of the same size, whose outputs mean something else."""
    changed = _change_head(checkpoint, checkpoint.config.num_classes, checkpoint.classes)
    return replace(changed, task=task)


def _drop_representation(checkpoint: Checkpoint) -> Checkpoint:
    """Without the layer, the head would get other features: its old weights would only look like a classifier."""
    kept = {
        name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(("representation.", *HEADS))
    }
    headless = replace(checkpoint.config, representation=None, num_classes=0)
    bare = without_trust(checkpoint, "the head is new")
    changed = replace(bare, config=headless, tensors=kept, classes=None, task=checkpoint.task.unfitted())
    return _change_head(changed, checkpoint.config.num_classes, checkpoint.classes)


def _change_head(checkpoint: Checkpoint, num_classes: int, classes: tuple[str, ...] | None = None) -> Checkpoint:
    """A head of zeros, or none; of a distilled model, one head that reads both tokens."""
    config = replace(checkpoint.config, num_classes=num_classes, distilled=False, normalize_features=False)
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(HEADS)}
    if num_classes:
        like = checkpoint.tensors["embed.patches.weight"]
        tensors["head.weight"] = like.new_zeros(num_classes, config.feature_width)
        tensors["head.bias"] = like.new_zeros(num_classes)
    trusted = without_trust(checkpoint, "the head is new")
    task = checkpoint.task.unfitted()
    return replace(trusted, config=config, tensors=tensors, classes=classes, scores="softmax", task=task)


def join_heads(checkpoint: Checkpoint) -> Checkpoint:
    """A distilled model's two heads as one that reads both tokens and gives the mean of their logits, for training."""
    if not checkpoint.config.distilled:
        return checkpoint
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(HEADS)}
    weights, biases = ([checkpoint.tensors[head + kind] / 2 for head in HEADS] for kind in ("weight", "bias"))
    tensors |= {"head.weight": torch.cat(weights, dim=1), "head.bias": biases[0] + biases[1]}
    return replace(checkpoint, config=replace(checkpoint.config, distilled=False), tensors=tensors)


def split_heads(checkpoint: Checkpoint) -> Checkpoint:
    """The inverse of `join_heads`, for training by labels and by a teacher: the mean of the logits stays as it is."""
    config = checkpoint.config
    weights = [2 * half for half in checkpoint.tensors["head.weight"].chunk(2, dim=1)]
    tensors = dict(checkpoint.tensors)
    for head, weight in zip(HEADS, weights, strict=True):
        tensors |= {f"{head}weight": weight.contiguous(), f"{head}bias": checkpoint.tensors["head.bias"].clone()}
    return replace(checkpoint, config=replace(config, distilled=True), tensors=tensors)


def without_trust(checkpoint: Checkpoint, why: str) -> Checkpoint:
    """What a calibration found of a model does not hold for another one."""
    if checkpoint.trust is None:
        return checkpoint
    remark = f"{why}, so what the calibration on {checkpoint.trust.data} found was dropped; calibrate it again"
    return replace(checkpoint, trust=None, remarks=(*checkpoint.remarks, remark))


def _change_size(checkpoint: Checkpoint, size: Pair) -> Checkpoint:
    old = checkpoint.config
    if (old.image_size, checkpoint.preprocess.size) != (size, size):
        checkpoint = without_trust(checkpoint, "the size of the pictures has changed")
    config = replace(old, image_size=size)
    tensors = dict(checkpoint.tensors)
    if "embed.positions" in tensors:
        kind = POSITIONS[config.positions.kind]
        tensors["embed.positions"] = kind.resize(tensors["embed.positions"], old, config)
    for name in tensors:
        if name.startswith("relative."):
            tensors[name] = RELATIVE[config.relative.kind].resize(tensors[name], old, config)
    return replace(checkpoint, config=config, tensors=tensors, preprocess=_resize(checkpoint.preprocess, size))


def _resize(spec: Preprocess, size: Pair) -> Preprocess:
    if spec.resize_to is None or spec.size == size:
        return replace(spec, size=size)
    return replace(spec, size=size, resize_to=None, crop=min(spec.size) / spec.resize_to)


def _change_channels(checkpoint: Checkpoint, channels: int) -> Checkpoint:
    name = first_filters(checkpoint.config)
    weight = checkpoint.tensors[name]
    old = weight.shape[1]
    if checkpoint.config.pixel_norm:
        raise WeightsError("the channels of a model that normalises the pixels of its patches cannot be changed.")
    if old != 3 and channels != 1:
        raise WeightsError(f"only the 3 channels of RGB can be changed to another number; this checkpoint has {old}.")
    mix = _repeat_channels if channels >= old else _sum_channels
    tensors, mean, std = mix(checkpoint, name, channels)
    changed_tensors = {**checkpoint.tensors, **tensors}
    changed = replace(
        checkpoint,
        config=replace(checkpoint.config, channels=channels, patch_bias="embed.patches.bias" in changed_tensors),
        tensors=changed_tensors,
        preprocess=replace(checkpoint.preprocess, channels=channels, mean=mean, std=std),
    )
    return without_trust(changed, "the channels have changed")


Statistics = tuple[float, ...]
Mixed = tuple[dict[str, Tensor], Statistics, Statistics]


def _repeat_channels(checkpoint: Checkpoint, name: str, channels: int) -> Mixed:
    """Each new channel is like one of the old, mean and std included; those that are alike share its filters."""
    weight, spec = checkpoint.tensors[name], checkpoint.preprocess  # (out, C, h, w)
    source = [channel % weight.shape[1] for channel in range(channels)]
    shares = weight.new_tensor([source.count(channel) for channel in source])
    mean, std = (tuple(values[channel] for channel in source) for values in (spec.mean, spec.std))
    return {name: weight[:, source] / shares[:, None, None]}, mean, std


def _sum_channels(checkpoint: Checkpoint, name: str, channels: int) -> Mixed:
    """Each new channel has an equal share of all filters; their means and stds are folded into weights and bias."""
    weight, spec = checkpoint.tensors[name], checkpoint.preprocess
    means, stds = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (spec.mean, spec.std))
    mean, std = means.mean(), stds.mean()
    tensors = {name: (weight * std / stds).sum(1, keepdim=True).repeat(1, channels, 1, 1) / channels}
    if name == "embed.patches.weight":  # a stem pads its pictures, and has no bias
        bias = name.replace("weight", "bias")
        shift = (weight * (mean - means) / stds).sum((1, 2, 3))
        tensors[bias] = checkpoint.tensors.get(bias, torch.zeros_like(shift)) + shift
    typed = {key: tensor.to(weight.dtype) for key, tensor in tensors.items()}
    return typed, (float(mean),) * channels, (float(std),) * channels


def first_filters(config: ViTConfig) -> str:
    """The tensor that reads the pixels."""
    if isinstance(config.stem, ResNetStem):
        return "embed.stem.conv_root.weight"
    return "embed.stem.0.weight" if isinstance(config.stem, ConvStem) else "embed.patches.weight"


def fold_class_position(checkpoint: Checkpoint) -> Checkpoint:
    """Add the [cls] position to the [cls] token for good, for libraries whose positions are for patches only."""
    config = checkpoint.config
    if config.positions.kind != "learned" or config.positions.covers != "class":
        return checkpoint
    positions = checkpoint.tensors["embed.positions"]
    tensors = {
        **checkpoint.tensors,
        "embed.class_token": checkpoint.tensors["embed.class_token"] + positions[:, :1],
        "embed.positions": positions[:, 1:].contiguous(),
    }
    covers = replace(config.positions, covers="patches")
    return replace(checkpoint, config=replace(config, positions=covers), tensors=tensors)


def compute_periods(checkpoint: Checkpoint) -> Checkpoint:
    """Let the periods of rotary positions follow from their base, for libraries that do not read stored ones."""
    config, name = checkpoint.config, "relative.periods"
    if not isinstance(config.relative, Rope) or config.relative.frequencies != "stored":
        return checkpoint
    stored = checkpoint.tensors[name].float()
    computed = config.relative.base ** (torch.arange(len(stored)) / len(stored))
    if not torch.allclose(stored, computed, rtol=1e-2):  # more than bfloat16 rounds
        raise WeightsError(
            f"the stored periods, up to {stored.max():g}, are not those of base {config.relative.base:g}, up to "
            f"{computed.max():g}, so they cannot be computed."
        )
    tensors = {key: tensor for key, tensor in checkpoint.tensors.items() if key != name}
    rope = replace(config.relative, frequencies="computed")
    return replace(checkpoint, config=replace(config, relative=rope), tensors=tensors)
