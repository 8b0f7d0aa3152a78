"""Forward and training step of vitrail, timm, transformers and torchvision, all eager, side by side.

    python -m benchmarks.model [--quick]

Images/s, best of many interleaved rounds on all cores. `Training` is forward + backward of a cross-entropy loss. Every
model has random weights and computes the same function, each in its own way. Models without a head of their own in a
library give features instead of logits, in all of them.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers import timm, torchvision, transformers
from benchmarks.timing import best_seconds, print_machine, ratio_table
from vitrail.model import BlockConfig, PositionConfig, Rope, ViTConfig, create, variant

SETTINGS = [("vit-b16", 1), ("vit-b16", 8), ("vit-ti16", 1), ("vit-ti16", 8), ("cifar-tiny", 256)]
FAMILY_BATCHES = (1, 8)


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


def family_makers() -> dict[str, dict[str, Callable[[], nn.Module]]]:
    """Backbones of today's families, not built yet: name → library → what builds it."""
    small, base = variant("vit-s16", num_classes=0), variant("vit-b16", num_classes=0)
    dinov3 = replace(
        small,
        registers=4,
        positions=PositionConfig(kind="none"),
        relative=Rope(),
        block=BlockConfig(key_bias=False, layer_scale=1e-5, norm_eps=1e-5),
    )
    siglip = replace(base, class_token=False, pooling="map", block=BlockConfig(activation="gelu_tanh"))
    clip = replace(base, pre_norm=True, patch_bias=False, block=BlockConfig(activation="quick_gelu", norm_eps=1e-5))
    eva02 = replace(
        small,
        patch_size=(14, 14),
        mlp_width=1024,
        relative=Rope(base=10_000.0, coordinates="reference", reference=(16, 16), pairing="interleaved"),
        block=BlockConfig(mlp="swiglu", key_bias=False),
        pooling="mean",
        pool_norm="after",
    )
    sdpa: Any = {"attn_implementation": "sdpa"}
    big: Any = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    little: Any = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6}
    dinov3_hf = transformers.DINOv3ViTConfig(**little, **sdpa, num_register_tokens=4, image_size=224)
    siglip_hf = transformers.SiglipVisionConfig(**big, **sdpa, image_size=224)
    clip_hf = transformers.CLIPVisionConfig(**big, **sdpa, image_size=224, patch_size=16)
    return {
        "DINOv3-S/16": {
            "vitrail": lambda: create(dinov3),
            "timm": lambda: timm.create_model("vit_small_patch16_dinov3_qkvb", num_classes=0, global_pool="token"),
            "transformers": lambda: Pooled(transformers.DINOv3ViTModel(dinov3_hf)),
        },
        "SigLIP-B/16": {
            "vitrail": lambda: create(siglip),
            "timm": lambda: timm.create_model("vit_base_patch16_siglip_224", num_classes=0, act_layer="gelu_tanh"),
            "transformers": lambda: Pooled(transformers.SiglipVisionModel(siglip_hf)),
        },
        "CLIP-B/16": {
            "vitrail": lambda: create(clip),
            "timm": lambda: timm.create_model("vit_base_patch16_clip_quickgelu_224", num_classes=0),
            "transformers": lambda: Pooled(transformers.CLIPVisionModel(clip_hf)),
        },
        "EVA-02-S/14": {
            "vitrail": lambda: create(eva02),
            "timm": lambda: timm.create_model("eva02_small_patch14_224", num_classes=0),
        },
    }


class Pooled(nn.Module):
    """The vector of a picture; transformers returns an object."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(pixel_values=images).pooler_output


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
    contests = [(name, batch, model_makers(variant(name)), variant(name)) for name, batch in SETTINGS]
    usual = variant("vit-b16")
    contests += [(name, batch, makers, usual) for name, makers in family_makers().items() for batch in FAMILY_BATCHES]
    for name, batch, makers, config in contests:
        models = {peer: make() for peer, make in makers.items()}
        images, labels = torch.randn(batch, 3, *config.image_size), torch.arange(batch) % 10
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
