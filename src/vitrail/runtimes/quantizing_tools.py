"""The tools that make 8-bit graphs: NNCF for OpenVINO and ONNX, and ONNX Runtime's own for ONNX.

The embedding of patches stays in float32: it is a small part of the work, and the one that loses most in 8 bits.
"""

import logging
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.runtimes.exporting import SUFFIXES, Target, seal_onnx, write_openvino
from vitrail.runtimes.manifest import IMAGES, Manifest
from vitrail.runtimes.openvino_runtime import read_model, silence_telemetry
from vitrail.runtimes.runtime import Floats
from vitrail.runtimes.trials import Calibration, Goal, Pictures
from vitrail.weights.layout import EXPORT_IN_FOLDER

RANKING_PICTURES = 100  # on which accuracy control finds out which layers hurt


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to 8 bits."""

    name: str
    tool: Literal["nncf", "onnxruntime"] = "nncf"
    smoothing: float | None = None  # SmoothQuant's α: how much of the range moves from activations into weights


PLAIN = Method(name="int8")
SMOOTH = tuple(
    Method(name=f"int8, SmoothQuant {alpha:g}", smoothing=alpha) for alpha in (0.15, 0.5, 0.05, 0.3, 0.8, 0.95)
)
# In the order in which they are tried; NNCF's own default of 0.95 is wrong for many ViTs.
METHODS: dict[Target, tuple[Method, ...]] = {
    "openvino": (PLAIN, *SMOOTH),
    "onnx": (Method(name="int8, min–max", tool="onnxruntime"), PLAIN, *SMOOTH),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A float32 export to be written in 8 bits."""

    plain: Path
    folder: Path  # where candidates are written
    target: Target
    manifest: Manifest
    calibration: Calibration
    goal: Goal

    def new_path(self) -> Path:
        return self.folder / f"{len(list(self.folder.iterdir()))}{SUFFIXES[self.target]}"


def write_int8(job: Job, method: Method) -> Path:
    """One candidate."""
    path, ranges = job.new_path(), job.calibration.ranges
    with _quiet():
        if job.target == "openvino":
            settings = _openvino_settings(method, ranges)
            model = _load_nncf().quantize(read_model(job.plain / EXPORT_IN_FOLDER), **settings)
            write_openvino(model, job.manifest, path)
            return path
        if method.tool == "onnxruntime":
            _quantize_static(job.plain, path, ranges)
        else:
            _quantize_onnx(job.plain, path, method, ranges)
        seal_onnx(path, job.manifest)
        return path


def write_controlled(job: Job, method: Method) -> Path:
    """OpenVINO only: the layers that hurt most go back to float32 until the pictures for choosing meet the goal."""
    nncf = _load_nncf()
    path, choosing, max_loss = job.new_path(), job.calibration.choosing, job.goal.max_loss
    scores = job.manifest.outputs.index(job.manifest.scores)
    by_accuracy = max_loss is not None and choosing.targets is not None
    answers: list[int] = choosing.targets.tolist() if by_accuracy and choosing.targets is not None else []

    def validate(compiled: Any, indices: Iterable[int]) -> tuple[float, list[list[Floats]]]:
        rows: list[list[Floats]] = []
        hits: list[bool] = []
        for index in indices:
            logits: Floats = compiled([choosing.one(index)])[scores][0]
            if len(answers) <= index:  # the first pass is that of float32
                answers.append(int(logits.argmax()))
            rows.append([logits])
            hits.append(int(logits.argmax()) == answers[index])
        return float(np.mean(hits)), rows

    settings = _openvino_settings(method, job.calibration.ranges)
    with _quiet():
        model = nncf.quantize_with_accuracy_control(
            read_model(job.plain / EXPORT_IN_FOLDER),
            validation_dataset=nncf.Dataset(range(len(choosing)), choosing.one),
            validation_fn=validate,
            max_drop=max_loss / 100 if by_accuracy and max_loss is not None else 1 - job.goal.agreement,
            advanced_quantization_parameters=settings.pop("advanced_parameters"),
            advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
                ranking_subset_size=min(RANKING_PICTURES, len(choosing)), num_ranking_workers=1
            ),
            **settings,
        )
        write_openvino(model, job.manifest, path)
    return path


def _load_nncf() -> Any:
    silence_telemetry()
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


def _openvino_settings(method: Method, ranges: Pictures) -> dict[str, Any]:
    dataset = _load_nncf().Dataset(range(len(ranges)), ranges.one)
    return _settings(method, dataset, len(ranges), {"types": ["Convolution"]})


def _quantize_onnx(plain: Path, path: Path, method: Method, ranges: Pictures) -> None:
    """NNCF on ONNX. The products of activations stay in float32, where ONNX Runtime computes them faster."""
    import onnx

    nncf = _load_nncf()

    def inputs(index: int) -> dict[str, Floats]:
        return {IMAGES: ranges.one(index)}

    dataset = nncf.Dataset(range(len(ranges)), inputs)
    settings = _settings(method, dataset, len(ranges), {"types": ["Conv"], "names": _products(plain)})
    onnx.save(nncf.quantize(onnx.load(str(plain)), **settings), str(path))


def _quantize_static(plain: Path, path: Path, ranges: Pictures) -> None:
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


@contextmanager
def _quiet() -> Generator[None]:
    """These tools print bars and advice on standard output, which belongs to our results."""
    loggers = [logging.getLogger(name) for name in ("nncf", "root")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
