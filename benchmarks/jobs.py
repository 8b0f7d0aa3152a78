"""What a job costs beside plain `vitrail predict`: by threads, by torchrun's ranks, by Ray; whole commands, same rows.

    python -m benchmarks.jobs [--pictures 24576] [--model vit-ti16] [--repeats 1] [--workers 2]

The pictures are JPEGs of 500×375, crops of scikit-learn's two photographs, in shards of 4,096. Each contestant is a
command from its start to its end, with everything that it has to load; they take turns, and the best turn of each
counts. Every contestant has the same cores: threads of one process, or as many workers of one core. A job's units have
4,096 pictures, so that 24,576 are six: three for each of two workers. The rows of all jobs are compared.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.data import write_photographs
from benchmarks.predict import make_checkpoint
from benchmarks.timing import print_machine
from vitrail.weights.write import write_checkpoint

SHARD = 4096
DISTINCT = 512  # photographs, which the shards repeat


def write_tar_shards(folder: Path, count: int) -> None:
    """Shards of photographs."""
    with tempfile.TemporaryDirectory() as photographs:
        write_photographs(Path(photographs), DISTINCT, 500, 375)
        encoded = [path.read_bytes() for path in sorted(Path(photographs).rglob("*.jpg"))]
    folder.mkdir()
    for start in range(0, count, SHARD):
        with tarfile.open(folder / f"photos-{start // SHARD:03d}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(start, min(start + SHARD, count)):
                entry = tarfile.TarInfo(f"{number:07d}.jpg")
                entry.size = len(encoded[number % DISTINCT])
                archive.addfile(entry, io.BytesIO(encoded[number % DISTINCT]))


def commands(model: Path, shards: Path, out: Path, workers: int) -> dict[str, list[str]]:
    """The contestants, which write to `out`."""
    vitrail = [sys.executable, "-m", "vitrail"]
    rest = ["predict", str(model), str(shards)]
    ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(workers), "-m", "vitrail"]
    return {
        "predict": [*vitrail, *rest, "--out", str(out / "rows.parquet")],
        "job, threads": [*vitrail, *rest, "--job", str(out)],
        "job, torchrun": [*ranks, *rest, "--job", str(out)],
        "job, ray": [*vitrail, *rest, "--job", str(out), "--engine", "ray", "--workers", str(workers)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=6 * SHARD)
    parser.add_argument("--model", default="vit-ti16")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print_machine("ray", "onnxruntime", "openvino")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model, shards = folder / "model.safetensors", folder / "shards"
        write_checkpoint(make_checkpoint(options.model), model)
        write_tar_shards(shards, options.pictures)
        one = next(iter(sorted(shards.iterdir())))
        run(commands(model, one, folder, 1)["predict"])  # finds the fastest runtime, and keeps what it has converted
        best: dict[str, float] = {}
        rows: dict[str, Any] = {}
        for _ in range(options.repeats):
            for name in commands(model, shards, folder, options.workers):
                out = folder / "out"
                seconds = run(commands(model, shards, out, options.workers)[name])
                best[name] = min(best.get(name, seconds), seconds)
                found = pq.read_table(out / "rows.parquet" if name == "predict" else out / "parts")
                rows.setdefault(name, found.column("labels"))
                shutil.rmtree(out)
                print(f"{name}: {seconds:.1f} s", flush=True)
    table = Table(
        "command", "seconds", "pictures / s", "overhead", "same labels", title=f"{options.pictures:,} pictures"
    )
    for name, seconds in best.items():
        overhead = f"{seconds / best['predict'] - 1:+.1%}"
        same = str(rows[name].equals(rows["predict"]))
        table.add_row(name, f"{seconds:.1f}", f"{options.pictures / seconds:,.0f}", overhead, same)
    Console(highlight=False, width=120).print(table)


def run(command: list[str]) -> float:
    """The seconds that a command takes."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
