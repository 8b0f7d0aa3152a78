"""Named settings that work, each with its call, what to expect, and how long it takes (on 2 CPU cores, unless stated).

A recipe is a function without arguments; arguments, flags and YAML files change what it returns.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vitrail.data.config import Augment, DataConfig
from vitrail.errors import ConfigError, suggest
from vitrail.training.changes import (
    NO_FILES,
    combine_changes,
    field_homes,
    flatten,
    giving_way,
    list_changes,
    read_field,
    suggest_setting,
    with_changes,
)
from vitrail.training.config import Distill, Machine, Optim, Pretraining, Schedule, Selection, Start, TrainConfig
from vitrail.training.search_space import parse_search
from vitrail.untrusted import read_yaml

PRETRAINED_BY = "mae"  # unless another method is asked for
# Settings of what is learned from labels, and of how results on labels are compared.
FOR_LABELS = (
    *("classes", "train", "probe", "lora_rank", "lora_alpha", "lora_targets"),
    *("label_smoothing", "loss", "balance", "mixup", "cutmix", "mix_rate", "switch_rate", "outlier_rate"),
    *(each.name for each in fields(Distill)),
    *(each.name for each in fields(Selection)),
)


def digits() -> TrainConfig:
    """`vitrail.demo()`: scikit-learn's digits from scratch. 98.51 % test (99.26 % validation), in a minute."""
    return TrainConfig(
        data="digits",
        recipe="digits",
        start=Start(model="compact-8"),
        optim=Optim(optimizer="muon", lr=5e-3, muon_lr=0.03, weight_decay=0.05, label_smoothing=0.1, ema=0.99),
        schedule=Schedule(epochs=80),
        machine=Machine(batch_size=128),
        augment=Augment(crop="resized", scale=(0.75, 1.0), ratio=(0.85, 1.18), flip_rate=0.0, mixup=0.5),
    )


def mnist() -> TrainConfig:
    """`vitrail.train("mnist")`: grey pictures of 28 pixels from scratch. 99.20 % test, 9 core minutes."""
    return TrainConfig(
        data="mnist",
        recipe="mnist",
        start=Start(model="compact-28"),
        optim=Optim(optimizer="muon", lr=3e-3, weight_decay=0.05, ema=0.99),
        schedule=Schedule(epochs=6),
        machine=Machine(batch_size=256),
        augment=Augment(crop="pad", pad=2, flip_rate=0.0),
        source=DataConfig(val_rate=0.05),
    )


def cifar10_tiny() -> TrainConfig:
    """`vitrail.train("cifar10", recipe="cifar10-tiny")`: the usual exercise, 119 k; 86.07 % test, 68 core minutes."""
    return TrainConfig(
        data="cifar10",
        recipe="cifar10-tiny",
        start=Start(model="cifar-tiny", whiten="on"),
        optim=Optim(
            optimizer="muon", lr=3e-3, muon_lr=0.02, weight_decay=0.05, beta2=0.99, label_smoothing=0.05, ema=0.999
        ),
        schedule=Schedule(epochs=100),
        machine=Machine(batch_size=256),
        augment=Augment(
            crop="pad", pad=4, pad_fill="reflect", alternate_flip=True, policy="rand", num_ops=1, magnitude=9
        ),
        source=DataConfig(val_rate=0.05),
    )


def cifar10() -> TrainConfig:
    """`vitrail.train("cifar10")`: a ViT with a stem of convolutions, for 32 pixels. 92.64 % test, 62 core minutes."""
    tiny = cifar10_tiny()
    return replace(
        tiny,
        recipe="cifar10",
        start=Start(model="hybrid-32", whiten="on"),
        optim=replace(tiny.optim, muon_lr=0.03),
        schedule=Schedule(epochs=36),
        augment=replace(tiny.augment, outlier_rate=0.15),
    )


def scratch() -> TrainConfig:
    """`vitrail.train("PICTURES")`: your pictures, from scratch. Good results need many pictures."""
    return TrainConfig(
        recipe="scratch",
        start=Start(model="compact-128"),
        optim=Optim(optimizer="muon", lr=3e-3, weight_decay=0.05, beta2=0.99, label_smoothing=0.1, ema=0.999),
        schedule=Schedule(epochs=100, patience=30),
        machine=Machine(batch_size=128),
        augment=Augment(crop="resized", scale=(0.35, 1.0), policy="rand", num_ops=1, magnitude=7),
    )


def finetune() -> TrainConfig:
    """`vitrail.train("PICTURES", weights=W, recipe="finetune")`: as in the paper (appendix B.1.1), for larger sets.

    SGD with momentum 0.9, no decay, clip 1, cosine after a warm-up; the paper tries lr 0.001 to 0.06 and trains at 384
    pixels: `image_size=384, lr=0.01`.
    """
    return TrainConfig(
        recipe="finetune",
        optim=Optim(optimizer="sgd", lr=0.01, momentum=0.9, weight_decay=0.0, clip=1.0),
        schedule=Schedule(epochs=10, warmup=0.05),
        machine=Machine(batch_size=512),
        augment=Augment(crop="resized", scale=(0.25, 1.0)),
    )


def finetune_adamw() -> TrainConfig:
    """`vitrail.train("PICTURES", weights=W)`: first the head, then all weights, early layers more slowly.

    The learning rate suits a head that already fits. Five times as much, which a head that starts at zero needs
    (`probe=False`), would destroy the pretrained features in the first epoch.
    """
    return TrainConfig(
        recipe="finetune-adamw",
        start=Start(probe=True, drop_path=0.1),
        optim=Optim(lr=1e-4, weight_decay=0.05, layer_decay=0.75, label_smoothing=0.1),
        schedule=Schedule(epochs=20, warmup=0.1, patience=8),
        machine=Machine(batch_size=64),
        augment=Augment(crop="resized", scale=(0.35, 1.0), policy="rand", num_ops=1, magnitude=7),
    )


def linear() -> TrainConfig:
    """`vitrail.train("PICTURES", weights=W, recipe="linear")`: only the head, on features computed once."""
    return TrainConfig(
        recipe="linear",
        start=Start(train="head"),
        optim=Optim(lr=3e-3, weight_decay=1e-4, clip=None),
        schedule=Schedule(epochs=100, patience=20),
        machine=Machine(batch_size=256),
        augment=Augment(flip_rate=0.0),
    )


def lora() -> TrainConfig:
    """`vitrail.train("PICTURES", weights=W, train="lora")`: first the head, then LoRA adapters, in little memory."""
    tuned = finetune_adamw()
    return replace(
        tuned,
        recipe="lora",
        start=Start(train="lora", probe=True),
        optim=Optim(lr=1e-3, weight_decay=0.01, label_smoothing=0.1),
    )


def imagenet_s16() -> TrainConfig:
    """`vitrail.train("IMAGENET", recipe="imagenet-s16")`, under torchrun: DeiT's recipe, for GPUs.

    DeiT reports 79.8 % for ViT-S/16 after 300 epochs; not run here.
    """
    return TrainConfig(
        recipe="imagenet-s16",
        start=Start(model="vit-s16", drop_path=0.1),
        optim=Optim(lr=1e-3, weight_decay=0.05, label_smoothing=0.1, clip=1.0, ema=0.9999),
        schedule=Schedule(epochs=300, warmup=1 / 60),
        machine=Machine(batch_size=1024, compile="auto"),
        augment=Augment(
            crop="resized",
            policy="rand",
            magnitude=9,
            magnitude_std=0.5,
            erase_rate=0.25,
            erase_fill="noise",
            mixup=0.8,
            cutmix=1.0,
        ),
    )


def imagenet_b16() -> TrainConfig:
    """`vitrail.train("IMAGENET", recipe="imagenet-b16")`, under torchrun: the same for ViT-B/16.

    DeiT reports 81.8 % after 300 epochs; not run here.
    """
    small = imagenet_s16()
    return replace(small, recipe="imagenet-b16", start=Start(model="vit-b16", drop_path=0.1))


def mae() -> TrainConfig:
    """`vitrail.pretrain("PICTURES")`: photographs without labels, masked as in the paper; better on a GPU.

    AdamW with betas 0.9 and 0.95, decay 0.05, a learning rate of 1.5e-4 for 256 pictures, cosine after a warm-up of a
    twentieth, RandomResizedCrop and flips.
    """
    return TrainConfig(
        recipe="mae",
        start=Start(model="vit-s16"),
        optim=Optim(lr=1.5e-4, weight_decay=0.05, beta2=0.95, clip=None),
        schedule=Schedule(epochs=400),
        machine=Machine(batch_size=256),
        augment=Augment(crop="resized", scale=(0.2, 1.0)),
        pretraining=Pretraining(method="mae"),
    )


def mae_small() -> TrainConfig:
    """`vitrail.pretrain("cifar10")`: small pictures without labels, a small model, from scratch."""
    paper = mae()
    return replace(
        paper,
        recipe="mae-small",
        start=Start(model="cifar-small"),
        optim=replace(paper.optim, lr=1e-3, clip=1.0),
        schedule=Schedule(epochs=200),
        source=DataConfig(val_rate=0.05),
    )


_MAKERS = (digits, mnist, cifar10_tiny, cifar10, scratch, finetune, finetune_adamw, linear, lora)
RECIPES: dict[str, Callable[[], TrainConfig]] = {
    maker.__name__.replace("_", "-"): maker for maker in (*_MAKERS, imagenet_s16, imagenet_b16, mae, mae_small)
}


def recipe(name: str) -> TrainConfig:
    """The settings of a recipe by its name."""
    if name not in RECIPES:
        raise ConfigError(f"unknown recipe {name!r}; {suggest(name, RECIPES)}")
    return RECIPES[name]()


def probe_config(config: TrainConfig) -> TrainConfig:
    """The head's own run: the recipe for it, on the same data, with the same seed; rounding would save no time."""
    linear = recipe("linear")
    start = replace(config.start, train="head", probe=False, dropout=0.0, drop_path=0.0)
    batch_size = linear.machine.batch_size
    machine = replace(config.machine, batch_size=batch_size, compile="off", strategy="ddp", precision="float32")
    optim = replace(linear.optim, loss=config.optim.loss, balance=config.optim.balance)
    schedule = replace(linear.schedule, best=config.schedule.best)
    parts = {"start": start, "optim": optim, "schedule": schedule, "machine": machine, "source": config.source}
    return replace(linear, data=config.data, **parts)


def ask_for(config: TrainConfig) -> dict[str, Any]:
    """A config as `resolve` takes it: where it differs from its recipe, or from the defaults if it has none."""
    named = config.recipe in RECIPES
    changes = list_changes(config, recipe(config.recipe) if named else TrainConfig())
    kept = {name: value for name, left in giving_way(changes).items() if (value := read_field(config, name)) != left}
    changes |= kept  # although they are the recipe's own, which would give way
    return changes | ({"recipe": config.recipe} if named else {}) | ({"data": config.data} if config.data else {})


def read_changes(
    verb: str, recipe: str | None, config: str | Path | TrainConfig | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """All requested settings by name; a name or value that can never be right is an error, before any data are read."""
    settings = {"classes" if name == "class_names" else name: value for name, value in settings.items()}
    known = [*settings_for(verb), *(("data", "recipe") if verb == "resume" else ())]
    for name in settings:
        if name not in known:
            own = ("data", "recipe", "config", "out", "check", "report", "track", "progress")
            raise ConfigError(f"{verb} has no setting {name!r}; {suggest_setting(name, [*known, *own])}")
    passed = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    if isinstance(config, TrainConfig):
        changes = combine_changes(ask_for(config), passed)
    else:
        file = {} if config is None else flatten(read_yaml(Path(config)) or {}, str(config))
        if verb != "resume":  # the file may describe a run whose teacher was another file
            file.pop("teacher_sha256", None)
        changes = combine_changes(file, passed)
    changes |= {"recipe": recipe} if recipe else {}
    if verb == "pretrain":
        changes.setdefault("method", PRETRAINED_BY)
    if changes.get("search") is not None:
        parse_search(changes["search"])
    if verb == "pretrain" and (named := changes.get("recipe")) in RECIPES and not RECIPES[named]().pretrains:
        own = " or ".join(name for name, make in RECIPES.items() if make().pretrains)
        raise ConfigError(f"the recipe {named!r} learns from labels; use {own}, or run vitrail train.")
    if verb != "resume":  # whose config is that of the run
        base = RECIPES[name]() if (name := changes.get("recipe")) in RECIPES else TrainConfig()
        asked = with_changes(base, {name: value for name, value in changes.items() if (name, value) not in NO_FILES})
        _refuse_other_verb(verb, asked)
    return changes


def settings_for(verb: str) -> list[str]:
    """The settings that a verb takes: those for labels are none of `pretrain`, and those for none are not `train`'s."""
    own = {each.name for each in fields(Pretraining)}
    refused = {"train": own, "pretrain": {*FOR_LABELS, "method"}}.get(verb, set[str]())
    return [name for name in field_homes() if name not in refused]


def _refuse_other_verb(verb: str, config: TrainConfig) -> None:
    """A recipe or a file may hold what belongs to the other verb."""
    if verb == "train" and config.pretrains:
        raise ConfigError(
            f"{config.recipe or 'the config'!r} learns from pictures without labels; use vitrail pretrain."
        )
    if verb == "pretrain" and not config.pretrains:
        raise ConfigError("`method='none'` learns from labels; use vitrail train.")
    for name in FOR_LABELS if config.pretrains else ():
        value = read_field(config, name)
        if value != read_field(TrainConfig(), name):
            raise ConfigError(f"`{name}={value!r}` is for training on labels; omit it for pre-training.")
