"""Adapters as PEFT keeps them, a folder with `adapter_config.json` and `adapter_model.safetensors`, for the model of
another library: `peft.PeftModel.from_pretrained(base, folder)`.

The names come from the key tables of the formats. Where a library has separate queries, keys and values, each has its
own A and B. Where it has one matrix, as timm does, the pairs become one of their summed rank: A stacks theirs, and B
has theirs in blocks.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.files import atomic_path
from vitrail.model import ViT
from vitrail.training.lora import QKV, AdaptedLinear, adapted_layers, pairs_of
from vitrail.weights.files import write_safetensors
from vitrail.weights.peft import CONFIG, PREFIX, WEIGHTS, Library


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
