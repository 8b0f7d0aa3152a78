"""What training scripts wrap around a model's weights: other entries in the file, averages beside them, longer names.

Only what cannot change the model is removed; if there is a choice, it is made by name and noted, or left to the user.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from vitrail.errors import WeightsError

State = Mapping[str, Tensor]
USUAL = ("state_dict", "model", "model_state_dict", "model_state", "net", "network")  # where scripts put the weights
AVERAGED = re.compile(r"(^|_)(ema|averaged?|teacher)(_|$)")  # what they call the moving average of the weights
TIMMS = ("state_dict_ema", "model_ema")  # the averages that timm takes as well
COUNTER = "n_averaged"  # what torch's AveragedModel counts, beside the weights
# What may stand inside a name, what it becomes, and the remark: torch.compile, FSDP and activation checkpointing wrap
# blocks, or their attention and MLP, one by one; DINOv2 trains with its blocks in chunks, numbered through.
WRAPPER = r"(?:(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+"
INSIDE = (
    (
        re.compile(rf"(?:(?<=\d\.)|(?<=mlp\.)|(?<=attn\.)){WRAPPER}"),
        "",
        "the names of wrappers around single blocks were removed",
    ),
    (re.compile(r"\bblocks\.\d+\.(?=\d+\.)"), "blocks.", "the chunks of blocks were joined to one list of blocks"),
)
MAX_PREFIXES = 50  # examined for an error message


def unwrap(loaded: Any, path: Path, ema: bool | None) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The state dict inside a torch file, and a note if there were several.

    `ema` chooses between the weights and their moving average; by default the average is used.
    """
    if not isinstance(loaded, Mapping):
        raise WeightsError(f"{path} must hold a dictionary of tensors; got {type(loaded).__name__}.")
    entries = cast("Mapping[Any, Any]", loaded)
    if _holds_tensors(entries):
        check_no_choice(path, ema)
        return dict(entries), ()
    states = {str(name): cast("State", value) for name, value in entries.items() if _holds_weights(value)}
    if not states:
        check_optimizer(entries, path)
        other = [str(name) for name, value in entries.items() if not isinstance(value, Tensor)]
        raise WeightsError(
            f"{path} must hold tensors by name, as they are or under a name such as {', '.join(USUAL[:3])}; "
            f"got other things under {', '.join(other[:5]) or 'no key'}."
        )
    name = _choose(states, path, ema)
    why = "the usual name"
    if AVERAGED.search(name):
        why = f"the moving average{', as timm does' if name in TIMMS else ''}; pass `ema=False` for the other"
    noted = len(states) > 1 and ema is None
    return dict(states[name]), (f"the file holds {_listed(list(states))}: {name} is used, {why}",) if noted else ()


def check_optimizer(entries: Mapping[Any, Any], path: Path) -> None:
    """Raise if there is the state of an optimiser, and no weights beside it."""
    for part in (entries, *entries.values()):
        if isinstance(part, Mapping) and {"state", "param_groups"} <= part.keys():
            raise WeightsError(
                f"{path} holds the state of an optimiser and no weights; name the file of the model, which is usually "
                "beside it (model.safetensors, pytorch_model.bin)."
            )


def check_no_choice(path: Path, ema: bool | None) -> None:
    """Raise if the user chooses between weights and their average, but the file has only one set of weights."""
    if ema is not None:
        raise WeightsError(f"{path} holds one set of weights, so there is nothing to choose with ema; omit it.")


def _holds_tensors(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    items = cast("Mapping[Any, Any]", value).items()
    return all(isinstance(key, str) and isinstance(part, Tensor) for key, part in items)


def _holds_weights(value: Any) -> bool:
    """Tensors by name, some of them matrices: neither the state of an optimiser nor that of a random generator."""
    return _holds_tensors(value) and any(part.ndim > 1 for part in cast("State", value).values())


def _choose(states: Mapping[str, State], path: Path, ema: bool | None) -> str:
    """The name of the one set of weights that is meant."""
    averages = [name for name in states if AVERAGED.search(name)]
    plain = [name for name in states if name not in averages]
    if ema is not None:
        kind, names = ("averaged weights", averages) if ema else ("weights that are not averaged", plain)
        if not names:
            raise WeightsError(f"{path} has no {kind}; it holds {_listed(list(states))}; omit ema.")
    else:  # a teacher is an average of its student, if they are of one size; beside anything else, it is another model
        students = [name for name in plain if "student" in name] if "teacher" in "".join(averages) else plain
        shapes = [_shapes(states[name]) for name in students]
        true = bool(averages) and (not plain or _shapes(states[averages[0]]) in shapes)
        names = averages if true else list(states)
    usual = [name for name in names if name in USUAL]
    if len(names) > 1 and len(usual) != 1:
        raise WeightsError(
            f"{path} holds several sets of weights: {_listed(names)}; save the one you mean by itself: "
            f'torch.save(torch.load("{path.name}")["{names[0]}"], "model.pth")'
        )
    return usual[0] if len(names) > 1 else names[0]


def _shapes(state: State) -> list[tuple[int, ...]]:
    return sorted(tuple(tensor.shape) for name, tensor in state.items() if name != COUNTER)


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:5], f"{len(names) - 5} more"] if len(names) > 6 else names
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]


def strip_prefix(
    tensors: dict[str, Tensor], recognises: Callable[[dict[str, Tensor]], bool]
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Names without what wrappers put into them or before all of them (DataParallel, Lightning), with remarks."""
    tensors, remarks = _plain_names(tensors)
    if recognises(tensors):
        return tensors, remarks
    names = [name for name in tensors if name != COUNTER]
    shared = [prefix for prefix in _prefixes(min(names)) if max(names).startswith(prefix)] if names else []
    for prefix in shared:
        stripped = {name.removeprefix(prefix): tensors[name] for name in names}
        if recognises(stripped):
            return stripped, (*remarks, f"all names of the file begin with {prefix}, which was removed")
    return tensors, remarks


def _plain_names(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Names without those of wrapped blocks, and with chunks of blocks as one list, unless two would then be one."""
    remarks: tuple[str, ...] = ()
    for pattern, plain, remark in INSIDE:
        renamed = {pattern.sub(plain, name): tensor for name, tensor in tensors.items()}
        if renamed.keys() != tensors.keys() and len(renamed) == len(tensors):
            tensors, remarks = renamed, (*remarks, remark)
    return tensors, remarks


def describe_parts(tensors: dict[str, Tensor], recognises: Callable[[dict[str, Tensor]], bool]) -> str:
    """A hint for an error if only some of the tensors are a model; empty if none are."""
    prefixes = dict.fromkeys(prefix for name in tensors for prefix in _prefixes(name))
    parts = [prefix for prefix in list(prefixes)[:MAX_PREFIXES] if recognises(_under(prefix, tensors))]
    if not parts:
        return ""
    others = [name for name in tensors if not name.startswith(parts[0])]
    return (
        f"a model is under {_listed(parts)}, and beside it there are {', '.join(others[:5])}; save the model by "
        f'itself, as {{name.removeprefix("{parts[0]}"): tensor for name, tensor in state.items() '
        f'if name.startswith("{parts[0]}")}}'
    )


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _prefixes(name: str) -> Iterator[str]:
    """The prefixes that end at the first dots: a., a.b., a.b.c."""
    for match in list(re.finditer(r"\.", name))[:4]:
        yield name[: match.end()]
