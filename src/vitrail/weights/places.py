"""What a model computes, place by place: the inputs and outputs of its modules with weights, ours or a library's.

Between two such modules lie the operations without weights: positions that are added, attention, GELU, residual sums,
pooling. The first place at which two models differ therefore names the operation.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.errors import WeightsError
from vitrail.model import ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.timm_architecture import name_hint
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.peers import LIBRARIES, build_peer
from vitrail.weights.read import FOREIGN
from vitrail.weights.sidecars import read_sidecars
from vitrail.weights.wrappers import strip_prefix


@dataclass(frozen=True, kw_only=True)
class Place:
    """What goes into one of our modules, or comes out of it."""

    module: str
    side: Literal["in", "out"]

    @property
    def block(self) -> int | None:
        """The block that it lies in; what enters a block is the output of the one before."""
        number = re.match(r"blocks\.(\d+)\.", self.module)
        if number is None:
            return None
        return int(number[1]) - (self.module.endswith(".norm1") and self.side == "in")

    def describe(self, config: ViTConfig) -> str:
        """For people."""
        if self == OUTPUT:
            return "the logits" if config.num_classes else "the features"
        if self in (ENTRANCE, Place(module="pre_norm", side="in")):
            return "the tokens with their positions"
        within = re.sub(r"^blocks\.\d+\.", "", self.module)
        words = WORDS.get((within, self.side), f"what {'enters' if self.side == 'in' else 'leaves'} {within}")
        return words if self.block is None else f"{words} of block {self.block}"


ENTRANCE = Place(module="blocks.0.norm1", side="in")
OUTPUT = Place(module="", side="out")  # of the whole model
WORDS = {
    ("embed.patches", "in"): "what patches are cut from",
    ("embed.patches", "out"): "the patch embeddings",
    ("embed.patch_norm", "out"): "the norm of the patch embeddings",
    ("pre_norm", "out"): "the norm before the first block",
    ("norm1", "in"): "the output",
    ("norm1", "out"): "the norm before attention",
    ("attention.qkv", "out"): "the queries, keys and values",
    ("attention.query_norm", "in"): "the queries, divided among the heads,",
    ("attention.query_norm", "out"): "the norm of the queries",
    ("attention.key_norm", "in"): "the keys, divided among the heads,",
    ("attention.key_norm", "out"): "the norm of the keys",
    ("attention.norm", "in"): "what attention mixes",
    ("attention.norm", "out"): "the norm inside attention",
    ("attention.proj", "in"): "what attention mixes",
    ("attention.proj", "out"): "the projection after attention",
    ("norm2", "in"): "the sum after attention",
    ("norm2", "out"): "the norm before the MLP",
    ("mlp.fc1", "out"): "the first layer of the MLP",
    ("mlp.gate", "out"): "the gate of the MLP",
    ("mlp.up", "out"): "the first layer of the MLP",
    ("mlp.norm", "in"): "the activation of the MLP",
    ("mlp.norm", "out"): "the norm inside the MLP",
    ("mlp.fc2", "in"): "the activation of the MLP",
    ("mlp.fc2", "out"): "the last layer of the MLP",
    ("mlp.down", "in"): "the activation of the MLP",
    ("mlp.down", "out"): "the last layer of the MLP",
    ("norm", "in"): "what enters the last norm",
    ("norm", "out"): "the last norm",
    ("representation", "in"): "the pooled token",
    ("projection", "in"): "the pooled token",
    ("head", "in"): "the features",
}


def is_coarse(place: Place) -> bool:
    """Whether a place is outside of the blocks, or what one hands to the next."""
    if place == Place(module="head", side="out"):  # the logits, if there is no other head
        return False
    return place.block is None or (place.module.endswith(".norm1") and place.side == "in")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that can be watched at work."""

    checkpoint: Checkpoint  # what we know about it
    run: Callable[[Tensor], Tensor]  # pixels → logits, or features where there is no head
    modules: Mapping[str, tuple[nn.Module, ...]]  # ours → its own; several where it keeps apart what we stack
    library: str = ""  # whose model it is, if it is not ours


def our_subject(checkpoint: Checkpoint, dtype: torch.dtype) -> Subject:
    """Our own model, which computes every token of every block here, as libraries do."""
    model = checkpoint.build(dtype)

    def run(images: Tensor) -> Tensor:
        return model.classify(model.summarize(*model.encode(model.embed_images(images))))

    modules = {name: (module,) for name, module in model.named_modules() if _has_weight(module)}
    return Subject(checkpoint=checkpoint, run=run, modules=_outside_stem(modules))


def library_subject(checkpoint: Checkpoint, path: Path, dtype: torch.dtype) -> Subject:
    """The model that the library of these files builds from them."""
    library = LIBRARIES[checkpoint.file_format]
    peer = build_peer(checkpoint, path).to(dtype)
    modules = _outside_stem(_match_modules(checkpoint, path, peer))

    def run(images: Tensor) -> Tensor:
        try:
            return peer(images)
        except Exception as error:  # libraries may raise anything for what they cannot compute
            raise WeightsError(f"{library} cannot run {path} on pictures of {tuple(images.shape)}: {error}") from error

    return Subject(checkpoint=checkpoint, run=run, modules=modules, library=library)


def _has_weight(module: nn.Module) -> bool:
    return any(name == "weight" for name, _ in module.named_parameters(recurse=False))


def _outside_stem(modules: Mapping[str, tuple[nn.Module, ...]]) -> dict[str, tuple[nn.Module, ...]]:
    """Without the stem's own modules: libraries compute ReLU inside of its norms."""
    return {name: each for name, each in modules.items() if not name.startswith("embed.stem.")}


def _match_modules(checkpoint: Checkpoint, path: Path, peer: nn.Module) -> dict[str, tuple[nn.Module, ...]]:
    """Our modules → the library's, found by reading its names with a number of its own in each tensor."""
    state = peer.state_dict()
    names = dict(enumerate(state, start=1))
    tensors = {name: torch.full(state[name].shape, float(number)) for number, name in names.items()}
    file_format, config = FOREIGN[checkpoint.file_format], checkpoint.config
    tensors, _ = strip_prefix(tensors, lambda state: file_format.recognises(state))
    folder = path if path.is_dir() else path.parent
    raw = Raw(path=path, tensors=tensors, sidecars=read_sidecars(folder))
    named = name_hint(config, checkpoint.origin.dialect_of("timm")) if checkpoint.file_format == "timm" else None
    hints = Hints(heads=config.heads, image_size=config.image_size, pooling=config.pooling, architecture=named)
    matched: dict[str, tuple[str, ...]] = {}
    for ours, numbers in file_format.read(raw, hints).tensors.items():
        if not ours.endswith(".weight"):
            continue
        theirs = [names[int(number)] for number in numbers.flatten().unique_consecutive().tolist()]
        if all(name.endswith(".weight") for name in theirs):
            matched[ours.removesuffix(".weight")] = tuple(name.removesuffix(".weight") for name in theirs)
    uses = Counter(name for theirs in matched.values() for name in theirs)
    return {  # a module that holds several of ours (both halves of a SwiGLU) gives neither's output
        ours: tuple(peer.get_submodule(name) for name in theirs)
        for ours, theirs in matched.items()
        if all(uses[name] == 1 for name in theirs)
    }


class _Reached(Exception):  # noqa: N818 (nothing went wrong)
    """The place has been seen, and nothing after it is wanted."""


def watch(
    subject: Subject, images: Tensor, wanted: Callable[[Place], bool], until: Place | None = None
) -> dict[Place, Tensor]:
    """What a model computes at some places, in the order in which it gets there; nothing after `until`."""
    parts: dict[Place, dict[int, Tensor]] = {}

    def see(name: str, index: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            for place, value in (
                (Place(module=name, side="in"), inputs[0]),
                (Place(module=name, side="out"), output),
            ):
                if wanted(place) and isinstance(value, Tensor):
                    parts.setdefault(place, {})[0 if place.side == "in" else index] = value
                if place == until:
                    raise _Reached

        return hook

    with ExitStack() as stack, torch.inference_mode():
        for name, modules in subject.modules.items():
            for index, module in enumerate(modules):
                handle = module.register_forward_hook(see(name, index), with_kwargs=True)
                stack.callback(handle.remove)
        try:
            output = subject.run(images)
        except _Reached:
            pass
        else:
            parts[OUTPUT] = {0: output}
    return {place: torch.cat([part[key] for key in sorted(part)], dim=-1) for place, part in parts.items()}
