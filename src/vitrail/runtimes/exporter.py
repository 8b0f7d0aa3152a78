"""A checkpoint to ONNX, OpenVINO or torch.export, with proof: the written file in its own runtime, beside torch."""

import errno
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import torch
from torch import Tensor

from vitrail.data.transform import pixels
from vitrail.errors import ConfigError, MissingExtraError, WeightsError
from vitrail.files import atomic_path
from vitrail.registry import RUNTIMES, GraphPrecision
from vitrail.runtimes.graph import Graph, GraphOptions
from vitrail.runtimes.manifest import Manifest
from vitrail.runtimes.runtime import Floats, backend_of
from vitrail.schema import to_dict
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Metadata
from vitrail.weights.native import fingerprint
from vitrail.weights.proof import Agreement, agree, photograph_files, sample_images
from vitrail.wording import in_one_line

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk says that has no room
TOLERANCE = 1e-4  # of the largest number, where both compute in float32
# Where rounding can tip a choice: a pixel between two bytes falls to either, of two nearly equal pairs of tokens the
# other one merges.
LOOSE_TOLERANCE = 1e-2


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A graph in memory, and what it says about itself."""

    graph: Graph
    manifest: Manifest
    checkpoint: Checkpoint  # what the graph was made of, at the size of the pictures that it takes


def choose_target(path: Path, to: str | None) -> str:
    """The runtime that a path means by its suffix, unless it is named."""
    if to is not None and to not in RUNTIMES:
        raise ConfigError(f"must be one of {', '.join(RUNTIMES)}; got {to!r}.", field="to")
    suffix = path.suffix.lower()
    for kind in RUNTIMES.values():
        if to == kind.key or (to is None and suffix and suffix == kind.path_suffix):
            if suffix != kind.path_suffix:
                written = f"a file that ends in {kind.suffix}" if kind.path_suffix else "a folder"
                raise ConfigError(f"`to={kind.key!r}` writes {written}; got {path}.")
            return kind.key
    files = " or ".join(kind.suffix for kind in RUNTIMES.values() if not kind.folder)
    folders = " or ".join(f'`to="{kind.key}"`' for kind in RUNTIMES.values() if kind.folder)
    raise ConfigError(f"an export ends in {files}, or is a folder with {folders}; got {path}.")


def check_exportable(target: str, precision: GraphPrecision = "float32") -> None:
    """Raise unless the packages are there that write and run it."""
    in_int8 = precision == "int8"
    if not RUNTIMES[target].is_installed or (in_int8 and find_spec("nncf") is None):
        raise MissingExtraError(f"exporting to {target}{' in int8' if in_int8 else ''}", "export")
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
    graph = Graph(checkpoint.build(), checkpoint, options).eval()
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
def draft_of(path: Path, target: str) -> Generator[Path]:
    """A place to write an export to, which takes the place of `path` if all goes well; folders hold exports only."""
    kind = RUNTIMES[target]
    if kind.folder and path.is_dir():
        if others := sorted(item.name for item in path.iterdir() if item.name not in kind.folder):
            raise WeightsError(
                f"{path} holds other things, which we will not delete: {', '.join(others[:5])}; name another folder."
            )
    elif path.is_dir():
        raise WeightsError(f"{path} is a folder; name a file that ends in {kind.suffix}.")
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


def prove(exported: Exported, draft: Path, target: str, pictures: Sequence[Path] = ()) -> Agreement:
    """How far the written export is from the model in torch; too far is an error."""
    run, names = backend_of(target).open_draft(draft), exported.manifest.outputs
    loose = exported.manifest.preprocesses or any(exported.checkpoint.config.merge)
    tolerance = LOOSE_TOLERANCE if loose else TOLERANCE
    agreements: list[Agreement] = []
    for batch in proof_batches(exported, pictures):
        with torch.inference_mode():
            ours = _by_name(names, exported.graph(batch))
        try:
            theirs = [torch.from_numpy(np.ascontiguousarray(rows)) for rows in run(batch.numpy())]
        except Exception as error:  # each runtime has kinds of its own
            said = in_one_line(error)[:300]
            raise WeightsError(f"{target} cannot run the export: {said} Nothing was written.") from error
        found = _by_name(names, theirs)
        agreement = agree(ours, found, tolerance, f"the export, run by {target},")
        if agreement.what == exported.manifest.scores:
            same = share_of_same(exported.manifest, *(rows[agreement.what].numpy() for rows in (ours, found)))
            agreement = replace(agreement, top1=same)
        agreements.append(agreement)
    return join_agreements(agreements)


def share_of_same(manifest: Manifest, expected: Floats, actual: Floats) -> float:
    """The share of pictures that get the same answer, of rows of the graph's own scores."""
    facts = manifest.facts
    if manifest.gives_answers:
        expected, actual = facts.restore(expected), facts.restore(actual)
    return float(facts.task.same_answers(expected, actual, facts.trust).mean())


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


def _by_name(names: Sequence[str], rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Each output as one row of numbers for each picture."""
    return {name: output.reshape(len(output), -1) for name, output in zip(names, rows, strict=True)}
