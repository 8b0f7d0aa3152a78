"""What the runtimes of exports share: one compiled graph per number of cores, and rows by output name. No torch."""

import json
from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np

from vitrail.data.pixels import Array
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, InputError, WeightsError
from vitrail.runtimes.manifest import FEATURES, Manifest
from vitrail.runtimes.runtime import Floats, Run, batch_for, compute_divided, run_in_pieces
from vitrail.schema import from_dict
from vitrail.threads import cores_of_this_thread, num_cores

FOREIGN_PATCH = 16  # pixels


class ExportedRuntime:
    """A graph that is compiled when it is first called, for the number of cores that the call may take.

    Args:
        compile_for: the graph, compiled for calls that use this number of cores.
        fixed_batch: the only number of pictures that the graph takes at once; None for any.
    """

    def __init__(
        self, name: str, manifest: Manifest, compile_for: Callable[[int], Run], fixed_batch: int | None = None
    ) -> None:
        self.name, self.manifest = name, manifest
        self._compile_for, self._fixed_batch = compile_for, fixed_batch
        self._compiled: dict[int, Run] = {}
        self._lock = Lock()

    @property
    def threads(self) -> int:
        return num_cores()

    @property
    def batch_size(self) -> int:
        return self._fixed_batch or batch_for(self.manifest.tokens)

    @property
    def num_classes(self) -> int:
        return self.manifest.num_classes

    def grid_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """By the model that was exported; another tool's graph does not say, and gets cells of 16 pixels."""
        if not (config := json.loads(self.manifest.config)):
            return max(1, size[0] // FOREIGN_PATCH), max(1, size[1] // FOREIGN_PATCH)
        from vitrail.model.config import ViTConfig  # with torch, which explanations need anyway

        return from_dict(ViTConfig, config, "config").grid_of(size)

    def logits(self, images: Floats) -> Floats:
        """Logits; of a graph that gives what they mean, such as probabilities, those that mean the same."""
        return self._as_logits(self._outputs(images, self.manifest.scores)[0])

    def features(self, images: Floats) -> Floats:
        return self._outputs(images, FEATURES)[0]

    @property
    def has_features(self) -> bool:
        return FEATURES in self.manifest.outputs

    def logits_and_features(self, images: Floats) -> tuple[Floats, Floats]:
        scores, features = self._outputs(images, self.manifest.scores, FEATURES)
        return self._as_logits(scores), features

    def _outputs(self, images: Floats, *names: str) -> list[Floats]:
        """Some of the graph's outputs."""
        for name in names:
            if name not in self.manifest.outputs:
                raise ConfigError(
                    f"this export has no output {name!r}, only {', '.join(self.manifest.outputs)}; export the "
                    "checkpoint again and ask for it, or use the checkpoint itself."
                )
        divisible = self._fixed_batch is None
        rows = compute_divided(self._run, images, self.manifest.tokens) if divisible else self._run(images)
        return [rows[self.manifest.outputs.index(name)] for name in names]

    def _as_logits(self, scores: Floats) -> Floats:
        return self.manifest.facts.restore(scores).astype(np.float32) if self.manifest.gives_answers else scores

    def _run(self, images: Floats) -> Sequence[Floats]:
        cores = cores_of_this_thread()
        if cores not in self._compiled:
            with self._lock:
                if cores not in self._compiled:
                    self._compiled[cores] = self._compile_for(cores)
        compiled = self._compiled[cores]
        if self.manifest.preprocesses:
            return compiled(frame_bytes(images, self.manifest.facts.preprocess))
        self._check_patches(*images.shape[2:])
        return compiled(images) if self._fixed_batch is None else run_in_pieces(compiled, images, self._fixed_batch)

    def _check_patches(self, height: int, width: int) -> None:
        """Raise for a picture with too few patches to merge, which the model itself takes and no graph of it can."""
        config = json.loads(self.manifest.config)
        if not (merge := config.get("merge")):
            return
        share = height * width / (config["image_size"][0] * config["image_size"][1])
        patches = round(share * (self.manifest.tokens - config["class_token"] - config["registers"]))
        for count in merge:
            if count and patches < 2:
                raise InputError(
                    f"this export merges patches, and a picture of {height}×{width} pixels has too few for that; use "
                    "larger pictures, or the checkpoint that it was exported from."
                )
            patches -= min(count, patches // 2)


def frame_bytes(images: Floats, spec: Preprocess) -> Array:
    """Prepared pictures (B, 3, H, W) as bytes (B, height, width, 3) for a graph that does the preprocessing itself.

    They lie in the middle of a frame of the size to which the graph resizes, so that its resizing changes nothing and
    its crop takes the frame away: all verbs work on such an export, and pictures of several sizes share a batch.
    """
    height, width = spec.resized(*spec.resized(*spec.size))
    top, left = spec.corner(height, width)
    std, mean = (np.asarray(values, dtype=np.float32).reshape(-1, 1, 1) for values in (spec.std, spec.mean))
    pixels = np.rint((images * std + mean) * 255).clip(0, 255).astype(np.uint8)
    frames = np.zeros((len(images), height, width, spec.channels), dtype=np.uint8)
    frames[:, top : top + spec.size[0], left : left + spec.size[1]] = pixels.transpose(0, 2, 3, 1)
    return frames


def check_graph(path: str, inputs: Sequence[str], outputs: Sequence[str], manifest: Manifest) -> None:
    """The graph must have the inputs and outputs that its manifest says."""
    if len(inputs) != 1 or tuple(outputs) != manifest.outputs:
        raise WeightsError(
            f"{path} is damaged: it should take pictures and give {', '.join(manifest.outputs)}; its graph takes "
            f"{', '.join(inputs) or 'nothing'} and gives {', '.join(outputs) or 'nothing'}."
        )
