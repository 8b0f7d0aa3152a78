"""Which pictures are computed together, and when."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from vitrail.serving.batching import Batcher, Item, Slots
from vitrail.serving.exchange import Problem


class Cores:
    """A worker that only notes what it gets."""

    def __init__(self, threads: int = 2, max_batch: int = 4, max_wait: float = 0.0) -> None:
        self.free = self.spare = self.threads = threads
        self.explaining, self.decoding, self.max_batch, self.max_wait = 0, 0, max_batch, max_wait
        self.always_waits = True
        self.batches: list[tuple[str, list[Any]]] = []

    def start(self, kind: str, items: Sequence[Item], alone: bool) -> None:
        if items[0].large:
            self.spare -= 1
            self.decoding += items[0].pixels
        else:
            self.free -= 1
            self.explaining += kind == "explain"
        self.batches.append((kind, [item.facts["n"] for item in items]))

    def sizes(self) -> list[int]:
        return [len(items) for _, items in self.batches]


def items(count: int, start: int = 0, pixels: int = 0, client: str = "") -> list[Item]:
    loop = asyncio.get_running_loop()
    return [Item({"n": start + n}, b"", loop.create_future(), pixels, client) for n in range(count)]


def test_what_waits_is_divided_among_free_cores() -> None:
    async def work() -> None:
        batcher, cores = Batcher(100), Cores()
        batcher.worker = cast("Slots", cores)
        batcher.submit("logits", items(1))  # nobody waits while a core is idle
        assert cores.sizes() == [1]
        batcher.submit("logits", items(11, 1))
        assert cores.sizes() == [1, 4]  # one core was left, and takes what max_batch allows
        cores.free = 2
        batcher.answered(1, 0.1)
        assert cores.sizes() == [1, 4, 4, 3]
        assert [n for _, each in cores.batches for n in each] == list(range(12))  # first come, first served
        cores.free, cores.batches = 2, []
        batcher.submit("logits", items(5))
        assert cores.sizes() == [3, 2]

    asyncio.run(work())


def test_the_queue_is_bounded_and_refuses_whole_requests() -> None:
    async def work() -> None:
        batcher = Batcher(5)
        batcher.submit("logits", items(3))
        with pytest.raises(Problem) as caught:
            batcher.submit("features", items(3))
        assert caught.value.code == "queue_full"
        assert caught.value.retry_after == 1
        assert batcher.waiting == 3
        batcher.pace = 7.0
        assert batcher.retry_after() == 21
        batcher.pace = 1e9
        assert batcher.retry_after() == 60

    asyncio.run(work())


def test_a_client_that_leaves_takes_its_pictures_along() -> None:
    async def work() -> None:
        batcher, cores = Batcher(5), Cores(threads=1)
        gone, stays = items(3), items(2, 3)
        batcher.submit("logits", gone)
        batcher.submit("logits", stays)
        batcher.withdraw("logits", gone)
        assert batcher.waiting == 2
        assert all(item.future.cancelled() for item in gone)
        batcher.worker = cast("Slots", cores)
        batcher.pump()
        assert cores.batches == [("logits", [3, 4])]

    asyncio.run(work())


def test_kinds_are_not_mixed_and_explanations_leave_a_core() -> None:
    async def work() -> None:
        batcher, cores = Batcher(50), Cores(threads=3)
        batcher.submit("explain", items(5))
        batcher.submit("logits", items(1, 10))
        batcher.submit("features", items(1, 11))
        batcher.worker = cast("Slots", cores)
        batcher.pump()
        assert cores.batches == [("explain", [0]), ("explain", [1]), ("logits", [10])]

    asyncio.run(work())


def test_small_pictures_pass_large_ones_by() -> None:
    async def work() -> None:
        batcher, cores = Batcher(100), Cores(threads=1)
        batcher.worker = cast("Slots", cores)
        batcher.submit("logits", [*items(3, 0, 49_000_000), *items(1, 3, 1000)])
        batcher.submit("explain", items(1, 4, 49_000_000))
        batcher.submit("features", items(2, 5, 1000))
        assert cores.batches == [("logits", [0]), ("logits", [3])]  # one thread for large ones, one for the others
        cores.free = 1
        batcher.answered(1, 0.1)
        assert cores.batches[2:] == [("features", [5, 6])]
        for _ in range(3):
            cores.spare, cores.decoding = 1, 0
            batcher.answered(1, 0.1)
        assert cores.batches[3:] == [("logits", [1]), ("logits", [2]), ("explain", [4])]  # each by itself

    asyncio.run(work())


def test_as_many_large_pictures_at_once_as_their_pixels_allow() -> None:
    async def work() -> None:
        for pixels, at_once in ((12_000_000, 4), (49_000_000, 1), (80_000_000, 1)):
            batcher, cores = Batcher(100), Cores(threads=8)
            batcher.worker = cast("Slots", cores)
            batcher.submit("logits", items(8, 0, pixels))
            assert cores.sizes() == [1] * at_once

    asyncio.run(work())


def test_clients_take_turns_by_pixels() -> None:
    async def work() -> None:
        batcher, cores = Batcher(100), Cores(threads=1)
        batcher.submit("logits", items(5, 0, 40_000_000, "greedy"))
        batcher.submit("logits", items(3, 10, 12_000_000, "modest"))
        batcher.worker = cast("Slots", cores)
        for _ in range(4):
            cores.spare, cores.decoding = 1, 0
            batcher.pump()
        batcher.submit("logits", items(1, 20, 2_000_000, "late"))
        for _ in range(5):
            cores.spare, cores.decoding = 1, 0
            batcher.pump()
        assert [n for _, each in cores.batches for n in each] == [0, 10, 11, 12, 20, 1, 2, 3, 4]

    asyncio.run(work())


def test_waiting_for_company_ends_when_the_batch_is_full_or_the_time_is_up() -> None:
    async def work() -> None:
        batcher, cores = Batcher(50), Cores(threads=2, max_batch=2, max_wait=0.02)
        batcher.worker = cast("Slots", cores)
        batcher.submit("logits", items(1))
        assert cores.batches == []
        batcher.submit("logits", items(2, 1))
        assert cores.sizes() == [2]  # full; and the third waits for company of its own
        await asyncio.sleep(0.05)
        assert cores.sizes() == [2, 1]

    asyncio.run(work())


def test_a_measured_wait_is_for_pictures_that_come_in_company() -> None:
    async def work() -> None:
        batcher, cores = Batcher(50), Cores(threads=2, max_batch=4, max_wait=10.0)
        cores.always_waits = False
        batcher.worker = cast("Slots", cores)
        batcher.submit("logits", items(1))
        assert cores.sizes() == [1]  # nobody else is in sight
        batcher.submit("logits", items(1, 1))
        assert cores.sizes() == [1]  # the other core is busy, so that more may come
        batcher.submit("logits", items(3, 2))
        assert cores.sizes() == [1, 4]
        cores.free = 2
        batcher.submit("logits", items(1, 5))
        assert cores.sizes() == [1, 4]  # the last batch was in company
        batcher._wake()

    asyncio.run(work())
