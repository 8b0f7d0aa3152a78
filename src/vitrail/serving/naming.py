"""The models of a service and their names: `vitrail serve a=runs/train-1 b=model.onnx`. Needs no torch."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vitrail.errors import ConfigError
from vitrail.weights.bundled import DEFAULT

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
GENERIC = {"best", "last", "model", "weights", "pytorch_model"}  # names of files that say nothing about the model

Models = str | Path | Sequence[str | Path] | Mapping[str, str | Path] | None


def name_models(models: Models) -> dict[str, str]:
    """Name → source, in their order; the first is the default of requests."""
    if models is None:
        models = DEFAULT
    if isinstance(models, Mapping):
        pairs = [(name, str(source)) for name, source in models.items()]
    else:
        listed = [models] if isinstance(models, str | Path) else list(models)
        pairs = [_split(str(source)) for source in listed or [DEFAULT]]
    named: dict[str, str] = {}
    for name, source in pairs:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a model's name has up to 64 letters, digits, dots, hyphens and underscores; got {name!r}; name it "
                "yourself: NAME=SOURCE."
            )
        if name in named:
            raise ConfigError(
                f"two models are called {name}: {named[name]} and {source}; name them yourself: NAME=SOURCE."
            )
        named[name] = source
    return named


def _split(text: str) -> tuple[str, str]:
    """`NAME=SOURCE`, or a source from which the name is taken; a path that exists is a source."""
    name, equals, source = text.partition("=")
    if equals and NAME.fullmatch(name) and source and not Path(text).exists():
        return name, source
    return name_of_source(text), text


def name_of_source(source: str) -> str:
    """What people would call a model: runs/train-1 → train-1, hf://google/vit@main → vit, model.onnx → model."""
    plain = re.sub(r"^[a-z]+://", "", source).partition("@")[0]
    parts = [part for part in Path(plain).parts if part not in ("/", ".", "..")]
    stems = [re.sub(r"\.(safetensors|npz|onnx|xml)$", "", part) for part in parts[-3:]]
    telling = [stem for stem in stems if stem not in GENERIC]
    name = (telling or stems or ["model"])[-1]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:64] or "model"
