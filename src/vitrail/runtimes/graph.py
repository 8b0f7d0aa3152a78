"""The computation that is exported: the model's own forward pass, with what is asked for before and after it.

Attention: the model takes queries, keys and values from one matrix product, because torch is fastest so. A runtime
would have to cut the result in three, which copies it, and could round it to 8 bits only after that. In a graph each
of the three has a product of its own, the scale is part of the query's weights, the softmax is written out, because
runtimes know how to fuse it with both products, and the last block computes only the queries that are read.

Resizing: two matrix products whose matrices are made from the picture's size. ONNX's own Resize rounds, widens its
filters and places its corners in other ways than Pillow or torch. Written with plain operations, the graph gives the
same pixels as `data/pixels.py` up to the last bit of a byte, in every runtime, for pictures of any size; the crop is
part of the matrices, so that nothing outside it is computed.
"""

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError
from vitrail.model import AttentionQuery, ViT
from vitrail.model.attention import NOTHING, Attention, LayerMix, Mix, fused, probabilities, relate
from vitrail.model.block import Block
from vitrail.model.positions import OFFSETS
from vitrail.model.relative import Relation
from vitrail.runtimes.manifest import FEATURES, LOGITS
from vitrail.weights.metadata import Metadata

FORM = 2  # raised when graphs are written another way: what was kept and measured before is then made anew


class GraphAttention(nn.Module):
    """What `Attention` computes in eval mode."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.heads, self.join = attention.heads, attention.join
        self.query_norm, self.key_norm = attention.query_norm, attention.key_norm
        own_scale = 1.0 if self.query_norm is not None else attention.scale  # a norm of the queries would undo it
        self.query, self.key, self.value = _thirds(attention.qkv, own_scale)
        self.scale = attention.scale / own_scale

    def forward(
        self,
        tokens: Tensor,  # (B, N, D)
        mask: Tensor | None = None,
        keep: int | None = None,
        mix: Mix = fused,
        relation: Relation = NOTHING,
    ) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, N, D) → (B, H, N, K)
            for part in (self.query(tokens[:, :keep]), self.key(tokens), self.value(tokens))
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, mask = relate(query, key, mask, relation)
        return self.join(mix(query, key, value, mask, 0.0, scale=self.scale))


def mix_written_out(
    layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, /, *, scale: float
) -> Tensor:
    """Softmax(Q Kᵀ · scale) V, step by step."""
    return probabilities(query, key, scale, mask) @ value


@contextmanager
def in_graph_form(model: ViT) -> Generator[None]:
    """While the context lasts, the attention of every block is `GraphAttention`."""
    blocks = [cast("Block", block) for block in model.blocks]
    own = [block.attention for block in blocks]
    try:
        for block, attention in zip(blocks, own, strict=True):
            block.attention = cast("Attention", GraphAttention(attention))
        yield
    finally:
        for block, attention in zip(blocks, own, strict=True):
            block.attention = attention


def _thirds(qkv: nn.Linear, scale: float) -> Iterator[nn.Linear]:
    """Products for the queries, scaled, and for the keys and values, which share the memory of the one product."""
    bias = cast("Tensor | None", qkv.bias)
    biases = (None, None, None) if bias is None else bias.detach().chunk(3)
    for weight, own, factor in zip(qkv.weight.detach().chunk(3), biases, (scale, 1.0, 1.0), strict=True):
        rows, columns = weight.shape
        with torch.device("meta"):
            linear = nn.Linear(columns, rows, bias=own is not None)
        linear.weight = nn.Parameter(weight if factor == 1 else weight * factor, requires_grad=False)
        if own is not None:
            linear.bias = nn.Parameter(own if factor == 1 else own * factor, requires_grad=False)
        yield linear


# Interpolation → how far its filter reaches, in pixels of the smaller picture.
REACH = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}


def check_resizable(spec: Preprocess) -> None:
    """Raise for what the graph cannot do."""
    if spec.interpolation not in REACH:
        raise ConfigError(
            f"the preprocessing can be exported for {', '.join(REACH)}; this model's interpolation is "
            f"{spec.interpolation!r}: export without the preprocessing."
        )
    if spec.channels != 3:
        raise ConfigError(
            f"the preprocessing can be exported for RGB pictures; this model has {spec.channels} channels."
        )
    if spec.value_range is not None:
        raise ConfigError(
            "the preprocessing can be exported for pictures of 8 bits; this model has a value_range for deeper ones: "
            "export without the preprocessing."
        )


def prepare_in_graph(pictures: Tensor, spec: Preprocess) -> Tensor:
    """Bytes (B, H, W, 3) of any size → what the model sees (B, 3, height, width)."""
    height, width = (torch.scalar_tensor(side, dtype=torch.int64) for side in pictures.shape[1:3])
    pixels = pictures.permute(0, 3, 1, 2).to(torch.float32)  # (B, 3, H, W)
    resized_height, resized_width = _resized(height, width, spec)
    columns = _matrix(width, resized_width, spec.size[1], pictures.shape[2], spec)  # (width, W)
    rows = _matrix(height, resized_height, spec.size[0], pictures.shape[1], spec)  # (height, H)
    pixels = _rounded(pixels @ columns.mT, spec)
    pixels = _rounded(rows @ pixels, spec).clamp(0, 255)  # bicubic filters overshoot
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (spec.mean, spec.std))
    return pixels * (1 / (255 * std)) - mean / std


def _resized(height: Tensor, width: Tensor, spec: Preprocess) -> tuple[Tensor, Tensor]:
    """`Preprocess.resized`, on whole numbers in the graph."""
    target = (math.floor(spec.size[0] / spec.crop), math.floor(spec.size[1] / spec.crop))
    if spec.resize == "squash":
        return torch.tensor(target[0]), torch.tensor(target[1])
    if spec.resize_to is not None:
        target = (spec.resize_to, spec.resize_to)
    if target[0] == target[1]:
        short = torch.minimum(height, width)
        return target[0] * height // short, target[0] * width // short
    scale = torch.minimum(height.double() / target[0], width.double() / target[1])
    return (height.double() / scale).round().to(torch.int64), (width.double() / scale).round().to(torch.int64)


def _matrix(side: Tensor, resized: Tensor, size: int, length: int, spec: Preprocess) -> Tensor:
    """What each of the `size` pixels that the crop keeps takes of each pixel of the picture's side: (size, side)."""
    margin = resized - size
    if spec.anchor == "corner":
        corner = torch.zeros_like(margin)
    else:
        corner = margin // 2 if spec.anchor == "floor" else (margin.float() / 2).round().to(torch.int64)
    scale = side.float() / resized.float()
    center = (torch.arange(size) + corner + 0.5) * scale  # in pixels of the picture
    wide = torch.clamp(scale, min=1.0) if spec.antialias else torch.ones_like(scale)
    distance = (torch.arange(length) + 0.5 - center[:, None]) / wide
    if spec.antialias:
        weights = _filter(distance, spec.interpolation, -0.5)
        return weights / weights.sum(dim=1, keepdim=True)
    return _without_antialias(center, length, spec.interpolation)


def _without_antialias(center: Tensor, length: int, interpolation: str) -> Tensor:
    """torch's plain interpolation: pixels beyond the edge count as the edge's own."""
    reach = math.ceil(REACH[interpolation])
    first = (center - 0.5).floor()
    pixels = torch.arange(length)
    weights = torch.zeros(center.shape[0], 1)
    for offset in range(1 - reach, reach + 1):
        place = first + offset
        weight = _filter(place + 0.5 - center, interpolation, -0.75)
        weights = weights + weight[:, None] * (pixels == place.clamp(0, length - 1)[:, None])
    return weights


def _filter(distance: Tensor, interpolation: str, sharpness: float) -> Tensor:
    x = distance.abs()
    if interpolation == "bilinear":
        return (1 - x).clamp(min=0)
    if interpolation == "bicubic":
        a = sharpness
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
    return torch.where(x < 3, torch.sinc(distance) * torch.sinc(distance / 3), torch.zeros_like(x))


def _rounded(pixels: Tensor, spec: Preprocess) -> Tensor:
    """Pillow, and torch on bytes, make bytes after each direction; floats stay as they are."""
    return pixels if spec.kernel == "float" else (pixels + 0.5).floor().clamp(0, 255)


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """What a graph takes and gives.

    Attributes:
        attention: the layers whose attention it gives too, each (B, heads, tokens, tokens); negative from the end.
        with_preprocess: it takes bytes (B, H, W, 3) of any size, and gives probabilities instead of logits.
        dynamic_size: it takes prepared pictures of any size into which whole patches fit.
    """

    attention: tuple[int, ...] = ()
    with_preprocess: bool = False
    dynamic_size: bool = False

    def __post_init__(self) -> None:
        if self.with_preprocess and self.dynamic_size:
            raise ConfigError("takes pictures of any size already; omit `dynamic_size=`", field="with_preprocess")


class Graph(nn.Module):
    """Pictures → the outputs in the order of `outputs`."""

    def __init__(self, model: ViT, facts: Metadata, options: GraphOptions) -> None:
        super().__init__()
        self.model, self.facts, self.options = model, facts, options
        self.mix: LayerMix | None = None  # what attends instead of the fused kernel
        self.layers = tuple(dict.fromkeys(model.layer_index(layer) for layer in options.attention))
        if options.with_preprocess:
            check_resizable(facts.preprocess)
        positions = model.config.positions
        if options.dynamic_size and positions.kind == "learned" and positions.resample in OFFSETS:
            raise ConfigError(
                f"cannot export how {positions.resample} resamples positions, which no runtime can do "
                "for sizes that it learns late; export each size by itself, or load with another `resample=`",
                field="dynamic_size",
            )

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what it gives: scores if there are classes, then features, then attention."""
        scores = self.facts.task.output if self.options.with_preprocess else LOGITS
        head = (scores,) if self.model.config.num_classes else ()
        return (*head, FEATURES, *(f"attention_{layer}" for layer in self.layers))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if self.options.with_preprocess:
            images = prepare_in_graph(images, self.facts.preprocess)
        if self.layers:
            trace = self.model.trace(images, attention=AttentionQuery(layers=self.layers))
            logits, features, maps = trace.logits, trace.features, [trace.attention[layer] for layer in self.layers]
        else:
            features = self.model.features(images, mix=self.mix)
            logits, maps = self.model.classify(features), []
        scores = self.facts.graph(logits) if self.options.with_preprocess else logits
        head = (scores,) if self.model.config.num_classes else ()
        return (*head, features, *maps)

    @contextmanager
    def written_out(self) -> Generator[None]:
        """While the context lasts, attention is in the form that runtimes compute fastest."""
        with in_graph_form(self.model):
            self.mix = mix_written_out
            try:
                yield
            finally:
                self.mix = None

    def free_sizes(self) -> dict[int, Any]:
        """Which dimensions of the input are free: the batch, and the picture's sides where that is asked for."""
        free: dict[int, Any] = {0: torch.export.Dim("batch")}
        if self.options.with_preprocess:
            free |= {1: torch.export.Dim("height", min=2), 2: torch.export.Dim("width", min=2)}
        elif self.options.dynamic_size:
            strides = zip(self.model.config.stride, ("rows", "columns"), strict=True)
            free |= {side: stride * torch.export.Dim(name) for side, (stride, name) in enumerate(strides, start=2)}
        return free

    def example(self, count: int = 2) -> Tensor:
        """Pictures of the right kind to trace with; torch keeps the batch free only from two pictures on."""
        config = self.model.config
        if self.options.with_preprocess:
            return torch.randint(0, 256, (count, 67, 61, 3), dtype=torch.uint8)
        return torch.randn(count, config.channels, *config.image_size)
