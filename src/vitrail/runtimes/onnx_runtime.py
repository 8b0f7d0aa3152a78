"""ONNX files on ONNX Runtime. Needs neither torch nor onnx."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrail.data.pixels import Array
from vitrail.errors import ConfigError, MissingExtraError, WeightsError
from vitrail.runtimes.exported import ExportedRuntime, check_graph
from vitrail.runtimes.manifest import KEY, Manifest, foreign_manifest, read_manifest, settle
from vitrail.runtimes.onnx_file import read_onnx_facts
from vitrail.runtimes.opening import LoadOptions, check_for_export
from vitrail.runtimes.runtime import Floats, Runtime
from vitrail.weights.facts import Facts
from vitrail.weights.locate import Located

QUIET = 3  # ONNX Runtime's level for errors: its warnings are about its own work


def open_source(located: Located, options: LoadOptions) -> tuple[Runtime, Facts]:
    """An ONNX file, checked before it is run."""
    path = located.fetch()
    check_for_export(options, path)
    if options.precision != "float32":
        raise ConfigError(
            f"{path} is an ONNX file and runs in its own numbers: precision= must be float32; got {options.precision}."
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


def make_runtime(path: Path, manifest: Manifest, content: bytes | None = None) -> ExportedRuntime[Any]:
    """One of our exports; its graph is judged when the first session is made."""

    def compile_for(cores: int) -> Any:
        session = make_session(path, cores, content)
        check_graph(str(path), _names(session.get_inputs()), _names(session.get_outputs()), manifest)
        return session

    return ExportedRuntime("ONNX Runtime", manifest, compile_for, _call)


def make_foreign_runtime(path: Path, options: LoadOptions, content: bytes | None) -> ExportedRuntime[Any]:
    """Somebody else's graph with one picture input and one row of logits as output."""
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
    return ExportedRuntime(
        "ONNX Runtime", settle(manifest, options, path), lambda cores: make_session(path, cores, content), _call, fixed
    )


def make_session(path: Path, cores: int, content: bytes | None = None) -> Any:
    """A session of ONNX Runtime that takes so many cores for each call, from the file or from its content."""
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
        reason = " ".join(str(error).split())
        raise WeightsError(f"{path} cannot be run by ONNX Runtime: {reason[:300]}") from error


def _call(session: Any, images: Array) -> Sequence[Floats]:
    return session.run(None, {session.get_inputs()[0].name: images})


def _names(nodes: Sequence[Any]) -> list[str]:
    return [node.name for node in nodes]
