"""Settings that cannot work say so, by name."""

import pytest

from vitrail.errors import ConfigError
from vitrail.training import Machine, Optim, Schedule, Start


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Optim(lr=-1), "lr= must be between"),
        (lambda: Optim(lr=float("nan")), "lr= must be between"),
        (lambda: Optim(ema=1.0), "ema= must be between"),
        (lambda: Optim(clip=0.0), "clip= must be above 0"),
        (lambda: Optim(layer_decay=0.0), "layer_decay= must be between"),
        (lambda: Optim(optimizer="lamb"), "must be one of adamw, sgd, muon"),
        (lambda: Schedule(epochs=0), "epochs= must be between"),
        (lambda: Schedule(minutes=0), "minutes= must be above 0"),
        (lambda: Schedule(patience=0), "patience= must be at least 1"),
        (lambda: Schedule(schedule="wsd", warmup=0.6, cooldown=0.6), "must sum to at most 1"),
        (lambda: Machine(batch_size=0), "batch_size= must be at least 1"),
        (lambda: Machine(batch_size="many"), "batch_size"),
        (lambda: Machine(micro_batch=0), "micro_batch= must be at least 1"),
        (lambda: Machine(workers=-1), "workers= must be between 0 and"),
        (lambda: Machine(workers=100_000), "workers= must be between 0 and"),
        (lambda: Machine(save_minutes=0.0), "save_minutes= must be above 0"),
        (lambda: Start(model="vit-b16", weights="w"), "not both"),
        (lambda: Start(dropout=1.0), "dropout= must be between"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_one_number_is_a_square() -> None:
    assert Start(image_size=64).image_size == (64, 64)  # type: ignore[arg-type]
