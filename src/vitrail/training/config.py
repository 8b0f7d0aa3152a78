"""Everything that decides a training run, as data: the command line's flags, the YAML file and the Python arguments.

No two fields of the parts below share a name, so that each of them is a setting of its own: `lr`, `mixup`, `epochs`.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from vitrail.data.config import Augment, DataConfig, check_workers
from vitrail.data.preprocess import check_range
from vitrail.errors import ConfigError, suggest
from vitrail.schema import IF_USED, validate
from vitrail.training.distill_config import Distill


def _require(config: object, **ranges: tuple[float, float]) -> None:
    """Refuse numbers outside of their ranges; None is no number."""
    for name, (low, high) in ranges.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:  # so that NaN fails too
            raise ConfigError(f"must be between {low:,} and {high:,}; got {value}.", field=name)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a value of `train` means to those who prepare a run; what it learns is in `training/objectives.py`."""

    called: str  # in messages
    needs_weights: bool = False  # pretrained ones
    part: str = ""  # of the model that is trained, where it is not all of it
    on_features: bool = False  # of unchanged pictures, computed once, rather than on pictures
    with_adapters: bool = False  # pairs of thin matrices beside the weights: `training/lora.py`
    recipe: str = ""  # that suits it, where none is named
    can_be_sharded: bool = True  # over the ranks, with FSDP


TRAININGS = {
    "all": Training(called="training everything"),
    "head": Training(
        called="training only the head",
        needs_weights=True,
        part="head",
        on_features=True,
        recipe="linear",
        can_be_sharded=False,
    ),
    "lora": Training(called="training with LoRA", needs_weights=True, with_adapters=True, recipe="lora"),
}

LORA_TARGETS = ("query", "key", "value", "proj", "mlp")


@dataclass(frozen=True, kw_only=True)
class Start:
    """The model, and the weights that it starts from."""

    model: str | None = None
    """A name from `vitrail models` [default: chosen from the data]."""
    weights: str | None = None
    """A checkpoint to start from: a file, a run folder, hf://OWNER/NAME, google://NAME; or none, to train from scratch
    [default: auto, which means pretrained weights for photographs]."""
    classes: str | None = None
    """A file with the names of the classes of `weights`, one per line in their order, or JSON (index → name): classes
    that are also in the data keep their part of the head."""
    image_size: tuple[int, int] | None = None
    """Side of the model's input in pixels, or height and width [default: the model's own]."""
    channels: int | None = field(default=None, metadata=IF_USED)
    """Channels of the pictures, if they are neither grey nor RGB [default: the model's own, or 3]."""
    value_range: tuple[float, float] | None = field(default=None, metadata=IF_USED)
    """The values that become black and white, for pictures of more than 8 bits; stored with the model."""
    train: Literal["all", "head", "lora"] = "all"
    """What to train: all weights; only the head, on features that are computed once; or the head and LoRA adapters,
    which takes far less memory."""
    probe: bool = False
    """First train only the head, on features that are computed once, and start from it."""
    lora_rank: int = 8
    """Rank of the LoRA adapters."""
    lora_alpha: float = 16.0
    """Scale of the LoRA adapters: what they add is multiplied by alpha / rank."""
    lora_targets: str = "query,value"
    """Layers of each block that get LoRA adapters, separated by commas: query, key, value, proj, mlp; or all."""
    dropout: float = 0.0
    """Dropout rate."""
    drop_path: float = 0.0
    """DropPath rate of the last block."""
    whiten: Literal["off", "on", "frozen"] = field(default="off", metadata=IF_USED)
    """From scratch: start with first filters that whiten the patches of the training pictures (on), or also keep them
    fixed (frozen)."""

    def __post_init__(self) -> None:
        validate(self)
        _require(self, dropout=(0, 0.99), drop_path=(0, 0.99), lora_rank=(1, 4096))
        if self.channels is not None:
            _require(self, channels=(1, 4096))
        if self.value_range is not None:
            check_range(self.value_range)
        if not 0 < self.lora_alpha < math.inf:
            raise ConfigError(f"must be above 0; got {self.lora_alpha}.", field="lora_alpha")
        self.adapted  # noqa: B018 (an unknown name is an error)
        if self.probe and self.training.on_features:
            raise ConfigError(f"{self.training.called} is what `probe=True` begins with; omit it.")
        if self.classes is not None and self.weights is None:
            raise ConfigError("names the classes of the weights; pass `weights=` too, or omit it.", field="classes")
        if self.weights is not None and self.model is not None:
            raise ConfigError("weights bring their own model; pass `weights=` or `model=`, not both.")
        if self.whiten != "off" and self.weights is not None:
            raise ConfigError('is for training from scratch; omit it, or pass `weights="none"`.', field="whiten")

    @property
    def training(self) -> Training:
        """What `train` means."""
        return TRAININGS[self.train]

    @property
    def trains_all(self) -> bool:
        """Whether all weights are trained from the first step on."""
        return not (self.training.part or self.training.with_adapters or self.probe)

    @property
    def adapted(self) -> tuple[str, ...]:
        """What `lora_targets` lists; unknown names and none are errors."""
        names = [name.strip() for name in self.lora_targets.split(",") if name.strip()]
        if names == ["all"]:
            return LORA_TARGETS
        for name in names:
            if name not in LORA_TARGETS:
                raise ConfigError(f"lora_targets has no {name[:50]!r}; {suggest(name, [*LORA_TARGETS, 'all'])}")
        if not names:
            raise ConfigError(f"must list some of {', '.join(LORA_TARGETS)}, or be all.", field="lora_targets")
        return tuple(name for name in LORA_TARGETS if name in names)


@dataclass(frozen=True, kw_only=True)
class Optim:
    """How each step changes the weights."""

    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"
    """AdamW, SGD with momentum, or Muon for the matrices of the blocks with AdamW for the rest."""
    lr: float = 1e-3
    """Highest learning rate (with muon: of AdamW's part)."""
    muon_lr: float = 0.02
    """With muon: highest learning rate of the matrices."""
    muon_split: Literal["none", "qkv", "heads"] = field(default="none", metadata=IF_USED)
    """With muon: whether queries, keys and values are one matrix (none), one each (qkv), or one per head (heads)."""
    weight_decay: float = 0.05
    """Weight decay, of matrices and filters only: never of norms, biases, tokens or positions."""
    momentum: float = 0.9
    """Momentum of SGD."""
    beta2: float = 0.999
    """AdamW's decay rate for squared gradients."""
    layer_decay: float = 1.0
    """Each layer's learning rate as a share of the next layer's; 1 makes them all the same."""
    clip: float | None = 1.0
    """Largest norm of the gradient; larger gradients are scaled down to it."""
    label_smoothing: float = 0.0
    """Label smoothing: share of each target that is spread evenly over all classes."""
    loss: str = field(default="auto", metadata=IF_USED)
    """The loss: cross-entropy; bce or asymmetric for several labels; mse, l1 or huber for numbers [default: auto, the
    first of the task]."""
    balance: Literal["auto", "none", "sample", "weight", "focal", "logit"] = field(default="none", metadata=IF_USED)
    """What to do about uneven classes: nothing; sample pictures of all classes equally often; weight the loss by
    class; focal loss with these weights; logit adjustment; or auto, which chooses by balanced accuracy on validation
    where a head is trained on features, and elsewhere takes logit adjustment (with outliers, class weights) for uneven
    classes."""
    ema: float | None = None
    """Decay of an exponential moving average (EMA) of the weights, which is evaluated and saved in their place."""

    def __post_init__(self) -> None:
        validate(self)
        _require(self, lr=(0, 1000), muon_lr=(0, 1000), weight_decay=(0, 1000), layer_decay=(1e-6, 1))
        _require(self, momentum=(0, 0.9999), beta2=(0, 0.999999), ema=(0, 0.999999), label_smoothing=(0, 0.99))
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"must be above 0; got {self.clip}; None turns it off.", field="clip")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long to train, and how the learning rate changes along the way."""

    epochs: int = 100
    """Passes over the training pictures."""
    minutes: float | None = None
    """A time budget: as many epochs as fit, with the schedule planned for them (instead of `epochs`)."""
    schedule: Literal["cosine", "constant", "wsd"] = "cosine"
    """Cosine decay, constant, or constant and then a linear decay (warm-up, stable, decay)."""
    warmup: float = 0.05
    """Share of the run in which the learning rate rises."""
    cooldown: float = 0.2
    """With wsd: share of the run in which it falls."""
    final_lr: float = 0.0
    """Final learning rate, as a share of the highest."""
    patience: int | None = None
    """Stop after this many epochs without a better metric or a lower loss in validation."""
    best: str = field(default="auto", metadata=IF_USED)
    """The validation metric whose best epoch is kept: accuracy, balanced, map, mae, …, loss [default: auto, the first
    of the task, or with `balance` its balanced form]."""

    def __post_init__(self) -> None:
        validate(self)
        _require(self, epochs=(1, 1_000_000), warmup=(0, 1), cooldown=(0, 1), final_lr=(0, 1))
        if self.warmup + self.cooldown > 1 and self.schedule == "wsd":
            raise ConfigError(
                f"`warmup=` and `cooldown=` must sum to at most 1; got {self.warmup} and {self.cooldown}."
            )
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"must be above 0; got {self.minutes}.", field="minutes")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"must be at least 1 epoch; got {self.patience}.", field="patience")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How the work is done: changes the speed but (except for batch size and precision) not the quality."""

    batch_size: int | Literal["auto"] = 256
    """Pictures per step, over all ranks; auto measures which is fastest and fits."""
    micro_batch: int | None = None
    """Pictures per forward pass; gradients are accumulated over the batch [default: whatever suits the device]."""
    device: str = "auto"
    """cpu, cuda, mps, or auto."""
    precision: Literal["float32", "bf16", "auto"] = "auto"
    """Number format of the forward pass; auto: bf16 on GPUs that have it, and on CPUs where it is measured faster."""
    compile: Literal["auto", "on", "off"] = "off"
    """Whether to use torch.compile; auto tries it and keeps it only if it is faster."""
    recompute: bool = False
    """Gradient checkpointing: recompute activations instead of keeping them, which saves memory."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: a whole model on each rank (ddp), or one model spread over the ranks (fsdp)."""
    workers: int | None = None
    """Threads that decode pictures [default: whatever suits the data]."""
    save_minutes: float = 5.0
    """Save a checkpoint at least this often, besides the one after each epoch."""
    seed: int = 0
    """Seed of the initial weights, the order of the pictures, augmentation and dropout."""

    def __post_init__(self) -> None:
        validate(self)
        for name in ("batch_size", "micro_batch"):
            number = getattr(self, name)
            if isinstance(number, int) and number < 1:
                raise ConfigError(f"must be at least 1; got {number}.", field=name)
        check_workers(self.workers)
        if not self.save_minutes > 0:
            raise ConfigError(f"must be above 0; got {self.save_minutes}.", field="save_minutes")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How far a result can be relied on: folds; and which settings are tried."""

    folds: int | None = None
    """Divide the pictures into this many parts; train without each of them in turn and measure on it, then train on all
    of them. A test split stays out of everything."""
    fold_repeats: int = 1
    """Divide the pictures into folds this many times, each time differently."""
    search: str | None = None
    """Settings to try, separated by commas: a range lr=1e-4..1e-2, or choices optimizer=adamw|sgd. The best on
    validation, or on average over the folds, is kept."""
    trials: int = 20
    """With search: how many to try."""

    def __post_init__(self) -> None:
        validate(self)
        _require(self, folds=(2, 1000), fold_repeats=(1, 1000), trials=(1, 100_000))
        if self.fold_repeats > 1 and self.folds is None:
            raise ConfigError("repeats folds; pass `folds=` too, or omit it.", field="fold_repeats")

    @property
    def rounds(self) -> int:
        """The folds of all repeats; 0 without folds."""
        return (self.folds or 0) * self.fold_repeats

    @property
    def parts(self) -> float:
        """How many times as long as one of its models a run takes: with folds, the last learns from all pictures."""
        trials = 1 if self.search is None else self.trials
        return trials if self.folds is None else trials * self.rounds + self.folds / (self.folds - 1)


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """What a model learns from pictures only, before it is trained on labels."""

    method: Literal["none", "mae"] = "none"
    """Masked pre-training (mae: "Masked Autoencoders Are Scalable Vision Learners"), or none, which is `vitrail
    train`."""
    mask_rate: float = 0.75
    """Share of the patches that are hidden, and whose pixels are predicted from the others."""
    decoder_width: int | None = None
    """Width of the decoder that predicts these, a multiple of 32 [default: two thirds of the model's, at most 512]."""
    decoder_depth: int | None = None
    """Blocks of the decoder [default: two thirds of the model's, at most 8]."""
    pixels: Literal["normalized", "raw"] = "normalized"
    """What is predicted: pixels normalised by the mean and standard deviation of their patch, or as they are
    (raw)."""
    probe_every: int | None = None
    """Epochs between two kNN probes of the features, where pictures have classes; 0 turns them off [default: a tenth of
    the run]."""

    def __post_init__(self) -> None:
        validate(self)
        _require(self, mask_rate=(0.01, 0.99), decoder_width=(1, 65_536), decoder_depth=(1, 1000))
        _require(self, probe_every=(0, 1_000_000))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. `data` is a path, an address or a name, as for `open_data`."""

    data: str = ""
    recipe: str = ""  # the name of the recipe that it began as
    chosen: str = field(default="", metadata=IF_USED)  # what was chosen by default, and why
    start: Start = field(default_factory=Start)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    machine: Machine = field(default_factory=Machine)
    augment: Augment = field(default_factory=Augment)
    source: DataConfig = field(default_factory=DataConfig)
    selection: Selection = field(default=Selection(), metadata=IF_USED)
    distill: Distill = field(default=Distill(), metadata=IF_USED)
    pretraining: Pretraining = field(default=Pretraining(), metadata=IF_USED)

    def __post_init__(self) -> None:
        validate(self)
        if self.distill.teacher is not None and self.augment.outlier_rate > 0:
            raise ConfigError(
                "cannot be combined with `outlier_rate=`: the teacher would be sure of the outliers, of which the "
                "model learns to be unsure; omit one of them.",
                field="teacher",
            )

    @property
    def pretrains(self) -> bool:
        """Whether the run learns from pictures only."""
        return self.pretraining.method != "none"
