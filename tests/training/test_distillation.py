"""What a teacher adds to the loss: the formulas, what it is shown, which of its answers count; and that none of it is
left in the checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import vitrail
from conftest import TINY, randomize
from fuzzing import in_fuzz_only
from processes import run, run_ranks
from vitrail.data import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.data.transform import fit_tensor, normalize
from vitrail.errors import ConfigError
from vitrail.evaluation.measurement import measure_split
from vitrail.model import ViT, variant
from vitrail.ranks import Ranks
from vitrail.report.comparison_sections import teacher_section
from vitrail.schema import from_dict
from vitrail.tasks.number import Number
from vitrail.tasks.one import One
from vitrail.tasks.several import Several
from vitrail.tasks.task import Task
from vitrail.training.distill_config import Distill
from vitrail.training.distillation import make_distillation
from vitrail.training.listener import Listener
from vitrail.training.loop import Trainer
from vitrail.training.objectives import Supervised, make_objective
from vitrail.training.recipes import read_changes
from vitrail.training.result import Run
from vitrail.training.setup import Setup, plain_loader, prepare_run, training_loader
from vitrail.training.snapshots import list_snapshots
from vitrail.training.teacher import Teacher, TeacherComparison
from vitrail.training.teacher_answers import keep_answers
from vitrail.training.teacher_comparison import compare_with_teacher
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.write import write_checkpoint

from .conftest import quick_config
from .test_loop import assert_same_run, run_victim
from .victims import train_until_killed

DIGITS = tuple("0123456789")
LARGER = Preprocess(size=(16, 16), channels=1, mean=(0.3,), std=(0.2,), interpolation="bicubic", crop=0.9)
STUDENT = {"mixup": 0.0, "label_smoothing": 0.0, "ema": None}


def write_teacher(
    folder: Path,
    classes: tuple[str, ...] = DIGITS,
    *,
    name: str = "teacher",
    spec: Preprocess = LARGER,
    task: Task | None = None,
    bias: float = 0.0,
) -> Path:
    """A model that nobody has trained, at a size and with a mean and std of its own."""
    config = variant("compact-8", num_classes=len(classes), channels=spec.channels)
    model = randomize(ViT(replace(config, image_size=spec.size)))
    torch.nn.init.constant_(model.head.bias, bias)
    checkpoint = Checkpoint(
        config=model.config, tensors=model.state_dict(), preprocess=spec, classes=classes, task=task or One()
    )
    path = folder / f"{name}.safetensors"
    write_checkpoint(checkpoint, path)
    return path


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_teacher(tmp_path_factory.mktemp("teacher"))


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def sigmoid(odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-odds))


def some_logits(seed: int, columns: int = 10) -> torch.Tensor:
    return 3 * torch.randn(7, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 2.5, 8.0])
def test_one_class_has_the_loss_and_the_gradient_of_the_paper(temperature: float) -> None:
    """T² Σ p log(p / q), and its derivative T (q − p), over the pictures."""
    outputs, answers = some_logits(0).requires_grad_(), some_logits(1)
    loss = One().imitation(outputs, answers, temperature, hard=False)
    loss.backward()
    q, p = (softmax(logits.detach().numpy() / temperature) for logits in (outputs, answers))
    assert loss.item() == pytest.approx(temperature**2 * (p * np.log(p / q)).sum() / 7, rel=1e-9)
    assert outputs.grad is not None
    np.testing.assert_allclose(outputs.grad.numpy(), temperature * (q - p) / 7, rtol=1e-6, atol=1e-12)


def test_several_labels_have_a_divergence_each() -> None:
    outputs, answers = some_logits(0).requires_grad_(), some_logits(1)
    loss = Several().imitation(outputs, answers, 2.0, hard=False)
    loss.backward()
    q, p = (sigmoid(logits.detach().numpy() / 2) for logits in (outputs, answers))
    expected = 4 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean()
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    assert outputs.grad is not None
    np.testing.assert_allclose(outputs.grad.numpy(), 2 * (q - p) / 70, rtol=1e-6, atol=1e-12)


def test_values_are_compared_in_the_students_units() -> None:
    """A teacher whose values have another mean and std, in another order."""
    own, teachers = Number(mean=(10.0, 100.0), std=(2.0, 30.0)), Number(mean=(80.0, 12.0, 5.0), std=(20.0, 4.0, 1.0))
    said = torch.tensor([[0.5, -1.0, 9.0], [2.0, 1.5, 9.0]])
    answers = own.learned_from(said, teachers, [1, 0])
    values = np.array([[-1.0 * 4 + 12, 0.5 * 20 + 80], [1.5 * 4 + 12, 2.0 * 20 + 80]])
    np.testing.assert_allclose(answers.numpy(), (values - (10, 100)) / (2, 30), rtol=1e-6)
    outputs = torch.randn(2, 2)
    loss = own.imitation(outputs, answers, 4.0, hard=False)
    assert loss.item() == pytest.approx(np.square(outputs.numpy() - answers.numpy()).mean(), rel=1e-5)


def test_hard_answers_are_labels() -> None:
    outputs, answers = some_logits(0), some_logits(1)
    rows = np.arange(7)
    chosen = -np.log(softmax(outputs.numpy())[rows, answers.numpy().argmax(axis=1)]).mean()
    assert One().imitation(outputs, answers, 4.0, hard=True).item() == pytest.approx(chosen)
    shares, applies = sigmoid(outputs.numpy()), answers.numpy() > 0
    expected = -np.where(applies, np.log(shares), np.log(1 - shares)).mean()
    assert Several().imitation(outputs, answers, 4.0, hard=True).item() == pytest.approx(expected)


def batch_of(setup: Setup, count: int = 8) -> Batch:
    return next(iter(plain_loader(setup, "train", Ranks(), count)))


def test_the_objective_mixes_both_losses(make_setup: Callable[..., Setup], teacher: Path) -> None:
    """(1 − w) of the labels' + w of the teacher's + the cosine distance of the projected features, written out."""
    settings = {"distill_weight": 0.3, "distill_temperature": 2.0, "distill_features": 0.7}
    setup = make_setup(teacher=str(teacher), **settings, **STUDENT)
    objective, batch = make_objective(setup), batch_of(setup)
    outcome = objective.train()(batch)
    assert isinstance(objective, Supervised)
    assert objective.distillation is not None
    assert objective.distillation.projection is not None
    said = objective.distillation.teacher.look(batch.images).double().numpy()
    answers, theirs = said[:, :10], said[:, 10:]
    with torch.no_grad():
        features = setup.model.features(batch.images)
        outputs = setup.model.classify(features).double().numpy()
        projected = objective.distillation.projection(features).double().numpy()
    labels = -np.log(softmax(outputs)[np.arange(8), batch.targets.numpy()]).mean()
    p, q = softmax(answers / 2), softmax(outputs / 2)
    imitation = 4 * (p * np.log(p / q)).sum() / 8
    norms = np.linalg.norm(projected, axis=1) * np.linalg.norm(theirs, axis=1)
    distance = (1 - (projected * theirs).sum(axis=1) / norms).mean()
    assert outcome.loss.item() == pytest.approx(0.7 * labels + 0.3 * imitation + 0.7 * distance, rel=1e-5)
    parts = {name: value.item() for name, value in outcome.metrics.items()}
    assert parts == pytest.approx({"label_loss": labels, "teacher_loss": imitation, "feature_loss": distance}, rel=1e-5)
    assert objective.eval()(batch).loss.item() == pytest.approx(labels, rel=1e-5), "validation has the task's own"


@pytest.mark.parametrize("kernel", ["pillow", "bytes", "float"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_teacher_sees_what_its_own_preprocessing_makes_of_the_same_pixels(
    kernel: str, channels: int, make_setup: Callable[..., Setup], tmp_path: Path
) -> None:
    mean, std = (0.1, 0.5, 0.7)[:channels], (0.3, 0.2, 0.9)[:channels]
    spec = replace(LARGER, channels=channels, mean=mean, std=std, kernel=kernel, crop=1.0)
    setup = make_setup(teacher=str(write_teacher(tmp_path, spec=spec)), **STUDENT)
    assert setup.teacher is not None
    pixels = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen = setup.teacher.view(normalize(pixels, setup.preprocess))
    torch.testing.assert_close(seen, normalize(fit_tensor(pixels.expand(-1, channels, -1, -1), spec), spec))


def test_answers_are_matched_by_name(make_setup: Callable[..., Setup], tmp_path: Path) -> None:
    """One with the same weights for each name, in another order, and among more: the answers are the same."""
    setup = make_setup(teacher=str(write_teacher(tmp_path)), **STUDENT)
    images = batch_of(setup).images
    assert setup.teacher is not None
    expected = setup.teacher.look(images)
    plain = load_file(tmp_path / "teacher.safetensors")
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    names = ("spade", *(DIGITS[index] for index in order), "heart")
    write_teacher(tmp_path, names, name="more")
    more = vitrail.load(tmp_path / "more.safetensors")
    weights = {name: tensor for name, tensor in plain.items() if not name.startswith("head.")}
    for name in ("head.weight", "head.bias"):
        rows = plain[name][order]
        weights[name] = torch.cat([torch.full_like(rows[:1], 3.0), rows, torch.full_like(rows[:1], -2.0)])
    more.model.load_state_dict(weights)
    more.save(tmp_path / "more.safetensors")
    wider = make_setup(teacher=str(tmp_path / "more.safetensors"), **STUDENT)
    assert wider.teacher is not None
    torch.testing.assert_close(wider.teacher.look(images), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("0", "1", "two", *DIGITS[3:])}, r"teacher= must have all classes .* lacks 2; it has two, which"),
        ({"task": Several()}, r"cannot be used: the model learned .*several"),
        ({"spec": replace(LARGER, channels=4, mean=(0.5,) * 4, std=(0.5,) * 4)}, r"of 1 channel; it takes 4"),
    ],
)
def test_a_teacher_of_something_else_is_refused_before_the_pictures_are_checked(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_teacher(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        vitrail.plan("digits", teacher=path)


def test_a_teacher_without_a_head_is_no_teacher(tmp_path: Path) -> None:
    vitrail.convert(write_teacher(tmp_path), tmp_path / "headless.safetensors", num_classes=0)
    with pytest.raises(ConfigError, match="teacher= must be a classifier, and .*headless.safetensors has no head"):
        vitrail.plan("digits", teacher=tmp_path / "headless.safetensors")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distill_weight": 0.3}, "distill_weight= needs a teacher; pass teacher= too"),
        ({"teacher": "t", "distill_weight": 1.5}, "between 0 and 1"),
        ({"teacher": "t", "distill_temperature": 0.0}, "above 0"),
        ({"teacher": "t", "distill_temperature": 2.0, "distill_hard": True}, "hard=True uses only the highest"),
        ({"teacher": "t", "distill_features": -1.0}, "at least 0"),
        ({"teacher": "t", "teacher_sha256": "abc"}, "64 hexadecimal digits"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Distill(**settings)


@pytest.mark.parametrize("settings", [{"distill_hard": True}, {"distill_temperature": 2.0}])
def test_numbers_have_no_probabilities_to_learn_from(
    settings: dict[str, Any], make_setup: Callable[..., Setup], tmp_path: Path
) -> None:
    setup = make_setup(teacher=str(write_teacher(tmp_path)), **settings, **STUDENT)
    with pytest.raises(ConfigError, match=f"{next(iter(settings))}= is for the probabilities of classes or labels"):
        make_distillation(replace(setup, task=Number(mean=(0.0,), std=(1.0,))))


def test_a_teacher_is_not_asked_about_outliers() -> None:
    with pytest.raises(ConfigError, match="teacher= cannot be combined with outlier_rate="):
        vitrail.plan("digits", teacher="t", outlier_rate=0.2)


def test_a_config_file_may_be_of_a_run_with_another_teacher(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("distill:\n  teacher: old.safetensors\n  teacher_sha256: " + 32 * "ab", encoding="utf-8")
    for passed in ({}, {"teacher": "new.safetensors"}):  # the same file may have been trained anew
        assert "teacher_sha256" not in read_changes("train", None, file, passed)
    known = {"teacher_sha256": 32 * "cd"}
    assert read_changes("train", None, file, known)["teacher_sha256"] == 32 * "cd"


def test_answers_do_not_depend_on_the_students_precision(make_setup: Callable[..., Setup], teacher: Path) -> None:
    setup = make_setup(teacher=str(teacher), **STUDENT)
    assert setup.teacher is not None
    images = batch_of(setup).images
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = setup.teacher.look(images)
    assert torch.equal(rounded, setup.teacher.look(images))


def test_the_projection_is_trained_and_saved_and_not_in_the_checkpoint(
    make_trainer: Callable[..., Trainer], teacher: Path
) -> None:
    trainer = make_trainer(teacher=str(teacher), distill_features=1.0, epochs=1, ema=0.9)
    name = "distillation.projection.weight"
    before = trainer.objective.state_dict()[name].clone()
    trainer.run()
    saved = load_file(next(list_snapshots(trainer.last)[-1].glob("*.safetensors")))
    assert not torch.equal(saved[name], before)
    assert {f"average.{name}", f"optimizer.{name}.exp_avg"} <= saved.keys()
    assert not any("teacher" in key for key in saved)
    assert not any("distill" in key for key in load_file(trainer.folder / "weights" / "best.safetensors"))


def test_a_resumed_run_has_the_same_teacher(make_setup: Callable[..., Setup], tmp_path: Path) -> None:
    setup = make_setup(teacher=str(write_teacher(tmp_path)))
    assert setup.teacher is not None
    assert setup.config.distill.teacher_sha256 == setup.teacher.sha256
    assert prepare_run(setup.config, setup.dataset).config == setup.config
    write_teacher(tmp_path, bias=1.0)
    with pytest.raises(ConfigError, match=r"teacher.safetensors has changed: the run began with a teacher"):
        prepare_run(setup.config, setup.dataset)


@in_fuzz_only
def test_an_export_teaches_the_same(make_setup: Callable[..., Setup], teacher: Path, tmp_path: Path) -> None:
    vitrail.export(teacher, tmp_path / "teacher.onnx")
    losses = []
    for source in (teacher, tmp_path / "teacher.onnx"):
        setup = make_setup(teacher=str(source), distill_features=0.5, **STUDENT)
        losses.append(make_objective(setup).train()(batch_of(setup)).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@in_fuzz_only
@pytest.mark.parametrize("changes", [{"mixup": 0.5}, {"mixup": 0.0, "views": 2}], ids=["asked", "kept"])
def test_killed_and_resumed_equals_uninterrupted(changes: dict[str, Any], teacher: Path, tmp_path: Path) -> None:
    changes = {"teacher": str(teacher), "distill_features": 0.5, "save_minutes": 1e-4, "epochs": 3, **changes}
    assert run_victim(tmp_path / "whole", 0, threads=2, **changes) == 0
    for kill_at in (5, 30):
        assert run_victim(tmp_path / "parts", kill_at, threads=2, **changes) == -9
    assert run_victim(tmp_path / "parts", 0, threads=2, **changes) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@in_fuzz_only
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("views", [0, 2])
def test_two_ranks_equal_one(strategy: str, views: int, teacher: Path, tmp_path: Path) -> None:
    plain = {"optimizer": "sgd", "lr": 0.05, "ema": 0.9, "mixup": 0.0, "micro_batch": 16, "views": views}
    plain |= {"teacher": str(teacher), "distill_features": 0.5}
    assert run(train_until_killed, quick_config(**plain), tmp_path / "one") == 0
    assert run_ranks(train_until_killed, quick_config(strategy=strategy, **plain), tmp_path / "two") == [0, 0]
    one, two = (load_file(tmp_path / name / "weights" / "best.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=2e-5)


def keep(setup: Setup, folder: Path) -> torch.Tensor:
    return keep_answers(setup, Ranks(), Listener(), folder)


def test_answers_are_kept_for_fixed_views_and_the_same_as_asked(
    make_setup: Callable[..., Setup], teacher: Path, tmp_path: Path
) -> None:
    """Each row belongs to the pixels that its batch shows, in every epoch."""
    setup = make_setup(teacher=str(teacher), views=2, distill_features=0.5, **STUDENT)
    assert setup.teacher is not None
    assert (setup.kept_views, setup.teacher.width) == (2, 10 + setup.model.config.feature_width)
    known, loader = keep(setup, tmp_path), training_loader(setup, Ranks())
    assert known.dtype == torch.float16
    assert known.shape == (512, setup.teacher.width)
    seen: dict[int, torch.Tensor] = {}
    for epoch in range(4):
        loader.set_epoch(epoch)
        batch = next(iter(loader))
        assert set((batch.indices // 256).tolist()) == {epoch % 2}
        said = setup.teacher.look(batch.images)
        torch.testing.assert_close(known[batch.indices], said, rtol=2e-3, atol=2e-3)
        for row, image in zip(batch.indices.tolist(), batch.images, strict=True):
            assert torch.equal(seen.setdefault(row, image), image)


def test_kept_answers_are_read_again_and_damage_is_noticed(
    make_setup: Callable[..., Setup], teacher: Path, tmp_path: Path, monkeypatch
) -> None:
    setup = make_setup(teacher=str(teacher), views=2, **STUDENT)
    known = keep(setup, tmp_path)
    asked: list[int] = []
    look = Teacher.look

    def count(self: Teacher, images: torch.Tensor) -> torch.Tensor:
        asked.append(len(images))
        return look(self, images)

    monkeypatch.setattr(Teacher, "look", count)
    assert torch.equal(keep(setup, tmp_path), known)
    assert not asked
    path = tmp_path / "answers" / "view-1.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert torch.equal(keep(setup, tmp_path), known), "the same bits"
    assert sum(asked) == 256, "of the damaged view only"
    other = make_setup(teacher=str(teacher), views=2, flip_rate=0.3, **STUDENT)
    assert not torch.equal(keep(other, tmp_path), known)
    assert sum(asked) == 256 + 512, "other pixels"


@pytest.mark.parametrize(
    ("changes", "views"),
    [
        ({"views": 3}, 3),
        ({"crop": "none", "flip_rate": 0.0}, 1),
        ({}, 0),
        ({"views": 2, "mixup": 0.4}, 0),
    ],
)
def test_which_views_are_fixed(changes: dict[str, Any], views: int, make_setup, teacher: Path) -> None:
    assert make_setup(**{**STUDENT, "teacher": str(teacher), **changes}).kept_views == views


def test_a_head_on_features_learns_from_answers_about_the_same_pictures(
    make_setup: Callable[..., Setup], teacher: Path, tmp_path: Path
) -> None:
    write_teacher(tmp_path, name="start", spec=replace(LARGER, size=(8, 8)))
    head = {"model": None, "weights": str(tmp_path / "start.safetensors"), "train": "head", "teacher": str(teacher)}
    plain = {"crop": "none", "flip_rate": 0.0, "optimizer": "sgd", "micro_batch": None}
    setup = make_setup(**head, **plain, **STUDENT)
    trainer = Trainer(setup, Ranks(), tmp_path)
    assert isinstance(trainer.objective, Supervised)
    assert trainer.objective.distillation is not None
    assert setup.teacher is not None
    known, batch = trainer.objective.distillation.known, batch_of(setup)
    assert known is not None
    torch.testing.assert_close(known[batch.indices], setup.teacher.look(batch.images), rtol=2e-3, atol=2e-3)
    trainer.run()
    assert trainer.state.lowest_train_loss < float("inf")
    with pytest.raises(ConfigError, match=r"distill_features= training only the head does not change the features"):
        make_objective(make_setup(**head, **plain, **STUDENT, distill_features=1.0))


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_distillation_token_learns_from_the_teacher_and_cls_from_the_labels(
    weight: float, make_setup: Callable[..., Setup], teacher: Path, tmp_path: Path
) -> None:
    config = replace(TINY, image_size=(8, 8), patch_size=(4, 4), channels=1, num_classes=10)
    config = replace(config, registers=1, summary_tokens=2, distilled=True)
    model = randomize(ViT(config)).eval()
    spec = replace(LARGER, size=(8, 8))
    deit = Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec, classes=DIGITS)
    write_checkpoint(deit, tmp_path / "deit.safetensors")
    start = {"model": None, "weights": str(tmp_path / "deit.safetensors"), "teacher": str(teacher)}
    setup = make_setup(**start, distill_weight=weight, distill_hard=True, **STUDENT)
    assert setup.model.config.distilled
    batch = batch_of(setup)
    torch.testing.assert_close(setup.model.eval()(batch.images), model(batch.images), rtol=1e-4, atol=1e-4)
    objective = make_objective(setup).train()
    outcome = objective(batch)
    outcome.loss.backward()
    assert setup.model.head is not None
    assert setup.model.distilled_head is not None
    idle, busy = (setup.model.distilled_head, setup.model.head)[:: 1 if weight == 0 else -1]
    assert idle.weight.grad is not None
    assert not idle.weight.grad.any()
    assert busy.weight.grad is not None
    assert busy.weight.grad.any()
    cls, distilled = setup.model.classify_apart(setup.model.features(batch.images))
    assert setup.teacher is not None
    chosen = setup.teacher.look(batch.images).argmax(dim=1)
    expected = F.cross_entropy(distilled, chosen) if weight else F.cross_entropy(cls, batch.targets)
    assert outcome.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert not make_setup(**start, train="lora", **STUDENT).model.config.distilled, "there, one head reads both tokens"


def test_the_report_compares_teacher_and_student(
    make_setup: Callable[..., Setup], teacher: Path, tmp_path: Path
) -> None:
    setup = make_setup(teacher=str(teacher), **STUDENT)
    theirs = measure_split(vitrail.load(teacher), setup.dataset, "val")
    own = replace(theirs, logits=np.random.default_rng(0).normal(size=theirs.logits.shape).astype(np.float32))
    finished = Run(folder=tmp_path, epochs=1, best_epoch=1, seconds=1.0, val=None, test=None, measurement=own)
    run = compare_with_teacher(setup, finished, Listener())
    assert run.teacher is not None
    answers = [each.logits.argmax(axis=1) for each in (own, theirs)]
    right = [each == own.targets for each in answers]
    assert run.teacher.agreement == pytest.approx((answers[0] == answers[1]).mean())
    assert 0 < run.teacher.agreement < 1
    assert run.teacher.right == {
        "both": (right[0] & right[1]).sum(),
        "student": (right[0] & ~right[1]).sum(),
        "teacher": (~right[0] & right[1]).sum(),
        "none": (~right[0] & ~right[1]).sum(),
    }
    assert run.teacher.teacher["accuracy"] == pytest.approx(right[1].mean())
    assert from_dict(TeacherComparison, run.facts()["teacher"]) == run.teacher
    page = teacher_section(run.teacher)
    assert f"{run.teacher.agreement:.1%} of them" in str(page)
    assert any("teacher on val: accuracy" in str(line) for line in run.scores())
