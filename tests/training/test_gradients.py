"""Gradients in micro-batches and lanes equal those of the whole batch."""

import copy
from collections.abc import Callable, Generator
from threading import Event

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from vitrail.data import Batch
from vitrail.model import ConvStem, Rates, ViT, ViTConfig
from vitrail.ranks import Ranks
from vitrail.training.gradients import Lanes, Outcome, Plain, lane_batch, spread, suits_lanes

IMAGES = torch.randn(22, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 7, (22,), generator=torch.Generator().manual_seed(1))
SHARES = torch.softmax(torch.randn(22, 7, generator=torch.Generator().manual_seed(2)), dim=1)


class CrossEntropy(nn.Module):
    """The smallest objective."""

    on_pictures, draws = True, False

    def __init__(self, model: ViT, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> Outcome:
        outputs = self.model(batch.images).float()
        loss = F.cross_entropy(outputs, batch.targets, label_smoothing=self.smoothing)
        return Outcome(loss, {"largest": outputs.max(dim=1).values.mean()}, outputs)

    def score(self, outcome: Outcome, batch: Batch) -> tuple[float, int]:
        assert outcome.outputs is not None
        right = outcome.outputs.argmax(1) == batch.targets
        return float(F.cross_entropy(outcome.outputs, batch.targets, reduction="sum")), int(right.sum())


def batch_of(targets: torch.Tensor) -> Batch:
    return Batch(IMAGES, targets, torch.arange(len(IMAGES)))


def gradients(engine: Plain | Lanes, model: ViT, targets: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    engine.accumulate(batch_of(targets))
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("targets", [LABELS, SHARES], ids=["labels", "shares"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_all_ways_equal_one_backward(targets, smoothing: float, make_model: Callable[..., ViT]) -> None:
    model = make_model().train()
    F.cross_entropy(model(IMAGES), targets, label_smoothing=smoothing).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    goal = CrossEntropy(model, smoothing)
    engines = (
        Plain(goal, goal, goal, None, "float32"),
        Plain(goal, goal, goal, 5, "float32"),
        Lanes(goal, goal, goal, 5, 1),
        Lanes(goal, goal, goal, 5, 2),
    )
    largest = model(IMAGES).max(dim=1).values.mean()
    for engine in engines:
        torch.testing.assert_close(engine.accumulate(batch_of(targets))[1]["largest"], largest)
        for mine, theirs in zip(gradients(engine, model, targets), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_lanes_compute_no_more_after_an_error(make_model: Callable[..., ViT]) -> None:
    """Or after a signal, which is an exception too: a process ends only when its threads have nothing left to do."""
    goal, begun, stopped = CrossEntropy(make_model()), list[int](), Event()

    def forward(batch: Batch) -> Outcome:
        begun.append(len(batch.images))
        if len(begun) == 1:
            raise KeyboardInterrupt
        assert stopped.wait(60)
        return goal(batch)

    lanes = Lanes(goal, forward, goal, 1, 1)
    with pytest.raises(KeyboardInterrupt):
        lanes.accumulate(batch_of(LABELS))
    stopped.set()
    lanes._pool.shutdown()
    assert len(begun) <= 2


def test_lanes_give_the_same_bits_whatever_their_number(make_model: Callable[..., ViT]) -> None:
    model = make_model().train()
    goal = CrossEntropy(model)
    first = gradients(Lanes(goal, goal, goal, 4, 1), model, LABELS)
    for num_lanes in (2, 3):
        engine = Lanes(goal, goal, goal, 4, num_lanes)
        for _ in range(3):
            for a, b in zip(gradients(engine, model, LABELS), first, strict=True):
                assert torch.equal(a, b)


def test_gradients_lie_in_memory_as_the_weights_do(make_model: Callable[..., ViT]) -> None:
    """Fused optimisers do not look at strides, and convolutions that compute pixel by pixel give others."""
    model = make_model(stem=ConvStem(widths=(8, 16), strides=(1, 2), norm="group")).train()
    goal, copied = CrossEntropy(model), copy.deepcopy(model)
    Lanes(goal, goal, goal, 4, 2).accumulate(batch_of(LABELS))
    for weight, other in zip(model.parameters(), copied.parameters(), strict=True):
        assert weight.grad is not None
        other.grad = weight.grad.clone()
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()
    torch.optim.AdamW(copied.parameters(), lr=0.1).step()
    for weight, other in zip(model.parameters(), copied.parameters(), strict=True):
        torch.testing.assert_close(weight, other)


def test_scores_are_sums(make_model: Callable[..., ViT]) -> None:
    model = make_model()
    with torch.no_grad():
        logits = model(IMAGES)
    goal = CrossEntropy(model)
    for engine in (Plain(goal, goal, goal, 5, "float32"), Lanes(goal, goal, goal, 5, 2)):
        losses, correct = zip(*engine.score(batch_of(LABELS)), strict=True)
        assert len(losses) == 5
        assert sum(losses) == pytest.approx(F.cross_entropy(logits, LABELS, reduction="sum").item(), rel=1e-5)
        assert sum(correct) == (logits.argmax(1) == LABELS).sum()


def test_bf16_is_near_float32(make_model: Callable[..., ViT]) -> None:
    model = make_model().train()
    goal = CrossEntropy(model)
    exact, _ = Plain(goal, goal, goal, None, "float32").accumulate(batch_of(LABELS))
    rough, _ = Plain(goal, goal, goal, None, "bf16").accumulate(batch_of(LABELS))
    assert rough != exact
    assert rough == pytest.approx(exact.item(), rel=0.02)


def test_models_with_a_state_are_not_shared_by_threads(make_model: Callable[..., ViT]) -> None:
    cpu = torch.device("cpu")
    assert suits_lanes(make_model(), cpu)
    assert suits_lanes(make_model(stem=ConvStem(widths=(8,), strides=(1,), norm="group")), cpu)
    assert not suits_lanes(make_model(), torch.device("cuda"))
    assert not suits_lanes(make_model(rates=Rates(path=0.1)), cpu)
    assert not suits_lanes(make_model(stem=ConvStem(widths=(8,), strides=(1,))), cpu)
    assert not suits_lanes(make_model(width=512, heads=8), cpu)


def test_lanes_get_equal_shares(make_model: Callable[..., ViT]) -> None:
    model = make_model()  # 17 tokens: 240 pictures fill the cache
    assert [lane_batch(model, 128, lanes) for lanes in (1, 2, 3, 64)] == [128, 64, 43, 2]
    assert [lane_batch(model, size, 2) for size in (1, 480, 500, 540, 2000)] == [1, 240, 250, 135, 200]


@pytest.fixture
def group() -> Generator[None]:
    """A group of this process only."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_gradients_lie_in_what_is_sent(tiny: ViTConfig, group: None) -> None:
    """Otherwise, DDP would keep all of them twice."""
    model = ViT(tiny)
    copied = spread(model, Ranks(rank=0, world_size=2), "ddp")
    copied(torch.randn(2, 3, *tiny.image_size)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    storages = {gradient.untyped_storage().data_ptr(): gradient.untyped_storage().nbytes() for gradient in gradients}
    assert len(storages) < len(gradients)
    assert sum(storages.values()) == sum(gradient.nbytes for gradient in gradients)
