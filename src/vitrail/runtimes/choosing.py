"""What a job runs on: the fastest runtime whose answers are torch's, measured where that pays, and remembered.

Converting and measuring take seconds, so that they must save more. A job too short for that stays on torch, and nothing
is added to it: what it will take is first estimated from the size of the model, then from one short call.
"""

import json
import os
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple, get_args

import torch

from vitrail import __version__
from vitrail.data.pixels import Picture
from vitrail.errors import ConfigError
from vitrail.processor import computes_bf16, processor_name
from vitrail.runtimes.converting import Converter, Way
from vitrail.runtimes.decisions import Decision, has_decisions, read_decision, write_decision
from vitrail.runtimes.exporting import GRAPH_FORM
from vitrail.runtimes.opening import Precision, PrecisionChoice, RuntimeChoice, RuntimeName, label_of
from vitrail.runtimes.racing import measure, prepare_some, time_picture
from vitrail.runtimes.runtime import Runtime
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.schema import to_dict
from vitrail.weights.checkpoint import Checkpoint
from vitrail.wording import reason

GAIN = 0.15  # of a job's time, which another runtime is expected to save before it is measured
# Seconds that it takes, roughly, to convert a model, to measure all runtimes, and to open a kept export.
EXPORT_SECONDS, MEASURE_SECONDS, OPEN_SECONDS = 6.0, 4.0, 1.0
BYTES_PER_SECOND = 200e6  # of an export that is written or read
RATE = 2e10  # multiply-adds in a second on one core, roughly


class Choice(NamedTuple):
    """What to run on, and one line that says so; empty where there is nothing to say."""

    runtime: Runtime
    note: str = ""


def choose(
    own: TorchRuntime,
    checkpoint: Checkpoint,
    runtime: RuntimeChoice,
    precision: PrecisionChoice,
    count: int | None,
    pictures: Iterable[Picture] = (),
    batch: int | None = None,
) -> Choice:
    """The runtime for a job of `count` pictures, of which `pictures` are some; None: nobody knows how many.

    `batch` of them come together; by default as many as suit the model.

    Where `runtime` and `precision` leave no choice, what they say; a model that cannot be converted is an error then.
    """
    if batch is not None and (type(batch) is not int or batch < 1):
        raise ConfigError(f"batch= must be a whole number of at least 1; got {batch!r}.")
    converter = Converter(own, checkpoint)
    ways = list_ways(converter, runtime, precision)
    if len(ways) == 1:
        return Choice(converter.open(ways[0]))
    decision, is_new = _decide(converter, ways, count, pictures, batch)
    if decision is None:
        return Choice(converter.open(ways[0]))
    plain, best = decision.outcomes[0], decision.best
    if best is plain:
        return Choice(converter.open(ways[0]), decision.describe() if is_new else "")
    saved = float("inf") if count is None else count * (plain.seconds - best.seconds)
    if not is_new and saved < _opening_seconds(converter, ways):
        return Choice(converter.open(ways[0]))
    try:
        return Choice(converter.open(Way(best.runtime, best.precision)), decision.describe())
    except Exception as error:  # a cache may be removed, a disk full
        return Choice(converter.open(ways[0]), f"{best.label} cannot be used now ({reason(error)[:200]})")


def list_ways(converter: Converter, runtime: RuntimeChoice, precision: PrecisionChoice) -> list[Way]:
    """The ways to compute among which to choose; the first is what runs if nothing is measured."""
    runtimes: Sequence[RuntimeName] = get_args(RuntimeName) if runtime == "auto" else (runtime,)
    if runtime == "auto":
        runtimes = [name for name in runtimes if converter.can_convert(name)]
    precisions: tuple[Precision, ...] = ("float32",) if precision == "auto" else (precision,)
    if precision == "auto" and _has_bf16(converter.own.device):
        precisions = ("float32", "bf16")
    ways = [Way(name, number) for number in precisions for name in runtimes if (name, number) != ("onnx", "bf16")]
    if precision == "auto" and converter.own.device.type == "cpu":
        int8 = converter.int8
        ways += [Way(int8.runtime_name, "int8")] if int8 is not None and int8.runtime_name in runtimes else []
    return ways


def _decide(
    converter: Converter, ways: Sequence[Way], count: int | None, pictures: Iterable[Picture], batch: int | None
) -> tuple[Decision | None, bool]:
    """What was measured before, or is measured now; None for a job that is too short. And whether it is new."""
    if count is None and not has_decisions():
        return None, False
    rough = float("inf") if count is None else count * _rough_seconds(converter)
    if GAIN * rough < _opening_seconds(converter, ways):
        return None, False
    key = decision_key(converter, ways, batch)
    if decision := read_decision(key):
        exports = decision.best.runtime != "torch"
        return (None if count is None and exports and converter.kept is None else decision), False
    cost = MEASURE_SECONDS + _converting_seconds(converter, ways)
    if count is None or GAIN * rough < cost:
        return None, False
    images = prepare_some(pictures, converter.checkpoint)
    seconds = time_picture(converter.own, images)
    if GAIN * count * seconds / converter.own.threads < cost:
        return None, False
    try:
        decision = Decision(key=key, outcomes=measure(converter, ways, images, seconds, batch))
    except (OSError, MemoryError):  # a full disk or memory says nothing about the runtimes
        return None, False
    if decision.outcomes[0].problem:
        return None, False
    write_decision(decision)
    return decision, True


def decision_key(converter: Converter, ways: Sequence[Way], batch: int | None = None) -> str:
    """Everything that a decision depends on."""
    own = converter.own
    device = torch.cuda.get_device_name(own.device) if own.device.type == "cuda" else processor_name()
    facts = {
        "weights": converter.sha256,
        "config": to_dict(converter.checkpoint.config),
        "form": GRAPH_FORM,
        "batch": batch or own.batch_size,
        "ways": [label_of(*way) for way in ways],
        "int8": _int8_graph(converter, ways),
        "device": [own.device.type, device],
        "cores": [os.cpu_count(), own.threads],
        "versions": {name: _version(name) for name in ("torch", "onnxruntime", "openvino")} | {"vitrail": __version__},
    }
    return json.dumps(facts, sort_keys=True)


def _int8_graph(converter: Converter, ways: Sequence[Way]) -> list[str | int]:
    """Which int8 export takes part, if one does."""
    if converter.int8 is None or all(way.precision != "int8" for way in ways):
        return []
    return [converter.int8.path, converter.int8.runtime.manifest.graph_crc32]


def _rough_seconds(converter: Converter) -> float:
    """For one picture with all cores busy, by the size of the model: good enough to tell seconds from minutes."""
    return converter.num_bytes / 4 * converter.checkpoint.config.tokens / (RATE * converter.own.threads)


def _opening_seconds(converter: Converter, ways: Sequence[Way]) -> float:
    """Of an export that is kept; a job that must be exported anyway pays for that in any case."""
    if ways[0].runtime != "torch" or all(way.runtime == "torch" for way in ways):
        return 0.0
    return OPEN_SECONDS + converter.num_bytes / BYTES_PER_SECOND


def _converting_seconds(converter: Converter, ways: Sequence[Way]) -> float:
    opening = _opening_seconds(converter, ways)
    return 0.0 if not opening else opening if converter.kept else EXPORT_SECONDS + 2 * opening


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and computes_bf16()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
