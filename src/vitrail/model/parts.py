"""The parts of a model's config: blocks, positions, rates and stems."""

from dataclasses import dataclass, field
from math import inf, prod
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.schema import IF_USED, validate

Pair = tuple[int, int]  # (height, width), always in this order
GROUP_SIZE = 8  # channels that a conv stem's group norm treats together


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """What all encoder blocks share besides their sizes."""

    qkv_bias: bool = True  # whether queries, keys and values have biases
    attention_scale: float | None = None  # None: 1 / √(head size), as in the paper
    qk_norm: bool = False  # LayerNorm on the queries and keys of each head
    layer_scale: float | None = None  # first value of a learned factor per channel on both branches
    norm_eps: float = 1e-6  # of every norm
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] = "gelu"  # the erf form, Google's tanh or OpenAI's sigmoid
    mlp: Literal["plain", "swiglu"] = "plain"  # the paper's, or one whose hidden features are gated (no GELU)
    norm: Literal["layer", "rms"] = field(
        default="layer", metadata=IF_USED
    )  # every norm: LayerNorm, or RMSNorm (AIMv2)
    key_bias: bool = field(default=True, metadata=IF_USED)  # False: keys have no bias, only queries and values (DINOv3)
    proj_bias: bool = field(default=True, metadata=IF_USED)  # biases of attention's projection and of the MLP
    mlp_bias: bool | None = field(default=None, metadata=IF_USED)  # of the MLP's layers; None: as `proj_bias`
    attention_norm: bool = field(default=False, metadata=IF_USED)  # a norm of the joined heads before their projection
    mlp_norm: bool = field(default=False, metadata=IF_USED)  # a norm of the MLP's hidden features (EVA-02)

    def __post_init__(self) -> None:
        validate(self)
        require_positive("norm_eps", self.norm_eps)
        if self.attention_scale is not None:
            require_positive("attention_scale", self.attention_scale)
        if self.layer_scale is not None:
            require_positive("layer_scale", self.layer_scale)
        if not self.qkv_bias:  # equal models have equal configs
            object.__setattr__(self, "key_bias", True)
        if self.mlp_bias == self.proj_bias:
            object.__setattr__(self, "mlp_bias", None)

    @property
    def mlp_has_bias(self) -> bool:
        return self.proj_bias if self.mlp_bias is None else self.mlp_bias


@dataclass(frozen=True, kw_only=True)
class PositionConfig:
    """How tokens know where they are: what is added to them. What attention itself knows is `ViTConfig.relative`.

    `kind` is what is added: a learned vector for each place, one for each row beside one for each column (`axes`),
    fixed sines and cosines, or nothing. `covers` is which tokens have a position: `patches` only (added before the
    other tokens are joined: big_vision, DeiT-3), `class` too (the paper: N + 1 positions, added after the [cls] token
    is joined), or `all` (registers too).
    `resample` is the kernel that fits the positions to another grid; each is exactly its origin's.
    """

    kind: Literal["learned", "axes", "sincos", "none"] = "learned"
    covers: Literal["patches", "class", "all"] = "class"
    resample: Literal["google", "timm", "hf", "torchvision", "dinov2", "pe", "siglip2", "radio", "timm_crop"] = "google"

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True)
class NoRelative:
    """Attention knows nothing of where tokens are, as in the paper; only the tokens do."""

    kind: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Queries and keys are rotated by angles that grow with their patch's row and column ("RoFormer", in 2-D).

    The angles of a patch at coordinate c along an axis are c · f_i, f_i = base^(−i / (K/4)) for i < K/4; those of both
    axes stand side by side, one for each of the K/2 pairs of features. [cls] and registers are not rotated.

    `coordinates`: `index` is c = i + offset; `reference` scales that by reference / n, so that any grid spans the one
    of the training (EVA-02); `unit` is 2π · (2 (i + ½) / n − 1) (DINOv3). `frequencies` are computed, stored with the
    weights as 1 / f (the original DINOv3, whose periods are rounded), or learned for both axes, every block and head
    (`mixed`, "RoPE for ViT").
    """

    kind: Literal["rope"] = "rope"
    base: float = 100.0  # of the frequencies: the larger it is, the slower the slowest of them turns
    coordinates: Literal["unit", "index", "reference"] = "unit"
    reference: Pair | None = None  # rows and columns of the grid that `coordinates="reference"` spans
    offset: float = 0.0  # of the first row and column
    order: Literal["yx", "xy"] = "yx"  # whose angles come first: those of the row (y), or of the column (x)
    pairing: Literal["half", "interleaved"] = "half"  # feature i is rotated with i + K/2, or 2i with 2i + 1
    frequencies: Literal["computed", "stored", "mixed"] = "computed"

    def __post_init__(self) -> None:
        validate(self)
        require_positive("relative.base", self.base)
        if (self.coordinates == "reference") != (self.reference is not None):
            raise ConfigError('relative.reference, a grid, belongs to coordinates "reference" and to no others.')
        for side in self.reference or ():
            require_positive("each side of relative.reference", side)
        if self.coordinates == "unit" and self.offset:
            raise ConfigError('relative.offset must be 0 where coordinates are "unit", which are centred.')


@dataclass(frozen=True, kw_only=True)
class RelativeBias:
    """A learned number for each offset between two patches and each head is added to their score (BEiT).

    Where there is a [cls] token, three more are for pairs with it. Another grid gets the table resampled.
    """

    kind: Literal["bias"] = "bias"
    shared: bool = False  # one table for all blocks, or one for each

    def __post_init__(self) -> None:
        validate(self)


Relative = NoRelative | Rope | RelativeBias


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Probabilities with which training drops things; all are 0 at inference."""

    dropout: float = 0.0  # after the positions, after each attention and in each MLP
    attention: float = 0.0  # attention probabilities
    path: float = 0.0  # whole residual branches (DropPath): 0 in the first block, rising linearly to this in the last
    patch: float = 0.0  # whole patches, before the encoder

    def __post_init__(self) -> None:
        validate(self)
        for name in ("dropout", "attention", "path", "patch"):
            rate = getattr(self, name)
            if not 0.0 <= rate < 1.0:
                raise ConfigError(f"rates.{name} must be at least 0 and below 1; got {rate}.")


@dataclass(frozen=True, kw_only=True)
class PatchStem:
    """No stem: patches are cut from the pixels, as in the paper."""

    kind: Literal["patch"] = "patch"

    @property
    def stride(self) -> int:
        return 1


@dataclass(frozen=True, kw_only=True)
class ConvStem:
    """A few 3×3 convolutions before the patches are cut ("Early Convolutions Help Transformers")."""

    kind: Literal["conv"] = "conv"
    widths: tuple[int, ...] = (48, 96, 192, 384)  # channels that each convolution gives
    strides: tuple[int, ...] = (2, 2, 2, 2)  # one for each convolution
    norm: Literal["batch", "group", "none"] = "batch"  # group: of 8 channels, per picture, cheaper on a CPU
    pool: bool = False  # reduce by max pooling instead of by striding, as CCT does
    # The window's side: 3, with a border, after the activation (CCT); or 2, before the norm, which has less to do then.
    pool_size: Literal[2, 3] = field(default=3, metadata=IF_USED)
    activation: Literal["relu", "gelu"] = field(default="relu", metadata=IF_USED)  # after each convolution

    def __post_init__(self) -> None:
        validate(self)
        if not self.widths or len(self.widths) != len(self.strides):
            raise ConfigError(
                "stem.widths and stem.strides must have one number per convolution, at least one; "
                f"got {self.widths} and {self.strides}."
            )
        for number in (*self.widths, *self.strides):
            require_positive("each of stem.widths and stem.strides", number)
        if self.norm == "group" and any(width % GROUP_SIZE for width in self.widths):
            raise ConfigError(f"stem.norm 'group' needs widths that are multiples of {GROUP_SIZE}; got {self.widths}.")
        if self.pool_size != 3 and not self.pool:
            raise ConfigError("stem.pool_size is the window of max pooling; set stem.pool to true, or omit it.")

    @property
    def stride(self) -> int:
        return prod(self.strides)


@dataclass(frozen=True, kw_only=True)
class ResNetStem:
    """The hybrid's ResNet: 7×7 root, then stages of bottlenecks, with weight standardisation and GroupNorm.

    `ws_form` is how weights are standardised: Google divides by std + eps, timm by √(variance + eps).
    """

    kind: Literal["resnet"] = "resnet"
    blocks: tuple[int, ...] = (3, 4, 9)  # bottlenecks per stage; () is only the root
    width_factor: float = 1.0  # × 64 channels in the root
    groups: int = 32  # of GroupNorm
    norm_eps: float = 1e-6  # of GroupNorm
    ws_eps: float = 1e-5  # of the standardisation
    ws_form: Literal["std", "variance"] = "std"

    def __post_init__(self) -> None:
        validate(self)
        for number in (*self.blocks, self.groups, self.width_factor, self.norm_eps, self.ws_eps):
            require_positive("each number of a resnet stem", number)
        if self.width < 1 or self.width % self.groups:
            raise ConfigError(
                f"the resnet stem's width, int(64 × width_factor) = {self.width}, must be a multiple of its groups "
                f"{self.groups}; change width_factor or groups."
            )

    @property
    def width(self) -> int:
        return int(64 * self.width_factor)

    @property
    def stride(self) -> int:
        return 4 * 2 ** max(len(self.blocks) - 1, 0)  # convolution 2 × pooling 2, then 2 for each stage but the first


Stem = PatchStem | ConvStem | ResNetStem


def require_positive(name: str, number: float) -> None:
    """Raise unless a number is positive and finite."""
    if not 0 < number < inf:  # so that NaN fails too
        raise ConfigError(f"{name} must be positive; got {number}.")
