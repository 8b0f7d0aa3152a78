"""`vitrail.export`: a model for ONNX Runtime, OpenVINO or torch's own tools, with proof that it computes the same."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import RenderableType

from vitrail.data.source import Dataset
from vitrail.errors import ConfigError, WeightsError
from vitrail.prediction import Predictor
from vitrail.progress import ending, table, working
from vitrail.registry import RUNTIMES, GraphPrecision, RuntimeName
from vitrail.verbs.call import ModelArgument, resolve_dataset, resolve_model
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.runtimes.graph import GraphOptions
    from vitrail.runtimes.int8_trials import Goal, Trial
    from vitrail.runtimes.manifest import Manifest
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.proof import Agreement


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written, and how far it is from the model in torch, or, in int8, from float32.

    Attributes:
        trials: for int8, what was tried on the way, and on which pictures.
    """

    path: Path
    target: str
    manifest: "Manifest"
    agreement: "Agreement"
    megabytes: float
    trials: "tuple[Trial, ...]" = ()
    calibration: str = ""  # how many pictures served for what
    source: str = field(default="", repr=False)  # the model that was exported, as its user named it
    in_repository: bool = field(default=False, repr=False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the graph gives, in its order."""
        return self.manifest.outputs

    exit_code = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": str(self.path),
            "target": self.target,
            "outputs": self.outputs,
            "megabytes": self.megabytes,
            "precision": self.manifest.precision,
            "agreement": asdict(self.agreement),
            "trials": [asdict(trial) for trial in self.trials],
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        proof, task = self.agreement, self.manifest.facts.task
        yield f"{self.source} → {self.path} ({self.target}, {self.megabytes:.1f} MB), gives {', '.join(self.outputs)}"
        if self.trials:
            from vitrail.runtimes.int8_trials import HEAD

            yield self.calibration
            yield table((trial.cells for trial in self.trials), *HEAD, left=2, edge=False, whole=True)
        reference, digits = ("float32", 2) if self.trials else ("torch", 0)
        same = "same largest one" if task.kind == "one" else task.same
        yield (
            f"beside {reference}: largest difference {proof.difference:.2e} of {proof.what} up to {proof.scale:.3g} "
            f"({proof.relative:.1e}), {same} for {proof.top1:.{digits}%} of "
            f"{counted(proof.pictures, 'picture')}"
        )
        if not self.in_repository:
            usable = self.target != "torch"
            following = ["vitrail", "predict", str(self.path)] if usable else ["vitrail", "inspect", self.source]
            yield from ending([self.path], shlex.join(following) + (" PICTURES…" if usable else ""))
            return
        if self.manifest.facts.classes is None:
            yield "no labels.txt: this model has no class names; `vitrail convert --class-names FILE` adds them"
        volume = shlex.quote(f"{self.path.parent.absolute()}:/models:ro")
        server = "openvino/model_server"
        serve = f"docker run --rm -p 8000:8000 -v {volume} {server} --config_path /models/config.json --rest_port 8000"
        yield from ending([self.path], serve)


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
        model: A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name. In Python, also a
            loaded model.
        path: A file that ends in .onnx, or in .pt2 for torch.export, or a folder for OpenVINO.
        repository: Instead of PATH: a model repository, as a new folder or one with other models. It gets an ONNX graph
            that takes bytes of pictures and gives probabilities, proven in both runtimes, labels, and settings for both
            servers.
        name: The model's name in the repository [default: from MODEL].
        to: The kind of export, where the path does not tell.
        with_preprocess: Put resizing and normalisation into the graph: pictures of any size in, as bytes, and
            probabilities out.
        dynamic_size: Take prepared pictures of any size into which whole patches fit.
        attention: Also give the attention of these layers, such as 0,-1; negative numbers count from the last.
        merge: Merge about this many similar patches in each block, for speed, such as 8; or a number for each block,
            such as 8,8,4,4.
        precision: int8 computes in 8 bits where that is faster, which changes the answers a little.
        calibrate: For int8: pictures like those that the model will see, as data with labels (what `vitrail eval`
            takes) or a folder of pictures. Up to 300 training pictures set the ranges, up to 1,000 held-out ones choose
            and judge. In Python, also an open data set.
        agreement: For int8: the share of held-out pictures that must get the same answer as in float32 [default: 0.99].
        max_loss: For int8: also accept a model that loses at most this many percentage points of accuracy; needs
            labels.
        pictures: Pictures on which the float32 graph and torch must agree [default: two photographs].
        overwrite: Replace what is at PATH.
        progress: Show progress on the error stream.
    """
    source = resolve_model(model, allow_export=False)
    from vitrail.runtimes.exporter import (
        check_exportable,
        choose_target,
        draft_of,
        prepare_export,
        prove,
    )
    from vitrail.runtimes.graph import GraphOptions
    from vitrail.runtimes.int8_trials import size_of
    from vitrail.runtimes.repository import choose_name
    from vitrail.runtimes.runtime import backend_of

    if repository is not None:
        unfit = {"`to=`": to, "`dynamic_size=`": dynamic_size, "`calibrate=`": calibrate, "`agreement=`": agreement}
        check_repository_options({"`path=`": path, **unfit, "`max_loss=`": max_loss}, precision)
        place = RepositoryPlace(Path(repository), choose_name(name, source.name), overwrite)
        return export_to_repository(source, place, attention, merge, pictures, progress)
    if name is not None or path is None:
        raise ConfigError("`name=` goes with `repository=`" if path else "an export needs a `path=` or a `repository=`")
    target_path = Path(path)
    target = choose_target(target_path, to)
    options = GraphOptions(attention=tuple(attention), with_preprocess=with_preprocess, dynamic_size=dynamic_size)
    goal = check_precision(precision, target, options, calibrate, agreement, max_loss)
    if target_path.exists() and not overwrite:
        raise WeightsError(f"{target_path} exists already; pass `overwrite=True` to replace it.")
    check_exportable(target, precision)
    with working(f"exporting {source.name}", speaks=progress):
        checkpoint = checkpoint_of(source, merge)
        calibration = None
        if goal is not None and calibrate is not None:
            from vitrail.verbs.int8_pictures import read_calibration  # a second of imports, which float32 does not need

            calibration = read_calibration(calibrate, checkpoint, source.source, goal)
        exported = prepare_export(checkpoint, options)
        with draft_of(target_path, target) as draft:
            plain = draft if calibration is None else draft.with_name(f"float32{RUNTIMES[target].path_suffix}")
            backend_of(target).write_export(exported, plain)
            proof = prove(exported, plain, target, [Path(picture) for picture in pictures])
            if calibration is None or goal is None:
                manifest, trials = exported.manifest, ()
            else:
                from vitrail.runtimes.int8 import quantize

                result = quantize(exported.manifest, plain, draft, target, calibration, goal, speaks=progress)
                manifest, proof, trials = result.manifest, result.agreement, result.trials
    if manifest.precision == "int8":
        from vitrail.runtimes.auto_cache import remember_int8

        remember_int8(target_path, manifest)
    return Export(
        path=target_path,
        target=target,
        manifest=manifest,
        agreement=proof,
        megabytes=size_of(target_path) / 1e6,
        trials=trials,
        calibration="" if calibration is None else calibration.describe(),
        source=source.source or source.name,
    )


def check_precision(
    precision: str,
    target: str,
    options: "GraphOptions",
    calibrate: Dataset | str | Path | None,
    agreement: float | None,
    max_loss: float | None,
) -> "Goal | None":
    """What int8 must reach, or None for float32; what does not go together is an error."""
    from vitrail.runtimes.int8_trials import AGREEMENT, Goal

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
    resolve_dataset(calibrate)
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
    source: ModelArgument,
    place: RepositoryPlace,
    attention: Sequence[int],
    merge: int | Sequence[int] | None,
    pictures: Sequence[str | Path],
    progress: bool,
) -> Export:
    """Add a model to a repository; every proof is made before anything in the repository changes."""
    from vitrail.runtimes.exporter import check_exportable, prepare_export, prove
    from vitrail.runtimes.graph import GraphOptions
    from vitrail.runtimes.int8_trials import size_of
    from vitrail.runtimes.repository import MODEL, RUN_BY, check_repository, complete_model, draft_model
    from vitrail.runtimes.runtime import backend_of

    check_repository(place.repository, place.name, overwrite=place.overwrite)
    for target in RUN_BY:
        check_exportable(target)
    with working(f"exporting {source.name}", speaks=progress):
        checkpoint = checkpoint_of(source, merge)
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
        source=source.source or source.name,
        in_repository=True,
    )


def checkpoint_of(model: ModelArgument, merge: int | Sequence[int] | None = None) -> "Checkpoint":
    """The weights of a loaded model, or of a source, with as many merged tokens as requested."""
    from vitrail.model.merging import with_merging
    from vitrail.weights.read import open_checkpoint

    if model.loaded is not None:
        checkpoint = model.loaded.checkpoint()
    else:
        checkpoint = open_checkpoint(model.place)
        if not checkpoint.origin.source:
            checkpoint = replace(checkpoint, origin=replace(checkpoint.origin, source=model.source))
    return checkpoint if merge is None else replace(checkpoint, config=with_merging(checkpoint.config, merge))
