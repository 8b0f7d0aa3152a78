"""A checkpoint of any format, adapted and built in torch."""

from dataclasses import replace

import torch

from vitrail.device import pick_device
from vitrail.errors import ConfigError
from vitrail.model.merging import with_merging
from vitrail.runtimes.opening import LoadOptions
from vitrail.runtimes.runtime import Runtime
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.diagnose import check_numbers
from vitrail.weights.facts import Facts
from vitrail.weights.locate import Located
from vitrail.weights.opening import open_checkpoint

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def open_source(located: Located, options: LoadOptions) -> tuple[Runtime, Facts]:
    """What runs a checkpoint in torch, and what belongs to it."""
    device = pick_device(options.device)
    checkpoint = adapted(located, options)
    if options.verify:
        check_numbers(checkpoint, located.name)
    model = checkpoint.build(DTYPES[options.precision]).to(device)
    return TorchRuntime(model, checkpoint.extras), Facts(**checkpoint.facts())


def adapted(located: Located, options: LoadOptions) -> Checkpoint:
    """The checkpoint with the requested classes, sizes, channels and merging."""
    if options.preprocess is not None:
        raise ConfigError("preprocess= is for exports of other tools; a checkpoint has its own preprocessing.")
    checkpoint = open_checkpoint(located, hints=options.hints, class_names=options.class_names, verify=options.verify)
    classes = options.classes
    num_classes = options.num_classes if classes is None else len(classes)
    new_head = num_classes not in (None, checkpoint.config.num_classes)
    if classes is not None and checkpoint.classes is not None:
        new_head = set(classes) != set(checkpoint.classes)
    checkpoint = adapt(
        checkpoint,
        num_classes=options.num_classes,
        classes=classes,
        image_size=options.image_size,
        channels=options.channels,
        drop_representation=new_head if options.drop_representation is None else options.drop_representation,
        resample=options.resample,
    )
    if options.merge is None:
        return checkpoint
    return replace(checkpoint, config=with_merging(checkpoint.config, options.merge))
