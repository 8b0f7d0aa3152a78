"""Searching embeddings: exactly, by faiss's inverted lists (`vitrail search`), and by usearch's graph.

    python -m benchmarks.search [--vectors 200000] [--widths 192 768] [--queries 200]
    python -m benchmarks.search --model cifar10 --data cifar10

The vectors are around a thousand centres, with a spectrum that falls as that of a model's features does; or they are
the features of a data set, the queries those of its test split. `unusual` queries are around centres that no vector of
the collection has.

recall    share of the ten nearest, as the exact search has them, that were found; then the same for unusual queries
build     seconds to read the embeddings, from a job's parts, and build the index
one       milliseconds for a query that comes alone: exact from the parts, the others with their index open
together  milliseconds per query, all at once
index     megabytes of its file
memory    megabytes by which the process grew at its highest: when building, and when searching in a new process

Each contestant is a process of its own; one after the other. MB are 10⁶ bytes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.scale import resident
from benchmarks.timing import print_machine
from vitrail.prediction.collection import Collection, open_collection
from vitrail.prediction.inverted_lists import build_index, kept_index, search_index
from vitrail.prediction.neighbours import find_nearest

Array = np.ndarray[Any, Any]
Search = Callable[[Array], list[Array]]  # queries (Q, D) → the rows of the ten nearest of each

K = 10
PART = 4096  # rows of a job's part
CENTRES = 1000
CONTESTANTS = {"exact": "exact", "lists": "inverted lists (faiss)", "graph": "graph, float16 (usearch)"}


def draw_vectors(count: int, width: int, seed: int, centres_seed: int = 0) -> Array:
    """Vectors around centres; both fall off as 1/√i along the i-th of some rotated axes."""
    spectrum = 1 / np.sqrt(np.arange(1, width + 1))
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
    centres = np.random.default_rng(centres_seed).standard_normal((CENTRES, width))
    draw = np.random.default_rng(seed)
    vectors = np.empty((count, width), np.float32)
    for start in range(0, count, PART):
        size = min(PART, count - start)
        around = centres[draw.integers(0, CENTRES, size)] + draw.standard_normal((size, width))
        vectors[start : start + size] = (around * spectrum) @ axes
    return vectors


def write_job(folder: Path, vectors: Array) -> None:
    """The vectors as a job leaves them."""
    (folder / "parts").mkdir(parents=True)
    for number, start in enumerate(range(0, len(vectors), PART)):
        part = vectors[start : start + PART]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
        names = [f"photos/{row:08d}.jpg" for row in range(start, start + len(part))]
        errors = pa.nulls(len(part), pa.string())
        table = pa.table({"picture": names, "features": lists, "error": errors})
        pq.write_table(table, folder / "parts" / f"part-{number:08d}.parquet")
    (folder / "job.json").write_text("{}")
    (folder / "_DONE").touch()


def build_graph(collection: Collection, path: Path) -> None:
    """usearch's index, with the settings that its makers recommend (16 links, 128 candidates)."""
    from usearch.index import Index

    graph = Index(ndim=collection.table.shape[1], metric="cos", dtype="f16", connectivity=16, expansion_add=128)
    for rows, features in collection.blocks():
        graph.add(rows, features)
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
    return lambda queries: list(np.atleast_2d(index.search(queries, K).keys))


def take_part(contestant: str, folder: Path, step: str) -> dict[str, Any]:
    """Build, or search with what was built; what it took."""
    collection = open_collection(folder / "job")
    graph = folder / "graph.usearch"
    before = resident("VmRSS")
    start = time.perf_counter()
    if step == "build":
        if contestant == "graph":
            build_graph(collection, graph)
        else:
            build_index(collection)
        facts = {"build": time.perf_counter() - start}
    else:
        search = open_search(contestant, collection, graph)
        queries = [np.load(folder / f"{kind}.npy") for kind in ("usual", "unusual")]
        search(queries[0][:1])
        start = time.perf_counter()
        for query in queries[0][:20]:
            search(query[None])
        one = (time.perf_counter() - start) / len(queries[0][:20])
        start = time.perf_counter()
        found = [search(some) for some in queries]
        together = (time.perf_counter() - start) / sum(map(len, queries))
        facts = {"one": one, "together": together, "rows": [[row.tolist() for row in rows] for rows in found]}
    return facts | {"memory": resident("VmHWM") - before}


def measure(folder: Path) -> list[list[str]]:
    """A row of numbers for each contestant."""
    table: list[list[str]] = []
    truth: list[Any] = []
    for contestant, name in CONTESTANTS.items():
        facts: dict[str, Any] = {}
        for step in ("build", "search")[contestant == "exact" :]:
            command = [sys.executable, "-m", "benchmarks.search", "--contestant", contestant, "--step", step]
            done = subprocess.run([*command, "--folder", str(folder)], check=True, capture_output=True, text=True)
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


def embed(folder: Path, model: str, data: str, num_queries: int) -> str:
    """The features of a data set, searched for those of its test split, and for noise of the same mean and spread."""
    import vitrail

    collection, queries = (vitrail.embed(model, data=data, split=split).features for split in ("train", "test"))
    write_job(folder / "job", collection)
    np.save(folder / "usual.npy", queries[:num_queries])
    noise = np.random.default_rng(0).standard_normal((num_queries, collection.shape[1]))
    np.save(folder / "unusual.npy", (noise * collection.std(0) + collection.mean(0)).astype(np.float32))
    return f"{len(collection):,} features of {data} by {model}, {collection.shape[1]} wide"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vectors", type=int, default=200_000)
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
                title = embed(Path(folder), arguments.model, arguments.data, arguments.queries)
            heads = ("recall, unusual", "build", "one", "together", "index", "memory")
            shown = Table("", *heads, title=title, box=None)
            for row in measure(Path(folder)):
                shown.add_row(*row)
            Console(width=120).print(shown)


if __name__ == "__main__":
    main()
