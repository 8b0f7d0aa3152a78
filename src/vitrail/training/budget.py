"""A time budget (`minutes`): how many epochs fit, decided again after each epoch from how long the last one took.

It covers everything from the user's call to the report. Where not even one epoch fits, there are fewer pictures; where
the machine is slower than it was when the run was planned, an epoch, or the features, end early.

The learning rate follows one curve, drawn over the steps of the first plan. When the plan changes, the rest of the
curve is followed faster or slower from that point, so the learning rate never jumps. The plan is part of the saved
state: a resumed run continues with it.
"""

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass, replace

from vitrail.evaluation.ood import TRAINING_PICTURES
from vitrail.training.snapshots import BudgetPlan

SHARE = 0.95  # of the minutes, which are planned for
PLANNING = 0.04  # of the minutes, for measuring
REPORT_PICTURES = 150  # whose forward pass takes as long as a report's explanations and figures
NOTABLE = 1.25  # a plan that has become this much longer or shorter is worth a line


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds that a run has taken and will take."""

    so_far: float
    epoch: float  # for one more, with its validation and checkpoints
    ending: float  # for the final evaluation and the report


def first_plan(epochs: int, steps_per_epoch: int) -> BudgetPlan:
    """The plan that a run begins with."""
    return BudgetPlan(epochs=epochs, curve_steps=epochs * steps_per_epoch)


def curve_position(plan: BudgetPlan, step: int, total_steps: int) -> float:
    """How far along the curve a step is; the last step of the plan is near the curve's end."""
    left = max(total_steps - plan.step, 1)
    return plan.position + (step - plan.step) * (plan.curve_steps - plan.position) / left


def fitting_epochs(minutes: float, pace: Pace) -> int:
    """How many more epochs fit into the budget."""
    return max(math.floor((seconds_left(minutes, pace.so_far) - pace.ending) / max(pace.epoch, 1e-9)), 0)


def seconds_left(minutes: float, so_far: float) -> float:
    """What is left of a budget to plan for."""
    return 60 * minutes * SHARE - so_far


def revise(plan: BudgetPlan, minutes: float, pace: Pace, *, epoch: int, steps_per_epoch: int, step: int) -> BudgetPlan:
    """The plan after `epoch` whole epochs; one that is complete stays so, since its curve has come to its end."""
    if epoch >= plan.epochs:
        return plan
    epochs = epoch + fitting_epochs(minutes, pace)
    position = curve_position(plan, step, plan.epochs * steps_per_epoch)
    return replace(plan, epochs=epochs, step=step, position=min(position, float(plan.curve_steps)))


def describe(after: BudgetPlan, minutes: float, pace: Pace, *, epoch: int, reported: int) -> str | None:
    """What to report of a revision, if anything; `reported` is the number of epochs that was reported last."""
    if after.epochs == epoch and epoch < reported:
        return (
            f"{minutes:g} minutes leave no time for another epoch, which now takes {pace.epoch:.1f} s: "
            f"ending after epoch {epoch} of {reported}"
        )
    if max(after.epochs, reported) < NOTABLE * min(after.epochs, reported):
        return None
    return f"an epoch now takes {pace.epoch:.1f} s: {after.epochs} epochs fit into {minutes:g} minutes"


def pictures_at_the_end(splits: Mapping[str, Sized], *, on_features: bool = False, pretrains: bool = False) -> int:
    """Pictures that are evaluated after the last epoch: for the calibration, the final evaluation and the report.

    The calibration of a head uses the features that it was trained on; without labels there is only a report.
    """
    if pretrains:
        return REPORT_PICTURES
    held_out = len(splits.get("val", ()))
    calibration = held_out + min(len(splits["train"]), TRAINING_PICTURES) if held_out and not on_features else 0
    return calibration + len(splits["test"] if "test" in splits else splits.get("val", ())) + REPORT_PICTURES
