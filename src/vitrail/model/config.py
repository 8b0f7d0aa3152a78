"""Every choice that makes one ViT differ from another, validated once.

The defaults are the paper's ViT-B/16 at 224 pixels. A config is frozen; change it with `dataclasses.replace`.
"""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.model.parts import (
    BlockConfig,
    NoRelative,
    Pair,
    PatchStem,
    PositionConfig,
    Rates,
    Relative,
    Rope,
    Stem,
    require_positive,
)
from vitrail.schema import IF_USED, validate

# Far beyond any ViT: a damaged or mistyped config must not keep the machine busy.
LIMITS = {
    "channels": 4096,
    "width": 65_536,
    "depth": 1000,
    "heads": 4096,
    "mlp_width": 1_000_000,
    "attention_width": 65_536,
    "pool_heads": 4096,
    "pool_mlp_width": 1_000_000,
    "representation": 1_000_000,
    "projection": 1_000_000,
    "num_classes": 10_000_000,
    "registers": 10_000,
}
LARGEST_SIDE = 100_000


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
    pool_norm: Literal["before", "after", "none"] = "before"  # where the last norm is
    representation: int | None = None  # width of the Linear + tanh before the head, used in pre-training
    block: BlockConfig = field(default_factory=BlockConfig)
    positions: PositionConfig = field(default_factory=PositionConfig)
    stem: Stem = field(default_factory=PatchStem)  # what the pixels pass through before patches are cut
    rates: Rates = field(default_factory=Rates)
    merge: tuple[int, ...] = field(default=(), metadata=IF_USED)  # patches that each block merges away; (): none
    attention_width: int | None = field(default=None, metadata=IF_USED)  # features of all heads together; None: width
    relative: Relative = field(default=NoRelative(), metadata=IF_USED)  # what attention knows of where tokens are
    patch_bias: bool = field(default=True, metadata=IF_USED)  # of the patch projection
    pixel_norm: bool = field(default=False, metadata=IF_USED)  # a norm of each patch's pixels before their projection
    patch_norm: bool = field(
        default=False, metadata=IF_USED
    )  # a norm of the patches before positions are added (AIMv2)
    pre_norm: bool = field(default=False, metadata=IF_USED)  # a norm of all tokens before the first block (CLIP)
    summary_tokens: int = field(default=1, metadata=IF_USED)  # first tokens that pooling "cls" reads, side by side
    pool_prefix: bool = field(default=False, metadata=IF_USED)  # pooling "mean" and "map" read [cls] and registers too
    pool_heads: int | None = field(default=None, metadata=IF_USED)  # of attention pooling; None: `heads`
    pool_mlp_width: int | None = field(default=None, metadata=IF_USED)  # of attention pooling; None: as in the blocks
    projection: int | None = field(
        default=None, metadata=IF_USED
    )  # width of a Linear without bias after pooling (CLIP)
    normalize_features: bool = field(default=False, metadata=IF_USED)  # features have length 1 (zero-shot)
    distilled: bool = field(default=False, metadata=IF_USED)  # a second head on the second token (DeiT)

    def __post_init__(self) -> None:
        validate(self)
        for side in (*self.image_size, *self.patch_size):
            require_positive("each side of image_size and patch_size", side)
            if side > LARGEST_SIDE:
                raise ConfigError(f"each side of image_size and patch_size must be at most {LARGEST_SIDE}; got {side}.")
        for name, limit in LIMITS.items():
            number = getattr(self, name)
            if number is None:
                continue
            if name not in ("num_classes", "registers"):
                require_positive(name, number)
            elif number < 0:
                raise ConfigError(f"{name} must be 0 or more; got {number}.")
            if number > limit:
                raise ConfigError(f"{name} must be at most {limit}; got {number}.")
        name, width = ("width", self.width) if self.attention_width is None else ("attention_width", self.heads_width)
        if width % self.heads:
            fitting = [heads for heads in range(1, width + 1) if width % heads == 0]
            near = sorted(fitting, key=lambda heads: abs(heads - self.heads))[:2]
            raise ConfigError(
                f"heads must divide {name} {width}; got {self.heads}; try {' or '.join(map(str, sorted(near)))}."
            )
        pool_heads = self.pool_heads or self.heads
        if self.pooling == "map" and self.width % pool_heads:
            raise ConfigError(f"pool_heads must divide width {self.width}; got {pool_heads}.")
        self.grid_of(self.image_size)
        self._check_tokens()
        self._check_merge()
        self._settle_equals()

    def _check_tokens(self) -> None:
        if self.pooling == "cls" and not self.class_token:
            raise ConfigError(
                "pooling 'cls' needs `class_token=True`; use pooling 'mean' or 'map' without a [cls] token."
            )
        if not 1 <= self.summary_tokens <= max(self.prefix, 1):
            raise ConfigError(
                f"summary_tokens must be between 1 and {max(self.prefix, 1)}, the number of [cls] and registers; got "
                f"{self.summary_tokens}."
            )
        if self.distilled and (self.pooling, self.summary_tokens, self.num_classes > 0) != ("cls", 2, True):
            raise ConfigError('distilled needs pooling "cls", summary_tokens 2, and classes for its two heads.')
        if self.distilled and (self.representation or self.projection):
            raise ConfigError("a distilled model has no representation layer and no projection.")
        if self.representation and self.projection:
            raise ConfigError("a model has a representation layer or a projection, not both.")
        if isinstance(self.relative, Rope) and self.head_size % 4:
            raise ConfigError(
                "rotary positions need heads whose size, width / heads, is a multiple of 4; "
                f"got {self.heads_width} / {self.heads}."
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
        if self.pooling == "cls":
            if self.pool_norm == "after":  # the norm works token by token: before and after are the same
                object.__setattr__(self, "pool_norm", "before")
            object.__setattr__(self, "merge", (*self.merge[:-1], 0))  # what the last block would merge is never read
            object.__setattr__(self, "pool_prefix", False)
        else:
            object.__setattr__(self, "summary_tokens", 1)
        if self.attention_width == self.width:
            object.__setattr__(self, "attention_width", None)
        if self.pooling != "map" or self.pool_heads == self.heads:
            object.__setattr__(self, "pool_heads", None)
        if self.pooling != "map" or self.pool_mlp_width == self.hidden_width:
            object.__setattr__(self, "pool_mlp_width", None)
        if not self.prefix:
            object.__setattr__(self, "pool_prefix", False)
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
    def heads_width(self) -> int:
        """Features of all heads together."""
        return self.attention_width or self.width

    @property
    def head_size(self) -> int:
        return self.heads_width // self.heads

    @property
    def hidden_width(self) -> int:
        """Features inside the MLP."""
        return self.mlp_width or 4 * self.width

    @property
    def pool_skips(self) -> int:
        """How many of the first tokens pooling over patches leaves out."""
        return 0 if self.pool_prefix else self.prefix

    @property
    def pooled_width(self) -> int:
        """Features that the pooling gives."""
        return self.width * self.summary_tokens

    @property
    def feature_width(self) -> int:
        """Features that the head sees."""
        return self.representation or self.projection or self.pooled_width

    @property
    def head_width(self) -> int:
        """Features that each head sees: all of them, or a token's of its own."""
        return self.width if self.distilled else self.feature_width

    @property
    def positioned_prefix(self) -> int:
        """How many of the prefix tokens have a position."""
        covered = {"patches": 0, "class": int(self.class_token), "all": self.prefix}
        return covered[self.positions.covers]
