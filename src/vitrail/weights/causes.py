"""Why two models differ: what is changed in one of them to see whether it then computes what the other does.

Each hypothesis is a `Change`: the first model with another option, other weights, or the same weights in another order.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import permutations
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from vitrail.errors import VitrailError, list_names
from vitrail.model import ViTConfig
from vitrail.weights.checkpoint import Checkpoint, expected_shapes
from vitrail.wording import counted

Tensors = Mapping[str, Tensor]
# Field → what people call it.
NAMES = {
    "block.activation": "the form of GELU",
    "block.attention_scale": "the scale of the attention scores",
    "block.layer_scale": "layer scale",
    "block.mlp": "the kind of MLP",
    "block.norm": "the kind of norm",
    "block.norm_eps": "the epsilon of LayerNorm",
    "block.qk_norm": "the norm of queries and keys",
    "depth": "the number of blocks",
    "heads": "the heads, among which the width is divided",
    "merge": "token merging",
    "pool_norm": "where the last LayerNorm is",
    "pooling": "which tokens are read",
    "positions.covers": "which tokens have positions",
    "positions.kind": "the kind of positions",
    "positions.resample": "the kernel that resamples positions",
    "pre_norm": "the norm before the first block",
    "registers": "the number of registers",
    "relative": "how attention knows where tokens are",
    "stem": "the stem",
}
# Numbers that libraries use, for what no annotation lists.
NUMBERS: dict[str, tuple[float, ...]] = {
    "block.norm_eps": (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3),
    "relative.base": (100.0, 10_000.0),
}
FEW = 16  # tensors, or modules with several of them, that are tried one by one
HEAD_SIZES = (16, 32, 48, 64, 72, 80, 88, 96, 104, 112, 128)
# What changes nothing at inference, and sizes without which no weight fits: they are not tried.
UNTRIED = ("rates.", "num_classes", "channels", "width", "mlp_width", "patch_size")


@dataclass(frozen=True, kw_only=True)
class Change:
    """The first model, changed in one way."""

    words: str
    checkpoint: Checkpoint


def differing_fields(a: Any, b: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The fields of two configs that differ, by their path; parts of different kinds as a whole."""
    for field in fields(a):
        path, mine, other = prefix + field.name, getattr(a, field.name), getattr(b, field.name)
        if mine == other:
            continue
        if is_dataclass(mine) and type(mine) is type(other):
            yield from differing_fields(mine, other, f"{path}.")
        else:
            yield path, mine, other


def differing_tensors(a: Tensors, b: Tensors) -> list[str]:
    """The tensors that both have, in the same shape, with other numbers."""
    return [
        name
        for name, tensor in a.items()
        if name in b and b[name].shape == tensor.shape and not torch.equal(tensor, b[name])
    ]


def changes(a: Checkpoint, b: Checkpoint) -> Iterator[list[Change]]:
    """Everything to try, in groups: what the two state differently before what nothing states."""
    stated = [change for path, _, other in differing_fields(a.config, b.config) for change in _set(a, b, path, other)]
    yield stated
    yield list(_all_fields(a, b)) if len(stated) > 1 else []
    names = differing_tensors(a.tensors, b.tensors)
    yield list(_rearranged(a, names or list(a.tensors)))
    yield from _other_weights(a, b, names)
    yield [change for path, value in _choices(a.config) for change in _set(a, b, path, value, stated=False)]


def _set(a: Checkpoint, b: Checkpoint, path: str, value: Any, stated: bool = True) -> Iterator[Change]:
    """One field changed, where there are weights for it."""
    if path.startswith(UNTRIED):
        return
    changed = _fit(a, b, lambda: _replace(a.config, path, value))
    if changed is not None and changed.config != a.config:
        name, mine = NAMES.get(path), _get(a.config, path)
        what = f"{name} ({path})" if name else path
        how = f"{show(value)} in B" if stated else f"B computes as with {show(value)}"
        yield Change(words=f"{what}: {show(mine)} in A, {how}", checkpoint=changed)


def _all_fields(a: Checkpoint, b: Checkpoint) -> Iterator[Change]:
    """All fields at once, for differences that need several."""
    fixed = {name: getattr(a.config, name) for name in UNTRIED if not name.endswith(".")}
    changed = _fit(a, b, lambda: replace(b.config, **fixed))
    if changed is not None:
        paths = [path for path, _, _ in differing_fields(a.config, b.config) if not path.startswith(UNTRIED)]
        yield Change(words=f"these options together: {', '.join(paths)}", checkpoint=changed)


def _fit(a: Checkpoint, b: Checkpoint, config: Callable[[], ViTConfig]) -> Checkpoint | None:
    """The first model with another config; the second's weights where its own do not fit; None if neither's do."""
    try:
        new = config()
    except VitrailError:
        return None
    tensors: dict[str, Tensor] = {}
    for name, shape in expected_shapes(new).items():
        fitting = [each[name] for each in (a.tensors, b.tensors) if name in each and each[name].shape == shape]
        if not fitting:
            return None
        tensors[name] = fitting[0]
    return replace(a, config=new, tensors=tensors, trust=None)


def _replace(config: Any, path: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    return replace(config, **{name: _replace(getattr(config, name), rest, value) if rest else value})


def _get(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _choices(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a config with each other value that it could have, as far as the values are few."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        path, value = prefix + field.name, getattr(config, field.name)
        if is_dataclass(value):
            yield from _choices(value, f"{path}.")
            continue
        options: tuple[Any, ...] = NUMBERS.get(path, ())
        if get_origin(hints[field.name]) is Literal and field.name != "kind":
            options = get_args(hints[field.name])
        elif hints[field.name] is bool:
            options = (False, True)
        elif value is not None and type(None) in get_args(hints[field.name]):
            options = (None,)
        elif path == "heads":
            options = tuple(config.width // size for size in HEAD_SIZES if config.width % size == 0)
        yield from ((path, option) for option in options if option != value)


def _other_weights(a: Checkpoint, b: Checkpoint, names: list[str]) -> Iterator[list[Change]]:
    """Weights of the second model: single tensors, then those of one module, then all."""
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    for parts in ([[name] for name in names], list(modules.values())):
        yield [_take(a, b, part) for part in parts if len(parts) <= FEW]
    yield [_take(a, b, names)] if names else []


def _take(a: Checkpoint, b: Checkpoint, names: list[str]) -> Change:
    """Some weights of the second model in the first."""
    differences = [(a.tensors[name] - b.tensors[name]).abs().max().item() for name in names]
    where = names[0] if len(names) == 1 else f"{counted(len(names), 'tensor')} ({list_names(names, 5)})"
    return Change(
        words=f"other weights in {where}, which differ by up to {max(differences):.2e}",
        checkpoint=replace(a, tensors={**a.tensors, **{name: b.tensors[name] for name in names}}),
    )


def _rearranged(a: Checkpoint, names: list[str]) -> Iterator[Change]:
    """The same weights, laid out or rounded in another way, as far as that concerns these tensors."""
    for words, arrange in _arrangements(a.config):
        changed = {name: tensor for name in names if (tensor := arrange(name, a.tensors[name])) is not None}
        if changed:
            yield Change(words=words, checkpoint=replace(a, tensors={**a.tensors, **changed}))


Arrange = Callable[[str, Tensor], Tensor | None]  # a tensor by its name, arranged anew; None if it is left alone


def _arrangements(config: ViTConfig) -> Iterator[tuple[str, Arrange]]:
    """Every other layout of a tensor that writers and readers are known to mix up."""
    parts, heads, size = ("queries", "keys", "values"), config.heads, config.head_size
    qkv = ("attention.qkv.weight", "attention.qkv.bias")
    for order in permutations(range(3)):
        if order != (0, 1, 2):
            listed = ", ".join(parts[index] for index in order)
            yield (
                f"the order of {parts[0]}, {parts[1]} and {parts[2]}: B has {listed}",
                _where(qkv, lambda tensor, order=order: torch.cat([tensor.chunk(3)[index] for index in order])),
            )
    layouts = {
        "head by head, each with its queries, keys and values": ((heads, 3, size), (1, 0, 2)),
        "head by head, queries, keys and values alternating": ((heads, size, 3), (2, 0, 1)),
        "feature by feature, the heads alternating": ((size, 3, heads), (1, 2, 0)),
    }
    for words, (shape, order) in layouts.items():
        taken = f"how the heads are split: B takes A's rows as lying {words}"
        yield taken, _where(qkv, lambda tensor, shape=shape, order=order: _regroup(tensor, shape, order))
        ours, back = tuple(shape[axis] for axis in order), tuple(order.index(axis) for axis in range(3))
        kept = f"how the heads are split: B's queries, keys and values lie {words}"
        yield kept, _where(qkv, lambda tensor, shape=ours, order=back: _regroup(tensor, shape, order))
    rows, columns = config.grid
    covered = config.positioned_prefix

    def by_column(tensor: Tensor) -> Tensor:
        grid = tensor[:, covered:].unflatten(1, (columns, rows)).transpose(1, 2).flatten(1, 2)
        return torch.cat([tensor[:, :covered], grid], dim=1)

    if config.positions.kind == "learned":
        yield "the order of positions: B counts column by column", _where(("embed.positions",), by_column)
    patches = ("embed.patches.weight",)
    yield "the order of channels: B reads BGR", _where(patches, lambda tensor: tensor.flip(1))
    yield "the patch embedding: B has height and width exchanged", _where(patches, lambda tensor: tensor.mT)
    for kind in (torch.float16, torch.bfloat16):
        words = f"the number type: B's weights are A's, rounded to {str(kind).removeprefix('torch.')}"
        yield words, lambda name, tensor, kind=kind: tensor.to(kind).to(tensor.dtype)


def _where(endings: tuple[str, ...], arrange: Callable[[Tensor], Tensor]) -> Arrange:
    return lambda name, tensor: arrange(tensor) if name.endswith(endings) else None


def _regroup(tensor: Tensor, shape: tuple[int, ...], order: tuple[int, ...]) -> Tensor:
    """Rows that lie in groups of this shape, with the groups in another order."""
    return tensor.unflatten(0, shape).permute(*order, *range(3, tensor.ndim + 2)).flatten(0, 2)


def show(value: Any) -> str:
    """A value of a config for people."""
    if dataclasses.is_dataclass(value):
        return str(getattr(value, "kind", value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
