"""Everything that decides a training run, as data: the command line's flags, the YAML file and the Python arguments.

No two fields of the parts below share a name, so that each of them is a flag of its own: `--lr`, `--mixup`, `--epochs`.
"""

from dataclasses import dataclass, field
from typing import Literal

from vitrail.data.augment.config import Augment
from vitrail.data.config import DataConfig, check_workers
from vitrail.errors import ConfigError
from vitrail.schema import validate


@dataclass(frozen=True, kw_only=True)
class Start:
    """The model, and what it starts from."""

    model: str | None = None
    """A name from `vitrail models` [default: chosen from the data]."""
    weights: str | None = None
    """A checkpoint to start from: a file, a run folder, hf://OWNER/NAME, google://NAME."""
    classes: str | None = None
    """A file with the names of the classes of --weights, one per line in its order, or JSON (index → name): classes
    that the data have too keep their part of the head."""
    image_size: tuple[int, int] | None = None
    """Side of the model's input in pixels, or height and width [default: the model's own]."""
    train: Literal["all", "head"] = "all"
    """Train everything, or the head alone on features that are computed once."""
    dropout: float = 0.0
    """Dropout rate."""
    drop_path: float = 0.0
    """DropPath rate of the last block."""

    def __post_init__(self) -> None:
        validate(self)
        _require(self, "dropout", 0, 0.99)
        _require(self, "drop_path", 0, 0.99)
        if self.train == "head" and self.weights is None:
            raise ConfigError("training the head alone needs weights that know something; give them with --weights.")
        if self.classes is not None and self.weights is None:
            raise ConfigError("classes= names the classes of the weights; give weights= too, or leave it out.")
        if self.weights is not None and self.model is not None:
            raise ConfigError("weights bring their own model; give --weights or --model, not both.")


@dataclass(frozen=True, kw_only=True)
class Optim:
    """How each step changes the weights."""

    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"
    """AdamW, SGD with momentum, or Muon for the matrices of the blocks with AdamW for the rest."""
    lr: float = 1e-3
    """Highest learning rate (with muon: of AdamW's part)."""
    muon_lr: float = 0.02
    """With muon: highest learning rate of the matrices."""
    weight_decay: float = 0.05
    """Weight decay, of matrices and filters alone: never of norms, biases, tokens or positions."""
    momentum: float = 0.9
    """Momentum of SGD."""
    beta2: float = 0.999
    """AdamW's memory of squared gradients."""
    layer_decay: float = 1.0
    """Each layer's learning rate as a share of the next one's; 1: all the same."""
    clip: float | None = 1.0
    """Largest norm of the gradient."""
    label_smoothing: float = 0.0
    """Share of each target that goes to the other classes."""
    ema: float | None = None
    """Decay of a moving average of the weights, which then is evaluated and kept."""

    def __post_init__(self) -> None:
        validate(self)
        _require(self, "lr", 0, 1000)
        _require(self, "muon_lr", 0, 1000)
        _require(self, "weight_decay", 0, 1000)
        _require(self, "momentum", 0, 0.9999)
        _require(self, "beta2", 0, 0.999999)
        _require(self, "layer_decay", 1e-6, 1)
        _require(self, "label_smoothing", 0, 0.99)
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip must be above 0; got {self.clip}; --clip none turns it off.")
        if self.ema is not None:
            _require(self, "ema", 0, 0.999999)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, and how the learning rate changes on the way."""

    epochs: int = 100
    """Passes over the training pictures."""
    minutes: float | None = None
    """A time budget: as many epochs as fit, with the schedule planned for them (instead of --epochs)."""
    schedule: Literal["cosine", "constant", "wsd"] = "cosine"
    """Cosine to the end, constant, or constant and then a straight line to the end (warm-up, stable, decay)."""
    warmup: float = 0.05
    """Share of the run in which the learning rate rises."""
    cooldown: float = 0.2
    """With wsd: share of the run in which it falls."""
    final_lr: float = 0.0
    """Learning rate at the end, as a share of the highest."""
    patience: int | None = None
    """Stop after this many epochs without a better accuracy or a lower loss in validation."""

    def __post_init__(self) -> None:
        validate(self)
        _require(self, "epochs", 1, 1_000_000)
        _require(self, "warmup", 0, 1)
        _require(self, "cooldown", 0, 1)
        _require(self, "final_lr", 0, 1)
        if self.warmup + self.cooldown > 1 and self.schedule == "wsd":
            raise ConfigError(f"warmup {self.warmup} and cooldown {self.cooldown} must leave room for each other.")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"minutes must be above 0; got {self.minutes}.")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"patience must be at least 1 epoch; got {self.patience}.")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How the work is done; changes the speed and (but for the batch size and precision) not the result's quality."""

    batch_size: int | Literal["auto"] = 256
    """Pictures per step, over all ranks; auto: the fastest that fits."""
    micro_batch: int | None = None
    """Pictures per forward pass; gradients add up to the batch [default: what suits the device]."""
    device: str = "auto"
    """cpu, cuda, mps, or auto."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Numbers in the forward pass; auto: bf16 where a GPU has it."""
    compile: Literal["auto", "on", "off"] = "off"
    """torch.compile; auto: kept only if measured to be faster."""
    recompute: bool = False
    """Gradient checkpointing: compute activations again instead of keeping them, which saves memory."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: a whole model per rank, or one spread over the ranks."""
    workers: int | None = None
    """Threads that decode pictures [default: what suits the data]."""
    save_minutes: float = 5.0
    """A checkpoint at least this often, beside the one after each epoch."""
    seed: int = 0
    """Of the first weights, the order of the pictures, augmentation and dropout."""

    def __post_init__(self) -> None:
        validate(self)
        for name in ("batch_size", "micro_batch"):
            number = getattr(self, name)
            if isinstance(number, int) and number < 1:
                raise ConfigError(f"{name} must be at least 1; got {number}.")
        check_workers(self.workers)
        if not self.save_minutes > 0:
            raise ConfigError(f"save_minutes must be above 0; got {self.save_minutes}.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. `data` is a path, an address or a name, as for `open_data`."""

    data: str = ""
    recipe: str = ""  # the name of the recipe that it began as
    start: Start = field(default_factory=Start)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    machine: Machine = field(default_factory=Machine)
    augment: Augment = field(default_factory=Augment)
    source: DataConfig = field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        validate(self)


def _require(config: object, name: str, low: float, high: float) -> None:
    value = getattr(config, name)
    if not low <= value <= high:  # so that NaN fails too
        raise ConfigError(f"{name} must be between {low} and {high}; got {value}.")
