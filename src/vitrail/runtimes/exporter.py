"""A checkpoint to ONNX, OpenVINO or torch.export, with proof: the written file in its own runtime, beside torch."""

import errno
import io
import json
import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from vitrail.data.transform import pixels
from vitrail.errors import ConfigError, MissingExtraError, WeightsError
from vitrail.files import atomic_path
from vitrail.runtimes.graph import Graph, GraphOptions
from vitrail.runtimes.manifest import IMAGES, KEY, Manifest
from vitrail.runtimes.onnx_runtime import make_session, read_onnx_facts
from vitrail.runtimes.openvino_runtime import Requests, compile_model, crc_of, load_openvino, read_model
from vitrail.schema import to_dict
from vitrail.threads import num_cores
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Metadata
from vitrail.weights.native import fingerprint
from vitrail.weights.proof import Agreement, agree, photograph_files, sample_images
from vitrail.weights.resolve import EXPORT_IN_FOLDER

Target = Literal["onnx", "openvino", "torch"]
Precision = Literal["float32", "int8"]
SUFFIXES: dict[Target, str] = {"onnx": ".onnx", "openvino": "", "torch": ".pt2"}
GRAPH_FORM = 2  # raised when graphs are written another way: what was kept and measured before is then made anew
OPSET = 20  # the first with Gelu as one operation; later ones run slower or not at all in today's runtimes
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk says that has no room
LARGEST_ONNX = 2_000_000_000  # bytes in one file, which protobuf limits to 2 GiB
NEEDS: dict[Target, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
    "torch": (),
}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A graph in memory, and what it says about itself."""

    graph: Graph
    manifest: Manifest
    checkpoint: Checkpoint  # what the graph was made of, at the size of the pictures that it takes


def choose_target(path: Path, to: str | None) -> Target:
    """What a path means by its suffix, unless it is named."""
    if to is not None and to not in SUFFIXES:
        raise ConfigError(f"must be {', '.join(SUFFIXES)}; got {to!r}.", field="to")
    for target, suffix in SUFFIXES.items():
        if to == target or (to is None and suffix and path.suffix.lower() == suffix):
            if path.suffix.lower() != suffix:
                kind = f"a file that ends in {suffix}" if suffix else "a folder"
                raise ConfigError(f"`to={target!r}` writes {kind}; got {path}.")
            return target
    raise ConfigError(f'an export ends in .onnx or .pt2, or is a folder with `to="openvino"`; got {path}.')


def check_exportable(target: Target, precision: Precision = "float32") -> None:
    """Raise unless the packages are there that write and run it."""
    needs = (*NEEDS[target], "nncf") if precision == "int8" else NEEDS[target]
    if any(find_spec(name) is None for name in needs):
        what = f"exporting to {target} in int8" if precision == "int8" else f"exporting to {target}"
        raise MissingExtraError(what, "export")
    try:
        gettempdir()  # torch writes there, and hides why it cannot below its own errors
    except OSError as error:
        raise ConfigError("exporting needs a temporary folder; set TMPDIR to one that can be written to.") from error


def fit_to_pictures(checkpoint: Checkpoint) -> Checkpoint:
    """With positions for the size that its preprocessing makes, as the model itself would resample them each time.

    A checkpoint may have been trained at another size: DINOv2's has positions for 518 pixels and takes 224.
    """
    size = checkpoint.preprocess.size
    if size == checkpoint.config.image_size:
        return checkpoint
    return replace(adapt(checkpoint, image_size=size), preprocess=checkpoint.preprocess, trust=checkpoint.trust)


def prepare_export(checkpoint: Checkpoint, options: GraphOptions, weights_sha256: str | None = None) -> Exported:
    """The graph of a checkpoint, in float32, with its manifest and the hash of the weights before they were fitted."""
    sha256 = fingerprint(checkpoint.tensors) if weights_sha256 is None else weights_sha256
    if not options.dynamic_size:
        checkpoint = fit_to_pictures(checkpoint)
    graph = Graph(checkpoint.build(), checkpoint.preprocess, options, checkpoint.trust).eval()
    manifest = Manifest(
        facts=Metadata(**checkpoint.facts()),
        num_classes=checkpoint.config.num_classes,
        tokens=checkpoint.config.tokens,
        outputs=graph.outputs,
        preprocesses=options.with_preprocess,
        config=json.dumps(to_dict(checkpoint.config)),
        weights_sha256=sha256,
    )
    return Exported(graph=graph, manifest=manifest, checkpoint=checkpoint)


@contextmanager
def draft_of(path: Path, target: Target) -> Generator[Path]:
    """A place to write an export to, which takes the place of `path` if all goes well; folders hold exports only."""
    if target == "openvino" and path.is_dir():
        known = {EXPORT_IN_FOLDER, Path(EXPORT_IN_FOLDER).with_suffix(".bin").name}
        if others := sorted(item.name for item in path.iterdir() if item.name not in known):
            raise WeightsError(
                f"{path} holds other things, which we will not delete: {', '.join(others[:5])}; name another folder."
            )
    elif path.is_dir():
        raise WeightsError(f"{path} is a folder; name a file that ends in {SUFFIXES[target]}.")
    begun = False
    try:
        with atomic_path(path) as draft:
            begun = True
            yield draft
    except OSError as error:
        if begun and error.errno not in FULL:
            raise
        why = (error.strerror or str(error)).lower()
        raise WeightsError(f"{path} cannot be written: {why}; nothing is left there.") from error


def write_export(exported: Exported, draft: Path, target: Target) -> None:
    """Write to a place that nobody reads yet."""
    if target == "torch":
        write_program(exported, draft)
    elif target == "onnx":
        write_onnx(exported, draft)
    else:
        workshop = draft.with_name("graph.onnx")
        write_onnx(exported, workshop)
        write_openvino(read_model(workshop), exported.manifest, draft)


def write_onnx(exported: Exported, path: Path) -> None:
    """An ONNX file; one that would be too large keeps its weights in a file beside it."""
    graph = exported.graph
    with _quiet(), graph.written_out():
        program: Any = torch.onnx.export(
            graph,
            (graph.example(),),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=(_free_sizes(graph),),
            input_names=[IMAGES],
            output_names=list(graph.outputs),
            verbose=False,
        )
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.state_dict().values())
    external = size > LARGEST_ONNX
    program.save(str(path), external_data=external)
    seal_onnx(path, exported.manifest)


def seal_onnx(path: Path, manifest: Manifest) -> None:
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


def write_openvino(model: Any, manifest: Manifest, folder: Path) -> None:
    """A folder with the two files of an OpenVINO model."""
    openvino = load_openvino()
    folder.mkdir()
    target = folder / EXPORT_IN_FOLDER
    for port, name in zip(model.outputs, manifest.outputs, strict=True):
        port.get_tensor().set_names({name})
    try:
        openvino.save_model(model, str(target), compress_to_fp16=False)
        model.set_rt_info(replace(manifest, graph_crc32=crc_of(target.with_suffix(".bin"))).to_json(), [KEY])
        openvino.save_model(model, str(target), compress_to_fp16=False)
    except RuntimeError as error:  # whatever goes wrong
        raise WeightsError(f"OpenVINO cannot write its files ({error}); is the disk full?") from error


def write_program(exported: Exported, path: Path) -> None:
    """A program of torch.export, for torch's own tools."""
    graph = exported.graph
    with _quiet():
        program = torch.export.export(graph, (graph.example(),), dynamic_shapes=(_free_sizes(graph),), strict=False)
        content = io.BytesIO()  # given a path, torch's own writer ends the whole process when the disk is full
        torch.export.save(program, content, extra_files={f"{KEY}.json": exported.manifest.to_json()})
    path.write_bytes(content.getbuffer())


def _free_sizes(graph: Graph) -> dict[int, Any]:
    """Which dimensions of the input are free: the batch, and the picture's sides where that is asked for."""
    free: dict[int, Any] = {0: torch.export.Dim("batch")}
    if graph.options.with_preprocess:
        free |= {1: torch.export.Dim("height", min=2), 2: torch.export.Dim("width", min=2)}
    elif graph.options.dynamic_size:
        rows, columns = (
            stride * torch.export.Dim(name)
            for stride, name in zip(graph.model.config.stride, ("rows", "columns"), strict=True)
        )
        free |= {2: rows, 3: columns}
    return free


@contextmanager
def _quiet() -> Generator[None]:
    """torch's exporter talks about packages that it does not need here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


TOLERANCE = 1e-4  # of the largest number, where both compute in float32
# Where rounding can tip a choice: a pixel between two bytes falls to either, of two nearly equal pairs of tokens the
# other one merges.
LOOSE_TOLERANCE = 1e-2
Run = Callable[[Tensor], Sequence[Tensor]]  # one batch → the outputs in their order


def prove(exported: Exported, draft: Path, target: Target, pictures: Sequence[Path] = ()) -> Agreement:
    """How far the written export is from the model in torch; too far is an error."""
    run, names = open_draft(draft, target), exported.manifest.outputs
    loose = exported.manifest.preprocesses or any(exported.checkpoint.config.merge)
    tolerance = LOOSE_TOLERANCE if loose else TOLERANCE
    agreements: list[Agreement] = []
    for batch in proof_batches(exported, pictures):
        with torch.inference_mode():
            ours = _by_name(names, exported.graph(batch))
        try:
            theirs = run(batch)
        except Exception as error:  # each runtime has kinds of its own
            reason = " ".join(str(error).split())
            raise WeightsError(f"{target} cannot run the export: {reason[:300]} Nothing was written.") from error
        agreements.append(agree(ours, _by_name(names, theirs), tolerance, f"the export, run by {target},"))
    return join_agreements(agreements)


def join_agreements(parts: Sequence[Agreement]) -> Agreement:
    """Of several batches: the largest difference, and the share of all pictures."""
    count = sum(part.pictures for part in parts)
    return Agreement(
        what=parts[0].what,
        difference=max(part.difference for part in parts),
        scale=max(part.scale for part in parts),
        top1=sum(part.top1 * part.pictures for part in parts) / count,
        pictures=count,
    )


def proof_batches(exported: Exported, pictures: Sequence[Path]) -> list[Tensor]:
    """Real pictures as the graph takes them: several at once, one by itself, and other sizes where it takes them."""
    options, checkpoint = exported.graph.options, exported.checkpoint
    if options.with_preprocess:
        files = photograph_files(checkpoint, pictures)
        whole = [pixels(file, checkpoint.preprocess).permute(1, 2, 0) for file in files]  # bytes (H, W, 3)
        return [image[None, :, :: index + 1].contiguous() for index, image in enumerate(whole)]  # of several sizes
    images = sample_images(checkpoint, pictures)
    batches = [images, images[:1]]
    if options.dynamic_size:
        rows, columns = checkpoint.config.stride
        batches.append(torch.nn.functional.pad(images, (0, columns, 0, 2 * rows)))
    return batches


def open_draft(draft: Path, target: Target) -> Run:
    """What was written, in its own runtime."""
    if target == "torch":
        module = torch.export.load(draft).module()  # our own file, of this moment
        return lambda batch: cast("Sequence[Tensor]", module(batch))
    if target == "onnx":
        session = make_session(draft, num_cores())
        name = session.get_inputs()[0].name
        return lambda batch: _tensors(session.run(None, {name: batch.numpy()}))
    model = read_model(draft / EXPORT_IN_FOLDER if draft.is_dir() else draft)  # OpenVINO reads ONNX files too
    requests = Requests(compile_model(model, num_cores(), "float32", str(draft)))
    return lambda batch: _tensors(requests.call(cast("Any", batch.numpy())))


def _tensors(rows: Sequence[Any]) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(row)) for row in rows]


def _by_name(names: Sequence[str], rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Each output as one row of numbers for each picture."""
    return {name: output.reshape(len(output), -1) for name, output in zip(names, rows, strict=True)}
