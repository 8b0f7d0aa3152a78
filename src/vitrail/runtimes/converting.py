"""One model in torch, and the same model on the other runtimes."""

import copy
from functools import cached_property
from importlib.util import find_spec
from typing import NamedTuple

import torch

from vitrail.runtimes import onnx_runtime, openvino_runtime
from vitrail.runtimes.exporting import NEEDS
from vitrail.runtimes.kept_exports import MOST_BYTES, KeptExport, find_export, make_export
from vitrail.runtimes.opening import Precision, RuntimeName
from vitrail.runtimes.runtime import Runtime
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import fingerprint


class Way(NamedTuple):
    """One way to compute."""

    runtime: RuntimeName
    precision: Precision


PLAIN = Way("torch", "float32")


class Converter:
    """Opens a model on any runtime; what that takes is done once, and when it is needed."""

    def __init__(self, own: TorchRuntime, checkpoint: Checkpoint) -> None:
        self.own, self.checkpoint = own, checkpoint

    @cached_property
    def sha256(self) -> str:
        return fingerprint(self.checkpoint.tensors)

    @cached_property
    def kept(self) -> KeptExport | None:
        """The export that is in the cache already."""
        return find_export(self.checkpoint, self.sha256)

    @cached_property
    def export(self) -> KeptExport:
        return self.kept or make_export(self.checkpoint, self.sha256)

    @property
    def num_bytes(self) -> int:
        """Of the weights in float32."""
        return sum(4 * tensor.numel() for tensor in self.checkpoint.tensors.values())

    @property
    def fits(self) -> bool:
        """Whether an exported graph, which takes pictures of one size, takes those that the preprocessing makes."""
        return self.checkpoint.preprocess.size == self.checkpoint.config.image_size

    def can_convert(self, runtime: RuntimeName) -> bool:
        """Whether it is worth thinking of this runtime: what it needs is installed, and the model suits it."""
        if runtime == "torch":
            return True
        installed = all(find_spec(name) is not None for name in NEEDS[runtime])
        return installed and self.own.device.type == "cpu" and self.fits and self.num_bytes <= MOST_BYTES

    def open(self, way: Way) -> Runtime:
        """The model on a runtime, in the numbers of that way."""
        if way == PLAIN:
            return self.own
        if way.runtime == "torch":
            return TorchRuntime(copy.deepcopy(self.own.model).to(torch.bfloat16), self.own.extras)
        path, manifest = self.export.path, self.export.manifest
        if way.runtime == "onnx":
            return onnx_runtime.make_runtime(path, manifest)
        model = openvino_runtime.read_model(path)
        for port, name in zip(model.outputs, manifest.outputs, strict=True):
            port.get_tensor().set_names({name})
        return openvino_runtime.make_runtime(model, manifest, way.precision, str(path))
