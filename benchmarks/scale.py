"""What ranks hold and send, against `vitrail.training.estimate_footprint`: DDP and FSDP2 on 1, 2 and 4 ranks.

    python -m benchmarks.scale [--models vit-s16] [--ranks 1 2 4] [--pictures 4]

Each rank is a process with one thread, connected by gloo, that takes steps of the training loop (AdamW, float32) on
upscaled digits of 64 pixels:

state    bytes of the parameters, gradients and moments that the first rank holds, summed over its local tensors
peak     how far its resident memory has grown at the highest point of the last steps
sent     bytes over the loopback interface, per rank and step: keep the machine quiet

MB are 10⁶ bytes; "paper" is the formula.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.optim import Optimizer

from vitrail.ranks import join_ranks, leave_ranks
from vitrail.training import TrainConfig, estimate_footprint
from vitrail.training.changes import apply_changes
from vitrail.training.loop import Trainer
from vitrail.training.setup import open_training_data, prepare_run

SIDE = 64
WARM, TIMED = 2, 4  # steps
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")
# glibc keeps small blocks, and by and by larger ones, when they are freed: this makes it give all of a tensor back.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MASTER_ADDR": "127.0.0.1"}


def held(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of this rank's parts."""
    local = (getattr(each, "to_local", lambda each=each: each)() for each in tensors if each is not None)
    return sum(each.numel() * each.element_size() for each in local)


def resident(what: str) -> int:
    """Bytes of this process's memory: "VmRSS" now, "VmHWM" at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def measure_rank(model: str, strategy: str, pictures: int) -> dict[str, Any]:
    """What this rank holds and sends, and what it should."""
    ranks = join_ranks("cpu")
    changes = {"model": model, "image_size": (SIDE, SIDE), "strategy": strategy}
    batch = {"batch_size": pictures * ranks.world_size, "micro_batch": pictures}
    config = apply_changes(TrainConfig(data="digits"), changes | batch)
    dataset = open_training_data(config)
    before = resident("VmRSS")
    setup = prepare_run(config, dataset)
    gradients: list[int] = []

    def note_gradients(optimizer: Optimizer, *_: Any) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        gradients.append(held(each.grad for each in parameters))

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(setup, ranks, Path(folder))
        (optimizer,) = trainer.optimizers
        optimizer.register_step_pre_hook(note_gradients)
        batches = iter(trainer.loader)
        sent = 0
        for number in range(WARM + TIMED):
            if number == WARM:
                ranks.wait()
                sent = int(LOOPBACK.read_text())
                ranks.wait()
                Path("/proc/self/clear_refs").write_text("5")  # the highest point starts anew
            next_batch = next(batches)
            trainer.step(next_batch)
        ranks.wait()
        sent = int(LOOPBACK.read_text()) - sent
        moments = (value for state in optimizer.state.values() for value in state.values())
        measured = {
            "parameters": held(trainer.model.parameters()),
            "gradients": gradients[-1],
            "optimizer": held(cast("Iterable[Tensor]", moments)),
            "peak": resident("VmHWM") - before,
            "sent": sent / TIMED / ranks.world_size,
        }
    paper = estimate_footprint(
        trainer.model.config,
        pictures=pictures,
        ranks=ranks.world_size,
        strategy=strategy,
        precision="float32",
        optim=config.optim,
    )
    leave_ranks()
    expected = {name: getattr(paper, name) for name in ("parameters", "gradients", "optimizer", "sent")}
    return {"measured": measured, "paper": expected | {"peak": paper.total}}


def run_ranks(model: str, strategy: str, ranks: int, pictures: int) -> dict[str, Any]:
    """The answer of the first of `ranks` processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.scale", "--pictures", str(pictures), "--rank", model, strategy]
    shared = {**os.environ, **ENVIRONMENT, "WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    answers = [process.communicate()[0] for process in processes]
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    if failed:
        raise RuntimeError(f"ranks {failed} of {model} with {strategy} have failed")
    return json.loads(answers[0].splitlines()[-1])


def print_table(rows: Iterable[tuple[str, int, str, dict[str, Any]]]) -> None:
    parts = ("parameters", "gradients", "optimizer", "peak", "sent")
    table = Table("model", "ranks", "", *(f"{part}, MB (paper)" for part in parts), box=None)
    for model, ranks, strategy, answer in rows:
        cells = (f"{answer['measured'][part] / 1e6:,.1f} ({answer['paper'][part] / 1e6:,.1f})" for part in parts)
        table.add_row(model, str(ranks), "–" if ranks == 1 else strategy, *cells)
    Console(highlight=False, width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="What ranks hold and send.")
    parser.add_argument("--models", nargs="+", default=["vit-s16"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--pictures", type=int, default=4, help="on each rank")
    parser.add_argument("--rank", nargs=2, metavar=("MODEL", "STRATEGY"), help="be one of the ranks")
    options = parser.parse_args()
    if options.rank:
        torch.set_num_threads(1)
        model, strategy = options.rank
        print(json.dumps(measure_rank(model, strategy, options.pictures)))
        return
    if not dist.is_gloo_available():
        raise SystemExit("this build of torch has no gloo")
    settings = [
        (model, ranks, strategy)
        for model in options.models
        for ranks in options.ranks
        for strategy in (("ddp", "fsdp") if ranks > 1 else ("ddp",))
    ]
    print_table((*setting, run_ranks(setting[0], setting[2], setting[1], options.pictures)) for setting in settings)


if __name__ == "__main__":
    main()
