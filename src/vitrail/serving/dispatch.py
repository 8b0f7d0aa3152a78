"""What the routes work with: the models, their queues, and how long to wait for an answer."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from vitrail.serving.batching import LARGE, Answer, Item, Kind
from vitrail.serving.exchange import Buffer, exchange_of
from vitrail.serving.problems import Problem
from vitrail.serving.settings import ServeSettings
from vitrail.serving.supervisor import START_RETRY, Host, Say, restarting
from vitrail.serving.telemetry import Metrics
from vitrail.serving.uploads import ClientGoneError

Facts = Mapping[str, Any]
Asked = tuple[dict[str, Any], bytes, int]  # what is asked about a picture, the picture, its pixels


class Service:
    """The models of one front process."""

    def __init__(self, models: Mapping[str, str], settings: ServeSettings, say: Say = lambda _: None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.buffer = Buffer(settings.max_buffer)
        self.hosts = {name: Host(name, source, settings, self.metrics, say) for name, source in models.items()}
        self.pixels = 0  # of the large pictures that wait or are computed
        self.draining = False

    @property
    def ready(self) -> bool:
        return not self.draining and all(host.ready for host in self.hosts.values())

    async def start(self) -> None:
        """Load all models, one after the other: each measures what suits it."""
        for host in self.hosts.values():
            await host.start()

    async def stop(self) -> None:
        await asyncio.gather(*(host.stop() for host in self.hosts.values()))

    def find(self, name: str | None) -> Host:
        """The model of a request; the first one by default."""
        host = next(iter(self.hosts.values())) if name is None else self.hosts.get(name)
        if host is None:
            known = ", ".join(self.hosts)
            raise Problem("unknown_model", f"there is no model {str(name)[:64]!r}; this service has {known}.")
        if not host.facts:
            raise Problem("not_ready", f"the model {host.name} is being loaded.", retry_after=START_RETRY)
        return host

    async def ask(self, request: Request, host: Host, kind: Kind, items: Sequence[Asked]) -> list[Answer]:
        """The answers of one model, unless the client leaves or the time is up."""
        pixels = sum(each for _, _, each in items if each > LARGE)
        if pixels and self.pixels + pixels > self.settings.max_queue_pixels:
            raise Problem(
                "queue_full",
                f"large pictures with {self.pixels:,} pixels are waiting already, and {pixels:,} more would exceed the "
                f"limit of {self.settings.max_queue_pixels:,}.",
                retry_after=host.batcher.retry_after(),
            )
        self.pixels += pixels
        try:
            answers = await self._ask_once(request, host, kind, items)
            while len({answer.model.get("version") for answer in answers}) > 1:  # it was exchanged in between
                answers = await self._ask_once(request, host, kind, items)
        finally:
            self.pixels -= pixels
        return answers

    async def _ask_once(self, request: Request, host: Host, kind: Kind, items: Sequence[Asked]) -> list[Answer]:
        if host.hopeless:
            raise restarting(host.name)
        loop = asyncio.get_running_loop()
        client = exchange_of(request).client
        waiting = [Item(facts, blob, loop.create_future(), pixels, client) for facts, blob, pixels in items]
        host.batcher.submit(kind, waiting)
        answered = _all_answered([item.future for item in waiting])
        left = asyncio.ensure_future(_until_left(request))
        try:
            await asyncio.wait((answered, left), timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if answered.done():
                answered.result()
                answers = [item.future.result() for item in waiting]
                exchange_of(request).computed = max(zip(waiting, answers, strict=True), key=_seconds_of)
                return answers
            if left.done():
                raise ClientGoneError
            raise Problem("timeout", f"there was no answer within {self.settings.timeout:g} seconds.")
        finally:
            left.cancel()
            answered.cancel()
            host.batcher.withdraw(kind, waiting)


def model_of(host: Host, answers: Sequence[Answer]) -> Facts:
    """The facts of the model that has answered; the host may have another one by now."""
    return next((answer.model for answer in answers if answer.model), host.facts)


def _seconds_of(computed: tuple[Item, Answer]) -> float:
    _, answer = computed
    return answer.queue + answer.decode + answer.compute


def _all_answered(futures: Sequence["asyncio.Future[Answer]"]) -> "asyncio.Future[None]":
    """Done once all of them are, or fails with the first that does."""
    whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    missing = len(futures)

    def note(future: "asyncio.Future[Answer]") -> None:
        nonlocal missing
        missing -= 1
        error = None if future.cancelled() else future.exception()
        if whole.done():
            return
        if error is not None:
            whole.set_exception(error)
        elif not missing:
            whole.set_result(None)

    for future in futures:
        future.add_done_callback(note)
    return whole


async def _until_left(request: Request) -> None:
    """Until the client has closed the connection; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Clock:
    """The milliseconds of one request."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def read(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Of the slowest of its pictures, and in all."""
        return {
            "queue": _milliseconds(max((each.queue for each in answers), default=0.0)),
            "decode": _milliseconds(max((each.decode for each in answers), default=0.0)),
            "compute": _milliseconds(max((each.compute for each in answers), default=0.0)),
            "total": _milliseconds(time.perf_counter() - self._began),
        }


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)
