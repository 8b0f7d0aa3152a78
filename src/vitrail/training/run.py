"""One run, from its folder's first file (config.yaml) to its last (metrics.json)."""

import json
import re
import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from vitrail.data import Augment, Dataset, write_split_file
from vitrail.data.source import ArraySource
from vitrail.data.view import augmentation_sheet
from vitrail.environment import environment
from vitrail.errors import ConfigError
from vitrail.evaluation.records import disk_bytes
from vitrail.files import atomic_path
from vitrail.ranks import Ranks, elastic_id, join_ranks, was_restarted
from vitrail.reading import read_yaml
from vitrail.schema import from_dict, to_dict
from vitrail.training import checkpoint, plan
from vitrail.training.choose import apply_changes, choose
from vitrail.training.config import TrainConfig
from vitrail.training.curves import draw_curves, learning_rates, read_rows
from vitrail.training.engines import make_engine
from vitrail.training.features import check_batch_size
from vitrail.training.judging import Judgement, judge
from vitrail.training.listener import Listener
from vitrail.training.lock import RunLock
from vitrail.training.loop import Trainer
from vitrail.training.own_pictures import reopen_data
from vitrail.training.plan import Measured, measure
from vitrail.training.recipes import recipe
from vitrail.training.setup import (
    Setup,
    add_validation,
    check_start,
    check_strategy,
    fit_batch_size,
    open_training_data,
    plain_loader,
    prepare_run,
)
from vitrail.weights.native import read_native
from vitrail.wording import counted

CONFIG, SPLIT = "config.yaml", "split.csv"
_DRAFT = re.compile(r"\.[\w-]+\.(json|yaml|csv|html|safetensors|png|jpg)\.[a-z0-9_]{8}")  # as `atomic_path` names them
ELASTIC = ".elastic"  # the name of torchrun's job, while the run lasts
# What a resumed run may do otherwise: how it is carried out, and where things are now.
CHANGEABLE = (
    "workers",
    "save_minutes",
    "device",
    "strategy",
    "recompute",
    "data",
    "data_dir",
    "split_file",
    "weights",
    "classes",
)
SETTLED = {"batch_size", "compile"}  # what was asked for here, the run has decided by measuring
SPARE_BYTES = 200 * 2**20


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a finished run has to show."""

    folder: Path
    epochs: int
    best_epoch: int
    seconds: float
    val: Judgement | None
    test: Judgement | None

    @property
    def val_chose_epoch(self) -> bool:
        """Whether val decided which epoch's weights are kept, which makes its own figures a little too good."""
        return self.val is not None and self.epochs > 1

    @property
    def weights(self) -> Path:
        return self.folder / "weights" / "best.safetensors"


def resolve(data: str, changes: dict[str, Any], ranks: Ranks) -> tuple[TrainConfig, Dataset]:
    """The whole config from what was said: a recipe, named or chosen from the data, and then the changes."""
    changes = dict(changes)
    name, said_data = changes.pop("recipe", None), changes.pop("data", "")
    config = recipe(name) if name else TrainConfig()
    sources = {key: value for key, value in changes.items() if hasattr(config.source, key)}
    config = apply_changes(replace(config, data=data or said_data or config.data), sources)
    check_start(_with_start(config, changes))
    dataset = ranks.in_turn(lambda: open_training_data(config, validation=False))
    if not name:
        chosen = choose(dataset, changes.get("weights"))
        source = config.source
        if not dataset.made_split and "val_rate" not in changes:
            source = replace(source, val_rate=chosen.source.val_rate)
        config = replace(chosen, data=config.data, source=source)
    config = _with_start(config, changes)
    if config.start.train == "head":
        config = _without_augmentation(config, changes)
    if "batch_size" not in changes:
        config = fit_batch_size(config, dataset, ranks.world_size)
    return config, add_validation(dataset, config)


def _with_start(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """The config with the changes; weights bring their own model."""
    if changes.get("weights") is not None and "model" not in changes:
        config = replace(config, start=replace(config.start, model=None))
    if config.recipe == "linear":
        changes = {"train": "head", **changes}
    return apply_changes(config, changes)


def _without_augmentation(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """The head learns from features of unchanged pictures; whoever asked for something else is told."""
    config = replace(config, augment=Augment(flip_rate=0.0), start=replace(config.start, dropout=0.0, drop_path=0.0))
    for name in ("dropout", "drop_path", *(field.name for field in fields(Augment))):
        if name in changes and _find(apply_changes(config, {name: changes[name]}), name) != _find(config, name):
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"the head alone learns from features of unchanged pictures; leave out {flag} {changes[name]}."
            )
    return config


def settle(config: TrainConfig, dataset: Dataset, ranks: Ranks, listener: Listener) -> tuple[Setup, Measured]:
    """Decide what is decided by measuring: batch size, torch.compile, the epochs of a time budget."""
    check_strategy(config, ranks.world_size)
    setup = prepare_run(config, dataset)
    if config.schedule.patience is not None and not setup.has_validation:
        listener.said("no pictures to validate with: nothing stops early, and the last weights are kept")
    if config.start.train == "head":
        if config.machine.batch_size == "auto" or config.schedule.minutes is not None:
            raise ConfigError("training the head alone takes a moment: say --batch-size and --epochs as numbers.")
        check_batch_size(config.machine.batch_size, len(dataset.split("train")), ranks.world_size)
        return setup, ranks.from_first(lambda: plan.measure_features(setup, ranks))

    def decide(make: Any) -> None:
        nonlocal setup
        decided: dict[str, Any] = ranks.from_first(lambda: to_dict(make()))
        setup = replace(setup, config=from_dict(TrainConfig, decided))

    if config.machine.batch_size == "auto":
        decide(lambda: plan.find_batch_size(setup, ranks, listener.said))
    decide(lambda: plan.settle_compile(setup, ranks, listener.said))
    measured = ranks.from_first(lambda: measure(setup, ranks))
    decide(lambda: plan.fit_minutes(setup, measured, ranks, listener.said))
    return setup, measured


def write_start(setup: Setup, folder: Path) -> None:
    """What the run is, before its first step."""
    (folder / "env.json").write_text(json.dumps(environment(), indent=1), encoding="utf-8")
    if setup.dataset.made_split or not isinstance(setup.dataset.split("train"), ArraySource):
        write_split_file(setup.dataset, folder / SPLIT)
    sheet = augmentation_sheet(
        setup.dataset, setup.preprocess, setup.config.augment, seed=setup.config.machine.seed, num_pictures=8
    )
    _save_jpeg(sheet, folder / "train_batch.jpg")
    with atomic_path(folder / CONFIG) as draft:  # last: a folder that has it is a run
        text = yaml.safe_dump(describe_config(setup.config), sort_keys=False, allow_unicode=True)
        draft.write_text(text, encoding="utf-8")


def describe_config(config: TrainConfig) -> dict[str, Any]:
    """The fields as a YAML file has them: with a time budget, the epochs are not one of them but follow from it."""
    facts = to_dict(config)
    if config.schedule.minutes is not None:
        del facts["schedule"]["epochs"]
    return facts


def _save_jpeg(image: Image.Image, path: Path) -> None:
    image.convert("RGB").save(path, quality=92)


def read_config(folder: Path) -> TrainConfig:
    """The config of an existing run."""
    path = folder / CONFIG
    try:
        settings = read_yaml(path)
    except ConfigError as error:
        raise ConfigError(f"{folder} is not a training run: {error}") from error
    try:
        return from_dict(TrainConfig, settings)
    except (ConfigError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def describe_end(folder: Path, config: TrainConfig) -> str:
    """What a run that has nothing left to do came to; "" for one that can go on, or whose report is missing."""
    saved = checkpoint.list_checkpoints(folder / "weights" / "last")
    if not saved or not (folder / "metrics.json").is_file() or not (folder / "report.html").is_file():
        return ""
    progress = checkpoint.read_progress(saved[-1])
    epochs = config.schedule.epochs if progress.plan is None else progress.plan.epochs
    if progress.epoch < epochs and not progress.stopped_early:
        return ""
    early = ", where it stopped early" if progress.stopped_early else ""
    return (
        f"{folder} is finished: {counted(progress.epoch, 'epoch')}{early}, the best of them {progress.best_epoch}; "
        "nothing is left to train."
    )


def refuse_conflicts(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """A resumed run is the same run: flags may repeat what it has, and change only how it is carried out."""
    allowed = {name: value for name, value in changes.items() if name in CHANGEABLE}
    config = replace(config, data=allowed.pop("data", config.data))
    for name, value in changes.items():
        if name in CHANGEABLE or (name in SETTLED and isinstance(value, str)):
            continue
        if name == "epochs" and config.schedule.minutes is not None:
            raise ConfigError(
                f"--epochs {value} conflicts with the run, which has --minutes {config.schedule.minutes:g}; "
                "leave it out to resume, or start a new run."
            )
        old = config.recipe if name == "recipe" else _find(config, name)
        same = value == old if name == "recipe" else _find(apply_changes(config, {name: value}), name) == old
        if not same:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} {value} conflicts with the run, which has {old}; leave it out to resume, or start a new run."
            )
    return apply_changes(config, allowed)


def _find(config: TrainConfig, name: str) -> Any:
    parts = (config.start, config.optim, config.schedule, config.machine, config.augment, config.source)
    return next(getattr(part, name) for part in parts if hasattr(part, name))


def check_space(folder: Path, setup: Setup) -> None:
    """Refuse to begin what the disk cannot hold."""
    weights = sum(parameter.numel() * 4 for parameter in setup.model.parameters())
    needed = weights * (4 * 3 + 1) + SPARE_BYTES  # three checkpoints of weights, two moments and average; best
    pictures = max((len(source) for name, source in setup.dataset.splits.items() if name != "train"), default=0)
    needed += disk_bytes(pictures, len(setup.dataset.classes))
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"{folder} needs about {needed / 2**20:,.0f} MB for checkpoints and tables; "
            f"{free / 2**20:,.0f} MB are free."
        )


def train(config: TrainConfig, folder: str | Path, listener: Listener | None = None) -> Outcome:
    """Train in Python: `train(replace(recipe("digits"), …), "runs/mine")`. A folder with a begun run is continued."""
    ranks = join_ranks(config.machine.device)
    folder, listener = Path(folder), listener or Listener()
    lock = RunLock()
    try:
        resume = ranks.from_first(lambda: take_begun(folder, lock))
        if resume:
            setup = reopen(read_config(folder), folder, ranks, listener)
        else:
            check_start(config)
            dataset = ranks.in_turn(lambda: open_training_data(config))
            setup, _ = settle(fit_batch_size(config, dataset, ranks.world_size), dataset, ranks, listener)
            ranks.from_first(lambda: begin(setup, folder, lock))
        return carry_out(setup, ranks, folder, listener, resume=resume)
    finally:
        lock.release()


def take_begun(folder: Path, lock: RunLock) -> bool:
    """Whether a folder holds a begun run; if so, nobody else may write into it from now on."""
    begun = (folder / CONFIG).exists()
    if begun:
        lock.take(folder)
        sweep(folder)
    return begun


def begin(setup: Setup, folder: Path, lock: RunLock) -> None:
    """Make the folder, if the disk has room, and write down what the run is."""
    folder.mkdir(parents=True, exist_ok=True)
    lock.take(folder)
    if (folder / CONFIG).exists():  # since we have looked
        raise ConfigError(f"{folder} holds a run already; resume that, or choose another folder.")
    checkpoint.refuse_links(folder / "weights" / "last")
    check_space(folder, setup)
    write_start(setup, folder)
    if (name := elastic_id()) is not None:
        (folder / ELASTIC).write_text(name, encoding="utf-8")


def reopen(config: TrainConfig, folder: Path, ranks: Ranks, listener: Listener) -> Setup:
    """What a begun run trains, on the pictures that it began with."""
    begun = ranks.from_first(lambda: bool(checkpoint.list_checkpoints(folder / "weights" / "last")))
    dataset = ranks.in_turn(lambda: reopen_data(config, folder / SPLIT, listener.said))
    if config.schedule.minutes is not None and not begun:  # killed before its plan was saved
        return settle(config, dataset, ranks, listener)[0]
    return prepare_run(config, dataset)


def sweep(folder: Path) -> None:
    """Remove the drafts of files that a killed run was about to write."""
    for place in (folder, folder / "weights"):
        for path in place.glob(".*"):
            if _DRAFT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
    for name in (".results.csv.draft", f"{SPLIT}.part"):
        (folder / name).unlink(missing_ok=True)
    checkpoint.sweep(folder / "weights" / "last")


def find_begun(out: Path | None, parent: Path, ranks: Ranks) -> Path | None:
    """The run that these processes had before torchrun started them again: by the job's name, or in `out` itself."""
    restarted = ranks.any(was_restarted())

    def find() -> Path | None:
        name = elastic_id()
        if name is None:
            return None
        if out is not None:
            return out if (out / CONFIG).exists() and (restarted or _marked(out, name)) else None
        return next((path.parent for path in sorted(parent.glob(f"*/{ELASTIC}")) if _marked(path.parent, name)), None)

    return ranks.from_first(find)


def _marked(folder: Path, name: str) -> bool:
    marker = folder / ELASTIC
    return marker.is_file() and marker.read_text(encoding="utf-8") == name


def carry_out(setup: Setup, ranks: Ranks, folder: Path, listener: Listener, *, resume: bool) -> Outcome:
    """Train to the end and show the result."""
    trainer = Trainer(setup, ranks, folder, listener)
    if resume:
        trainer.resume()
    progress = trainer.run()
    rows = read_rows(folder / "results.csv")
    if ranks.is_first:
        rates = learning_rates(setup.model, setup.config, setup.model.config.depth)
        draw_curves(rows, folder / "results.png", f"{setup.dataset.name}, {setup.config.recipe}", rates)
    val = test = None
    if setup.has_validation:
        val = Judgement(loss=progress.best_loss, accuracy=progress.best_accuracy, count=len(setup.dataset.split("val")))
    if "test" in setup.dataset.splits:
        test = judge_best(setup, ranks, folder)
    outcome = Outcome(
        folder=folder,
        epochs=progress.epoch,
        best_epoch=progress.best_epoch,
        seconds=progress.seconds,
        val=val,
        test=test,
    )
    if ranks.is_first:
        facts = {"epochs": outcome.epochs, "best_epoch": outcome.best_epoch, "seconds": outcome.seconds}
        facts |= {name: None if it is None else vars(it) for name, it in (("val", val), ("test", test))}
        facts["val_chose_epoch"] = outcome.val_chose_epoch
        with atomic_path(folder / "metrics.json") as draft:
            draft.write_text(json.dumps(facts, indent=2), encoding="utf-8")
        (folder / ELASTIC).unlink(missing_ok=True)
    return outcome


def judge_best(setup: Setup, ranks: Ranks, folder: Path) -> Judgement:
    """The kept weights, read back from their file, on the test split."""
    ranks.wait()
    best = read_native(folder / "weights" / "best.safetensors").build().to(ranks.device)
    config = replace(setup.config, machine=replace(setup.config.machine, compile="off"))
    engine = make_engine(replace(setup, model=best, config=config), best, Ranks(device=ranks.device))
    return judge(engine.score, plain_loader(setup, "test", ranks), ranks)
