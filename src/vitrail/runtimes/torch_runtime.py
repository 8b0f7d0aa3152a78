"""A model on torch, on the device where its weights are."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from vitrail.model import ViT
from vitrail.model.config import Pair
from vitrail.runtimes.dividing import compute_divided
from vitrail.runtimes.opening import label_of
from vitrail.runtimes.runtime import Floats, batch_for

DEVICE_BATCH = 64  # on an accelerator, which needs more work per call


class TorchRuntime:
    """A model in eval mode; `extras` are tensors of its file that it never reads."""

    def __init__(self, model: ViT, extras: Mapping[str, Tensor] | None = None) -> None:
        self.model = model
        self.extras = extras or {}
        self.name = label_of("torch", "bf16" if model.norm.weight.dtype == torch.bfloat16 else "float32")

    @property
    def num_classes(self) -> int:
        return self.model.config.num_classes

    def grid_of(self, size: Pair) -> Pair:
        return self.model.config.grid_of(size)

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    @property
    def in_float32(self) -> bool:
        return self.model.norm.weight.dtype == torch.float32

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
        weight = self.model.norm.weight
        if isinstance(images, Tensor):
            return compute(images.to(weight.device, weight.dtype)).float().cpu()
        return compute([image.to(weight.device, weight.dtype) for image in images]).float().cpu()
