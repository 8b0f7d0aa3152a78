"""A runtime in one file: ONNX graphs, computed in NumPy by onnx's own reference implementation."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.registry import Precision, RuntimeKind, register
from vitrail.runtimes import onnx_runtime
from vitrail.runtimes.graph_runtime import ExportedRuntime
from vitrail.runtimes.manifest import KEY, GraphFile, Manifest, read_manifest, settle
from vitrail.runtimes.runtime import LoadOptions, Run, Runtime
from vitrail.weights.metadata import Metadata
from vitrail.weights.resolve import Located

if TYPE_CHECKING:
    from vitrail.runtimes.exporter import Exported
    from vitrail.runtimes.torch_runtime import TorchRuntime

KIND = RuntimeKind(
    key="toy",
    name="a toy",
    module=__name__,
    packages=("onnx", "onnxscript"),
    suffix=".toy",
    what="a toy model",
)
register(KIND)


def open_source(located: Located, options: LoadOptions) -> tuple[Runtime, Metadata]:
    path = located.fetch()
    manifest = settle(read_manifest(onnx_runtime.read_onnx_facts(path).metadata[KEY], path), options, path)
    return _runtime(path, manifest), manifest.facts


def convert(own: "TorchRuntime", graph: Callable[[], GraphFile], precision: Precision) -> Runtime:
    made = graph()
    return _runtime(made.path, made.manifest)


def write_export(exported: "Exported", draft: Path) -> None:
    onnx_runtime.write_export(exported, draft)


def open_draft(draft: Path) -> Run:
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load_model_from_string(draft.read_bytes()))
    return lambda images: evaluator.run(None, {evaluator.input_names[0]: images})  # pyright: ignore


def _runtime(path: Path, manifest: Manifest) -> ExportedRuntime:
    return ExportedRuntime(KIND.name, manifest, lambda cores: open_draft(path))
