"""Where the time of an exported graph goes: OpenVINO's own profile of a call, summed by kind of operation.

    python -m benchmarks.operations [--model vit-s16] [--batch 8] [--merge 0 13] [--calls 20]

The model (random weights, 224 pixels) is exported in float32 and in int8, each with every number of patches that
`--merge` lists, and called on all cores. OpenVINO measures every operation of a call (PERF_COUNT); of several calls the
fastest counts, because the others met other work on the machine. A kind of operation that GROUPS does not name has a
column of its own.
"""

import argparse
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

import vitrail
from benchmarks.data import write_photographs
from benchmarks.predict import make_checkpoint
from benchmarks.timing import print_machine
from vitrail.model.merging import with_merging
from vitrail.runtimes.openvino_runtime import load_openvino, read_model
from vitrail.weights.write import write_checkpoint

# Column → the kinds of operations that it adds up, as OpenVINO names them.
GROUPS = {
    "matrix products": ("FullyConnected", "FullyConnectedQuantizedLegacy"),
    "attention": ("Subgraph", "Softmax"),  # fused: both products and the softmax between them are one operation
    "LayerNorm, sums": ("MVN", "Add", "Multiply", "PowerStatic"),
    "patches": ("Convolution",),
    "moving, rounding": (
        *("Reorder", "Transpose", "Reshape", "Concat", "VariadicSplit", "Split", "Slice", "Broadcast", "ShapeOf"),
        *("FakeQuantize", "Convert"),
    ),
    "choosing pairs": (
        *("MatMul", "TopK", "Gather", "GatherElements", "Equal", "Log", "Maximum"),
        *("ReduceMean", "ReduceL2", "ReduceMax", "ReduceSum"),
    ),
}
SHOWN = 0.05  # milliseconds; what takes less gets no column of its own
COLUMN_OF = {kind: column for column, kinds in GROUPS.items() for kind in kinds}


def profile(folder: Path, images: np.ndarray, calls: int) -> Counter[str]:
    """Milliseconds of each column in the fastest call."""
    openvino = load_openvino()
    settings = {"PERF_COUNT": True, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    compiled = openvino.Core().compile_model(read_model(folder / "model.xml"), "CPU", settings)
    request = compiled.create_infer_request()
    fastest: Counter[str] = Counter()
    for _ in range(calls):
        request.infer([images])
        took: Counter[str] = Counter()
        for operation in request.get_profiling_info():
            kind = str(operation.node_type)
            column = COLUMN_OF.get(kind, kind)
            took[column] += 1000 * operation.real_time.total_seconds()
        if not fastest or took.total() < fastest.total():
            fastest = took
    return fastest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit-s16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--merge", nargs="+", type=int, default=[0, 13], help="patches in each block")
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args()
    print_machine("openvino", "nncf")
    checkpoint = make_checkpoint(options.model)
    images = np.random.default_rng(0).standard_normal((options.batch, 3, *checkpoint.config.image_size), np.float32)
    profiles: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as place:
        pictures = Path(place) / "pictures"
        write_photographs(pictures, 200, 500, 375)
        for merge in options.merge:
            file = Path(place) / f"{merge}.safetensors"
            config = with_merging(checkpoint.config, merge) if merge else checkpoint.config
            write_checkpoint(replace(checkpoint, config=config), file)
            for precision in ("float32", "int8"):
                target = Path(place) / f"{precision}-{merge}"
                if precision == "float32":
                    vitrail.export(file, target, to="openvino")
                else:  # random weights agree less than trained ones
                    vitrail.export(file, target, to="openvino", precision="int8", calibrate=pictures, agreement=0.6)
                name = f"{precision}, merge {merge}" if merge else precision
                profiles[name] = profile(target, images, options.calls)
    others = {kind for took in profiles.values() for kind in took if took[kind] >= SHOWN} - set(GROUPS)
    columns = [*GROUPS, *sorted(others)]
    print(f"\n{options.model}, batch {options.batch}: milliseconds of a call\n")
    print("| | all | " + " | ".join(columns) + " |")
    print("|---" + "|--:" * (1 + len(columns)) + "|")
    for name, took in profiles.items():
        print(f"| {name} | {took.total():.1f} | " + " | ".join(f"{took[column]:.1f}" for column in columns) + " |")


if __name__ == "__main__":
    main()
