"""Workers that die, models that change, models that cannot be loaded."""

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import AsyncMock, Mock, patch

import httpx
import psutil
import pytest

import vitrail
from fuzzing import in_fuzz_only
from processes import SECONDS, wait_for
from serving.conftest import FACTS, InProcess, Running, encode
from serving.test_gate import ask as run_with
from vitrail.errors import VitrailError
from vitrail.serving.frames import Frame, pack
from vitrail.serving.settings import ServeSettings
from vitrail.serving.supervisor import HUNG, SILENT, Host, Worker
from vitrail.serving.telemetry import Metrics
from vitrail.weights.resolve import bundled_path


def test_a_killed_worker_is_started_again() -> None:
    """Only what it was computing is lost; what comes while it is started again waits."""
    service = Running(max_batch=2)
    data = encode("PNG", (300, 300))
    answers: list[tuple[float, httpx.Response]] = []  # with the time at which it was asked for
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=service.url, timeout=SECONDS) as client:
            while not ended.is_set():
                began = time.monotonic()
                answers.append((began, client.post("/v1/predict", content=data)))

    def statuses() -> list[int]:
        return [answer.status_code for _, answer in list(answers)]

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        with httpx.Client(base_url=service.url, timeout=SECONDS) as client:
            wait_for(lambda: len(answers) > 40)
            assert set(statuses()) == {200}
            service.worker().kill()
            wait_for(lambda: client.get("/v2/health/ready").status_code == 503)
            noticed = time.monotonic()
            assert client.get("/v2/health/live").status_code == 200
            assert 'vitrail_ready{model="cifar10"} 0.0' in client.get("/metrics").text
            wait_for(lambda: client.get("/v2/health/ready").status_code == 200)
            seen = len(answers)
            wait_for(lambda: len(answers) > seen + 20)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        assert service.end() == 143
    assert set(statuses()) == {200, 503}
    lost = [(began, answer) for began, answer in answers if answer.status_code == 503]
    assert len(lost) <= 2  # one thread, with batches of two
    for began, answer in lost:
        assert began < noticed
        assert answer.headers["retry-after"].isdecimal()
        assert answer.json()["error"]["code"] == "not_ready"
    assert any("starting it again" in line for line in service.said)


def test_nobody_waits_for_a_model_that_cannot_be_started_again() -> None:
    app = InProcess(None)
    host = app.service.hosts["first"]
    app.worker.free = 0

    async def work(client: httpx.AsyncClient) -> None:
        asked = asyncio.create_task(client.post("/v1/predict", content=encode()))
        while not host.batcher.waiting:
            await asyncio.sleep(0.001)
        with patch.object(host, "_open", side_effect=VitrailError("gone")):
            starting = asyncio.create_task(host._restart(1))
            waited = await asked
            refused = await client.post("/v1/predict", content=encode())
            starting.cancel()
        for answer in (waited, refused):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.json()["error"]["code"] == "not_ready"
        host._switch(app.worker)  # type: ignore[arg-type]
        assert not host.hopeless

    app.worker.retire = lambda: None  # type: ignore[attr-defined]
    app.worker.facts = {**FACTS}  # type: ignore[attr-defined]
    run_with(app, work)


@in_fuzz_only
def test_a_changed_file_is_served_without_losing_a_request(tmp_path: Path) -> None:
    path, newer = tmp_path / "model.safetensors", tmp_path / "newer.safetensors"
    vitrail.load().save(path)  # in float32, as it is computed, and so as it could be mapped
    shutil.copy(bundled_path("cifar10"), newer)
    service = Running(f"it={path}", reload=True)
    data = encode()
    seen: list[tuple[int, str]] = []
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=service.url, timeout=SECONDS) as client:
            while not ended.wait(0.02):  # time for the others: the machine has few cores
                answer = client.post("/v1/predict", content=data)
                seen.append((answer.status_code, answer.json()["model"]["version"]))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        wait_for(lambda: len(seen) > 5)
        old = service.worker().pid
        path.write_bytes(b"not a model")  # in place: what a worker has mapped of it would be gone
        wait_for(lambda: any("the old one stays" in line for line in service.said))
        newer.replace(path)
        wait_for(lambda: len({version for _, version in seen}) == 2)
        wait_for(lambda: old not in [worker.pid for worker in service.workers()])
    finally:
        ended.set()
        thread.join()
        assert service.end() == 143
    assert {status for status, _ in seen} == {200}
    versions = [version for _, version in seen]
    assert versions == sorted(versions, key=versions.index)  # never back to the old one


def test_a_model_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(bundled_path("cifar10").read_bytes()[:-1000])
    command = [sys.executable, "-m", "vitrail", "serve", str(path), "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode == 2
    assert result.stderr.count("error:") == 1
    assert "broken.safetensors" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_worker_that_is_stuck_is_ended() -> None:
    said: list[str] = []
    host = Host("it", "cifar10", ServeSettings(timeout=20), Metrics(), said.append)
    for seconds, killed in ((39.0, False), (41.0, True)):
        worker = Mock(stuck_for=lambda seconds=seconds: seconds, missed=0)
        host._check(worker)
        assert worker.kill.called is killed
    assert said == ["the worker of it has not answered for 41 s and is being killed"]


class Mute:
    """A worker without a process; it gives signs of life only if a test does."""

    def __init__(self) -> None:
        self.process = Mock(returncode=None, kill=self.die)
        self.reader = asyncio.StreamReader()
        self.process.wait = AsyncMock(return_value=-9)
        self.worker = Worker(self.process, self.reader, Mock())
        self.worker.facts = {**FACTS}

    def die(self) -> None:
        self.process.returncode = -9
        self.reader.feed_eof()


def test_a_stopped_worker_is_not_ready_and_is_replaced() -> None:
    """A stopped process says nothing, and its socket stays open."""
    said: list[str] = []

    async def work() -> None:
        host = Host("it", "cifar10", ServeSettings(threads=1), Metrics(), said.append)
        stopped, fresh = Mute(), Mute()
        for each in (stopped, fresh):
            each.worker._task = asyncio.create_task(each.worker._listen())
        with patch.object(host, "_open", side_effect=[stopped.worker, fresh.worker]):
            await host.start()
            assert host.ready
            host._check(stopped.worker)
            stopped.reader.feed_data(pack(Frame({"beat": True})))
            while stopped.worker.missed:  # a heartbeat counts
                await asyncio.sleep(0)
            for _ in range(SILENT):
                assert host.ready
                host._check(stopped.worker)
            assert not host.ready
            assert stopped.process.returncode is None
            for _ in range(HUNG):
                host._check(stopped.worker)
            while not any("ready again" in line for line in said):
                await asyncio.sleep(0.001)
        assert stopped.process.returncode == -9
        assert host.ready
        await host.stop()
        assert fresh.worker._writer.close.called  # type: ignore[attr-defined]

    asyncio.run(work())
    assert said[0] == "the worker of it has sent no heartbeat for 10 s and is being killed"


FRONT = """
import asyncio, os, signal
from vitrail.serving.frames import Frame, pack, read_frame
from vitrail.serving.supervisor import start_worker

async def main():
    worker = await start_worker(1)
    order = {"source": "cifar10", "runtime": "torch", "precision": "float32", "max_pixels": 1}
    worker._writer.write(pack(Frame(order)))
    assert (await read_frame(worker._reader)).facts == {"beat": True}  # before it has loaded anything
    print(worker.process.pid, flush=True)
    os.kill(worker.process.pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a process that was killed")
def test_a_stopped_worker_does_not_outlive_its_front() -> None:
    result = subprocess.run([sys.executable, "-c", FRONT], stdout=subprocess.PIPE, text=True)
    assert result.returncode == -9
    pid = int(result.stdout)
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


@pytest.mark.parametrize("sources", [("a=missing.safetensors",), ("cifar10", "cifar10")])
def test_mistakes_are_found_before_anything_is_loaded(sources: tuple[str, ...]) -> None:
    with pytest.raises(vitrail.VitrailError, match="missing|two models"):
        vitrail.serve(sources, port=0)
