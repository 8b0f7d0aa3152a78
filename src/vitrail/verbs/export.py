"""`vitrail.export`: a model for ONNX Runtime, OpenVINO or torch's own tools, with proof that it computes the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from vitrail.data.datasets import check_where
from vitrail.data.source import Dataset
from vitrail.errors import ConfigError, WeightsError
from vitrail.model.merging import with_merging
from vitrail.prediction import Predictor
from vitrail.progress import working
from vitrail.registry import RUNTIMES, GraphPrecision, RuntimeName
from vitrail.runtimes.auto_cache import remember_int8
from vitrail.runtimes.exporter import (
    check_exportable,
    choose_target,
    draft_of,
    prepare_export,
    prove,
)
from vitrail.runtimes.graph import GraphOptions
from vitrail.runtimes.int8 import quantize
from vitrail.runtimes.int8_trials import AGREEMENT, Goal, Trial, size_of
from vitrail.runtimes.manifest import Manifest
from vitrail.runtimes.repository import MODEL, RUN_BY, check_repository, choose_name, complete_model, draft_model
from vitrail.runtimes.runtime import backend_of
from vitrail.verbs.loading import name_of
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.proof import Agreement
from vitrail.weights.read import open_checkpoint
from vitrail.weights.resolve import locate


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written, and how far it is from the model in torch, or, in int8, from float32.

    Attributes:
        trials: for int8, what was tried on the way, and on which pictures.
    """

    path: Path
    target: str
    manifest: Manifest
    agreement: Agreement
    megabytes: float
    trials: tuple[Trial, ...] = ()
    calibration: str = ""  # how many pictures served for what

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the graph gives, in its order."""
        return self.manifest.outputs


def export(
    model: Predictor | str | Path,
    path: str | Path | None = None,
    *,
    repository: str | Path | None = None,
    name: str | None = None,
    to: RuntimeName | None = None,
    with_preprocess: bool = False,
    dynamic_size: bool = False,
    attention: Sequence[int] = (),
    merge: int | Sequence[int] | None = None,
    precision: GraphPrecision = "float32",
    calibrate: Dataset | str | Path | None = None,
    agreement: float | None = None,
    max_loss: float | None = None,
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
        repository: instead of `path`, a model repository for Triton and OpenVINO Model Server, a new folder or one with
            other models: an ONNX graph with its preprocessing, proven in both runtimes, and the servers' settings.
        name: of the model in the repository; by default, made from what the model was loaded from.
        to: onnx, openvino or torch, where the path does not tell.
        with_preprocess: put resizing and normalisation into the graph: bytes (batch, height, width, 3) of any size in,
            probabilities out.
        dynamic_size: take prepared pictures of any size into which whole patches fit.
        attention: also give the attention of these layers; negative numbers count from the last.
        merge: merge about this many patches away in each block, or these numbers, one for each block; 0 for none.
        precision: "int8" computes in 8 bits where that is faster, which changes the answers a little.
        calibrate: for int8, data that show what the model will see: what `vitrail.open_data` takes, an open data set,
            or a folder of pictures without labels. Up to 300 training pictures set the ranges; up to 1,000 held-out
            ones choose among several ways to 8 bits and decide whether the best is good enough.
        agreement: for int8, the share of held-out pictures that must get the same class as in float32 (0.99) …
        max_loss: … or the accuracy, in percentage points, that may be lost on them; needs labels.
        pictures: pictures on which the float32 graph and torch must agree; by default, two photographs.
        overwrite: replace what is at `path`.
        progress: show a sign of life on the error stream.
    """
    if repository is not None:
        unfit = {"`to=`": to, "`dynamic_size=`": dynamic_size, "`calibrate=`": calibrate, "`agreement=`": agreement}
        check_repository_options({"`path=`": path, **unfit, "`max_loss=`": max_loss}, precision)
        place = RepositoryPlace(Path(repository), choose_name(name, name_of(model)), overwrite)
        return export_to_repository(model, place, attention, merge, pictures, progress)
    if name is not None or path is None:
        raise ConfigError("`name=` goes with `repository=`" if path else "an export needs a `path=` or a `repository=`")
    target_path = Path(path)
    target = choose_target(target_path, to)
    options = GraphOptions(attention=tuple(attention), with_preprocess=with_preprocess, dynamic_size=dynamic_size)
    goal = check_precision(precision, target, options, calibrate, agreement, max_loss)
    if target_path.exists() and not overwrite:
        raise WeightsError(f"{target_path} exists already; pass `overwrite=True` to replace it.")
    check_exportable(target, precision)
    with working(f"exporting {name_of(model)}", speaks=progress):
        checkpoint = checkpoint_of(model, merge)
        calibration = None
        if goal is not None and calibrate is not None:
            from vitrail.verbs.calibration import read_calibration  # a second of imports, which float32 does not need

            calibration = read_calibration(calibrate, checkpoint, model, goal)
        exported = prepare_export(checkpoint, options)
        with draft_of(target_path, target) as draft:
            plain = draft if calibration is None else draft.with_name(f"float32{RUNTIMES[target].path_suffix}")
            backend_of(target).write_export(exported, plain)
            proof = prove(exported, plain, target, [Path(picture) for picture in pictures])
            if calibration is None or goal is None:
                manifest, trials = exported.manifest, ()
            else:
                result = quantize(exported.manifest, plain, draft, target, calibration, goal, speaks=progress)
                manifest, proof, trials = result.manifest, result.agreement, result.trials
    if manifest.precision == "int8":
        remember_int8(target_path, manifest)
    return Export(
        path=target_path,
        target=target,
        manifest=manifest,
        agreement=proof,
        megabytes=size_of(target_path) / 1e6,
        trials=trials,
        calibration="" if calibration is None else calibration.describe(),
    )


def check_precision(
    precision: str,
    target: str,
    options: GraphOptions,
    calibrate: Dataset | str | Path | None,
    agreement: float | None,
    max_loss: float | None,
) -> Goal | None:
    """What int8 must reach, or None for float32; what does not go together is an error."""
    if precision not in ("float32", "int8"):
        raise ConfigError(f"must be float32 or int8; got {precision!r}.", field="precision")
    given = {"`calibrate=`": calibrate, "`agreement=`": agreement, "`max_loss=`": max_loss}
    names = [name for name, value in given.items() if value is not None]
    if precision == "float32":
        if names:
            goes, all_of = ("goes", "it") if len(names) == 1 else ("go", "them")
            raise ConfigError(f'{" and ".join(names)} {goes} with `precision="int8"`; add that, or omit {all_of}.')
        return None
    if not RUNTIMES[target].int8:
        able = " and ".join(f'`to="{kind.key}"`' for kind in RUNTIMES.values() if kind.int8)
        raise ConfigError(f'`precision="int8"` is for {able}; {RUNTIMES[target].what} is in float32.')
    for name, wanted in (("`with_preprocess=`", options.with_preprocess), ("`dynamic_size=`", options.dynamic_size)):
        if wanted:
            raise ConfigError(f'{name} cannot be used with `precision="int8"`, which is measured on prepared pictures.')
    if calibrate is None:
        raise ConfigError('`precision="int8"` needs pictures to calibrate with: a data set or a folder in `calibrate=`')
    if not isinstance(calibrate, Dataset):
        check_where(calibrate)
    return Goal(agreement=AGREEMENT if agreement is None else agreement, max_loss=max_loss)


class RepositoryPlace(NamedTuple):
    """Where in a repository a model goes."""

    repository: Path
    name: str
    overwrite: bool


def check_repository_options(given: Mapping[str, object], precision: str) -> None:
    """Refuse what a repository has no place for: it holds one ONNX graph in float32 that prepares its pictures."""
    if names := [name for name, value in given.items() if value not in (None, False)]:
        raise ConfigError(f"{' and '.join(names)} cannot be used with `repository=`")
    if precision != "float32":
        raise ConfigError(
            f"`precision={precision!r}` cannot be used with `repository=`, whose graphs prepare their pictures; export "
            "int8 to a path, and serve that with `vitrail serve`."
        )


def export_to_repository(
    model: Predictor | str | Path,
    place: RepositoryPlace,
    attention: Sequence[int],
    merge: int | Sequence[int] | None,
    pictures: Sequence[str | Path],
    progress: bool,
) -> Export:
    """Add a model to a repository; every proof is made before anything in the repository changes."""
    check_repository(place.repository, place.name, overwrite=place.overwrite)
    for target in RUN_BY:
        check_exportable(target)
    with working(f"exporting {name_of(model)}", speaks=progress):
        checkpoint = checkpoint_of(model, merge)
        exported = prepare_export(checkpoint, GraphOptions(attention=tuple(attention), with_preprocess=True))
        with draft_model(place.repository, place.name) as draft:
            file = draft / MODEL
            backend_of("onnx").write_export(exported, file)
            files = [Path(picture) for picture in pictures]
            proofs = [prove(exported, file, target, files) for target in RUN_BY]
            complete_model(draft, place.name, exported.manifest)
    folder = place.repository / place.name
    return Export(
        path=folder,
        target="onnx",
        manifest=exported.manifest,
        agreement=max(proofs, key=lambda proof: proof.difference),
        megabytes=size_of(folder / MODEL) / 1e6,
    )


def checkpoint_of(model: Predictor | str | Path, merge: int | Sequence[int] | None = None) -> Checkpoint:
    """The weights of a loaded model, or of a source, with as many merged tokens as requested."""
    if isinstance(model, Predictor):
        checkpoint = model.checkpoint()
    else:
        checkpoint = open_checkpoint(locate(model))
        if not checkpoint.origin.source:
            checkpoint = replace(checkpoint, origin=replace(checkpoint.origin, source=str(model)))
    return checkpoint if merge is None else replace(checkpoint, config=with_merging(checkpoint.config, merge))
