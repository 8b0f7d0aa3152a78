"""What computes: prepared pictures in, logits or features out. torch is one runtime of several to come."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from vitrail.model import ViT

# Tokens per call: enough rows for a matrix product to run at full speed on one core, and few enough that even some
# dozens of pictures keep all cores busy and that every thread's activations stay small.
TOKENS_PER_CALL = 4096
LARGEST_BATCH = 64
DEVICE_BATCH = 64  # on an accelerator, which needs more work per call


class Runtime(Protocol):
    """What a `Predictor` needs. Several threads call it at once."""

    @property
    def threads(self) -> int:
        """How many threads should prepare pictures and call at once to keep the machine busy."""
        ...

    @property
    def batch_size(self) -> int:
        """How many pictures one call should get."""
        ...

    @property
    def num_classes(self) -> int:
        """How many logits a picture gets; 0 for a model without a head."""
        ...

    def logits(self, images: Tensor) -> Tensor:
        """(B, C, H, W), as the preprocessing makes them → (B, classes), float32 in main memory."""
        ...

    def features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, D), the input of the head, float32 in main memory."""
        ...


class TorchRuntime:
    """A model on torch, on the device where its weights are; `extras` are tensors of its file that it never reads."""

    def __init__(self, model: ViT, extras: Mapping[str, Tensor] | None = None) -> None:
        self.model = model
        self.extras = extras or {}

    @property
    def num_classes(self) -> int:
        return self.model.config.num_classes

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    @property
    def threads(self) -> int:
        """On a CPU: as many as torch may use (OMP_NUM_THREADS, `torch.set_num_threads`), each on one core."""
        return torch.get_num_threads() if self.device.type == "cpu" else max(torch.get_num_threads(), 4)

    @property
    def batch_size(self) -> int:
        if self.device.type != "cpu":
            return DEVICE_BATCH
        return max(1, min(LARGEST_BATCH, TOKENS_PER_CALL // self.model.config.tokens))

    @torch.inference_mode()
    def logits(self, images: Tensor | Sequence[Tensor]) -> Tensor:
        return self.model(self._move(images)).float().cpu()

    @torch.inference_mode()
    def features(self, images: Tensor | Sequence[Tensor]) -> Tensor:
        return self.model.features(self._move(images)).float().cpu()

    def _move(self, images: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
        weight = self.model.norm.weight
        if isinstance(images, Tensor):
            return images.to(weight.device, weight.dtype)
        return [image.to(weight.device, weight.dtype) for image in images]
