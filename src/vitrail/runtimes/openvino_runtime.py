"""OpenVINO's files on OpenVINO. Needs no torch."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.data.pixels import Array
from vitrail.errors import ConfigError, MissingExtraError, WeightsError
from vitrail.registry import RUNTIMES, Precision, label_of
from vitrail.runtimes import onnx_runtime
from vitrail.runtimes.graph_runtime import ExportedRuntime, check_graph
from vitrail.runtimes.manifest import KEY, GraphFile, Manifest, crc_of_file, read_manifest, settle
from vitrail.runtimes.runtime import Floats, LoadOptions, Run, Runtime, check_for_export
from vitrail.threads import num_cores
from vitrail.weights.metadata import Metadata
from vitrail.weights.resolve import Located
from vitrail.wording import in_one_line

if TYPE_CHECKING:
    from vitrail.runtimes.exporter import Exported
    from vitrail.runtimes.int8 import Quantizer
    from vitrail.runtimes.torch_runtime import TorchRuntime

GRAPH = RUNTIMES["openvino"].folder[0]  # the file of an export beside which the weights are
_FIRST_USE = Lock()
_PLACES = re.compile(r"Exception from \S+:\d+:|Check '.*?' failed at \S+:\d+:")
NAMES = {"float32": "f32", "bf16": "bf16"}  # OpenVINO's names for number formats


def open_source(located: Located, options: LoadOptions) -> tuple[Runtime, Metadata]:
    """The two files of an OpenVINO model, checked before they are run."""
    path = located.fetch()
    check_for_export(options, path)
    if options.precision not in NAMES:
        raise ConfigError(f"OpenVINO computes in {' or '.join(NAMES)}; got precision {options.precision}.")
    weights = path.with_suffix(".bin")
    if not weights.is_file() or weights.is_symlink():
        raise WeightsError(f"{path} keeps its weights in {weights.name}, which must lie beside it as a plain file.")
    model = read_model(path)
    if not model.has_rt_info([KEY]):
        raise WeightsError(f"{path} is not an export of vitrail, or its metadata was stripped; export it again.")
    manifest = read_manifest(model.get_rt_info([KEY]).astype(str), path)
    if options.verify and manifest.graph_crc32 != crc_of_file(weights):
        raise WeightsError(f"{path} is damaged: the checksum of its weights does not match; get a fresh copy.")
    runtime = make_runtime(model, settle(manifest, options, path), options.precision, str(path))
    return runtime, runtime.manifest.facts


def make_runtime(model: Any, manifest: Manifest, precision: Precision, name: str) -> ExportedRuntime:
    """A graph in memory; `name` is for messages."""
    check_graph(name, [_name(port) for port in model.inputs], [_name(port) for port in model.outputs], manifest)

    def compile_for(cores: int) -> Run:
        return Requests(compile_model(model, cores, precision, name)).call

    return ExportedRuntime(label_of("openvino", precision), manifest, compile_for)


def convert(own: "TorchRuntime", graph: Callable[[], GraphFile], precision: Precision) -> Runtime:
    """A model in torch, as OpenVINO runs the ONNX file of it."""
    made = graph()
    model = read_model(made.path)
    name_outputs(model, made.manifest)
    return make_runtime(model, made.manifest, precision, str(made.path))


class Requests:
    """A compiled model with a request of its own for each thread, because a request serves one call at a time."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._own = local()

    def call(self, images: Array) -> Sequence[Floats]:
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        results = self._own.request.infer([images], share_inputs=True, share_outputs=False)
        return [results[port] for port in self._compiled.outputs]


def load_openvino() -> Any:
    """The package, without its reports to its makers."""
    if find_spec("openvino") is None:
        raise MissingExtraError("OpenVINO", "export")
    silence_telemetry()
    import openvino

    with _FIRST_USE:  # of NumPy: two threads at once in OpenVINO's would wait for each other for ever
        openvino.Tensor(np.zeros(1, dtype=np.float32))
    return openvino


def silence_telemetry() -> None:
    """OpenVINO's Python parts report their use over the network unless they are told not to."""
    if find_spec("openvino_telemetry") is None:
        return
    from openvino_telemetry.utils import opt_in_checker

    def decline(*_: object, **__: object) -> Any:
        return opt_in_checker.ConsentCheckResult.DECLINED

    opt_in_checker.OptInChecker.check = decline


def read_model(path: Path) -> Any:
    """The graph of an .xml file and its .bin, or of an ONNX file."""
    openvino = load_openvino()
    try:
        core = openvino.Core()
        core.set_property({"ENABLE_MMAP": False})  # or the weights would change with the file
        model = core.read_model(str(path))
        transpose_in_products(model)
        return model
    except Exception as error:  # a damaged file raises many kinds
        raise WeightsError(
            f"{path} cannot be read by OpenVINO, so it is damaged, or not a model: {_reason(error)}"
        ) from error


# How the second factor of Q Kᵀ is transposed → what remains to be done before a product that transposes it itself.
KEY_ORDERS = {(0, 1, 3, 2): None, (0, 2, 3, 1): (0, 2, 1, 3)}


def transpose_in_products(model: Any) -> None:
    """Q Kᵀ as a product that transposes K itself: OpenVINO fuses it with the softmax also where K has 8 bits."""
    from openvino import opset13

    for product in model.get_ordered_ops():
        if product.get_type_name() != "MatMul" or product.get_attributes()["transpose_b"]:
            continue
        query, key = product.input_value(0), product.input_value(1).get_node()
        order = key.input_value(1).get_node() if key.get_type_name() == "Transpose" else None
        if order is None or order.get_type_name() != "Constant" or tuple(order.data) not in KEY_ORDERS:
            continue
        rest, key = KEY_ORDERS[tuple(order.data)], key.input_value(0)
        key = key if rest is None else opset13.transpose(key, np.array(rest))
        joined = opset13.matmul(query, key, product.get_attributes()["transpose_a"], True)
        joined.set_friendly_name(product.get_friendly_name())
        product.output(0).replace(joined.output(0))


def compile_model(model: Any, cores: int, precision: Precision, name: str) -> Any:
    """The graph for calls that use `cores` each, in as many streams as there can be such calls at once."""
    openvino = load_openvino()
    streams = max((os.cpu_count() or 1) // cores, 1)
    config = {
        "INFERENCE_PRECISION_HINT": NAMES[precision],
        "INFERENCE_NUM_THREADS": cores * streams,
        "NUM_STREAMS": streams,
    }
    try:
        return openvino.Core().compile_model(model, "CPU", config)
    except Exception as error:
        raise WeightsError(f"{name} cannot be run by OpenVINO: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What OpenVINO says went wrong, without the places in its own source where it noticed."""
    text = in_one_line(error)
    return (_PLACES.sub("", text).strip() or text)[:300]


def open_draft(draft: Path) -> Run:
    """A folder of ours, or an ONNX file, which OpenVINO reads too, on all cores."""
    model = read_model(draft / GRAPH if draft.is_dir() else draft)
    return Requests(compile_model(model, num_cores(), "float32", str(draft))).call


def write_export(exported: "Exported", draft: Path) -> None:
    """A folder with the two files of an OpenVINO model, made from an ONNX file."""
    workshop = draft.with_name("graph.onnx")
    onnx_runtime.write_export(exported, workshop)
    write_model(read_model(workshop), exported.manifest, draft)


def write_model(model: Any, manifest: Manifest, folder: Path) -> None:
    """A graph in memory as the two files of an OpenVINO model."""
    openvino = load_openvino()
    folder.mkdir()
    target = folder / GRAPH
    name_outputs(model, manifest)
    try:
        openvino.save_model(model, str(target), compress_to_fp16=False)
        model.set_rt_info(replace(manifest, graph_crc32=crc_of_file(target.with_suffix(".bin"))).to_json(), [KEY])
        openvino.save_model(model, str(target), compress_to_fp16=False)
    except RuntimeError as error:  # whatever goes wrong
        raise WeightsError(f"OpenVINO cannot write its files ({error}); is the disk full?") from error


def name_outputs(model: Any, manifest: Manifest) -> None:
    for port, name in zip(model.outputs, manifest.outputs, strict=True):
        port.get_tensor().set_names({name})


def quantizer() -> "Quantizer":
    from vitrail.runtimes.int8 import OPENVINO

    return OPENVINO


def _name(port: Any) -> str:
    return port.get_any_name()
