"""Every choice that makes one ViT differ from another, validated once.

The defaults are the paper's ViT-B/16 at 224 pixels. A config is frozen; change it with `dataclasses.replace`.
"""

from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.schema import IF_USED, validate

Pair = tuple[int, int]  # (height, width), always in this order

# Far beyond any ViT: a damaged or mistyped config must not keep the machine busy.
LIMITS = {
    "channels": 4096,
    "width": 65_536,
    "depth": 1000,
    "heads": 4096,
    "mlp_width": 1_000_000,
    "representation": 1_000_000,
    "num_classes": 10_000_000,
    "registers": 10_000,
}
LARGEST_SIDE = 100_000
GROUP_SIZE = 8  # channels that a conv stem's group norm treats together


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """What all encoder blocks share besides their sizes."""

    qkv_bias: bool = True  # whether queries, keys and values have biases
    attention_scale: float | None = None  # None: 1 / √(head size), as in the paper
    qk_norm: bool = False  # LayerNorm on the queries and keys of each head
    layer_scale: float | None = None  # first value of a learned factor per channel on both branches
    norm_eps: float = 1e-6  # of every LayerNorm
    activation: Literal["gelu", "gelu_tanh"] = "gelu"  # the erf form, or Google's tanh approximation
    mlp: Literal["plain", "swiglu"] = "plain"  # the paper's, or one whose hidden features are gated (no GELU)

    def __post_init__(self) -> None:
        validate(self)
        _require_positive("norm_eps", self.norm_eps)
        if self.attention_scale is not None:
            _require_positive("attention_scale", self.attention_scale)
        if self.layer_scale is not None:
            _require_positive("layer_scale", self.layer_scale)


@dataclass(frozen=True, kw_only=True)
class PositionConfig:
    """How tokens know where they are.

    `kind` is what is added: a learned vector for each place, one for each row beside one for each column (`axes`),
    fixed sines and cosines, or nothing. `covers` is which tokens have a position: `patches` only (added before the
    other tokens are joined: big_vision, DeiT-3), `class` too (the paper: N + 1 positions, added after the [cls] token
    is joined), or `all` (registers too).
    `resample` is the kernel that fits the positions to another grid; each is exactly its origin's.
    """

    kind: Literal["learned", "axes", "sincos", "none"] = "learned"
    covers: Literal["patches", "class", "all"] = "class"
    resample: Literal["google", "timm", "hf", "torchvision", "dinov2"] = "google"

    def __post_init__(self) -> None:
        validate(self)


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
    """A few 3×3 convolutions, each with ReLU, before the patches are cut ("Early Convolutions Help Transformers")."""

    kind: Literal["conv"] = "conv"
    widths: tuple[int, ...] = (48, 96, 192, 384)  # channels that each convolution gives
    strides: tuple[int, ...] = (2, 2, 2, 2)  # one for each convolution
    norm: Literal["batch", "group", "none"] = "batch"  # group: of 8 channels, per picture, cheaper on a CPU
    pool: bool = False  # reduce by 3×3 max pooling instead of by striding, as CCT does

    def __post_init__(self) -> None:
        validate(self)
        if not self.widths or len(self.widths) != len(self.strides):
            raise ConfigError(
                "stem.widths and stem.strides must have one number per convolution, at least one; "
                f"got {self.widths} and {self.strides}."
            )
        for number in (*self.widths, *self.strides):
            _require_positive("each of stem.widths and stem.strides", number)
        if self.norm == "group" and any(width % GROUP_SIZE for width in self.widths):
            raise ConfigError(f"stem.norm 'group' needs widths that are multiples of {GROUP_SIZE}; got {self.widths}.")

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
            _require_positive("each number of a resnet stem", number)
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


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer. `image_size` and `patch_size` also take one number for a square."""

    image_size: Pair = (224, 224)  # of the pictures, in pixels
    patch_size: Pair = (16, 16)  # in pixels, or in cells of the stem's output where there is a stem
    channels: int = 3  # of the pictures: 3 for RGB
    width: int = 768  # features of each token
    depth: int = 12  # encoder blocks
    heads: int = 12  # attention heads of each block
    mlp_width: int | None = None  # None: 4 × width
    num_classes: int = 1000  # 0: no head, the model gives features
    class_token: bool = True  # whether there is a [cls] token
    registers: int = 0  # extra learned tokens that are never read ("ViTs Need Registers")
    pooling: Literal["cls", "mean", "map"] = "cls"  # the [cls] token, mean of the patches, or attention pooling
    pool_norm: Literal["before", "after"] = "before"  # where the last LayerNorm is
    representation: int | None = None  # width of the Linear + tanh before the head, used in pre-training
    block: BlockConfig = field(default_factory=BlockConfig)
    positions: PositionConfig = field(default_factory=PositionConfig)
    stem: Stem = field(default_factory=PatchStem)  # what the pixels pass through before patches are cut
    rates: Rates = field(default_factory=Rates)
    merge: tuple[int, ...] = field(default=(), metadata=IF_USED)  # patches that each block merges away; (): none

    def __post_init__(self) -> None:
        validate(self)
        for side in (*self.image_size, *self.patch_size):
            _require_positive("each side of image_size and patch_size", side)
            if side > LARGEST_SIDE:
                raise ConfigError(f"each side of image_size and patch_size must be at most {LARGEST_SIDE}; got {side}.")
        for name, limit in LIMITS.items():
            number = getattr(self, name)
            if number is None:
                continue
            if name not in ("num_classes", "registers"):
                _require_positive(name, number)
            elif number < 0:
                raise ConfigError(f"{name} must be 0 or more; got {number}.")
            if number > limit:
                raise ConfigError(f"{name} must be at most {limit}; got {number}.")
        if self.width % self.heads:
            fitting = [heads for heads in range(1, self.width + 1) if self.width % heads == 0]
            near = sorted(fitting, key=lambda heads: abs(heads - self.heads))[:2]
            raise ConfigError(
                f"heads must divide width {self.width}; got {self.heads}; try {' or '.join(map(str, sorted(near)))}."
            )
        self.grid_of(self.image_size)
        self._check_tokens()
        self._check_merge()
        self._settle_equals()

    def _check_tokens(self) -> None:
        if self.pooling == "cls" and not self.class_token:
            raise ConfigError(
                "pooling 'cls' needs `class_token=True`; use pooling 'mean' or 'map' without a [cls] token."
            )
        if self.positions.kind == "axes" and self.width % 2:
            raise ConfigError(f"positions along both axes need an even width; got {self.width}.")
        if self.positions.kind == "sincos" and self.width % 4:
            raise ConfigError(f"sincos positions need a width that is a multiple of 4; got {self.width}.")

    def _check_merge(self) -> None:
        if self.merge and len(self.merge) != self.depth:
            raise ConfigError(f"merge must have one number for each of the {self.depth} blocks; got {len(self.merge)}.")
        for block, (count, tokens) in enumerate(zip(self.merge, self.block_tokens, strict=False)):
            most = (tokens - self.prefix) // 2
            if not 0 <= count <= most:
                raise ConfigError(f"merge[{block}] must be between 0 and {most}, half of its patches; got {count}.")

    def _settle_equals(self) -> None:
        """Normalise equivalent settings, so that equal models have equal configs."""
        covers = self.positions.covers
        if self.positions.kind != "learned" or not self.positioned_prefix:
            covers = "patches"
        elif self.positioned_prefix == int(self.class_token):
            covers = "class"
        object.__setattr__(self, "positions", replace(self.positions, covers=covers))
        if self.pooling == "cls":  # the norm works token by token: before and after are the same
            object.__setattr__(self, "pool_norm", "before")
            object.__setattr__(self, "merge", (*self.merge[:-1], 0))  # what the last block would merge is never read
        if not any(self.merge):
            object.__setattr__(self, "merge", ())

    @property
    def stride(self) -> Pair:
        """Pixels from one patch to the next, the stem's reduction included."""
        return self.patch_size[0] * self.stem.stride, self.patch_size[1] * self.stem.stride

    @property
    def grid(self) -> Pair:
        """Rows and columns of patches at the config's own picture size."""
        return self.grid_of(self.image_size)

    def grid_of(self, image_size: Pair) -> Pair:
        """Rows and columns of patches for a picture of this size; an error if no whole number of patches fits."""
        for side, stride in zip(image_size, self.stride, strict=True):
            if side % stride or not side:
                tries = [side // stride * stride, (side // stride + 1) * stride]
                raise ConfigError(
                    f"image_size must be a multiple of {stride} (patch_size × the stem's stride); got "
                    f"{image_size[0]}×{image_size[1]}; try {' or '.join(str(size) for size in tries if size)}."
                )
        return image_size[0] // self.stride[0], image_size[1] // self.stride[1]

    @property
    def prefix(self) -> int:
        """Tokens before the patches: [cls] and registers."""
        return int(self.class_token) + self.registers

    @property
    def tokens(self) -> int:
        """N: all tokens at the config's own picture size, before any are merged."""
        return self.prefix + prod(self.grid)

    @property
    def block_tokens(self) -> tuple[int, ...]:
        """Tokens that enter each block, and at the end those that leave the last."""
        return tuple(self.tokens - sum(self.merge[:block]) for block in range(self.depth + 1))

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def hidden_width(self) -> int:
        """Features inside the MLP."""
        return self.mlp_width or 4 * self.width

    @property
    def positioned_prefix(self) -> int:
        """How many of the prefix tokens have a position."""
        covered = {"patches": 0, "class": int(self.class_token), "all": self.prefix}
        return covered[self.positions.covers]


def _require_positive(name: str, number: float) -> None:
    if not 0 < number < inf:  # so that NaN fails too
        raise ConfigError(f"{name} must be positive; got {number}.")
