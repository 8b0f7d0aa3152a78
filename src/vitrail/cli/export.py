"""`vitrail export`: a model as a graph that runs without torch, with proof."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.options import Json, Merge, read_merge
from vitrail.cli.printing import SteadyConsole, print_end, print_json
from vitrail.wording import counted


def export(
    model: str,
    path: Path,
    *,
    to: Literal["onnx", "openvino", "torch"] | None = None,
    with_preprocess: Annotated[bool, Parameter(negative=())] = False,
    dynamic_size: Annotated[bool, Parameter(negative=())] = False,
    attention: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())] = (),
    merge: Merge = None,
    pictures: Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative=())] = (),
    overwrite: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX, OpenVINO or torch.export, and prove that it gives the same answers.

    The class names, the preprocessing, the config and the hash of the weights travel inside. What was written is run by
    its own runtime on real pictures and compared with torch; nothing is left at PATH unless they agree.

    Parameters
    ----------
    model
        A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name.
    path
        A file that ends in .onnx, or in .pt2 for torch.export, or a folder for OpenVINO.
    to
        The kind of export, where the path does not tell.
    with_preprocess
        Put resizing and normalisation into the graph: bytes (batch, height, width, 3) of any size in, probabilities
        out.
    dynamic_size
        Take prepared pictures of any size into which whole patches fit.
    attention
        Also give the attention of these layers; negative numbers count from the last.
    pictures
        Pictures on which both must agree [default: two photographs].
    overwrite
        Replace what is at PATH.
    """
    from vitrail.verbs.export import export as verb

    result = verb(
        model,
        path,
        to=to,
        with_preprocess=with_preprocess,
        dynamic_size=dynamic_size,
        attention=attention,
        merge=read_merge(merge),
        pictures=pictures,
        overwrite=overwrite,
        progress=True,
    )
    agreement = result.agreement
    if as_json:
        facts = {"path": str(path), "target": result.target, "outputs": result.outputs, "megabytes": result.megabytes}
        print_json({**facts, "agreement": dataclasses.asdict(agreement)})
        return
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{model} → {path} ({result.target}, {result.megabytes:.1f} MB), gives {', '.join(result.outputs)}")
    console.print(
        f"beside torch: largest difference {agreement.difference:.2e} of {agreement.what} up to {agreement.scale:.3g} "
        f"({agreement.relative:.1e}), same largest one for {agreement.top1:.0%} of "
        f"{counted(agreement.pictures, 'picture')}"
    )
    usable = result.target != "torch" and not with_preprocess
    following = ["vitrail", "predict", str(path)] if usable else ["vitrail", "inspect", model]
    print_end([path], shlex.join(following) + (" PICTURES…" if usable else ""))
