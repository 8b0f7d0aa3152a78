"""The computation that is exported: the model's own forward pass, with what is asked for before and after it."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError
from vitrail.model import AttentionQuery, ViT
from vitrail.model.attention import LayerMix
from vitrail.model.positions import OFFSETS
from vitrail.runtimes.graph_attention import in_graph_form, mix_written_out
from vitrail.runtimes.manifest import FEATURES, LOGITS, PROBABILITIES
from vitrail.runtimes.resizing import check_resizable, prepare_in_graph
from vitrail.weights.trust import FLOOR, Trust


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
            raise ConfigError("with_preprocess= takes pictures of any size already; omit dynamic_size=")


class Graph(nn.Module):
    """Pictures → the outputs in the order of `outputs`."""

    def __init__(self, model: ViT, spec: Preprocess, options: GraphOptions, trust: Trust | None = None) -> None:
        super().__init__()
        self.model, self.spec, self.options, self.trust = model, spec, options, trust
        self.mix: LayerMix | None = None  # what attends instead of the fused kernel
        self.layers = tuple(dict.fromkeys(model.layer_index(layer) for layer in options.attention))
        if options.with_preprocess:
            check_resizable(spec)
        positions = model.config.positions
        if options.dynamic_size and positions.kind == "learned" and positions.resample in OFFSETS:
            raise ConfigError(
                f"dynamic_size= cannot export how {positions.resample} resamples positions, which no runtime can do "
                "for sizes that it learns late; export each size by itself, or load with another resample="
            )

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what it gives: scores if there are classes, then features, then attention."""
        scores = PROBABILITIES if self.options.with_preprocess else LOGITS
        head = (scores,) if self.model.config.num_classes else ()
        return (*head, FEATURES, *(f"attention_{layer}" for layer in self.layers))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if self.options.with_preprocess:
            images = prepare_in_graph(images, self.spec)
        if self.layers:
            trace = self.model.trace(images, attention=AttentionQuery(layers=self.layers))
            logits, features, maps = trace.logits, trace.features, [trace.attention[layer] for layer in self.layers]
        else:
            features = self.model.features(images, mix=self.mix)
            logits, maps = self.model.classify(features), []
        scores = self._probabilities(logits) if self.options.with_preprocess else logits
        head = (scores,) if self.model.config.num_classes else ()
        return (*head, features, *maps)

    def _probabilities(self, logits: Tensor) -> Tensor:
        """As `probabilities` of `weights/trust.py` makes them."""
        if self.trust is None:
            return logits.softmax(dim=-1)
        shares = (logits / self.trust.temperature).softmax(dim=-1)
        if not self.trust.smoothing:
            return shares
        left = torch.maximum(shares - self.trust.smoothing / logits.shape[-1], FLOOR * shares)
        return left / left.sum(dim=-1, keepdim=True)

    @contextmanager
    def written_out(self) -> Generator[None]:
        """While the context lasts, attention is in the form that runtimes compute fastest."""
        with in_graph_form(self.model):
            self.mix = mix_written_out
            try:
                yield
            finally:
                self.mix = None

    def example(self, count: int = 2) -> Tensor:
        """Pictures of the right kind to trace with; torch keeps the batch free only from two pictures on."""
        config = self.model.config
        if self.options.with_preprocess:
            return torch.randint(0, 256, (count, 67, 61, 3), dtype=torch.uint8)
        return torch.randn(count, config.channels, *config.image_size)


def attention_layer(output: str) -> int | None:
    """The layer of an attention output."""
    match = re.fullmatch(r"attention_(\d+)", output)
    return int(match[1]) if match else None
