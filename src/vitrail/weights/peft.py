"""Adapters of PEFT (LoRA): a folder with `adapter_config.json` and `adapter_model.safetensors`, for another library's
model. The modules that they adapt are found in the key tables of the formats.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import WeightsError, list_names, shorten
from vitrail.model import ViTConfig
from vitrail.weights.adapt import adapt, without_trust
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import huggingface, timm
from vitrail.weights.keys import Rule, read_tensors, write_tensors
from vitrail.weights.read import FORMATS
from vitrail.weights.resolve import FormatName
from vitrail.weights.sidecars import read_json
from vitrail.weights.tensor_files import read_safetensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# Keys of a config that we use, and those that change nothing once an adapter is trained; any other must be off.
USED = {"peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "init_lora_weights"}
_IRRELEVANT = """
    auto_mapping base_model_name_or_path exclude_modules inference_mode layers_pattern layers_to_transform lora_dropout
    megatron_core modules_to_save peft_version qalora_group_size revision runtime_config target_modules task_type
    corda_config eva_config loftq_config lora_ga_config
"""  # the last four say how A and B were first computed: `init_lora_weights` says whether that changed the base too
IRRELEVANT = frozenset(_IRRELEVANT.split())


def _principal(weight: Tensor, rank: int, scale: float) -> Tensor:
    """PiSSA: the first singular vectors move to A and B."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    return left[:, :rank] * values[:rank] @ right[:rank]


def _orthonormal(weight: Tensor, rank: int, scale: float) -> Tensor:
    """OLoRA: the first columns of Q and rows of R do."""
    columns, rows = torch.linalg.qr(weight)
    return scale * (columns[:, :rank] @ rows[:rank])


# How A and B were initialised → what PEFT then took away from the base's weights, and takes again when it loads the
# adapter. Those of `UNTOUCHED` leave the base as it is. All others draw at random or need data: PEFT itself cannot
# repeat them.
TAKEN: dict[str, Callable[[Tensor, int, float], Tensor]] = {"pissa": _principal, "olora": _orthonormal}
UNTOUCHED = (True, False, None, "gaussian", "orthogonal", "eva", "mica")


@dataclass(frozen=True, kw_only=True)
class Library:
    """Whose modules an adapter is for."""

    name: str
    rules: tuple[Rule, ...]  # our tensors and theirs
    head: str = ""  # their name for the head, if they have one

    def modules(self, layer: str) -> tuple[str, ...]:
        """Their names for a layer of ours: three for the fused one where they keep queries, keys and values apart."""
        weight = next(rule for rule in self.rules if rule.ours == f"{layer}.weight")
        return tuple(name.removesuffix(".weight") for name in weight.theirs)


def libraries(config: ViTConfig) -> list[Library]:
    """The libraries that have such a model, with its head or at least without it."""
    found: list[Library] = []
    formats: dict[FormatName, tuple[str, str]] = {"hf": ("transformers", "classifier"), "timm": ("timm", "head")}
    for format_name, (name, head) in formats.items():
        held = config if not FORMATS[format_name].refusals(config) else replace(config, num_classes=0)
        if FORMATS[format_name].refusals(held):
            continue
        rules = timm.key_table(held) if name == "timm" else huggingface.key_table(held, {"generation": "modules"})
        theirs = [each for rule in rules for each in rule.theirs]
        if len(set(theirs)) == len(theirs):  # timm's SwiGLU is one matrix, which a pair for each half does not fit
            found.append(Library(name=name, rules=tuple(rules), head=head if held.num_classes else ""))
    return found


def add_adapter(checkpoint: Checkpoint, folder: str | Path) -> Checkpoint:
    """The checkpoint with an adapter's products added to its weights, and with the adapter's head if it has one."""
    path = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise WeightsError(f"an adapter of PEFT is a folder with {CONFIG} and {WEIGHTS}; {path} has no {name}.")
    facts = _read_config(path / CONFIG)
    theirs = {name.removeprefix(PREFIX): tensor for name, tensor in read_safetensors(path / WEIGHTS)[0].items()}
    adapted = {name.removesuffix(".lora_A.weight") for name in theirs if name.endswith(".lora_A.weight")}
    rules = _find_table(checkpoint.config, adapted, path)
    weights = write_tensors(rules, {rule.ours: checkpoint.tensors[rule.ours] for rule in rules})
    merged = {name: _merge(name, weight, theirs, facts, path) for name, weight in weights.items()}
    changed = replace(checkpoint, tensors={**checkpoint.tensors, **read_tensors(rules, merged)})
    return _with_head(without_trust(changed, "an adapter was merged"), theirs, path)


def _read_config(path: Path) -> Mapping[str, Any]:
    facts: Any = read_json(path)
    if not isinstance(facts, Mapping) or facts.get("peft_type") != "LORA":
        raise WeightsError(f"{path} must be the config of a LoRA adapter.")
    on = sorted(name for name in facts if name not in USED | IRRELEVANT and facts[name] not in (None, False, "none"))
    unknown = [name for name in on if facts[name] not in ({}, [], "")]
    if unknown:
        raise WeightsError(f"{path}: we cannot merge an adapter that uses {list_names(unknown)}.")
    init = facts.get("init_lora_weights")
    if init not in UNTOUCHED and str(init).lower() not in TAKEN:
        raise WeightsError(
            f"{path}: the adapter was initialised with {init!r}, which changed the base model in a way that cannot be "
            "repeated; save it as plain LoRA where it was trained: "
            "model.save_pretrained(folder, path_initial_model_for_weight_conversion=...)."
        )
    return facts


def _find_table(config: ViTConfig, adapted: set[str], path: Path) -> list[Rule]:
    """The key table whose modules the adapter names, in whatever library and generation."""
    closest = adapted
    for head in dict.fromkeys((config.num_classes, 0)):
        held = replace(config, num_classes=head)
        for table in _tables(held):
            known = {name.removesuffix(".weight") for rule in table for name in rule.theirs}
            if adapted and adapted <= known:
                return table
            closest = min(closest, adapted - known, key=len)
    raise WeightsError(f"{path} adapts modules that this model does not have: {list_names(sorted(closest)[:5])}.")


def _tables(config: ViTConfig) -> Iterator[list[Rule]]:
    if not FORMATS["timm"].refusals(config):
        yield timm.key_table(config)
    if not FORMATS["hf"].refusals(config):
        yield from huggingface.key_tables(config)


def _merge(name: str, weight: Tensor, theirs: dict[str, Tensor], facts: Mapping[str, Any], path: Path) -> Tensor:
    """One of their tensors with its A and B, which are taken out of `theirs`; as it is if it is not adapted."""
    module = name.removesuffix(".weight")
    down, up = theirs.pop(f"{module}.lora_A.weight", None), theirs.pop(f"{module}.lora_B.weight", None)
    if down is None and up is None:
        return weight
    if down is None or up is None or down.ndim != weight.ndim or up.ndim != weight.ndim or up.shape[1] != len(down):
        raise WeightsError(f"{path} is damaged: A and B of {module} do not fit each other.")
    if (len(up), *down.shape[1:]) != weight.shape:
        raise WeightsError(f"{path} does not fit this model: {module} must be {tuple(weight.shape)}.")
    scale = _scale(module, facts, path)
    if take := TAKEN.get(str(facts.get("init_lora_weights")).lower()):
        weight = (weight.float() - take(weight.float(), len(down), scale)).to(weight.dtype)  # in PEFT's precision
    delta = up.double().flatten(1) @ down.double().flatten(1)  # B of a convolution has kernels of 1×1
    return (weight.double() + scale * delta.view_as(weight)).to(weight.dtype)


def _scale(module: str, facts: Mapping[str, Any], path: Path) -> float:
    rank = _by_pattern(facts.get("rank_pattern") or {}, module, facts.get("r"))
    alpha = _by_pattern(facts.get("alpha_pattern") or {}, module, facts.get("lora_alpha"))
    if not all(isinstance(number, int | float) and number > 0 for number in (rank, alpha)):
        raise WeightsError(f"{path / CONFIG} must give a rank and an alpha above 0 for {module}.")
    return alpha / (math.sqrt(rank) if facts.get("use_rslora") else rank)


def _by_pattern(patterns: Mapping[str, Any], module: str, usual: Any) -> Any:
    """A number for a module, as PEFT looks it up: by its name or the end of it. Regular expressions are refused."""
    for key, value in patterns.items():
        if not re.fullmatch(r"[\w.]+", key):
            raise WeightsError(f"the patterns of an adapter must be names of modules; got {shorten(key)}.")
        if f".{module}".endswith(f".{key}"):
            return value
    return usual


def _with_head(checkpoint: Checkpoint, theirs: dict[str, Tensor], path: Path) -> Checkpoint:
    """With the head that was trained beside the adapter; whatever else is in the file is refused."""
    for name in ("classifier", "head"):
        weight, bias = theirs.pop(f"{name}.weight", None), theirs.pop(f"{name}.bias", None)
        if weight is None and bias is None:
            continue
        if weight is None or bias is None or weight.ndim != 2:
            raise WeightsError(f"{path} is damaged: its {name} is not complete.")
        lost = checkpoint.classes is not None
        checkpoint = adapt(adapt(checkpoint, num_classes=0, drop_representation=True), num_classes=len(weight))
        tensors = {**checkpoint.tensors, "head.weight": weight, "head.bias": bias}
        remark = "the adapter has its own head: class names of the base were dropped; `class_names=` names the new ones"
        remarks = (*checkpoint.remarks, remark) if lost else checkpoint.remarks
        checkpoint = replace(checkpoint, tensors=tensors, remarks=remarks)
    if theirs:
        raise WeightsError(f"{path} holds more than LoRA and a head: {list_names(sorted(theirs)[:5])}.")
    return checkpoint
