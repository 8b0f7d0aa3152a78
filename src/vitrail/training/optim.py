"""Which weights an optimiser changes, and how: groups with their decay and learning rate, the optimisers, the learning
rate over a run, and the moving average of the weights (EMA).
"""

import math
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from vitrail.model.attention import Attention
from vitrail.training.config import Optim, Schedule
from vitrail.training.muon import Muon

_UNDECAYED = ("embed.class_token", "embed.registers", "embed.positions", "pool.probe", "relative.")
_FIRST_FILTERS = ("embed.stem.0.", "embed.stem.conv_root.")


@dataclass
class Group:
    """Parameters that share their settings."""

    kind: str  # the optimiser: adamw, sgd or muon
    decay: float
    lr: float
    parameters: list[nn.Parameter] = field(default_factory=list[nn.Parameter])
    blocks: list[int] = field(default_factory=list[int])  # of rows, that muon treats as matrices, in each of them


def group_parameters(model: nn.Module, config: Optim, depth: int) -> list[Group]:
    """Every trainable parameter in exactly one group."""
    groups: dict[tuple[str, float, float], Group] = {}
    for own_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        name = own_name.removeprefix("model.")  # of an objective
        decay = config.weight_decay if is_decayed(name, parameter) else 0.0
        kind = config.optimizer if config.optimizer != "muon" or is_hidden_matrix(name, parameter) else "adamw"
        lr = config.muon_lr if kind == "muon" else config.lr
        lr *= config.layer_decay ** (depth + 1 - layer_of(name, depth))
        group = groups.setdefault((kind, decay, lr), Group(kind, decay, lr))
        group.parameters.append(parameter)
        group.blocks.append(count_blocks(model, own_name, config.muon_split))
    return list(groups.values())


def is_decayed(name: str, parameter: Tensor) -> bool:
    """Matrices and filters are decayed; norms, biases, tokens and positions never are."""
    return parameter.ndim > 1 and not name.startswith(_UNDECAYED)


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """What Muon is for: the hidden matrices, but neither the first layer, which gets the pixels, nor the head."""
    inside = name.startswith(("blocks.", "embed.stem.")) and not name.startswith(_FIRST_FILTERS)
    return parameter.ndim > 1 and inside


def count_blocks(model: nn.Module, name: str, split: str) -> int:
    """How many matrices a parameter is to Muon: queries, keys and values may be one, one each, or one for each head."""
    module, _, own = name.rpartition(".qkv.")
    if split == "none" or own != "weight":
        return 1
    attention = model.get_submodule(module)
    assert isinstance(attention, Attention)
    return 3 if split == "qkv" else 3 * attention.heads


def layer_of(name: str, depth: int) -> int:
    """0 for the embedding, 1 … depth for the blocks, depth + 1 for what comes after."""
    if name.startswith(("embed.", "relative.", "pre_norm.")):
        return 0
    block = re.match(r"blocks\.(\d+)\.", name)
    return depth + 1 if block is None else int(block[1]) + 1


def build_optimizers(model: nn.Module, config: Optim, depth: int) -> list[Optimizer]:
    """The optimisers of a run; each group remembers its highest learning rate as `peak_lr`."""
    groups = group_parameters(model, config, depth)
    return [_build(kind, groups, config) for kind in ("adamw", "sgd", "muon") if any(g.kind == kind for g in groups)]


def _build(kind: str, groups: list[Group], config: Optim) -> Optimizer:
    own = [group for group in groups if group.kind == kind]
    settings: list[dict[str, Any]] = [
        {"params": group.parameters, "weight_decay": group.decay, "lr": group.lr, "peak_lr": group.lr} for group in own
    ]
    if kind == "muon":
        return Muon([each | {"blocks": group.blocks} for each, group in zip(settings, own, strict=True)])
    if kind == "sgd":
        return SGD(settings, lr=config.lr, momentum=config.momentum)
    return AdamW(settings, lr=config.lr, betas=(0.9, config.beta2), fused=True)


def set_learning_rate(optimizers: list[Optimizer], factor: float) -> None:
    """Give every group its share of its highest learning rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor


def start_state(optimizers: list[Optimizer]) -> None:
    """Give optimisers their (empty) state without a step, so that a checkpoint can be read into it."""
    set_learning_rate(optimizers, 0.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for memory in optimizer.state.values():
            for value in memory.values():
                if isinstance(value, Tensor):
                    value.zero_()


def lr_factor(config: Schedule, step: float, total_steps: int) -> float:
    """For one step, counted from 0, or a point between two: the warm-up's last step is the first at full rate."""
    warmup = round(config.warmup * total_steps)
    if step < warmup:
        return min((step + 1) / warmup, 1.0)
    progress = (step - warmup) / max(total_steps - warmup, 1)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "cosine":
        shape = 0.5 * (1 + math.cos(math.pi * progress))
    else:
        left = (total_steps - step) / max(round(config.cooldown * total_steps), 1)
        shape = min(1.0, left)
    return config.final_lr + (1 - config.final_lr) * shape


class EMA:
    """Exponential moving average of all floating-point tensors of a module, shard by shard where it is spread."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self._current = {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
        self.tensors = {name: tensor.detach().clone() for name, tensor in self._current.items()}
        self._pairs = [(local_part(mean), local_part(self._current[name])) for name, mean in self.tensors.items()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights after the given step, counted from 0; the first steps count for more."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for mean, weight in self._pairs:
            mean.lerp_(weight, 1 - decay)

    @contextmanager
    def in_place(self) -> Generator[None]:
        """With the averaged weights in the model."""
        backup = {name: tensor.detach().clone() for name, tensor in self._current.items()}
        self._write(self.tensors)
        try:
            yield
        finally:
            self._write(backup)

    @torch.no_grad()
    def _write(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._current[name].copy_(tensor)


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
