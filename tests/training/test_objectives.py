"""What a run is for is the objective's business: the loop learns whatever it is given."""

import ast
import math
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import recall_score
from torch import nn

from processes import run_ranks
from vitrail.data import Batch
from vitrail.errors import ConfigError
from vitrail.ranks import Ranks, join_ranks
from vitrail.training import TrainConfig, loop
from vitrail.training.config import TRAININGS, Pretraining, Start
from vitrail.training.curves import Choice, read_rows
from vitrail.training.gradients import Outcome
from vitrail.training.gradients import whole as whole_tensor
from vitrail.training.loop import Trainer
from vitrail.training.objectives import OBJECTIVES, Objective, SplitScore, Supervised, make_objective
from vitrail.training.setup import Setup, prepare_run
from vitrail.training.signals import InterruptedRunError
from vitrail.training.snapshots import RunState

from .conftest import part_of_digits, quick_config

LOGITS = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 3, 9, 2, 2, 7])


def judged(objective: Objective, targets: torch.Tensor) -> Outcome:
    """What the objective makes of these logits, as if a model had given them."""
    vars(objective)["outputs"] = lambda logits: logits
    return objective(Batch(LOGITS, targets, torch.arange(len(LOGITS))))


def test_labels_and_shares_of_classes_have_one_loss(make_setup: Callable[..., Setup]) -> None:
    objective = make_objective(make_setup(label_smoothing=0.1))
    assert type(objective) is Supervised
    shares = F.one_hot(LABELS, 10).float()
    of_labels, of_shares = (judged(objective, targets).loss for targets in (LABELS, shares))
    torch.testing.assert_close(of_labels, of_shares)
    torch.testing.assert_close(of_labels, F.cross_entropy(LOGITS, LABELS, label_smoothing=0.1), rtol=0, atol=0)
    batch = Batch(LOGITS, LABELS, torch.arange(6))
    scores = objective.summarize([objective.score(objective(part), part) for part in (batch, batch)])
    assert scores["loss"] == pytest.approx(F.cross_entropy(LOGITS, LABELS).item()), "without smoothing"
    right = LOGITS.argmax(1) == LABELS
    assert scores["accuracy"] == pytest.approx(right.float().mean().item())
    recalls = recall_score(LABELS, LOGITS.argmax(1), labels=LABELS.unique(), average="macro", zero_division=0)
    assert scores["balanced_accuracy"] == pytest.approx(recalls)


@pytest.mark.parametrize(
    ("loss", "lowest", "diverged"),
    [(math.nan, 1.0, True), (math.inf, 1.0, True), (3.0, 0.1, False), (3.6, 0.1, True), (3.6, 2.0, False)],
)
def test_a_loss_runs_away_above_chance_only(
    loss: float, lowest: float, diverged: bool, make_setup: Callable[..., Setup]
) -> None:
    assert make_objective(make_setup()).has_diverged(loss, lowest) == diverged


def test_patience_waits_for_a_lower_loss_too_but_accuracy_decides(make_setup: Callable[..., Setup]) -> None:
    objective = make_objective(make_setup())
    state = RunState(best_metrics={"accuracy": 0.5}, lowest_val_loss=1.0)
    less, same = {"accuracy": 0.4}, {"accuracy": 0.5}
    assert objective.improves(SplitScore(loss=0.9, metrics=less, count=10), state)
    assert not objective.is_better(SplitScore(loss=0.9, metrics=less, count=10), state)
    assert objective.is_better(SplitScore(loss=1.04, metrics=same, count=10), state)
    assert not objective.is_better(SplitScore(loss=1.2, metrics=same, count=10), state), "overfitted"
    objective.choice = Choice("accuracy", higher=True, keeps_last=True)
    more = {"accuracy": 0.6}  # of a metric that is only shown, now and then
    assert not objective.improves(SplitScore(loss=1.2, metrics=more, count=10), state)
    assert objective.improves(SplitScore(loss=0.9, metrics={}, count=10), state)


@pytest.mark.parametrize(
    ("best", "higher"), [("auto", True), ("balanced", True), ("balanced_accuracy", True), ("loss", False)]
)
def test_a_metric_chooses_the_best_epoch(best: str, higher: bool, make_setup: Callable[..., Setup]) -> None:
    objective = make_objective(make_setup(best=best))
    name = {"auto": "accuracy", "balanced": "balanced_accuracy"}.get(best, best)
    assert objective.choice == Choice(name, higher)
    metrics = dict.fromkeys(("accuracy", "balanced_accuracy"), 0.5)
    state = RunState(best_metrics=metrics, best_loss=0.5, lowest_val_loss=0.5)
    better = SplitScore(loss=0.4 if name == "loss" else 0.9, metrics=metrics | {name: 0.6}, count=1)
    worse = SplitScore(loss=0.6, metrics=metrics | {name: 0.4}, count=1)
    assert objective.is_better(better, state)
    assert not objective.is_better(worse, state)


@pytest.mark.parametrize(("setting", "value"), [("best", "f2"), ("loss", "bce")])
def test_what_the_task_does_not_have_is_refused(setting: str, value: str, make_setup: Callable[..., Setup]) -> None:
    with pytest.raises(ConfigError, match=f"{setting}.* has no '{value}' for this task"):
        make_objective(make_setup(**{setting: value}))


class Masked(Objective):
    """An objective with a part of its own: a decoder must repeat the pictures from the tokens; labels play no part."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        torch.manual_seed(0)
        self.decoder = nn.Linear(setup.model.config.width, setup.model.config.stride[0] ** 2)

    def trained(self) -> Iterable[nn.Parameter]:
        return (weight for name, weight in self.named_parameters() if "head" not in name)

    def forward(self, batch: Batch) -> Outcome:
        size = self.model.config.stride[0]
        tokens = self.model.tokens(batch.images)[:, -math.prod(self.model.config.grid) :]
        patches = batch.images[:, :1].unfold(2, size, size).unfold(3, size, size).flatten(1, 3).flatten(2)
        errors = (self.decoder(tokens) - patches).square()
        return Outcome(errors.mean(), {"largest": errors.max()})


def decoder_of(trainer: Trainer) -> nn.Linear:
    assert isinstance(trainer.objective, Masked)
    return trainer.objective.decoder


def masked_trainer(setup: Setup, folder: Path, ranks: Ranks | None = None) -> Trainer:
    return Trainer(setup, ranks or Ranks(), folder, objective=Masked(setup))


def test_everything_in_an_objective_is_trained_averaged_saved_and_resumed(
    make_setup: Callable[..., Setup], tmp_path: Path
) -> None:
    settings = {"epochs": 2, "mixup": 0.0, "cutmix": 0.0, "ema": 0.9, "save_minutes": 1e-6}
    whole = masked_trainer(make_setup(**settings), tmp_path / "whole")
    before = decoder_of(whole).weight.detach().clone()
    state = whole.run()
    assert not torch.equal(decoder_of(whole).weight, before)
    rows = read_rows(tmp_path / "whole" / "results.csv")
    assert (rows[1].val_loss or 0.0) < (rows[0].val_loss or 0.0)
    assert rows[1].metrics["largest"] > 0 < rows[1].train_metrics["largest"]
    assert state.best_metrics.keys() == {"largest"}
    cut = masked_trainer(make_setup(**settings), tmp_path / "cut")
    stop_after(cut, 3)
    with pytest.raises(InterruptedRunError):
        cut.run()
    again = masked_trainer(make_setup(**settings), tmp_path / "cut")
    again.resume()
    assert again.state.step == 3
    again.run()
    for name, tensor in whole._tensors().items():
        assert torch.equal(tensor, again._tensors()[name]), name
    assert {"decoder.weight", "average.decoder.weight", "optimizer.decoder.weight.exp_avg"} <= set(whole._tensors())


def stop_after(trainer: Trainer, steps: int) -> None:
    """As a signal does after some steps; a real one could meet what other tests have left in this process."""
    step = trainer.step

    def stopping(batch: Batch) -> tuple[float, float]:
        result = step(batch)
        if trainer.state.step == steps:
            trainer.save()
            raise InterruptedRunError(signal.SIGTERM, trainer.folder)
        return result

    vars(trainer)["step"] = stopping


def train_masked(config: TrainConfig, folder: Path) -> None:
    """On a rank."""
    ranks = join_ranks("cpu")
    trainer = masked_trainer(prepare_run(config, part_of_digits(config)), folder, ranks)
    trainer.run()
    weights = whole_tensor(decoder_of(trainer).weight).detach()
    if ranks.is_first:
        torch.save(weights, folder / "decoder.pt")


@pytest.mark.slow
def test_an_objective_with_a_decoder_is_sharded_over_two_ranks(tmp_path: Path) -> None:
    plain = {"optimizer": "sgd", "lr": 0.05, "epochs": 1, "ema": None, "mixup": 0.0, "cutmix": 0.0, "micro_batch": 16}
    config = quick_config(strategy="fsdp", **plain)
    assert run_ranks(train_masked, config, tmp_path) == [0, 0]
    alone = quick_config(**plain)
    trainer = masked_trainer(prepare_run(alone, part_of_digits(alone)), tmp_path / "one")
    trainer.run()
    torch.testing.assert_close(torch.load(tmp_path / "decoder.pt"), decoder_of(trainer).weight, rtol=1e-3, atol=2e-5)


def test_no_branch_of_the_loop_names_a_recipe() -> None:
    tree = ast.parse(Path(loop.__file__).read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not {"on_features", "part", "cross_entropy", "Any"} & names
    assert not {"head", "linear", "all"} & texts


def test_what_train_may_be_is_known_in_two_tables_and_asked_nowhere_else() -> None:
    """So a new objective touches these two files only."""
    values = set(get_args(get_type_hints(Start)["train"]))
    methods = set(get_args(get_type_hints(Pretraining)["method"])) - {"none"}
    assert values == set(TRAININGS) == set(OBJECTIVES) - methods
    assert methods <= set(OBJECTIVES)
    folder = Path(loop.__file__).parent
    asking = {path.name for path in folder.glob("*.py") if "start.train" in _attributes(path)}
    assert asking == {"objectives.py"}


def _attributes(path: Path) -> set[str]:
    """What is read of an object, as `start.train`."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {
        f"{getattr(node.value, 'attr', getattr(node.value, 'id', ''))}.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute)
    }


def test_what_is_not_trained_is_frozen(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup()
    config = setup.config
    on_head = replace(config, start=replace(config.start, train="head", model=None, weights="x"))
    make_objective(replace(setup, config=on_head))
    assert {name for name, weight in setup.model.named_parameters() if weight.requires_grad} == {
        "head.weight",
        "head.bias",
    }
    make_objective(setup)
    assert all(weight.requires_grad for weight in setup.model.parameters())
