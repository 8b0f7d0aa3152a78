"""Forward and training step of vitrail, timm, transformers and torchvision, all eager, side by side.

    python -m benchmarks.model [--quick]

Images/s, best of many interleaved rounds on all cores. `Training` is forward + backward of a cross-entropy loss. Every
model has random weights and computes the same function, each in its own way.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers import timm, torchvision, transformers
from benchmarks.timing import best_seconds, print_machine, ratio_table
from vitrail.model import ViTConfig, create, variant

SETTINGS = [("vit-b16", 1), ("vit-b16", 8), ("vit-ti16", 1), ("vit-ti16", 8), ("cifar-tiny", 256)]


def peer_models(config: ViTConfig) -> dict[str, nn.Module]:
    """The same architecture in each library."""
    return {name: make() for name, make in model_makers(config).items()}


def model_makers(config: ViTConfig) -> dict[str, Callable[[], nn.Module]]:
    """The same architecture in each library, not built yet."""
    size, patch = config.image_size[0], config.patch_size[0]
    hf_config = transformers.ViTConfig(
        image_size=size,
        patch_size=patch,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.heads,
        intermediate_size=config.hidden_width,
        num_labels=config.num_classes,
        attn_implementation="sdpa",
    )
    return {
        "vitrail": lambda: create(config),
        "timm": lambda: timm.models.vision_transformer.VisionTransformer(
            img_size=size,
            patch_size=patch,
            embed_dim=config.width,
            depth=config.depth,
            num_heads=config.heads,
            mlp_ratio=config.hidden_width / config.width,
            num_classes=config.num_classes,
        ),
        "transformers": lambda: Logits(transformers.ViTForImageClassification(hf_config)),
        "torchvision": lambda: torchvision.models.VisionTransformer(
            image_size=size,
            patch_size=patch,
            num_layers=config.depth,
            num_heads=config.heads,
            hidden_dim=config.width,
            mlp_dim=config.hidden_width,
            num_classes=config.num_classes,
        ),
    }


class Logits(nn.Module):
    """transformers returns an object; the others return the logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(pixel_values=images).logits


def forward_of(model: nn.Module, images: Tensor) -> Callable[[], object]:
    def run() -> None:
        model.eval()
        with torch.inference_mode():
            model(images)

    return run


def training_of(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    def run() -> None:
        model.train()
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: a quick look, not a measurement")
    rounds, seconds = (2, 0.0) if parser.parse_args().quick else (5, 12.0)
    print_machine("timm", "transformers", "torchvision")
    rows: dict[str, dict[str, float]] = {}
    for name, batch in SETTINGS:
        config = variant(name)
        models = peer_models(config)
        images, labels = torch.randn(batch, 3, *config.image_size), torch.arange(batch) % config.num_classes
        for kind in ("forward", "training"):
            runs = {
                peer: forward_of(model, images) if kind == "forward" else training_of(model, images, labels)
                for peer, model in models.items()
            }
            best = best_seconds(runs, rounds, seconds)
            rows[f"{name} {kind}, batch {batch}"] = {peer: batch / time for peer, time in best.items()}
    ratio_table(f"images/s, {torch.get_num_threads()} threads", rows)


if __name__ == "__main__":
    main()
