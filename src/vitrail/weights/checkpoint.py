"""A checkpoint in memory: weights under our own names, and everything needed to use them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import ViT, ViTConfig
from vitrail.weights.metadata import Metadata
from vitrail.wording import counted

# Extras of a tower that was trained with texts: the logarithm of the similarity's scale, and its bias.
LOGIT_SCALE, LOGIT_BIAS = "logit_scale", "logit_bias"
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of batch norms
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Metadata):
    """`tensors` has exactly the names and shapes of `ViT(config).state_dict()`."""

    config: ViTConfig
    tensors: Mapping[str, Tensor] = field(repr=False)
    extras: Mapping[str, Tensor] = field(
        default_factory=dict[str, Tensor], repr=False
    )  # never read in a forward pass: mask_token, logit_scale

    def __post_init__(self) -> None:
        if self.classes is not None and len(self.classes) != self.config.num_classes:
            raise WeightsError(
                f"a checkpoint needs one name per class: it has {counted(len(self.classes), 'name')} and a head for "
                f"{counted(self.config.num_classes, 'class')}."
            )
        if self.classes is not None and len(set(self.classes)) != len(self.classes):
            twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
            raise WeightsError(f"class names must differ; {', '.join(map(repr, twice[:5]))} name several classes.")
        if self.trust is not None and self.trust.familiarity is not None:
            self.trust.familiarity.check_width(self.config.feature_width)
        self.task.check(self.config.num_classes, self.trust)
        check_shapes(self.config, self.tensors)
        check_types(self.tensors)

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """What is learned: all tensors but the running statistics of batch norms."""
        return {name: tensor for name, tensor in self.tensors.items() if not name.endswith(STATISTICS)}

    def build(self, dtype: torch.dtype | None = torch.float32) -> ViT:
        """The model with these weights, in eval mode; a `dtype` of None keeps each tensor's own.

        Weights that need no casting are shared with the checkpoint and with other models built from it: copy the model
        (`copy.deepcopy`) to train two of them.
        """
        with torch.device("meta"):
            model = ViT(self.config)
        tensors = {name: _cast(tensor, dtype) for name, tensor in self.tensors.items()}
        model.load_state_dict(tensors, assign=True)
        return model.eval()

    def rounded(self, dtype: torch.dtype) -> "Checkpoint":
        """With weights of another type, which must be able to hold them."""
        tensors = {name: _cast(tensor, dtype) for name, tensor in self.tensors.items()}
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all() and self.tensors[name].isfinite().all():
                kind = str(dtype).removeprefix("torch.")
                raise WeightsError(
                    f"{name} has numbers too large for {kind}: up to {self.tensors[name].abs().max():g}."
                )
        return replace(self, tensors=tensors)


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)


@lru_cache(maxsize=8)
def expected_shapes(config: ViTConfig) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor that a model of this config has."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in ViT(config).state_dict().items()}


def check_shapes(config: ViTConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the tensors are exactly those of the config."""
    expected = expected_shapes(config)
    missing = sorted(expected.keys() - tensors.keys())
    unknown = sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        raise WeightsError(f"the weights do not fit their config: {describe_keys(missing, unknown)}.")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != expected[name]:
            raise WeightsError(
                f"the weights do not fit their config: {name} must have shape {expected[name]}; "
                f"got {tuple(tensor.shape)}."
            )


def check_types(tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the numbers are floats that torch computes with (or the counters of batch norms)."""
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS and not (tensor.dtype == torch.int64 and name.endswith("num_batches_tracked")):
            kinds = ", ".join(str(kind).removeprefix("torch.") for kind in FLOATS)
            raise WeightsError(f"{name} must hold {kinds}; got {str(tensor.dtype).removeprefix('torch.')}.")


def describe_keys(missing: list[str], unknown: list[str]) -> str:
    """Missing and unknown keys for a message, at most ten of each."""
    parts: list[str] = []
    for what, names in (("missing", missing), ("unknown", unknown)):
        if names:
            shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            parts.append(f"{what} {shown}")
    return "; ".join(parts)
