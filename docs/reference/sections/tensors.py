"""The tensors of a checkpoint: those of the paper's ViT-B/16, and what each option adds or changes."""

import re
from dataclasses import replace

from docs.reference.sections.markdown import code, joined, table

from vitrail.model.config import ViTConfig
from vitrail.model.parts import BlockConfig, ConvStem, PositionConfig, RelativeBias, ResNetStem, Rope
from vitrail.weights.checkpoint import expected_shapes

_BASE = ViTConfig()
_OPTIONS = {
    "registers: 4": replace(_BASE, registers=4),
    "positions.kind: axes": replace(_BASE, positions=PositionConfig(kind="axes")),
    "block.qk_norm: true": replace(_BASE, block=BlockConfig(qk_norm=True)),
    "block.layer_scale: 1e-5": replace(_BASE, block=BlockConfig(layer_scale=1e-5)),
    "block.mlp: swiglu": replace(_BASE, block=BlockConfig(mlp="swiglu")),
    "block.attention_norm: true": replace(_BASE, block=BlockConfig(attention_norm=True)),
    "block.mlp_norm: true": replace(_BASE, block=BlockConfig(mlp_norm=True)),
    "relative.kind: rope, stored": replace(_BASE, relative=Rope(frequencies="stored")),
    "relative.kind: rope, mixed": replace(_BASE, relative=Rope(frequencies="mixed")),
    "relative.kind: bias": replace(_BASE, relative=RelativeBias()),
    "attention_width: 1024": replace(_BASE, heads=16, attention_width=1024),
    "pixel_norm: true": replace(_BASE, pixel_norm=True),
    "patch_norm: true": replace(_BASE, patch_norm=True),
    "pre_norm: true": replace(_BASE, pre_norm=True),
    "pooling: map": replace(_BASE, pooling="map"),
    "representation: 768": replace(_BASE, representation=768),
    "projection: 512": replace(_BASE, projection=512),
    "distilled: true": replace(_BASE, registers=1, summary_tokens=2, distilled=True),
    "stem.kind: conv": replace(_BASE, stem=ConvStem(), patch_size=(1, 1)),
    "stem.kind: resnet": replace(_BASE, stem=ResNetStem(), patch_size=(1, 1)),
}


def tensors() -> str:
    """Two tables: the tensors of ViT-B/16, and what other options have."""
    base = _shapes(_BASE)
    others = [
        (code(option), code(name), code(shape))
        for option, config in _OPTIONS.items()
        for name, shape in _shapes(config).items()
        if base.get(name) != shape
    ]
    plain = [(code(name), code(shape)) for name, shape in base.items()]
    return joined([table(("tensor", "ViT-B/16"), plain), table(("with", "tensor", "shape"), others)])


def _shapes(config: ViTConfig) -> dict[str, str]:
    """Name → shape, with N for numbers in names; of several, the first one's shape."""
    shapes: dict[str, str] = {}
    for name, shape in expected_shapes(config).items():
        shapes.setdefault(re.sub(r"\.\d+(?=\.)", ".N", name), str(list(shape)))
    return shapes
