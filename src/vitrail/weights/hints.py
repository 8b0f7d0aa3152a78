"""What the user knows about a foreign checkpoint. Needs no torch: the fields are flags of the command too."""

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Literal

from vitrail.errors import ConfigError
from vitrail.schema import validate

if TYPE_CHECKING:
    from vitrail.model.parts import BlockConfig


# Kernels that resample positions, as in `PositionConfig.resample`.
Kernel = Literal["google", "timm", "hf", "torchvision", "dinov2", "pe", "siglip2", "radio"]


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What the user knows about the file: each hint overrides what would be inferred."""

    image_size: tuple[int, int] | None = None
    """The size of the source's pictures, where the file does not tell (not square)."""
    patch_size: tuple[int, int] | None = None
    """The size of the source's patches, where the file does not tell (flat ones)."""
    heads: int | None = None
    """Number of heads, where the file does not tell."""
    pooling: Literal["cls", "mean", "map"] | None = None
    """Pooling, instead of what the keys suggest."""
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] | None = None
    """GELU, instead of the format's own."""
    norm_eps: float | None = None
    """LayerNorm's epsilon, instead of the format's own."""
    ema: bool | None = None
    """Of a torch file with both: use the moving average of the weights, or the weights themselves."""
    attention_scale: float | None = None
    """The factor of the attention scores before the softmax, instead of 1 / √(head size)."""
    architecture: str | None = None
    """The model's name in timm, for what its weights do not tell (vit_small_patch16_dinov3)."""

    def __post_init__(self) -> None:
        validate(self)
        for name in ("heads", "norm_eps", "attention_scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise ConfigError(f"{name} must be positive; got {value}.")
        if self.patch_size is not None and min(self.patch_size) < 1:
            raise ConfigError(f"patch_size must be positive; got {self.patch_size}.")

    def override(self, block: "BlockConfig") -> "BlockConfig":
        """The format's own block with what the user knows better."""
        given = {name: getattr(self, name) for name in ("activation", "norm_eps", "attention_scale")}
        return replace(block, **{name: value for name, value in given.items() if value is not None})
