"""Workers that die, models that change, models that cannot be loaded."""

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock, patch

import httpx
import pytest

import vitrail
from processes import SECONDS, wait_for
from serving.conftest import FACTS, InProcess, Running, encode
from serving.test_gate import ask as run_with
from vitrail.errors import VitrailError
from vitrail.serving.metrics import Metrics
from vitrail.serving.settings import ServeSettings
from vitrail.serving.supervising import Host
from vitrail.weights.bundled import bundled_path


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


def test_a_changed_file_is_served_without_losing_a_request(tmp_path: Path) -> None:
    path, newer = tmp_path / "model.safetensors", tmp_path / "newer.safetensors"
    shutil.copy(bundled_path("cifar10"), path)
    vitrail.load().save(newer)
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
        path.write_bytes(b"not a model")
        wait_for(lambda: any("the old one stays" in line for line in service.said))
        newer.replace(path)
        wait_for(lambda: len({version for _, version in seen}) == 2)
        wait_for(lambda: service.worker().pid != old)
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
        worker = Mock(stuck_for=lambda seconds=seconds: seconds)
        host._check_stuck(worker)
        assert worker.kill.called is killed
    assert said == ["the worker of it has not answered for 41 s and is being killed"]


@pytest.mark.parametrize("sources", [("a=missing.safetensors",), ("cifar10", "cifar10")])
def test_mistakes_are_found_before_anything_is_loaded(sources: tuple[str, ...]) -> None:
    with pytest.raises(vitrail.VitrailError, match="missing|two models"):
        vitrail.serve(sources, port=0)
