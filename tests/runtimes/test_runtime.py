"""`load` finds what runs a source in one table; what belongs to the model reaches the predictor without tensors."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.prediction.conftest import CLASSES

import vitrail
from vitrail.errors import WeightsError
from vitrail.runtimes import runtime as dividing
from vitrail.runtimes.runtime import (
    TOKENS_PER_SHARE,
    Floats,
    LoadOptions,
    compute_divided,
    open_runtime,
)
from vitrail.threads import cores, cores_of_this_thread, start_workers
from vitrail.weights.metadata import Metadata
from vitrail.weights.resolve import Located, locate


def test_torch_runs_checkpoints(checkpoint_file: Path) -> None:
    runtime, facts = open_runtime(locate(checkpoint_file), LoadOptions())
    assert (runtime.num_classes, facts.classes) == (7, CLASSES)
    assert type(facts) is Metadata
    assert not any(isinstance(value, torch.Tensor) for value in facts.facts().values())
    assert vitrail.load(checkpoint_file).facts() == facts.facts()


def test_what_no_runtime_opens(tmp_path: Path) -> None:
    located = Located(name="a.upside", path=tmp_path / "a.upside")
    with pytest.raises(
        WeightsError, match=r"ends in .upside, which none of the runtimes opens \(torch, ONNX Runtime, OpenVINO\)"
    ):
        open_runtime(located, LoadOptions())


Seen = list[tuple[int, int, int]]  # pictures, cores and thread of each call


@pytest.fixture
def seen() -> Seen:
    return []


@pytest.fixture
def compute(seen: Seen) -> Callable[[Floats], list[Floats]]:
    def work(images: Floats) -> list[Floats]:
        seen.append((len(images), cores_of_this_thread(), threading.get_ident()))
        return [2 * images, images.sum(axis=1, keepdims=True)]

    return work


def pictures(count: int) -> Floats:
    return np.arange(3 * count, dtype=np.float32).reshape(count, 3)


def test_each_core_computes_its_share_and_rows_keep_their_order(compute: Callable, seen: Seen) -> None:
    images = pictures(7)
    with cores(3):
        doubled, sums = compute_divided(compute, images, TOKENS_PER_SHARE)
    np.testing.assert_array_equal(doubled, 2 * images)
    np.testing.assert_array_equal(sums, images.sum(axis=1, keepdims=True))
    assert sorted(count for count, _, _ in seen) == [2, 2, 3]
    assert {count for _, count, _ in seen} == {1}, "a worker has one core"
    assert threading.get_ident() not in {thread for _, _, thread in seen}


@pytest.mark.parametrize(
    ("count", "tokens", "on"),
    [
        (1, 10 * TOKENS_PER_SHARE, 2),  # fewer pictures than cores
        (8, TOKENS_PER_SHARE // 8, 2),  # shares that are too small
        (8, TOKENS_PER_SHARE, 1),
    ],
)
def test_what_is_not_worth_dividing_stays_whole(
    count: int, tokens: int, on: int, compute: Callable, seen: Seen
) -> None:
    with cores(on):
        compute_divided(compute, pictures(count), tokens)
    assert seen == [(count, on, threading.get_ident())]


def test_a_worker_divides_nothing(compute: Callable, seen: Seen) -> None:
    with cores(2), start_workers(2) as workers:
        workers.submit(compute_divided, compute, pictures(8), TOKENS_PER_SHARE).result()
    assert [count for count, _, _ in seen] == [8]


def test_an_error_in_a_share_reaches_the_caller() -> None:
    def fail(images: Floats) -> list[Floats]:
        if images[0, 0] > 0:
            raise ValueError("the second share")
        return [images]

    with cores(2), pytest.raises(ValueError, match="the second share"):
        compute_divided(fail, pictures(8), TOKENS_PER_SHARE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own(compute: Callable) -> None:
    with cores(2):
        compute_divided(compute, pictures(8), TOKENS_PER_SHARE)  # the parent's threads exist
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            code = 1
            try:
                code = 0 if len(compute_divided(compute, pictures(8), TOKENS_PER_SHARE)[0]) == 8 else 1
            finally:
                os._exit(code)
        killer = threading.Timer(20, os.kill, (child, 9))  # of a child that waits for ever
        killer.start()
        _, status = os.waitpid(child, 0)
        killer.cancel()
    assert os.waitstatus_to_exitcode(status) == 0


def test_threads_from_before_torch_are_not_used_with_it(monkeypatch: pytest.MonkeyPatch, compute: Callable) -> None:
    made: list[tuple[int, bool, int]] = []

    def workers(*key: int) -> object:
        made.append(key)  # pyright: ignore[reportArgumentType]
        return start_workers(2)

    monkeypatch.setattr(dividing, "_workers", workers)
    with cores(2):
        compute_divided(compute, pictures(8), TOKENS_PER_SHARE)
        monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        compute_divided(compute, pictures(8), TOKENS_PER_SHARE)
    assert [key[1] for key in made] == [True, False]


def test_torch_computes_shares_on_one_core_each() -> None:
    def count(images: Floats) -> list[Floats]:
        return [np.full((len(images), 1), torch.get_num_threads(), dtype=np.float32)]

    with cores(2):
        (threads,) = compute_divided(count, pictures(4), TOKENS_PER_SHARE)
    assert set(threads.ravel()) == {1.0}
