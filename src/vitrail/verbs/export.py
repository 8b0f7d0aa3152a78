"""`vitrail.export`: a model for ONNX Runtime, OpenVINO or torch's own tools, with proof that it computes the same."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.errors import WeightsError
from vitrail.model.merging import with_merging
from vitrail.prediction import Predictor
from vitrail.progress import working
from vitrail.runtimes.exporting import Target, check_exportable, choose_target, draft_of, prepare_export, write_export
from vitrail.runtimes.graph import GraphOptions
from vitrail.runtimes.manifest import Manifest
from vitrail.runtimes.proving import prove
from vitrail.verbs.loading import name_of
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.locate import locate
from vitrail.weights.opening import open_checkpoint
from vitrail.weights.proof import Agreement


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written, and how far it is from the model in torch."""

    path: Path
    target: Target
    manifest: Manifest
    agreement: Agreement
    megabytes: float

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the graph gives, in its order."""
        return self.manifest.outputs


def export(
    model: Predictor | str | Path,
    path: str | Path,
    *,
    to: Target | None = None,
    with_preprocess: bool = False,
    dynamic_size: bool = False,
    attention: Sequence[int] = (),
    merge: int | Sequence[int] | None = None,
    pictures: Sequence[str | Path] = (),
    overwrite: bool = False,
    progress: bool = False,
) -> Export:
    """Write a model as a graph that runs without torch, and prove that it gives the same answers.

    The class names, the preprocessing, the config and the hash of the weights travel inside. What was written is run by
    its own runtime on real pictures and compared with torch; nothing is left at `path` unless they agree.

    Args:
        model: a loaded model, or what `vitrail.load` takes.
        path: a file that ends in .onnx, or in .pt2 for torch.export, or a folder for OpenVINO.
        to: onnx, openvino or torch, where the path does not tell.
        with_preprocess: put resizing and normalisation into the graph: bytes (batch, height, width, 3) of any size in,
            probabilities out.
        dynamic_size: take prepared pictures of any size into which whole patches fit.
        attention: also give the attention of these layers; negative numbers count from the last.
        merge: merge about this many patches away in each block, or these numbers, one for each block; 0 for none.
        pictures: pictures on which both must agree; by default, two photographs.
        overwrite: replace what is at `path`.
        progress: show a sign of life on the error stream.
    """
    target_path = Path(path)
    target = choose_target(target_path, to)
    options = GraphOptions(attention=tuple(attention), with_preprocess=with_preprocess, dynamic_size=dynamic_size)
    if target_path.exists() and not overwrite:
        raise WeightsError(f"{target_path} exists already; pass overwrite=True to replace it.")
    check_exportable(target)
    with working(f"exporting {name_of(model)}", speaks=progress):
        checkpoint = checkpoint_of(model)
        if merge is not None:
            checkpoint = replace(checkpoint, config=with_merging(checkpoint.config, merge))
        exported = prepare_export(checkpoint, options)
        with draft_of(target_path, target) as draft:
            write_export(exported, draft, target)
            agreement = prove(exported, draft, target, checkpoint, [Path(picture) for picture in pictures])
    return Export(
        path=target_path,
        target=target,
        manifest=exported.manifest,
        agreement=agreement,
        megabytes=size_of(target_path) / 1e6,
    )


def checkpoint_of(model: Predictor | str | Path) -> Checkpoint:
    """The weights of a loaded model, or of a source."""
    if isinstance(model, Predictor):
        return model.checkpoint()
    checkpoint = open_checkpoint(locate(model))
    origin = checkpoint.origin
    return checkpoint if origin.source else replace(checkpoint, origin=replace(origin, source=str(model)))


def size_of(path: Path) -> int:
    """Bytes of a file, with what lies beside an ONNX file that is too large for one, or of a folder."""
    files = path.iterdir() if path.is_dir() else path.parent.glob(f"{path.name}*")
    return sum(file.stat().st_size for file in files)
