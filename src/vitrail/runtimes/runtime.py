"""The seam to what computes: prepared pictures in, logits or features out, as NumPy arrays. Needs no torch."""

from typing import Any, Protocol

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]

# Tokens per call: enough rows for a matrix product to run at full speed on one core, and few enough that even some
# dozens of pictures keep all cores busy and that every thread's activations stay small.
TOKENS_PER_CALL = 4096
LARGEST_BATCH = 64


class Runtime(Protocol):
    """What a `Predictor` needs. Several threads call it at once.

    A call in one of our worker threads takes one core, a call from elsewhere all of them (`threads.py`).
    """

    name: str  # for people: "torch", "ONNX Runtime", "OpenVINO"

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

    def grid_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches of a prepared picture of this height and width."""
        ...

    def logits(self, images: Floats) -> Floats:
        """(B, C, H, W), as the preprocessing makes them → (B, classes)."""
        ...

    def features(self, images: Floats) -> Floats:
        """(B, C, H, W) → (B, D), what the head sees."""
        ...

    @property
    def has_features(self) -> bool:
        """Whether it can give them: a foreign export gives logits only."""
        ...

    def logits_and_features(self, images: Floats) -> tuple[Floats, Floats]:
        """Both, for the work of one."""
        ...


def batch_for(tokens: int) -> int:
    """How many pictures of so many tokens suit one call on one core."""
    return max(1, min(LARGEST_BATCH, TOKENS_PER_CALL // max(tokens, 1)))
