"""One model on every runtime, beside timm, transformers and torchvision, each eager and compiled; same weights.

    python -m benchmarks.runtimes [--models vit-s16 vit-b16] [--batches 1 8] [--seconds 12] [--no-compile]
        [--merge 9] [--schedule alternating]

Forward passes at 224 pixels on all cores. Each contestant runs in a process of its own, so that nobody's threads are in
another's way, and sleeps while another has its turn; the turns rotate. `ms` is the median call of the quieter half of
the turns, `images/s` that of the best turn. `of peak` is the share of the best float32 matrix product that this machine
did in the same minutes, for float32 only. `same class` counts parts of two photographs whose class is that of float32
in torch. `ours / best peer` divides by the fastest of the other libraries at that batch size, eager or compiled.

Weights are random unless `--weights FILE` names a checkpoint, which then takes the place of --models. int8 is what
`vitrail export` makes with pictures to calibrate with; where it refuses, its words are printed. bf16 is measured where
the processor computes in it.
"""

import argparse
import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import get_args

import numpy as np

import vitrail
from benchmarks.data import write_photographs
from benchmarks.processes import Child, serve_turns
from benchmarks.timing import print_machine
from vitrail.errors import VitrailError
from vitrail.machine import computes_bf16
from vitrail.model.merging import Schedule, with_merging
from vitrail.runtimes.contestants import (
    PEERS,
    Contestant,
    Entrant,
    Workshop,
    answer_all,
    measure_gemm_peak,
    open_exports,
    take_turn,
)
from vitrail.timing import Timing, sum_up
from vitrail.verbs.contest import photographs
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import fingerprint, read_native
from vitrail.weights.write import write_checkpoint

ROUNDS = 6
OURS = ("torch", "onnx", "openvino")
BEST = "vitrail auto (the best of float32)"


def build(contestant: Contestant, file: Path, folder: Path) -> Entrant:
    """In a child: one contestant of the checkpoint in a file."""
    checkpoint = read_native(file)
    if contestant.export:
        (entrant,) = open_exports([contestant.export], fingerprint(checkpoint.tensors))
        return entrant
    if contestant.is_peer:
        import benchmarks.peers  # noqa: F401
    return Workshop(checkpoint, folder).build(contestant)


def serve(contestant: Contestant, file: Path) -> None:
    """The child's side: `BATCH SECONDS` is a turn, `answers` the answers to the photographs."""
    images = photographs(vitrail.load(file).preprocess)
    with tempfile.TemporaryDirectory() as folder:
        entrant = build(contestant, file, Path(folder))

        def turn(line: str) -> str:
            if line == "facts":
                return json.dumps({"macs": entrant.macs, "megabytes": entrant.megabytes})
            if line == "answers":
                return json.dumps(answer_all(entrant.compute, images, 1).argmax(axis=1).tolist())
            batch, seconds = line.split()
            pictures = np.ascontiguousarray(np.resize(images, (int(batch), *images.shape[1:])))
            return json.dumps(take_turn(lambda: entrant.compute(pictures), float(seconds)))

        serve_turns(turn)


def names_of(file: Path, folder: Path, options: argparse.Namespace, calibrate: Path) -> dict[str, Contestant]:
    """Who takes part, by the name that the table shows."""
    ways = (False, True) if options.compile else (False,)
    everybody = {f"vitrail {runtime}": Contestant(runtime=runtime) for runtime in OURS}
    if computes_bf16():
        for runtime in ("torch", "openvino"):
            everybody[f"vitrail {runtime}, bf16"] = Contestant(runtime=runtime, precision="bf16")
    for name, path in exports_of(read_native(file), folder, options, calibrate).items():
        everybody[name] = Contestant(runtime="openvino", precision=name.split(",")[0].split()[1], export=path)
    for peer in PEERS:
        for way in ways:
            everybody[f"{peer}, compiled" if way else f"{peer}, eager"] = Contestant(runtime=peer, compiled=way)
    return everybody


def exports_of(checkpoint: Checkpoint, folder: Path, options: argparse.Namespace, calibrate: Path) -> dict[str, str]:
    """int8 with and without merged tokens, and float32 with them, as `vitrail export` makes them, where it will."""
    made: dict[str, str] = {}
    how = f"merge {options.merge} {options.schedule}"
    for name, merge, int8 in (
        (f"vitrail float32, {how}", options.merge, False),
        ("vitrail int8", 0, True),
        (f"vitrail int8, {how}", options.merge, True),
    ):
        file, target = folder / f"{len(made)}.safetensors", folder / f"export-{len(made)}"
        config = with_merging(checkpoint.config, merge, options.schedule) if merge else checkpoint.config
        write_checkpoint(dataclasses.replace(checkpoint, config=config), file)
        try:
            if int8:  # random weights agree less
                vitrail.export(file, target, to="openvino", precision="int8", calibrate=calibrate, agreement=0.6)
            else:
                vitrail.export(file, target, to="openvino")
            made[name] = str(target)
        except VitrailError as error:
            print(f"{name} is left out: {error}")
    return made


def race(children: dict[str, Child], batch: int, seconds: float) -> dict[str, Timing]:
    """All children in rotating turns, after one that warms them up."""
    names = list(children)
    taken: dict[str, list[list[float]]] = {name: [] for name in names}
    for name in names:
        children[name].ask(f"{batch} 0.001")
    for number in range(ROUNDS):
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            time.sleep(0.05)
            taken[name].append(json.loads(children[name].ask(f"{batch} {seconds / ROUNDS}")))
    return {name: sum_up(turns) for name, turns in taken.items()}


def compare(file: Path, title: str, options: argparse.Namespace, calibrate: Path) -> None:
    """One checkpoint: its table for each batch size."""
    with tempfile.TemporaryDirectory() as folder:
        everybody = names_of(file, Path(folder), options, calibrate)
        children = {
            name: Child("benchmarks.runtimes", "--serve", json.dumps(dataclasses.asdict(each)), "--weights", str(file))
            for name, each in everybody.items()
        }
        try:
            facts = {name: json.loads(child.ask("facts")) for name, child in children.items()}
            answers = {name: np.array(json.loads(child.ask("answers"))) for name, child in children.items()}
            for batch in options.batches:
                before = measure_gemm_peak(os.cpu_count() or 1)
                timings = race(children, batch, options.seconds)
                peak = max(before, measure_gemm_peak(os.cpu_count() or 1))
                print_table(f"{title}, batch {batch}", batch, everybody, timings, facts, answers, peak)
        finally:
            for child in children.values():
                child.end()


def print_table(
    title: str,
    batch: int,
    everybody: dict[str, Contestant],
    timings: dict[str, Timing],
    facts: dict[str, dict[str, float]],
    answers: dict[str, np.ndarray],
    peak: float,
) -> None:
    rates = {name: batch * timing.rate for name, timing in timings.items()}
    peer = max(rates[name] for name, each in everybody.items() if each.is_peer)
    expected = answers["vitrail torch"]
    print(f"\n**{title}**, best float32 matrix product {peak / 1e9:,.0f} GFLOP/s\n")
    print("| contestant | ms | images/s | ours / best peer | of peak | MB | same class |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, rate in rates.items():
        ours = "" if everybody[name].is_peer else f"{rate / peer:.2f}×"
        is_float = everybody[name].precision == "float32"
        share = f"{2 * facts[name]['macs'] * rate / peak:.0%}" if is_float else ""
        same = f"{(answers[name] == expected).mean():.0%}"
        size = f"{facts[name]['megabytes']:,.0f}"
        print(f"| {name} | {1000 * timings[name].p50:,.1f} | {rate:,.1f} | {ours} | {share} | {size} | {same} |")
    best = max((f"vitrail {runtime}" for runtime in OURS), key=lambda name: rates[name])
    row = f"{1000 * timings[best].p50:,.1f} | {rates[best]:,.1f} | {rates[best] / peer:.2f}×"
    print(f"| {BEST} | {row} | | | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit-s16", "vit-b16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--seconds", type=float, default=12.0, help="for each contestant at each batch size")
    parser.add_argument("--merge", type=int, default=9, help="patches in each block, on average")
    parser.add_argument("--schedule", choices=get_args(Schedule), default="alternating")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--weights", type=Path, help="a checkpoint of ours, instead of random weights")
    parser.add_argument("--calibrate", type=Path, help="pictures for int8; by default, parts of two photographs")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Contestant(**json.loads(options.serve)), options.weights)
        return
    from benchmarks.predict import make_checkpoint

    print_machine("onnxruntime", "openvino", *PEERS)
    with tempfile.TemporaryDirectory() as folder:
        calibrate = options.calibrate or Path(folder) / "pictures"
        if options.calibrate is None:
            write_photographs(calibrate, 200, 500, 375)
        if options.weights:
            compare(options.weights, options.weights.stem, options, calibrate)
            return
        for name in options.models:
            file = Path(folder) / f"{name}.safetensors"
            write_checkpoint(make_checkpoint(name), file)
            compare(file, name, options, calibrate)


if __name__ == "__main__":
    main()
