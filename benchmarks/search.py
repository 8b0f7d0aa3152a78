"""Searching embeddings: exactly, by faiss's inverted lists (`vitrail search`), and by usearch's graph.

    python -m benchmarks.search [--vectors 100000] [--widths 192 768] [--queries 200]
    python -m benchmarks.search --model cifar10 --data cifar10

The vectors are around a thousand centres, with a spectrum that falls as that of a model's features does; or they are
the features of a data set, the queries those of its test split. `unusual` queries are around centres that no vector of
the collection has.

recall    share of the ten nearest, as the exact search has them, that were found; then the same for unusual queries
build     seconds to read the embeddings, from a job's parts, and build the index
one       milliseconds for a query that comes alone, the best of 20
together  milliseconds per query, all at once, the best of three rounds
index     megabytes of its file
memory    megabytes by which the process grew at its highest: when building, and when searching in a new process

Each contestant is a process of its own, on one core; one after the other. MB are 10⁶ bytes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.scale import resident
from benchmarks.timing import print_machine
from vitrail.prediction.collection import Collection, open_collection
from vitrail.prediction.inverted_lists import build_index, kept_index, search_index
from vitrail.prediction.job import LISTED, Job, JobSpec
from vitrail.prediction.neighbours import find_nearest
from vitrail.verbs.embed import embed

Array = np.ndarray[Any, Any]
Search = Callable[[Array], list[Array]]  # queries (Q, D) → the rows of the ten nearest of each

K = 10
CENTRES = 1000
ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
DRAWN = 4096  # vectors at a time
ALONE, ROUNDS = 20, 3  # queries one by one, rounds of all together: the best counts
CONTESTANTS = {"exact": "exact", "lists": "inverted lists (faiss)", "graph": "graph, float16 (usearch)"}


def draw_vectors(count: int, width: int, seed: int, centres_seed: int = 0) -> Array:
    """Vectors around centres; both fall off as 1/√i along the i-th of some rotated axes."""
    spectrum = 1 / np.sqrt(np.arange(1, width + 1))
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
    centres = np.random.default_rng(centres_seed).standard_normal((CENTRES, width))
    draw = np.random.default_rng(seed)
    vectors = np.empty((count, width), np.float32)
    for start in range(0, count, DRAWN):
        size = min(DRAWN, count - start)
        around = centres[draw.integers(0, CENTRES, size)] + draw.standard_normal((size, width))
        vectors[start : start + size] = (around * spectrum) @ axes
    return vectors


def write_job(folder: Path, vectors: Array) -> None:
    """The vectors as a job leaves them."""
    resolved = {"width": vectors.shape[1]}
    spec = JobSpec(task="embed", model={}, pictures=[], list_file=None, settings={}, resolved=resolved)
    job = Job.begin(folder, spec)
    assert job is not None
    for unit, start in enumerate(range(0, len(vectors), spec.unit)):
        some = vectors[start : start + spec.unit]
        names = [f"photos/{row:08d}.jpg" for row in range(start, start + len(some))]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(some.ravel()), some.shape[1])
        job.write_part(unit, pa.table({"picture": names, "features": lists, "error": pa.nulls(len(some), pa.string())}))
    totals = {"pictures": len(vectors), "units": -(-len(vectors) // spec.unit)}
    job.store.create(LISTED, json.dumps(totals).encode())
    assert job.finish() is not None


def build_graph(collection: Collection, path: Path) -> None:
    """usearch's index, with the settings that its makers recommend (16 links, 128 candidates)."""
    from usearch.index import Index

    graph = Index(ndim=collection.table.shape[1], metric="cos", dtype="f16", connectivity=16, expansion_add=128)
    for rows, features in collection.blocks():
        graph.add(rows, features, threads=1)
    graph.save(str(path))


def open_search(contestant: str, collection: Collection, graph: Path) -> Search:
    """What searches."""
    if contestant == "exact":
        return lambda queries: list(find_nearest(collection.blocks(), queries, K).rows)
    if contestant == "lists":
        kept = kept_index(collection)
        assert kept is not None
        return lambda queries: list(search_index(kept, queries, K).rows)
    from usearch.index import Index

    index: Any = Index.restore(str(graph), view=True)
    index.expansion_search = 128
    return lambda queries: list(np.atleast_2d(index.search(queries, K, threads=1).keys))


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def take_part(contestant: str, folder: Path, step: str) -> dict[str, Any]:
    """Build, or search with what was built; what it took."""
    collection = open_collection(folder / "job")
    graph = folder / "graph.usearch"
    before = resident("VmRSS")
    if step == "build":
        build = (lambda: build_graph(collection, graph)) if contestant == "graph" else lambda: build_index(collection)
        facts: dict[str, Any] = {"build": seconds(build)}
    else:
        search = open_search(contestant, collection, graph)
        queries = [np.load(folder / f"{kind}.npy") for kind in ("usual", "unusual")]
        one = min(seconds(lambda query=query: search(query[None])) for query in queries[0][:ALONE])
        together = min(seconds(lambda: search(queries[0])) for _ in range(ROUNDS)) / len(queries[0])
        found = [[row.tolist() for row in search(some)] for some in queries]
        facts = {"one": one, "together": together, "rows": found}
    return facts | {"memory": resident("VmHWM") - before}


def measure(folder: Path) -> list[list[str]]:
    """A row of numbers for each contestant."""
    table: list[list[str]] = []
    truth: list[Any] = []
    for contestant, name in CONTESTANTS.items():
        facts: dict[str, Any] = {}
        for step in ("build", "search")[contestant == "exact" :]:
            command = [sys.executable, "-m", "benchmarks.search", "--contestant", contestant, "--step", step]
            command += ["--folder", str(folder)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | ONE_CORE)
            answer = json.loads(done.stdout)
            facts |= {f"{step} memory" if key == "memory" else key: value for key, value in answer.items()}
        truth = truth or facts["rows"]
        recalls = [
            np.mean([len(set(a) & set(b)) / K for a, b in zip(*both, strict=True)])
            for both in zip(truth, facts["rows"], strict=True)
        ]
        files = [*folder.glob("*.usearch")] if contestant == "graph" else [*(folder / "job").glob("*.faiss")]
        sizes = [] if contestant == "exact" else files
        memory = [facts[key] / 1e6 for key in ("build memory", "search memory") if key in facts]
        table.append(
            [
                name,
                ", ".join(f"{recall:.3f}" for recall in recalls),
                f"{facts['build']:.1f} s" if "build" in facts else "",
                f"{1e3 * facts['one']:.1f} ms",
                f"{1e3 * facts['together']:.2f} ms",
                f"{sum(file.stat().st_size for file in sizes) / 1e6:,.0f} MB" if sizes else "",
                ", ".join(f"{size:,.0f}" for size in memory) + " MB",
            ]
        )
    return table


def draw(folder: Path, count: int, width: int, num_queries: int) -> str:
    """Vectors and queries of our own; what they are."""
    write_job(folder / "job", draw_vectors(count, width, seed=1))
    np.save(folder / "usual.npy", draw_vectors(num_queries, width, seed=2))
    np.save(folder / "unusual.npy", draw_vectors(num_queries, width, seed=3, centres_seed=4))
    return f"{count:,} vectors of {width}"


def embed_data(folder: Path, model: str, data: str, num_queries: int) -> str:
    """The features of a data set, searched for those of its test split, and for noise of the same mean and spread."""
    embedded = [embed(model, data=data, split=split) for split in ("train", "test")]
    collection, queries = (each.features for each in embedded)
    write_job(folder / "job", collection)
    np.save(folder / "usual.npy", queries[:num_queries])
    noise = np.random.default_rng(0).standard_normal((num_queries, collection.shape[1]))
    np.save(folder / "unusual.npy", (noise * collection.std(0) + collection.mean(0)).astype(np.float32))
    return f"{len(collection):,} features of {data} by {model}, {collection.shape[1]} wide"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--widths", type=int, nargs="+", default=[192, 768])
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--model", default="cifar10")
    parser.add_argument("--data")
    parser.add_argument("--contestant", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=["build", "search"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        print(json.dumps(take_part(arguments.contestant, arguments.folder, arguments.step)))
        return
    print_machine("numpy", "faiss-cpu", "usearch")
    for width in arguments.widths if arguments.data is None else [0]:
        with tempfile.TemporaryDirectory() as folder:
            if arguments.data is None:
                title = draw(Path(folder), arguments.vectors, width, arguments.queries)
            else:
                title = embed_data(Path(folder), arguments.model, arguments.data, arguments.queries)
            heads = ("recall, unusual", "build", "one", "together", "index", "memory")
            shown = Table("", *heads, title=title, box=None)
            for row in measure(Path(folder)):
                shown.add_row(*row)
            Console(width=120).print(shown)


if __name__ == "__main__":
    main()
