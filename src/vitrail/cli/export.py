"""`vitrail export`: a model as a graph that runs without torch, with proof."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter
from rich.table import Table

from vitrail.cli.commands import Json, Merge, read_merge
from vitrail.cli.printing import SteadyConsole, print_end, print_json
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.verbs.export import Export

INT8 = Group("Eight bits", sort_key=1)
REPOSITORY = Group("For Triton and OpenVINO Model Server", sort_key=2)
LIST = Parameter(consume_multiple=True, negative=(), show_default=False)


def export(
    model: str,
    path: Path | None = None,
    *,
    repository: Annotated[Path | None, Parameter(group=REPOSITORY)] = None,
    name: Annotated[str | None, Parameter(group=REPOSITORY)] = None,
    to: Literal["onnx", "openvino", "torch"] | None = None,
    with_preprocess: Annotated[bool, Parameter(negative=())] = False,
    dynamic_size: Annotated[bool, Parameter(negative=())] = False,
    attention: Annotated[tuple[int, ...], LIST] = (),
    merge: Merge = None,
    precision: Annotated[Literal["float32", "int8"], Parameter(group=INT8)] = "float32",
    calibrate: Annotated[str | None, Parameter(group=INT8)] = None,
    agreement: Annotated[float | None, Parameter(group=INT8)] = None,
    max_loss: Annotated[float | None, Parameter(group=INT8)] = None,
    pictures: Annotated[tuple[Path, ...], LIST] = (),
    overwrite: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX, OpenVINO or torch.export, and prove that it gives the same answers.

    Class names, preprocessing, calibration and the hash of the weights travel inside. What was written is run
    by its own runtime on real pictures and compared with torch; nothing is left at PATH unless they agree.

    Parameters
    ----------
    model
        A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name.
    path
        A file that ends in .onnx, or in .pt2 for torch.export, or a folder for OpenVINO.
    repository
        Instead of PATH: a model repository, as a new folder or one with other models. It gets an ONNX graph that takes
        bytes of pictures and gives probabilities, proven in both runtimes, labels, and settings for both servers.
    name
        The model's name in the repository [default: from MODEL].
    to
        The kind of export, where the path does not tell.
    with_preprocess
        Put resizing and normalisation into the graph: pictures of any size in, as bytes, and probabilities out.
    dynamic_size
        Take prepared pictures of any size into which whole patches fit.
    attention
        Also give the attention of these layers; negative numbers count from the last.
    precision
        int8 computes in 8 bits where that is faster, which changes the answers a little.
    calibrate
        For int8: pictures like those that the model will see, as data with labels (what `vitrail eval` takes) or a
        folder of pictures. Up to 300 training pictures set the ranges, up to 1,000 held-out ones choose and judge.
    agreement
        For int8: the share of held-out pictures that must get the same class as in float32 [default: 0.99].
    max_loss
        For int8: accept it too if it loses at most so many percentage points of accuracy; needs labels.
    pictures
        Pictures on which the float32 graph and torch must agree [default: two photographs].
    overwrite
        Replace what is at PATH.
    """
    from vitrail.verbs.export import export as verb

    result = verb(
        model,
        path,
        repository=repository,
        name=name,
        to=to,
        with_preprocess=with_preprocess,
        dynamic_size=dynamic_size,
        attention=attention,
        merge=read_merge(merge),
        precision=precision,
        calibrate=calibrate,
        agreement=agreement,
        max_loss=max_loss,
        pictures=pictures,
        overwrite=overwrite,
        progress=True,
    )
    proof = result.agreement
    if as_json:
        facts = {
            "path": str(result.path),
            "target": result.target,
            "outputs": result.outputs,
            "megabytes": result.megabytes,
        }
        trials = [dataclasses.asdict(trial) for trial in result.trials]
        print_json({**facts, "precision": precision, "agreement": dataclasses.asdict(proof), "trials": trials})
        return
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{model} → {result.path} ({result.target}, {result.megabytes:.1f} MB), gives {', '.join(result.outputs)}"
    )
    if result.trials:
        print_trials(console, result)
    reference, digits = ("float32", 2) if result.trials else ("torch", 0)
    console.print(
        f"beside {reference}: largest difference {proof.difference:.2e} of {proof.what} "
        f"up to {proof.scale:.3g} ({proof.relative:.1e}), same largest one for {proof.top1:.{digits}%} "
        f"of {counted(proof.pictures, 'picture')}"
    )
    if repository is not None:
        if result.manifest.facts.classes is None:
            console.print("no labels.txt: this model has no class names; --classes of `vitrail convert` adds them")
        volume = shlex.quote(f"{repository.absolute()}:/models:ro")
        server = "openvino/model_server --config_path /models/config.json --rest_port 8000"
        print_end([result.path], f"docker run --rm -p 8000:8000 -v {volume} {server}")
        return
    usable = result.target != "torch"
    following = ["vitrail", "predict", str(path)] if usable else ["vitrail", "inspect", model]
    print_end([result.path], shlex.join(following) + (" PICTURES…" if usable else ""))


def print_trials(console: SteadyConsole, result: "Export") -> None:
    """What was tried on the way to int8."""
    from vitrail.runtimes.int8_trials import HEAD

    table = Table(box=None, pad_edge=False)
    for index, name in enumerate(HEAD):
        table.add_column(name, justify="left" if index < 2 else "right", no_wrap=True)
    for trial in result.trials:
        table.add_row(*trial.cells)
    console.print(result.calibration)
    console.print(table)
