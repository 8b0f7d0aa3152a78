"""A checkpoint of any format, adapted and built in torch, on the device where its weights are."""

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitrail.data.pixels import Array
from vitrail.errors import ConfigError
from vitrail.machine import pick_device
from vitrail.model import ViT
from vitrail.model.merging import with_merging
from vitrail.model.parts import Pair
from vitrail.registry import Precision, label_of
from vitrail.runtimes.manifest import KEY, GraphFile
from vitrail.runtimes.runtime import Floats, LoadOptions, Run, Runtime, batch_for, compute_divided, quietly
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Metadata
from vitrail.weights.read import open_checkpoint
from vitrail.weights.resolve import Located
from vitrail.weights.sanity import check_numbers

if TYPE_CHECKING:
    from vitrail.runtimes.exporter import Exported

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
DEVICE_BATCH = 64  # on an accelerator, which needs more work per call


class TorchRuntime:
    """A model in eval mode; `extras` are tensors of its file that it never reads."""

    def __init__(self, model: ViT, extras: Mapping[str, Tensor] | None = None) -> None:
        self.model = model
        self.extras = extras or {}
        self.name = label_of("torch", "bf16" if model.weight.dtype == torch.bfloat16 else "float32")

    @property
    def num_classes(self) -> int:
        return self.model.config.num_classes

    def grid_of(self, size: Pair) -> Pair:
        return self.model.config.grid_of(size)

    @property
    def device(self) -> torch.device:
        return self.model.weight.device

    @property
    def in_float32(self) -> bool:
        return self.model.weight.dtype == torch.float32

    @property
    def threads(self) -> int:
        """On a CPU: as many as torch may use (OMP_NUM_THREADS, `torch.set_num_threads`), each on one core."""
        return torch.get_num_threads() if self.device.type == "cpu" else max(torch.get_num_threads(), 4)

    @property
    def batch_size(self) -> int:
        return DEVICE_BATCH if self.device.type != "cpu" else batch_for(self.model.config.tokens)

    def logits(self, images: Floats) -> Floats:
        return self._compute(images, lambda part: (self.run(self.model, part),))[0]

    def features(self, images: Floats) -> Floats:
        return self._compute(images, lambda part: (self.run(self.model.features, part),))[0]

    @property
    def has_features(self) -> bool:
        return True

    def logits_and_features(self, images: Floats) -> tuple[Floats, Floats]:
        def both(part: Tensor) -> tuple[Tensor, Tensor]:
            features = self.run(self.model.features, part)
            return self.run(self.model.classify, features), features

        logits, features = self._compute(images, both)
        return logits, features

    def _compute(self, images: Floats, outputs: Callable[[Tensor], Sequence[Tensor]]) -> Sequence[Floats]:
        """Some outputs; on a CPU, large batches are divided among its cores."""

        def compute(part: Floats) -> list[Floats]:
            return [rows.numpy() for rows in outputs(torch.from_numpy(part))]

        if self.device.type != "cpu":
            return compute(images)
        return compute_divided(compute, images, self.model.config.tokens)

    @torch.inference_mode()
    def run(self, compute: Callable[..., Tensor], images: Tensor | Sequence[Tensor]) -> Tensor:
        """`compute` of pictures wherever they are, in float32 and main memory."""
        weight = self.model.weight
        if isinstance(images, Tensor):
            return compute(images.to(weight.device, weight.dtype)).float().cpu()
        return compute([image.to(weight.device, weight.dtype) for image in images]).float().cpu()


def open_source(located: Located, options: LoadOptions) -> tuple[Runtime, Metadata]:
    """What runs a checkpoint in torch, and what belongs to it."""
    device = pick_device(options.device)
    checkpoint = adapted(located, options)
    if options.verify:
        check_numbers(checkpoint, located.name)
    model = checkpoint.build(DTYPES[options.precision]).to(device)
    return TorchRuntime(model, checkpoint.extras), Metadata(**checkpoint.facts())


def convert(own: TorchRuntime, graph: Callable[[], GraphFile], precision: Precision) -> Runtime:
    """The model itself, or a copy of it in another number format."""
    if precision == "float32":
        return own
    return TorchRuntime(copy.deepcopy(own.model).to(DTYPES[precision]), own.extras)


def write_export(exported: "Exported", draft: Path) -> None:
    """A program of torch.export, for torch's own tools."""
    graph = exported.graph
    with quietly("torch.onnx"):
        program = torch.export.export(graph, (graph.example(),), dynamic_shapes=(graph.free_sizes(),), strict=False)
        content = io.BytesIO()  # given a path, torch's own writer ends the whole process when the disk is full
        torch.export.save(program, content, extra_files={f"{KEY}.json": exported.manifest.to_json()})
    draft.write_bytes(content.getbuffer())


def open_draft(draft: Path) -> Run:
    """A program that we wrote a moment ago: reading anybody else's could run code."""
    module = torch.export.load(draft).module()

    def run(batch: Array) -> list[Floats]:
        with torch.inference_mode():
            return [output.numpy() for output in module(torch.from_numpy(batch))]

    return run


def adapted(located: Located, options: LoadOptions) -> Checkpoint:
    """The checkpoint with the requested classes, sizes, channels and merging."""
    if options.preprocess is not None:
        raise ConfigError("is for exports of other tools; a checkpoint has its own preprocessing.", field="preprocess")
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
