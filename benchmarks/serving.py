"""Requests per second, p50 and p99 of `vitrail serve` beside FastAPI and LitServe, on this machine's loopback.

    python -m benchmarks.serving [--models cifar10 vit-s16] [--clients 1 8 32 128] [--seconds 2] [--repeats 2]
    python -m benchmarks.serving --soak 10 [--models cifar10]

Every server runs in processes of its own, the clients in one more. Each client sends one picture as a form, waits for
the best five classes, and asks again. ViT-S/16 has random weights, which FastAPI and LitServe run in transformers, with
transformers' own preprocessing, as their users write it; transformers cannot hold the bundled CIFAR-10 model, so there
both run vitrail's Predictor, and only the serving differs. All compute in float32 but the last row. LitServe batches up
to 8 pictures within 10 ms; FastAPI runs its handler in its thread pool; ours has its defaults. Nobody writes an access
log. Threads of OpenMP sleep while they wait (OMP_WAIT_POLICY=passive), since the peers lose much of their speed if not:
their web server and their model share the cores.

At each number of clients the servers take turns, and the best turn of each counts. `ours / best peer` divides requests
per second by those of the faster peer, and the next column divides p99 by its p99. `CPU ms` is what a request costs the
server, in milliseconds of one core. `same class` is the share of answers whose best class is that of `vitrail.predict`.
Answers other than 200 are counted under `errors`. The last line says what the rest of the machine did meanwhile: a
measurement beside other work is none, except for `CPU ms`.

--soak keeps one server of ours busy with 32 clients for so many minutes, and shows the memory of its processes.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import vitrail
from benchmarks.data import write_photographs
from benchmarks.predict import make_checkpoint
from benchmarks.processes import Child
from benchmarks.timing import print_machine
from vitrail.data.preprocess import preset
from vitrail.model import PositionConfig
from vitrail.weights.resolve import locate
from vitrail.weights.write import write_checkpoint

PICTURES = 32
LONGEST_TURN = 12.0  # seconds
ROUNDS = 2.0  # answers that each client gets in a turn, if that does not take longer
HEAD = (
    "clients",
    "server",
    "requests/s",
    "p50 ms",
    "p99 ms",
    "ours / best peer",
    "p99 / its p99",
    "CPU ms",
    "same class",
    "errors",
)
PEERS = {"FastAPI": "fastapi", "LitServe": "litserve"}


@dataclass(kw_only=True)
class Subject:
    """One model, in the files that the servers take, with the pictures and the right answers."""

    name: str
    ours: Path
    peers: Path
    int8: Path | None
    pictures: list[Path]
    expected: list[int]
    note: str  # what the peers run


class Server:
    """A server process with its children, on a port of its own."""

    def __init__(self, command: list[str], path: str, health: str, env: Mapping[str, str] = os.environ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.path, self._health = path, health
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        words = [sys.executable, "-m", *(word.replace("PORT", str(self.port)) for word in command)]
        passive = {**env, "OMP_WAIT_POLICY": "passive"}
        self.process = subprocess.Popen(words, stdout=self._log, stderr=self._log, start_new_session=True, env=passive)

    def wait(self, seconds: float = 120.0) -> None:
        """Until it answers."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self._health}", timeout=2):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        self._log.seek(0)
        raise RuntimeError(f"{self.process.args} does not answer:\n{self._log.read()[-2000:]}")

    def family(self) -> list[psutil.Process]:
        """Its processes, the one that was started first."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_seconds(self) -> float:
        times = [each.cpu_times() for each in self.family()]
        return sum(each.user + each.system for each in times)

    def memory(self) -> dict[str, float]:
        """Megabytes of each of its processes."""
        everyone = self.family()
        names = ["front"] + [f"worker {number}" for number in range(1, len(everyone))]
        return {name: each.memory_info().rss / 1e6 for name, each in zip(names, everyone, strict=True)}

    def end(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # a session of its own: what the server left behind
        self.process.wait()
        self._log.close()


def start_peer(kind: str, subject: Subject) -> Server:
    health = "/docs" if kind == "fastapi" else "/health"
    return Server(["benchmarks.serving_peers", kind, "PORT", str(subject.peers)], "/predict", health)


def start_ours(source: Path, *options: str, env: Mapping[str, str] = os.environ) -> Server:
    command = ["vitrail", "serve", f"model={source}", "--port", "PORT", "--no-access-log", *options]
    return Server(command, "/v1/predict", "/v2/health/ready", env)


def make_subject(name: str, folder: Path, *, with_int8: bool) -> Subject:
    """The bundled model, or one with random weights; int8 is calibrated on the same kind of pictures."""
    is_bundled = name == "cifar10"
    size = (32, 32) if is_bundled else (500, 375)
    write_photographs(folder / "pictures", 200, *size)
    write_photographs(folder / "calibration", 300, 200, 200)
    if is_bundled:
        ours = peers = locate(name).fetch()
        note = "vitrail's Predictor inside FastAPI and LitServe"
    else:
        checkpoint = make_checkpoint(name)
        spec = preset("hf", checkpoint.config.image_size)
        config = replace(checkpoint.config, positions=PositionConfig(resample="hf"))
        checkpoint = replace(checkpoint, config=config, preprocess=spec)
        ours, peers = folder / "model.safetensors", folder / "hf"
        write_checkpoint(checkpoint, ours)
        write_checkpoint(checkpoint, peers, "hf")
        note = "random weights; transformers inside FastAPI and LitServe"
    pictures = sorted((folder / "pictures").rglob("*.jpg"))[:: 200 // PICTURES][:PICTURES]
    expected = [row.indices[0] for row in vitrail.load(ours).predict(pictures, top_k=1)]
    return Subject(
        name=name,
        ours=ours,
        peers=peers,
        int8=export_int8(ours, folder) if with_int8 else None,
        pictures=pictures,
        expected=expected,
        note=note,
    )


def export_int8(model: Path, folder: Path) -> Path | None:
    """Pictures unlike those that a model was trained for, and random weights, agree less than real ones."""
    try:
        options: Any = {"precision": "int8", "calibrate": folder / "calibration", "agreement": 0.5}
        vitrail.export(model, folder / "int8", to="openvino", **options)
    except vitrail.VitrailError as error:
        print(f"int8 is left out: {error}", flush=True)
        return None
    return folder / "int8"


def start_all(subject: Subject) -> dict[str, Server]:
    """One after another, since each measures or warms up while it starts."""
    ways: dict[str, Callable[[], Server]] = {name: partial(start_peer, kind, subject) for name, kind in PEERS.items()}
    ways["vitrail serve, torch"] = lambda: start_ours(subject.ours, "--runtime", "torch")
    ways["vitrail serve, auto"] = lambda: start_ours(subject.ours)
    if (int8 := subject.int8) is not None:
        ways["vitrail serve, int8"] = lambda: start_ours(int8)
    servers: dict[str, Server] = {}
    try:
        for name, start in ways.items():
            servers[name] = start()
            servers[name].wait()
    except BaseException:
        end_all(servers)
        raise
    return servers


def end_all(servers: dict[str, Server]) -> None:
    for server in servers.values():
        server.end()


def ask(client: Child, server: Server, subject: Subject, clients: int, seconds: float) -> dict[str, Any]:
    """One turn of a server, and the share of the cores that neither it nor the client used, but somebody else."""
    pictures = [str(picture) for picture in subject.pictures]
    order = {"port": server.port, "path": server.path, "clients": clients, "seconds": seconds, "pictures": pictures}
    began, busy, own = time.perf_counter(), busy_seconds(), server.cpu_seconds()
    turn = json.loads(client.ask(json.dumps({**order, "expected": subject.expected})))
    used = server.cpu_seconds() - own
    own = used + turn["client"] * turn["elapsed"]
    share = (busy_seconds() - busy - own) / (time.perf_counter() - began) / (os.cpu_count() or 1)
    return {**turn, "others": max(0.0, share), "cpu": 1000 * used / max(1, turn["count"])}


def busy_seconds() -> float:
    """The time for which the cores of this machine have been busy."""
    times: Any = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq


def race(client: Child, servers: dict[str, Server], subject: Subject, options: argparse.Namespace) -> None:
    """All numbers of clients, each as a part of one table."""
    print(f"\n**{subject.name}** ({subject.note})\n")
    print(f"| {' | '.join(HEAD)} |\n|--:|---|{'--:|' * (len(HEAD) - 3)}---|")
    names = list(servers)
    rates = {name: max(0.1, ask(client, servers[name], subject, 1, 1.0)["rate"]) for name in names}  # warms up too
    others: list[float] = []
    for clients in options.clients:
        best: dict[str, dict[str, Any]] = {}
        errors: dict[str, Counter[str]] = {}  # of all turns
        repeats = options.repeats if clients < 100 else 1
        for number in range(repeats):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seconds = max(options.seconds, min(LONGEST_TURN, ROUNDS * clients / rates[name]))
                turn = ask(client, servers[name], subject, clients, seconds)
                rates[name] = max(turn["rate"], 0.1)
                others.append(turn["others"])
                errors.setdefault(name, Counter()).update(turn["errors"])
                if name not in best or turn["rate"] > best[name]["rate"]:
                    best[name] = turn
        print_rows(clients, best, errors)
    mean, most = sum(others) / len(others), max(others)
    print(f"\nMeanwhile, other processes used {mean:.0%} of the cores, and {most:.0%} in the busiest turn.", flush=True)


def print_rows(clients: int, turns: dict[str, dict[str, Any]], errors: dict[str, Counter[str]]) -> None:
    peer = max((turn for name, turn in turns.items() if name in PEERS), key=lambda turn: turn["rate"])
    for name, turn in turns.items():
        ours = name not in PEERS
        ratio = f"{turn['rate'] / peer['rate']:.2f}×" if ours else ""
        tail = f"{turn['p99'] / peer['p99']:.2f}×" if ours else ""
        cells = (
            f"{turn['rate']:,.1f}",
            f"{turn['p50']:,.1f}",
            f"{turn['p99']:,.1f}",
            ratio,
            tail,
            f"{turn['cpu']:,.1f}",
        )
        print(f"| {clients} | {name} | {' | '.join(cells)} | {turn['same']:.0%} | {show(errors[name])} |", flush=True)


def show(errors: dict[str, int]) -> str:
    return ", ".join(f"{count} × {status}" for status, count in errors.items()) or "none"


def soak(client: Child, subject: Subject, minutes: float) -> None:
    """The memory of one server under steady load."""
    server = start_ours(subject.ours)
    try:
        server.wait()
        print(f"\n**{subject.name}**, 32 clients, {minutes:g} minutes\n")
        print("| minute | requests/s | p99 ms | errors | MB of each process |\n|--:|--:|--:|---|---|")
        began = time.monotonic()
        while time.monotonic() - began < 60 * minutes:
            turn = ask(client, server, subject, 32, min(20.0, 6 * minutes))
            sizes = ", ".join(f"{name} {size:,.1f}" for name, size in server.memory().items())
            minute = (time.monotonic() - began) / 60
            cells = (f"{minute:.1f}", f"{turn['rate']:,.1f}", f"{turn['p99']:,.1f}", show(turn["errors"]), sizes)
            print(f"| {' | '.join(cells)} |", flush=True)
    finally:
        server.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["cifar10", "vit-s16"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn at least")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    options = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that servers are ended, which have sessions of their own
    print_machine("openvino", "transformers", "fastapi", "litserve")
    client = Child("benchmarks.serving_client")
    try:
        for name in options.models[:1] if options.soak else options.models:
            with tempfile.TemporaryDirectory() as folder:
                subject = make_subject(name, Path(folder), with_int8=not options.soak)
                if options.soak:
                    soak(client, subject, options.soak)
                    continue
                servers = start_all(subject)
                try:
                    race(client, servers, subject, options)
                finally:
                    end_all(servers)
    finally:
        client.end()


if __name__ == "__main__":
    main()
