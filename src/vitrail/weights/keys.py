"""Key tables: each foreign format is a list of rules, used in both directions.

A format says how it names our modules, and how it spells and lays out their weights and biases; the rules follow.

A rule pairs one of our tensors with one or several of theirs. Reading applies `form.read` to theirs, writing applies
`form.write` to ours; both only move numbers, so a round trip is exact to the bit. A tensor of theirs that several rules
name, or that one rule names several times (the packed halves of a SwiGLU), stacks what they hold, in their order.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import ViTConfig
from vitrail.weights.checkpoint import describe_keys, expected_shapes

Tensors = tuple[Tensor, ...]
# A module or tensor of ours, `{}` for its numbers → theirs; several where they keep apart what we stack.
Names = Mapping[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class Form:
    """How the same numbers are laid out on the two sides."""

    read: Callable[[Tensors], Tensor]
    write: Callable[[Tensor], Tensors]


@dataclass(frozen=True)
class Rule:
    """One tensor of ours and where it is on their side."""

    ours: str
    theirs: tuple[str, ...]
    form: Form


SAME = Form(lambda theirs: theirs[0], lambda ours: (ours,))
TRANSPOSED = Form(lambda theirs: theirs[0].T, lambda ours: (ours.T,))
HWIO = Form(lambda theirs: theirs[0].permute(3, 2, 0, 1), lambda ours: (ours.permute(2, 3, 1, 0),))  # Flax kernels


def stacked(parts: int) -> Form:
    """Theirs are separate matrices (queries, keys, values); ours is one matrix that stacks them."""
    return Form(torch.cat, lambda ours: ours.chunk(parts))


def _without_keys(ours: Tensor) -> Tensors:
    query, key, value = ours.chunk(3)
    if key.any():
        raise WeightsError("the format has no place for the biases of keys, and those of this model are not all zero.")
    return query, value


# Biases of queries and values; keys have none, which ours holds as zeros.
KEYLESS = Form(lambda theirs: torch.cat([theirs[0], torch.zeros_like(theirs[0]), theirs[1]]), _without_keys)

LAYERS = Form(torch.stack, lambda ours: ours.unbind())  # theirs are one for each block, ours has an axis of blocks


def rule(ours: str, *theirs: str, form: Form = SAME) -> Rule:
    return Rule(ours, theirs, form)


# Our module, "weight" or "bias", and how many of theirs there are → what follows their module's name, and the layout.
Spelling = Callable[[str, str, int], tuple[str, Form]]


def torch_spelling(module: str, kind: str, parts: int) -> tuple[str, Form]:
    return f".{kind}", SAME if parts == 1 else stacked(parts)


def key_table(
    config: ViTConfig, names: Names, spelling: Spelling = torch_spelling, forms: Mapping[str, Form] | None = None
) -> list[Rule]:
    """A rule for each tensor of a model, in a library with these names.

    `forms` are the layouts of tensors that the library lays out in its own way; `{}` stands for a block's number.
    """
    rules: list[Rule] = []
    for name in expected_shapes(replace(config, depth=1, merge=())):
        blocks = range(config.depth) if name.startswith("blocks.0.") else range(1)
        form = (forms or {}).get(name.replace("blocks.0.", "blocks.{}."))
        for index in blocks:
            entry = rule_of(name.replace("blocks.0.", f"blocks.{index}."), names, spelling)
            if entry is not None:
                rules.append(entry if form is None else replace(entry, form=form))
    return rules


def rule_of(ours: str, names: Names, spelling: Spelling = torch_spelling) -> Rule | None:
    """The rule for one tensor; None if the library has no name for it. A module may be named with its own numbers."""
    numbers = re.findall(r"\.(\d+)(?=\.)", ours)
    tensor = re.sub(r"\.\d+(?=\.)", ".{}", ours)
    if tensor in names:
        whole = tuple(part.format(*numbers) for part in parts_of(names[tensor]))
        return rule(ours, *whole, form=SAME if len(whole) == 1 else stacked(len(whole)))
    (module, kind), own = tensor.rsplit(".", 1), ours.rpartition(".")[0]
    parts = parts_of(names.get(module) or names.get(own, ()))
    if not parts:
        return None
    suffix, form = spelling(module, kind, len(parts))
    return rule(ours, *(part.format(*numbers) + suffix for part in parts), form=form)


def under(ours: str, theirs: str, names: Names) -> Names:
    """The names of modules within another one; `theirs` ends with what separates them."""
    return {f"{ours}.{name}": prefix_parts(theirs, parts) for name, parts in names.items()}


def prefix_parts(prefix: str, parts: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prefix + part for part in parts_of(parts))


def parts_of(theirs: str | tuple[str, ...]) -> tuple[str, ...]:
    return (theirs,) if isinstance(theirs, str) else theirs


def read_tensors(rules: Iterable[Rule], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors from theirs; a key of theirs that is missing or that no rule knows is an error.

    `theirs` is emptied on the way, so that a large model is not in memory twice.
    """
    table = list(rules)
    shares = Counter(name for entry in table for name in entry.theirs)
    missing, unknown = sorted(shares.keys() - theirs.keys()), sorted(theirs.keys() - shares.keys())
    if missing or unknown:
        raise WeightsError(f"the keys are not those of such a model: {describe_keys(missing, unknown)}.")
    return {entry.ours: _apply(entry, theirs, shares) for entry in table}


def _apply(entry: Rule, theirs: dict[str, Tensor], shares: Counter[str]) -> Tensor:
    """Ours; a tensor that other rules share gives up its first part, and the last rule takes the rest."""
    parts: Tensors = ()
    for name in entry.theirs:
        part = theirs.pop(name)
        if shares[name] > 1:
            rows = len(part) // shares[name]
            part, theirs[name] = part[:rows], part[rows:]
            shares[name] -= 1
        parts += (part,)
    try:
        return entry.form.read(parts).contiguous()
    except (RuntimeError, IndexError) as error:
        shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in zip(entry.theirs, parts, strict=True))
        raise WeightsError(f"these tensors do not have the shapes of a ViT's: {shapes}.") from error


def write_tensors(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors from ours; a tensor that no rule places is an error, never dropped."""
    table = list(rules)
    placed = {entry.ours for entry in table}
    missing, unknown = sorted(placed - ours.keys()), sorted(ours.keys() - placed)
    if missing or unknown:
        raise WeightsError(
            f"the format has no place for every tensor of this model: {describe_keys(missing, unknown)}."
        )
    theirs: dict[str, Tensor] = {}
    for entry in table:
        parts = entry.form.write(ours[entry.ours])
        for name, part in zip(entry.theirs, parts, strict=True):
            theirs[name] = torch.cat([theirs[name], part]) if name in theirs else part.contiguous()
    return theirs
