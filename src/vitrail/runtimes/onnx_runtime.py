"""ONNX files: what they say about themselves, and ONNX Runtime, which runs them. Needs neither torch nor onnx.

A file is not trusted, and checked first, from its protobuf: weights that lie in other files must lie in the same
folder, and the numbers of our own exports must have the checksum that their manifest says."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.data.pixels import Array
from vitrail.errors import ConfigError, MissingExtraError, WeightsError
from vitrail.registry import RUNTIMES, Precision
from vitrail.runtimes.graph_runtime import ExportedRuntime, check_graph
from vitrail.runtimes.manifest import (
    IMAGES,
    KEY,
    GraphFile,
    Manifest,
    crc_of_file,
    foreign_manifest,
    read_manifest,
    settle,
)
from vitrail.runtimes.runtime import Floats, LoadOptions, Run, Runtime, check_for_export, quietly
from vitrail.threads import num_cores
from vitrail.weights.metadata import Metadata
from vitrail.weights.resolve import Located
from vitrail.wording import in_one_line

if TYPE_CHECKING:
    from vitrail.runtimes.exporter import Exported
    from vitrail.runtimes.int8 import Quantizer
    from vitrail.runtimes.torch_runtime import TorchRuntime

# Numbers of the fields that we follow, from onnx.proto3.
GRAPH, METADATA = 7, 14  # of ModelProto
NODE, INITIALIZER = 1, 5  # of GraphProto
ATTRIBUTE = 5  # of NodeProto
TENSOR, SUBGRAPH, TENSORS, SUBGRAPHS = 5, 6, 10, 11  # of AttributeProto
RAW_DATA, EXTERNAL_DATA = 9, 13  # of TensorProto
ENTRY_KEY, ENTRY_VALUE = 1, 2  # of StringStringEntryProto
DEEPEST = 20  # graphs within graphs

Span = tuple[int, int]  # where a field's bytes begin and end


@dataclass(kw_only=True)
class OnnxFacts:
    """Metadata by key, the files that hold weights, the checksum of the weights, and the content that was checked."""

    metadata: dict[str, str] = field(default_factory=dict[str, str])
    external: set[str] = field(default_factory=set[str])
    crc32: int = 0
    content: bytes = b""


def read_onnx_facts(path: Path) -> OnnxFacts:
    """Walk through the file once; anything that is not a model of ONNX is an error."""
    facts = OnnxFacts()
    try:
        data = facts.content = path.read_bytes()
        if not data:
            raise ValueError("the file is empty")
        for number, span in _fields(data, (0, len(data))):
            if number == METADATA:
                entry = dict(_fields(data, span))
                facts.metadata[_text(data, entry.get(ENTRY_KEY))] = _text(data, entry.get(ENTRY_VALUE))
            elif number == GRAPH:
                _read_graph(data, span, facts, 0)
    except (ValueError, IndexError, RecursionError, OSError) as error:
        raise WeightsError(f"{path} is damaged, or not an ONNX model ({error}).") from error
    for name in sorted(facts.external):
        _check_external(path, name)
        facts.crc32 = crc_of_file(path.parent / name, facts.crc32)
    return facts


def _read_graph(data: bytes, span: Span, facts: OnnxFacts, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError("graphs are nested too deeply")
    for number, part in _fields(data, span):
        if number == INITIALIZER:
            _read_tensor(data, part, facts)
        elif number == NODE:
            for attribute in (inner for kind, inner in _fields(data, part) if kind == ATTRIBUTE):
                for kind, inner in _fields(data, attribute):
                    if kind in (TENSOR, TENSORS):
                        _read_tensor(data, inner, facts)
                    elif kind in (SUBGRAPH, SUBGRAPHS):
                        _read_graph(data, inner, facts, depth + 1)


def _read_tensor(data: bytes, span: Span, facts: OnnxFacts) -> None:
    for number, part in _fields(data, span):
        if number == RAW_DATA:
            facts.crc32 = zlib.crc32(memoryview(data)[part[0] : part[1]], facts.crc32)
        elif number == EXTERNAL_DATA:
            entry = dict(_fields(data, part))
            if _text(data, entry.get(ENTRY_KEY)) == "location":
                facts.external.add(_text(data, entry.get(ENTRY_VALUE)))


def _fields(data: bytes, span: Span) -> Iterator[tuple[int, Span]]:
    """The length-delimited fields of a message, by number; numbers and fixed fields are passed over."""
    position, end = span
    while position < end:
        tag, position = _varint(data, position, end)
        kind = tag & 7
        if kind == 2:
            length, position = _varint(data, position, end)
            if position + length > end:
                raise ValueError("the file ends too early")
            yield tag >> 3, (position, position + length)
            position += length
        elif kind == 0:
            _, position = _varint(data, position, end)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError("unknown kind of field")
    if position != end:
        raise ValueError("the file ends too early")


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise ValueError("the file ends too early")
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError("a number is too long")


def _text(data: bytes, span: Span | None) -> str:
    return "" if span is None else data[span[0] : span[1]].decode("utf-8", errors="replace")


def _check_external(path: Path, name: str) -> None:
    """Weights beside the file are fine; a path that leads elsewhere is not followed."""
    if not name or Path(name).name != name or name.startswith("."):
        raise WeightsError(f"{path} points outside its own folder: {name!r}; we do not follow that.")
    target = path.parent / name
    if target.is_symlink() or not target.is_file():
        raise WeightsError(f"{path} keeps its weights in {name}, which must lie beside it as a plain file.")


NAME = RUNTIMES["onnx"].name
OPSET = 20  # the first with Gelu as one operation; later ones run slower or not at all in today's runtimes
LARGEST_FILE = 2_000_000_000  # bytes, which protobuf limits to 2 GiB
QUIET = 3  # ONNX Runtime's level for errors: its warnings are about its own work


def open_source(located: Located, options: LoadOptions) -> tuple[Runtime, Metadata]:
    """An ONNX file, checked before it is run."""
    path = located.fetch()
    check_for_export(options, path)
    if options.precision != "float32":
        raise ConfigError(
            f"{path} is an ONNX file and runs in its own number format: `precision=` must be float32; got "
            f"{options.precision}."
        )
    facts = read_onnx_facts(path)
    content = None if facts.external else facts.content  # sessions are made later, when the file may be another one
    if text := facts.metadata.get(KEY):
        manifest = read_manifest(text, path)
        if options.verify and manifest.graph_crc32 != facts.crc32:
            raise WeightsError(f"{path} is damaged: the checksum of its weights does not match; get a fresh copy.")
        runtime = make_runtime(path, settle(manifest, options, path), content)
    else:
        runtime = make_foreign_runtime(path, options, content)
    return runtime, runtime.manifest.facts


def make_runtime(path: Path, manifest: Manifest, content: bytes | None = None) -> ExportedRuntime:
    """One of our exports; its graph is checked when the first session is made."""

    def compile_for(cores: int) -> Run:
        session = make_session(path, cores, content)
        check_graph(str(path), _names(session.get_inputs()), _names(session.get_outputs()), manifest)
        return partial(_call, session)

    return ExportedRuntime(NAME, manifest, compile_for)


def convert(own: "TorchRuntime", graph: Callable[[], GraphFile], precision: Precision) -> Runtime:
    """A model in torch, as the ONNX file of it runs."""
    made = graph()
    return make_runtime(made.path, made.manifest)


def make_foreign_runtime(path: Path, options: LoadOptions, content: bytes | None) -> ExportedRuntime:
    """Another tool's graph with one picture input and one row of logits as output."""
    session = make_session(path, 1, content)
    inputs, outputs = session.get_inputs(), session.get_outputs()
    foreign = f"{path} is not an export of vitrail, or its metadata was stripped; another tool's model must"
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type != "tensor(float)":
        takes = ", ".join(f"{each.name} {each.shape}" for each in inputs) or "nothing"
        raise WeightsError(
            f"{foreign} take one tensor of pictures (batch, channels, height, width) in float32; this takes {takes}."
        )
    if len(outputs) != 1 or len(outputs[0].shape) != 2:
        gives = ", ".join(_names(outputs)) or "nothing"
        raise WeightsError(f"{foreign} give one row of logits for each picture and nothing else; this gives {gives}.")
    batch, *sides = inputs[0].shape
    classes = outputs[0].shape[1]
    if not all(isinstance(side, int) for side in (*sides, classes)):
        raise WeightsError(f"{path} must have a fixed picture size and number of classes; got {sides} and {classes}.")
    manifest = foreign_manifest(path, (sides[1], sides[2]), sides[0], classes, options)
    fixed = batch if isinstance(batch, int) else None

    def compile_for(cores: int) -> Run:
        return partial(_call, make_session(path, cores, content))

    return ExportedRuntime(NAME, settle(manifest, options, path), compile_for, fixed)


def make_session(path: Path, cores: int, content: bytes | None = None) -> Any:
    """A session of ONNX Runtime that uses `cores` for each call, from the file or from its content."""
    if find_spec("onnxruntime") is None:
        raise MissingExtraError(f"running {path}", "export")
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    options.inter_op_num_threads = 1
    options.log_severity_level = QUIET
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if cores == 1 else "1")
    try:
        return onnxruntime.InferenceSession(content or str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes are not public, and a damaged file raises any of them
        raise WeightsError(f"{path} cannot be run by ONNX Runtime: {in_one_line(error)[:300]}") from error


def open_draft(draft: Path) -> Run:
    """An ONNX file of ours, on all cores."""
    return partial(_call, make_session(draft, num_cores()))


def write_export(exported: "Exported", draft: Path) -> None:
    """An ONNX file; one that would be too large keeps its weights in a file beside it."""
    import torch

    graph = exported.graph
    with quietly("torch.onnx"), graph.written_out():  # its advice is about packages that are not needed here
        program: Any = torch.onnx.export(
            graph,
            (graph.example(),),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=(graph.free_sizes(),),
            input_names=[IMAGES],
            output_names=list(graph.outputs),
            verbose=False,
        )
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.state_dict().values())
    program.save(str(draft), external_data=size > LARGEST_FILE)
    seal(draft, exported.manifest)


def seal(path: Path, manifest: Manifest) -> None:
    """Put the manifest into an ONNX file, with the checksum of its weights, all of which are stored as raw bytes."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        if not tensor.HasField("raw_data") and tensor.data_location != onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    path.write_bytes(model.SerializeToString())
    sealed = replace(manifest, graph_crc32=read_onnx_facts(path).crc32)
    onnx.helper.set_model_props(model, {KEY: sealed.to_json()})
    path.write_bytes(model.SerializeToString())


def quantizer() -> "Quantizer":
    from vitrail.runtimes.int8 import ONNX

    return ONNX


def _call(session: Any, images: Array) -> Sequence[Floats]:
    return session.run(None, {session.get_inputs()[0].name: images})


def _names(nodes: Sequence[Any]) -> list[str]:
    return [node.name for node in nodes]
