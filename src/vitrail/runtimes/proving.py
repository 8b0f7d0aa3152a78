"""What proves an export: the written file, run by its own runtime, beside the model in torch, on real pictures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitrail.data.transform import pixels
from vitrail.errors import WeightsError
from vitrail.runtimes.exporting import Exported, Target
from vitrail.runtimes.onnx_runtime import make_session
from vitrail.runtimes.openvino_runtime import Requests, compile_model, read_model
from vitrail.threads import num_cores
from vitrail.weights.layout import EXPORT_IN_FOLDER
from vitrail.weights.proof import Agreement, agree, photograph_files, sample_images

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
