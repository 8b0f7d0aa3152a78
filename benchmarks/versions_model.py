"""The child's side of `benchmarks.versions`: models of whichever vitrail Python finds, by its public names only.

A turn is a line such as `vit-b16 8 training`.
"""

import torch
import torch.nn.functional as F

import vitrail
from benchmarks.processes import serve_turns

_models: dict[str, vitrail.ViT] = {}


def take_turn(line: str) -> str:
    """One forward pass, or one with its backward pass; models of earlier turns are at hand."""
    variant, count, kind = line.split()
    if variant not in _models:
        _models[variant] = vitrail.create(variant)
    model = _models[variant].train(kind == "training")
    images = torch.randn(int(count), 3, *model.config.image_size)
    if kind == "forward":
        with torch.inference_mode():
            model(images)
    else:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), torch.zeros(int(count), dtype=torch.long)).backward()
    return "done"


if __name__ == "__main__":
    serve_turns(take_turn)
