"""A teacher and its student on the same pictures: how good each is, and how often they answer the same."""

from dataclasses import replace

import numpy as np
import torch

from vitrail.errors import VitrailError
from vitrail.evaluation.measurement import Measurement, Singles, choose, run
from vitrail.rng import Integers
from vitrail.tasks.task import Array, Task
from vitrail.training.best_weights import count_progress
from vitrail.training.listener import Listener
from vitrail.training.result import Run
from vitrail.training.setup import Setup
from vitrail.training.teacher import TeacherComparison

MOST = 10_000  # pictures that they are compared on


def compare_with_teacher(setup: Setup, finished: Run, listener: Listener) -> Run:
    """The run with its comparison, on the split that its model was measured on; all ranks must call it."""
    teacher, measured = setup.teacher, finished.measurement
    if teacher is None or measured is None or measured.split not in setup.dataset.splits:
        return finished
    samples = measured.samples[choose(len(measured.samples), MOST)]
    advance = count_progress(listener, f"{measured.split} pictures shown to the teacher", len(samples))

    def compute(images: Singles) -> Singles:
        outputs = torch.from_numpy(teacher.predictor.runtime.logits(images))
        return teacher.task.learned_from(outputs, teacher.predictor.task, teacher.order).numpy().astype(np.float32)

    source = setup.dataset.split(measured.split)
    try:
        kept, outputs, _ = run(teacher.predictor, source, samples, compute, progress=advance)
    except VitrailError as error:
        listener.said(f"the teacher could not be measured: {error}")
        return finished
    finally:
        listener.ended()
    comparison = _compare(setup, measured, kept, outputs)
    return replace(finished, teacher=comparison)


def _compare(setup: Setup, measured: Measurement, kept: Integers, outputs: Singles) -> TeacherComparison:
    """The teacher's outputs for some of the measured pictures, beside the student's."""
    assert setup.teacher is not None
    rows = np.searchsorted(measured.samples, kept)
    own, targets, task = measured.logits[rows], measured.targets[rows], setup.task
    rights = [task.measure(each, targets, measured.classes, None, measured.coverage).right() for each in (own, outputs)]
    right: dict[str, int] = {}
    if rights[0] is not None and rights[1] is not None:
        student, teacher = rights[0].pictures, rights[1].pictures
        counts = (student & teacher, student & ~teacher, ~student & teacher, ~student & ~teacher)
        names = ("both", "student", "teacher", "none")
        right = {name: int(each.sum()) for name, each in zip(names, counts, strict=True)}
    return TeacherComparison(
        source=setup.config.distill.teacher or "",
        sha256=setup.teacher.sha256,
        split=measured.split,
        pictures=len(kept),
        teacher=_metrics(task, outputs, targets),
        student=_metrics(task, own, targets),
        agreement=float(task.same_answers(outputs, own, None).mean()),
        right=right,
    )


def _metrics(task: Task, outputs: Singles, targets: Array) -> dict[str, float]:
    numbers = task.summarize([task.score(torch.from_numpy(outputs), torch.from_numpy(targets))])
    return {name: float(value) for name, value in numbers.items() if np.isfinite(value)}
