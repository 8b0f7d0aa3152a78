"""A float32 export → 8 bits: candidates are made and measured, and the best is written if it is good enough.

The tools are NNCF for OpenVINO and ONNX, and ONNX Runtime's own for ONNX. The embedding of patches stays in float32: it
is a small part of the work, and the one that loses most in 8 bits.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch

from vitrail.errors import WeightsError
from vitrail.progress import working
from vitrail.registry import RUNTIMES
from vitrail.runtimes import onnx_runtime, openvino_runtime
from vitrail.runtimes.int8_trials import (
    ByteImages,
    CalibrationSet,
    Candidate,
    Goal,
    Trial,
    check_telling,
    format_trials,
    size_of,
)
from vitrail.runtimes.manifest import IMAGES, Manifest
from vitrail.runtimes.runtime import Floats, backend_of, quietly
from vitrail.weights.proof import Agreement, compare

CHOOSING, ACCEPTING = "choosing", "accepting"
NEAR = 0.05  # how far below the goal accuracy control may still help: it puts back single layers, not the whole model
RANKING_PICTURES = 100  # on which accuracy control finds out which layers hurt
LOGGERS = ("nncf", "root")


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to 8 bits."""

    name: str
    tool: Literal["nncf", "onnxruntime"] = "nncf"
    smoothing: float | None = None  # SmoothQuant's α: how much of the range moves from activations into weights


@dataclass(frozen=True, kw_only=True)
class Int8Job:
    """A float32 export to be written in 8 bits."""

    plain: Path
    folder: Path  # where candidates are written
    target: str
    manifest: Manifest
    calibration: CalibrationSet
    goal: Goal

    def write(self, writer: "Writer", method: Method) -> Path:
        """One candidate."""
        path = self.folder / f"{len(list(self.folder.iterdir()))}{RUNTIMES[self.target].path_suffix}"
        with quietly(*LOGGERS):
            writer(self, method, path)
        return path


Writer = Callable[[Int8Job, Method, Path], None]


@dataclass(frozen=True, kw_only=True)
class Quantizer:
    """How the exports of one runtime get to 8 bits.

    Attributes:
        methods: in the order in which they are tried.
        write: makes a candidate.
        write_controlled: makes one in which the layers that hurt most are in float32, if the tool can do that.
        accept: moves a candidate into place, with another manifest.
        largest: bytes of the largest float32 export that it takes.
    """

    methods: tuple[Method, ...]
    write: Writer
    write_controlled: Writer | None = None
    accept: Callable[[Path, Path, Manifest], None]
    largest: float = float("inf")


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """What was written in 8 bits, how far it is from float32, and all that was tried."""

    manifest: Manifest
    agreement: Agreement
    trials: tuple[Trial, ...]


def quantize(
    manifest: Manifest,
    plain: Path,
    draft: Path,
    target: str,
    calibration: CalibrationSet,
    goal: Goal,
    *,
    speaks: bool = False,
) -> Quantized:
    """Write the float32 export at `plain` to `draft` in 8 bits; a WeightsError shows the table if none is good enough.

    The candidates are compared on other pictures than those on which the chosen one is accepted.
    """
    quantizer = backend_of(target).quantizer()
    if size_of(plain) > quantizer.largest:
        raise WeightsError(
            f"int8 for {RUNTIMES[target].name} is for models of up to {quantizer.largest / 1e9:g} GB; export this one "
            "for OpenVINO."
        )
    with TemporaryDirectory(dir=draft.parent) as folder:
        job = Int8Job(
            plain=plain,
            folder=Path(folder),
            target=target,
            manifest=replace(manifest, precision="int8"),
            calibration=calibration,
            goal=goal,
        )
        sweep = _Sweep(job, quantizer, speaks)
        best = sweep.run()
        with working(f"measuring {best.method} on other pictures", speaks=speaks):
            trial, agreement = sweep.judge(best)
        if not accepts(goal, sweep.float_trial(ACCEPTING), trial):
            raise WeightsError(
                f"no int8 export reached {goal}; nothing was written. What was tried ({calibration.describe()}):\n"
                f"{format_trials(sweep.trials)}\n"
                "Calibrate with more pictures, or with others that are more like those that the model will see; or "
                "ask for less with `agreement=` or `max_loss=`"
            )
        written = replace(job.manifest, agreement=trial.agreement)
        quantizer.accept(best.path, draft, written)
    return Quantized(manifest=written, agreement=agreement, trials=tuple(sweep.trials))


def accepts(goal: Goal, plain: Trial, trial: Trial) -> bool:
    """Whether a candidate is good enough: by its agreement, or by its loss where that is asked for and known."""
    if trial.agreement >= goal.agreement:
        return True
    if goal.max_loss is None or plain.accuracy is None or trial.accuracy is None:
        return False
    return 100 * (plain.accuracy - trial.accuracy) <= goal.max_loss + 1e-9


class _Sweep:
    """All candidates of one export, and what was measured of them."""

    def __init__(self, job: Int8Job, quantizer: Quantizer, speaks: bool) -> None:
        self._job, self._quantizer, self._speaks = job, quantizer, speaks
        self._pictures = {CHOOSING: job.calibration.choosing, ACCEPTING: job.calibration.accepting}
        self._expected: dict[str, Floats] = {}
        self.trials: list[Trial] = []
        with working("measuring float32", speaks=speaks):
            reference = Candidate("float32", job.plain, job.target, job.manifest)
            for part, pictures in self._pictures.items():
                expected = reference.logits(pictures)
                check_telling(pictures, expected, job.goal, job.manifest.facts)
                self._expected[part] = expected
                self.trials.append(reference.try_on(pictures, part, expected)[0])

    def float_trial(self, part: str) -> Trial:
        return next(trial for trial in self.trials if trial.part == part)

    def run(self) -> Candidate:
        """Try one method after the other, until one is clearly good enough; the best."""
        goal, results = self._job.goal, list[tuple[Trial, Candidate, Method]]()
        for method in self._quantizer.methods:
            trial, candidate = self._try(method.name, self._quantizer.write, method)
            results.append((trial, candidate, method))
            if trial.agreement >= (1 + goal.agreement) / 2:
                break
        trial, best, method = max(results, key=lambda result: result[0].agreement)  # the first of equals
        good = accepts(goal, self.float_trial(CHOOSING), trial)
        restore = self._quantizer.write_controlled
        if good or restore is None or trial.agreement < goal.agreement - NEAR:
            return best
        controlled, other = self._try(f"{method.name}, some layers in float32", restore, method)
        return other if controlled.agreement > trial.agreement else best

    def judge(self, candidate: Candidate) -> tuple[Trial, Agreement]:
        """The figures on the pictures that chose nothing."""
        expected = self._expected[ACCEPTING]
        trial, logits = candidate.try_on(self._pictures[ACCEPTING], ACCEPTING, expected)
        self.trials.append(trial)
        compared = compare("logits", torch.from_numpy(expected), torch.from_numpy(logits))
        return trial, replace(compared, top1=trial.agreement)

    def _try(self, name: str, writer: Writer, method: Method) -> tuple[Trial, Candidate]:
        with working(f"quantising: {name}", speaks=self._speaks):
            candidate = Candidate(name, self._job.write(writer, method), self._job.target, self._job.manifest)
            trial, _ = candidate.try_on(self._pictures[CHOOSING], CHOOSING, self._expected[CHOOSING])
        self.trials.append(trial)
        return trial, candidate


def _write_openvino(job: Int8Job, method: Method, path: Path) -> None:
    settings = _openvino_settings(method, job.calibration.ranges)
    model = _load_nncf().quantize(openvino_runtime.read_model(job.plain / openvino_runtime.GRAPH), **settings)
    openvino_runtime.write_model(model, job.manifest, path)


def _write_controlled(job: Int8Job, method: Method, path: Path) -> None:
    """The layers that hurt most go back to float32 until the pictures for choosing meet the goal."""
    nncf = _load_nncf()
    choosing, max_loss = job.calibration.choosing, job.goal.max_loss
    scores = job.manifest.outputs.index(job.manifest.scores)
    by_accuracy = max_loss is not None and choosing.targets is not None
    facts = job.manifest.facts
    expected: list[Floats] = []  # of float32, whose pass is the first

    def validate(compiled: Any, indices: Iterable[int]) -> tuple[float, list[list[Floats]]]:
        rows: list[list[Floats]] = []
        hits: list[bool] = []
        for index in indices:
            logits: Floats = compiled([choosing.one(index)])[scores]
            if len(expected) <= index:
                expected.append(logits)
            rows.append([logits[0]])
            if by_accuracy and choosing.targets is not None:
                hits.append(int(logits.argmax()) == choosing.targets[index])
            else:
                hits.append(bool(facts.task.same_answers(expected[index], logits, facts.trust)[0]))
        return float(np.mean(hits)), rows

    settings = _openvino_settings(method, job.calibration.ranges)
    model = nncf.quantize_with_accuracy_control(
        openvino_runtime.read_model(job.plain / openvino_runtime.GRAPH),
        validation_dataset=nncf.Dataset(range(len(choosing)), choosing.one),
        validation_fn=validate,
        max_drop=max_loss / 100 if by_accuracy and max_loss is not None else 1 - job.goal.agreement,
        advanced_quantization_parameters=settings.pop("advanced_parameters"),
        advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
            ranking_subset_size=min(RANKING_PICTURES, len(choosing)), num_ranking_workers=1
        ),
        **settings,
    )
    openvino_runtime.write_model(model, job.manifest, path)


def _accept_openvino(path: Path, draft: Path, manifest: Manifest) -> None:
    openvino_runtime.write_model(openvino_runtime.read_model(path / openvino_runtime.GRAPH), manifest, draft)


def _write_onnx(job: Int8Job, method: Method, path: Path) -> None:
    if method.tool == "onnxruntime":
        _quantize_static(job.plain, path, job.calibration.ranges)
    else:
        _quantize_onnx(job.plain, path, method, job.calibration.ranges)
    onnx_runtime.seal(path, job.manifest)


def _accept_onnx(path: Path, draft: Path, manifest: Manifest) -> None:
    path.replace(draft)
    onnx_runtime.seal(draft, manifest)


def _load_nncf() -> Any:
    openvino_runtime.silence_telemetry()
    import nncf

    return nncf


def _settings(method: Method, dataset: Any, num_pictures: int, ignored: dict[str, Any]) -> dict[str, Any]:
    nncf = _load_nncf()
    alpha = -1.0 if method.smoothing is None else method.smoothing
    return {
        "calibration_dataset": dataset,
        "model_type": nncf.ModelType.TRANSFORMER,
        "subset_size": num_pictures,
        "fast_bias_correction": True,
        "ignored_scope": nncf.IgnoredScope(**ignored, validate=False),
        "advanced_parameters": nncf.AdvancedQuantizationParameters(
            smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=alpha)
        ),
    }


def _openvino_settings(method: Method, ranges: ByteImages) -> dict[str, Any]:
    dataset = _load_nncf().Dataset(range(len(ranges)), ranges.one)
    return _settings(method, dataset, len(ranges), {"types": ["Convolution"]})


def _quantize_onnx(plain: Path, path: Path, method: Method, ranges: ByteImages) -> None:
    """NNCF on ONNX. The products of activations stay in float32, where ONNX Runtime computes them faster."""
    import onnx

    nncf = _load_nncf()

    def inputs(index: int) -> dict[str, Floats]:
        return {IMAGES: ranges.one(index)}

    dataset = nncf.Dataset(range(len(ranges)), inputs)
    settings = _settings(method, dataset, len(ranges), {"types": ["Conv"], "names": _products(plain)})
    onnx.save(nncf.quantize(onnx.load(str(plain)), **settings), str(path))


def _quantize_static(plain: Path, path: Path, ranges: ByteImages) -> None:
    """ONNX Runtime's own tool, which writes pairs of QuantizeLinear and DequantizeLinear too."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._images = iter(ranges.batches(1))

        def get_next(self) -> Any:
            image = next(self._images, None)
            return None if image is None else {IMAGES: image}

    prepared = path.with_suffix(".prepared")
    quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(prepared),
        str(path),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=["MatMul", "Gemm"],
        nodes_to_exclude=_products(prepared),
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        calibrate_method=quantization.CalibrationMethod.MinMax,
        extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
    )
    prepared.unlink()


def _products(path: Path) -> list[str]:
    """The matrix products of an ONNX graph without a weight: those of attention."""
    import onnx

    graph: Any = onnx.load(str(path)).graph
    weights = {tensor.name for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type == "MatMul" and not weights & set(node.input)]


PLAIN = Method(name="int8")
SMOOTH = tuple(  # NNCF's own default of 0.95 is wrong for many ViTs
    Method(name=f"int8, SmoothQuant {alpha:g}", smoothing=alpha) for alpha in (0.15, 0.5, 0.05, 0.3, 0.8, 0.95)
)
OPENVINO = Quantizer(
    methods=(PLAIN, *SMOOTH), write=_write_openvino, write_controlled=_write_controlled, accept=_accept_openvino
)
ONNX = Quantizer(
    methods=(Method(name="int8, min–max", tool="onnxruntime"), PLAIN, *SMOOTH),
    write=_write_onnx,
    accept=_accept_onnx,
    largest=onnx_runtime.LARGEST_FILE,
)
