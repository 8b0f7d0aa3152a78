"""A loaded model as its worker process uses it: batches of encoded pictures in, answers for each picture out."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.pixels import open_picture, prepare_array, prepare_arrays
from vitrail.errors import ConfigError, InputError, VitrailError, WeightsError
from vitrail.files import sha256_of
from vitrail.prediction import load
from vitrail.prediction.predictor import MANY
from vitrail.prediction.results import Request
from vitrail.prediction.steps import compute
from vitrail.registry import EXPORTS, PrecisionChoice, RuntimeChoice
from vitrail.runtimes.runtime import Floats
from vitrail.serving.decoder import Decoder
from vitrail.serving.frames import LARGE, Frame
from vitrail.timing import repeat
from vitrail.weights.resolve import files_of, locate, stamps_of
from vitrail.wording import reason

Asked = Mapping[str, Any]  # what is asked about one picture
Answered = dict[str, Any]
FORMATS = ("JPEG", "PNG", "WEBP")  # that are accepted
SERVED_BATCH = 4  # pictures in a call to choose the runtime by: under load more come together, else fewer
SEPARATOR = " | "  # between the labels of one picture
ATTEMPTS = 5  # to read files that are being written
LARGEST = 1e4  # of a prepared picture's numbers, which are rarely above 3: beyond it, no finite answer is our mistake
SHORTEST_VERSION = 12  # characters of a checksum that make a version
SECONDS = 1.0  # for measuring what suits a model, roughly
TIMES, LEAST = 3, 0.05  # how often, and for how many seconds, a size is measured at least; the quickest call counts
CALL = 0.0012  # seconds of work that a batch takes besides, on its way to the worker and back
WORTH = 0.05  # of the time per picture, which a larger batch must save
LONGEST = 0.25  # seconds that one batch may take: those who come next wait for it
SPREADS = 0.8  # of the time on one core, below which a lone picture is divided among all cores
WAITS = 1.5  # a batch of two is worth waiting for if it takes less than this many times one picture


class Engine:
    """A model on the runtime that it is served with, and in torch for explanations, where that is possible."""

    def __init__(self, source: str, runtime: RuntimeChoice, precision: PrecisionChoice, max_pixels: int) -> None:
        self.notes: list[str] = []
        self.max_pixels = max_pixels
        self.decoder = Decoder()
        self._load(source, runtime, precision)
        if self.explainer.in_torch:
            self.predictor = self.explainer.on(
                runtime, precision, count=MANY, batch=SERVED_BATCH, say=self.notes.append
            )

    def _load(self, source: str, runtime: RuntimeChoice, precision: PrecisionChoice) -> None:
        """The model and the checksum of the same bytes; from then on its files may be overwritten or deleted."""
        for _ in range(ATTEMPTS):
            located = locate(source, allow_export=True)
            path = located.fetch()
            stamps = stamps_of(path)
            self.sha256 = checksum(path)
            if located.suffix in EXPORTS:
                self.explainer = self.predictor = load(source, runtime=runtime, precision=precision)
            else:
                self.explainer = load(source)
                for weight in (*self.explainer.model.parameters(), *self.explainer.model.buffers()):
                    weight.data = weight.data.clone()  # it was mapped: a part of the file
            if stamps_of(path) == stamps:
                return
        raise WeightsError(
            f"{source} changes while it is read; write a new file, and move it there when it is complete."
        )

    def describe(self) -> Answered:
        """What `/v1/models` tells, and what the front needs to know; None where an export does not tell it."""
        predictor, has_torch = self.predictor, find_spec("torch") is not None  # exports run without it
        manifest: Any = getattr(predictor.runtime, "manifest", None)
        config: dict[str, Any] = {} if manifest is None else json.loads(manifest.config)
        if predictor.in_torch:
            config = vars(predictor.model.config)
        precision = "bf16" if predictor.runtime.name.endswith("bf16") else "float32"
        if manifest is not None and manifest.precision != "float32":
            precision = str(manifest.precision)
        methods: Sequence[str] = ()
        if has_torch:
            from vitrail.serving.overlays import methods_of

            methods = methods_of(self.explainer)
        return {
            "version": self.sha256[:SHORTEST_VERSION],
            "sha256": self.sha256,
            "task": predictor.task.kind,
            "output": predictor.task.output,
            "classes": predictor.num_classes,
            "labels": [predictor.label(index) for index in range(predictor.num_classes)],
            "thresholds": predictor.task.thresholds(predictor.trust, predictor.num_classes),
            "image_size": list(predictor.preprocess.size),
            "channels": predictor.preprocess.channels,
            "grid": list(predictor.grid) if has_torch else None,
            "depth": config.get("depth"),
            "heads": config.get("heads"),
            "runtime": predictor.runtime.name,
            "precision": precision,
            "explains": bool(methods),
            "methods": list(methods),
            "temperature": None if predictor.trust is None else predictor.trust.facts().get("temperature"),
            "highest_coverage": None if predictor.trust is None else predictor.trust.facts().get("highest_coverage"),
            "notes": [*predictor.notes, *self.notes],
        }

    def run(self, frame: Frame) -> Frame:
        """The answer to one batch, or to one question about a picture."""
        facts = frame.facts
        if facts["kind"] in ("logits", "features"):
            answer = self._compute_safely(facts["kind"], facts["items"], frame.blobs)
        else:
            try:
                answer = self._explain(facts["kind"], frame.blobs[0], facts["options"])
            except VitrailError as error:
                answer = Frame(_refusal(error))
        return Frame({"id": facts["id"], **answer.facts}, answer.blobs)

    def _compute_safely(self, kind: str, items: Sequence[Asked], blobs: Sequence[bytes]) -> Frame:
        """If a batch fails as a whole, each of its pictures alone, so that one does not spoil the others' answers."""
        try:
            return self._compute(kind, items, blobs)
        except Exception:
            if len(items) == 1:
                raise
        alone: list[Frame] = []
        for item, blob in zip(items, blobs, strict=True):
            try:
                alone.append(self._compute(kind, [item], [blob]))
            except Exception as error:  # a runtime may raise anything
                alone.append(Frame({"decode": 0.0, "compute": 0.0, "items": [model_failure(error)]}))
        return Frame(
            {
                "decode": sum(each.facts["decode"] for each in alone),
                "compute": sum(each.facts["compute"] for each in alone),
                "items": [entry for each in alone for entry in each.facts["items"]],
            },
            [blob for each in alone for blob in each.blobs],
        )

    def _compute(self, kind: str, items: Sequence[Asked], blobs: Sequence[bytes]) -> Frame:
        began = time.perf_counter()
        images, refusals = self._prepare(items, blobs)
        decoded = time.perf_counter()
        wanted = "answers" if kind == "logits" else "features"
        pairs = zip(images, compute(self.predictor, self.predictor.runtime, images, wanted), strict=True)
        ended = time.perf_counter()
        results: list[bytes] = []
        answers = [
            refusals[index] if index in refusals else self._answer(item, *next(pairs), results)
            for index, item in enumerate(items)
        ]
        return Frame({"decode": decoded - began, "compute": ended - decoded, "items": answers}, results)

    def _prepare(self, items: Sequence[Asked], blobs: Sequence[bytes]) -> tuple[Floats, dict[int, Answered]]:
        """What the model sees of those pictures that can be read, and why the others cannot."""
        spec = self.predictor.preprocess

        def prepare(pair: tuple[Asked, bytes], out: Floats) -> None:
            item, blob = pair
            if not item.get("tensor"):
                with self._open(blob, item["name"]) as image:
                    prepare_array(image, spec, out, item["name"])
                return
            if len(blob) != out.nbytes:  # checked before, but against the model of then
                raise ConfigError(f"{item['name']} does not fit the model, which now takes {list(out.shape)}.")
            out[:] = np.frombuffer(blob, dtype="<f4").reshape(out.shape)
            if not bool(np.isfinite(out).all()):
                raise ConfigError(f"{item['name']} has numbers that are not finite (NaN or infinite).")

        pairs = list(zip(items, blobs, strict=True))
        images, broken = prepare_arrays(pairs, spec, prepare, (InputError, OSError, ConfigError))
        return images, {index: _refusal(error) for index, error in broken.items()}

    def _open(self, data: bytes, name: str = "picture") -> Image.Image:
        """A picture, checked by Pillow's reading of its header, which may differ from the front's; only a large WebP is
        decoded already."""
        image = open_picture(data, formats=FORMATS, max_pixels=self.max_pixels, name=name)
        if image.format != "WEBP" or image.width * image.height <= LARGE:
            return image
        with image:
            return self.decoder.decode(image, data, name)

    def _answer(self, item: Asked, image: Floats, row: Floats | str, results: list[bytes]) -> Answered:
        """One picture's answer; numbers that a client asked for in full are added to the results."""
        if isinstance(row, str):
            if item.get("tensor") and (largest := float(np.abs(image).max())) > LARGEST:
                message = (
                    f"{item['name']} has numbers up to ±{largest:.3g}, too large for the model; normalise it first."
                )
                return failed("invalid_argument", message)
            return failed("model_failed", row)
        if item["want"] == "row":
            results.append(np.ascontiguousarray(row, dtype="<f4").tobytes())
            return {}
        if item["want"] == "top":
            return self._name(item, row)
        logits = row[: self.predictor.num_classes]
        meanings = np.ascontiguousarray(self.predictor.probabilities(logits), dtype="<f4")
        results += [np.ascontiguousarray(logits, dtype="<f4").tobytes(), meanings.tobytes()]
        labels = self.predictor.name_scores(logits).labels
        return {"label": SEPARATOR.join(labels) if self.predictor.task.labels == "set" else next(iter(labels), "")}

    def _name(self, item: Asked, row: Floats) -> Answered:
        """The most likely labels, and what the model's calibration says about them."""
        try:
            named = self.predictor.name_scores(row, Request(top_k=item["top_k"], coverage=item.get("coverage")))
        except ConfigError as error:
            return _refusal(error)
        return {
            "labels": [list(each) for each in zip(named.labels, named.indices, named.scores, strict=True)],
            "label_set": named.label_set,
            "values": named.values,
            "intervals": named.intervals,
            "familiarity": named.familiarity,
            "familiar": named.familiar,
        }

    def _explain(self, kind: str, data: bytes, options: dict[str, Any]) -> Frame:
        if find_spec("torch") is None:
            raise VitrailError("this service runs an export without torch, which explanations need; pip install torch")
        from vitrail.serving import overlays

        began = time.perf_counter()
        explain = overlays.attend if kind == "attention" else overlays.explain_picture
        with self._open(data) as image:
            result = explain(self.explainer, image, **options)
        seconds = time.perf_counter() - began
        if isinstance(result, bytes):
            return Frame({"compute": seconds}, [result])
        return Frame({"compute": seconds, "result": result})


def failed(code: str, message: str) -> Answered:
    """Why a picture, or a batch, has no answer."""
    return {"error": {"code": code, "message": message}}


def model_failure(error: Exception) -> Answered:
    """For clients: what kind of failure, and no more."""
    return failed("model_failed", f"the model failed to compute this: {type(error).__name__}.")


def _refusal(error: Exception) -> Answered:
    """What is wrong with the request, with its picture, or with explaining this model."""
    unreadable = "unreadable_picture" if isinstance(error, InputError | OSError) else "cannot_explain"
    return failed("invalid_argument" if isinstance(error, ConfigError) else unreadable, reason(error))


def checksum(path: Path) -> str:
    """The sha256 of a model: of its file; of several, of the list of their checksums."""
    sums = [sha256_of(file) for file in files_of(path)]
    return sums[0] if len(sums) == 1 else hashlib.sha256("\n".join(sums).encode()).hexdigest()


def warm_up(engine: Engine, narrow: Executor, wide: Executor, threads: int, max_batch: int | None) -> dict[str, Any]:
    """Let every thread compute once, then measure what was not given."""
    predictor = engine.predictor
    spec, runtime = predictor.preprocess, predictor.runtime
    images = np.zeros((max_batch or runtime.batch_size, spec.channels, *spec.size), dtype=np.float32)
    compute = runtime.logits if predictor.num_classes else runtime.features
    for future in [narrow.submit(compute, images[:1]) for _ in range(2 * threads)]:
        future.result()
    seconds = narrow.submit(measure, compute, images[: max_batch and 2]).result()
    spread = threads > 1 and wide.submit(measure, compute, images[:1]).result()[1] < SPREADS * seconds[1]
    return {
        "threads": threads,
        "max_batch": max_batch or choose_batch(seconds),
        "max_wait_ms": choose_wait(seconds),
        "spreads": spread,
    }


def measure(compute: Callable[[Floats], Floats], images: Floats) -> dict[int, float]:
    """Batch size → seconds, in doubling sizes for as long as there is time."""
    seconds: dict[int, float] = {}
    size, left = 1, SECONDS
    while size <= len(images):
        took = repeat(partial(compute, images[:size]), times=TIMES, seconds=LEAST, patience=left)
        left -= sum(took)
        seconds[size] = min(took)
        if seconds[size] > LONGEST or 2 * seconds[size] > left:
            break
        size *= 2
    return seconds


def choose_batch(seconds: dict[int, float]) -> int:
    """The smallest batch that is about as fast per picture as the best."""
    each = {size: (took + CALL) / size for size, took in seconds.items() if size == 1 or took <= LONGEST}
    best = min(each.values())
    return next(size for size, took in each.items() if took <= best * (1 + WORTH))


def choose_wait(seconds: dict[int, float]) -> float:
    """Milliseconds to wait for another picture while a core is idle: none where two take about twice as long."""
    if 2 not in seconds or seconds[2] > WAITS * seconds[1]:
        return 0.0
    return round(250 * seconds[1], 3)
