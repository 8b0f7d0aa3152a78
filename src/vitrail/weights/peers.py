"""The target's own library as a witness: does it compute the same from what we wrote?"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import MissingExtraError, WeightsError
from vitrail.model import ViTConfig
from vitrail.weights.checkpoint import FormatName
from vitrail.weights.files import read_pickle
from vitrail.weights.huggingface_config import is_dinov2
from vitrail.weights.timm_config import architecture


def peer_logits(format_name: FormatName, config: ViTConfig, path: Path, images: Tensor) -> Tensor:
    """What the library computes from the file or folder at `path`: logits, or pooled features of a headless model."""
    loaders = {"hf": _run_transformers, "timm": _run_timm, "torchvision": _run_torchvision}
    if format_name not in loaders:
        raise WeightsError(f"no library that runs on PyTorch reads {format_name}; leave out --verify-with-peer.")
    with torch.inference_mode():
        return loaders[format_name](config, path, images)


def _import(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"checking with {name}", "peers") from error
    except (ImportError, RuntimeError) as error:
        raise WeightsError(f"{name} is installed but cannot be imported here: {error}") from error


def _run_transformers(config: ViTConfig, path: Path, images: Tensor) -> Tensor:
    transformers = _import("transformers")
    if is_dinov2(config):
        name = "Dinov2WithRegistersModel" if config.registers else "Dinov2Model"
        return (
            getattr(transformers, name)
            .from_pretrained(path, dtype=torch.float32)
            .eval()(images)
            .last_hidden_state[:, 0]
        )
    if config.num_classes:
        return transformers.ViTForImageClassification.from_pretrained(path, dtype=torch.float32).eval()(images).logits
    pooler = config.representation is not None
    model = transformers.ViTModel.from_pretrained(path, add_pooling_layer=pooler, dtype=torch.float32).eval()
    output = model(images)
    return output.pooler_output if config.representation else output.last_hidden_state[:, 0]


def _run_timm(config: ViTConfig, path: Path, images: Tensor) -> Tensor:
    timm = _import("timm")
    name, arguments = architecture(config)
    weights = path / "model.safetensors" if path.is_dir() else path
    model = timm.create_model(name, num_classes=config.num_classes, checkpoint_path=str(weights), **arguments)
    return model.eval()(images)


def _run_torchvision(config: ViTConfig, path: Path, images: Tensor) -> Tensor:
    torchvision = _import("torchvision")
    model = torchvision.models.VisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.hidden_width,
        num_classes=config.num_classes,
        representation_size=config.representation,
    )
    model.load_state_dict(read_pickle(path))
    return model.eval()(images)
