"""LoRA ("Low-Rank Adaptation of Large Language Models"): the weights stay as they are, and thin matrices beside them
learn what to add.

A layer that computes W x computes W x + alpha / rank · B A x, where A (rank, in) and B (out, rank) are trained and B
starts at zero. The fused matrix of queries, keys and values gets a pair for each of them that is adapted. A layer keeps
the names of its weights, so that the model's own files and the loop see nothing new but the pairs; `merged` adds them
to the weights, which is the model for use.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.files import atomic_path
from vitrail.model import ViT
from vitrail.model.linear import linear
from vitrail.weights.peft import CONFIG, PREFIX, WEIGHTS, Library
from vitrail.weights.tensor_files import write_safetensors

QKV = ("query", "key", "value")  # in the order of their rows in the fused matrix
WHOLE = "whole"  # the part of a layer that is not fused


class Pair(nn.Module):
    """B A x, from the right to the left."""

    def __init__(self, width_in: int, width_out: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width_in, rank, bias=False)
        self.up = nn.Linear(rank, width_out, bias=False)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.up(self.down(tokens))


class AdaptedLinear(nn.Linear):
    """A linear layer and what is added to its output: to all of it, or to its third for queries, keys or values."""

    def __init__(self, linear: nn.Linear, parts: tuple[str, ...], rank: int, scale: float) -> None:
        with torch.device("meta"):  # its weights are those of the layer
            super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None)  # pyright: ignore[reportUnnecessaryComparison]
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = scale
        third = linear.out_features // 3
        self.rows = {
            part: (0, linear.out_features) if part == WHOLE else (QKV.index(part) * third, third) for part in parts
        }
        self.adapters = nn.ModuleDict({part: Pair(linear.in_features, self.rows[part][1], rank) for part in parts})

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        output = linear(input, self.weight, self.bias)
        for part, pair in self.adapters.items():
            output.narrow(-1, *self.rows[part]).add_(pair(input), alpha=self.scale)
        return output

    def merge(self, weight: Tensor, down: Mapping[str, Tensor], up: Mapping[str, Tensor]) -> Tensor:
        """A weight of this layer with the products of the pairs added to it."""
        merged = weight.to(torch.float64, copy=True)
        for part, rows in self.rows.items():
            merged.narrow(0, *rows).add_(up[part].double() @ down[part].double(), alpha=self.scale)
        return merged.to(weight.dtype)


def add_adapters(model: ViT, *, rank: int, alpha: float, targets: tuple[str, ...]) -> None:
    """Put pairs beside the targets in every block, on the device of the weights; B is zero, so nothing changes yet."""
    fused = tuple(part for part in QKV if part in targets)
    for block in model.blocks:
        layers: list[tuple[nn.Module, str, tuple[str, ...]]] = []
        if fused:
            layers.append((block.get_submodule("attention"), "qkv", fused))
        if "proj" in targets:
            layers.append((block.get_submodule("attention"), "proj", (WHOLE,)))
        if "mlp" in targets:
            mlp = block.get_submodule("mlp")
            layers += [(mlp, name, (WHOLE,)) for name, layer in mlp.named_children() if isinstance(layer, nn.Linear)]
        for owner, name, parts in layers:
            linear = owner.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            adapted = AdaptedLinear(linear, parts, rank, alpha / rank)
            setattr(owner, name, adapted.to(linear.weight.device))


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, AdaptedLinear]]:
    """The layers with pairs, by their names."""
    for name, module in model.named_modules():
        if isinstance(module, AdaptedLinear):
            yield name, module


def pairs_of(
    name: str, layer: AdaptedLinear, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A and B of each part of a layer, among the tensors of the whole model."""
    down, up = (
        {part: tensors[f"{name}.adapters.{part}.{side}.weight"] for part in layer.rows} for side in ("down", "up")
    )
    return down, up


def merged(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a plain model that computes the same: `tensors` are all of the adapted one's."""
    plain = {name: tensor for name, tensor in tensors.items() if ".adapters." not in name}
    for name, layer in adapted_layers(model):
        plain[f"{name}.weight"] = layer.merge(tensors[f"{name}.weight"], *pairs_of(name, layer, tensors))
    return plain


def write_adapter(folder: Path, library: Library, model: ViT, tensors: Mapping[str, Tensor], base: str) -> None:
    """Write the pairs among the tensors of an adapted model, and its head, for a library; all or nothing."""
    theirs: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}  # of each of their modules
    scale = 1.0
    for name, layer in adapted_layers(model):
        scale = layer.scale
        for module, down, up in _their_pairs(library.modules(name), layer, *pairs_of(name, layer, tensors)):
            theirs |= {f"{PREFIX}{module}.lora_A.weight": down, f"{PREFIX}{module}.lora_B.weight": up}
            ranks[module] = down.shape[0]
    if library.head:
        theirs |= {f"{PREFIX}{library.head}.{kind}": tensors[f"head.{kind}"] for kind in ("weight", "bias")}
    with atomic_path(folder) as draft:
        draft.mkdir()
        write_safetensors(draft / WEIGHTS, {name: each.contiguous() for name, each in theirs.items()}, {"format": "pt"})
        facts = _config(ranks, scale, library.head, base)
        (draft / CONFIG).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _their_pairs(
    modules: tuple[str, ...], layer: AdaptedLinear, down: Mapping[str, Tensor], up: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Their module, A and B, for each of their modules that has any."""
    if len(modules) == len(QKV):
        yield from ((modules[QKV.index(part)], down[part], up[part]) for part in layer.rows)
        return
    whole = up[next(iter(up))].new_zeros(layer.out_features, sum(each.shape[1] for each in up.values()))
    column = 0
    for part, (start, length) in layer.rows.items():
        whole[start : start + length, column : column + up[part].shape[1]] = up[part]
        column += up[part].shape[1]
    yield modules[0], torch.cat(list(down.values())), whole


def _config(ranks: Mapping[str, int], scale: float, head: str, base: str) -> dict[str, Any]:
    """What PEFT needs to know; alpha follows from the rank, so that their quotient is the same everywhere."""
    usual = min(ranks.values())
    others = {module: rank for module, rank in ranks.items() if rank != usual}
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base or None,
        "target_modules": sorted(ranks),
        "r": usual,
        "lora_alpha": _whole(scale * usual),
        "rank_pattern": others,
        "alpha_pattern": {module: _whole(scale * rank) for module, rank in others.items()},
        "modules_to_save": [head] if head else None,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }


def _whole(number: float) -> float | int:
    return int(number) if number == int(number) else number
