"""What a run is for is the objective's business: the loop learns whatever it is given."""

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F

from vitrail.ranks import Ranks
from vitrail.training import loop
from vitrail.training.config import TRAININGS, Start
from vitrail.training.gradients import Scores
from vitrail.training.loop import Trainer
from vitrail.training.objectives import OBJECTIVES, Objective, SplitScore, make_objective
from vitrail.training.setup import Setup
from vitrail.training.snapshots import RunState

LOGITS = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 3, 9, 2, 2, 7])


def test_labels_and_shares_of_classes_have_one_loss(make_setup: Callable[..., Setup]) -> None:
    objective = make_objective(make_setup(label_smoothing=0.1))
    assert type(objective) is Objective
    shares = F.one_hot(LABELS, 10).float()
    torch.testing.assert_close(objective.loss(LOGITS, LABELS), objective.loss(LOGITS, shares))
    torch.testing.assert_close(
        objective.loss(LOGITS, LABELS), F.cross_entropy(LOGITS, LABELS, label_smoothing=0.1), rtol=0, atol=0
    )
    scores = objective.score(LOGITS, LABELS)
    assert scores.loss == pytest.approx(F.cross_entropy(LOGITS, LABELS, reduction="sum").item()), "without smoothing"
    assert scores.correct == (LOGITS.argmax(1) == LABELS).sum()


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
    state = RunState(best_accuracy=0.5, lowest_val_loss=1.0)
    assert objective.improves(SplitScore(loss=0.9, accuracy=0.4, count=10), state)
    assert not objective.is_better(SplitScore(loss=0.9, accuracy=0.4, count=10), state)
    assert objective.is_better(SplitScore(loss=1.04, accuracy=0.5, count=10), state)
    assert not objective.is_better(SplitScore(loss=1.2, accuracy=0.5, count=10), state), "overfitted"


@dataclass(frozen=True, kw_only=True)
class Regression(Objective):
    """Another objective: the logits themselves shall be the label."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets[:, None]).square().mean()

    def score(self, outputs: torch.Tensor, targets: torch.Tensor) -> Scores:
        errors = (outputs - targets[:, None]).square().mean(dim=1)
        return Scores(float(errors.sum()), int((errors < 1).sum()))

    def has_diverged(self, loss: float, lowest: float) -> bool:
        return not loss < 1000


def test_the_loop_learns_what_another_objective_asks_for(
    make_setup: Callable[..., Setup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "make_objective", lambda setup: Regression(setup=setup))
    setup = make_setup(epochs=2, mixup=0.0, ema=None)
    trainer = Trainer(setup, Ranks(), tmp_path)
    assert trainer.val_loader is not None
    before = trainer.evaluate(trainer.val_loader)
    state = trainer.run()
    assert before.loss > 20, "labels are 0 to 9, and first outputs near 0"
    assert state.lowest_val_loss < 0.8 * before.loss


def test_no_branch_of_the_loop_names_a_recipe() -> None:
    tree = ast.parse(Path(loop.__file__).read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not {"on_features", "part", "cross_entropy", "Any"} & names
    assert not {"head", "linear", "all"} & texts


def test_what_train_may_be_is_known_in_two_tables_and_asked_nowhere_else() -> None:
    """So a new objective touches these two files only."""
    values = set(get_args(get_type_hints(Start)["train"]))
    assert values == set(TRAININGS) == set(OBJECTIVES)
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
