"""One model in torch, and the same model on the other runtimes."""

import copy
import json
from functools import cached_property
from importlib.util import find_spec
from typing import NamedTuple

import torch

from vitrail.runtimes import onnx_runtime, openvino_runtime
from vitrail.runtimes.exporting import NEEDS, fit_to_pictures
from vitrail.runtimes.kept_exports import MOST_BYTES, KeptExport, find_export, make_export
from vitrail.runtimes.made_int8 import Int8Export, find_int8, has_int8
from vitrail.runtimes.opening import Numbers, RuntimeName
from vitrail.runtimes.runtime import Runtime
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.schema import to_dict
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import fingerprint


class Way(NamedTuple):
    """One way to compute."""

    runtime: RuntimeName
    precision: Numbers


PLAIN = Way("torch", "float32")


class Converter:
    """Opens a model on any runtime; what that takes is done once, and when it is needed."""

    def __init__(self, own: TorchRuntime, checkpoint: Checkpoint) -> None:
        self.own, self.loaded = own, checkpoint

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """At the size of the pictures that it takes, as exports have it."""
        return fit_to_pictures(self.loaded)

    @cached_property
    def sha256(self) -> str:
        return fingerprint(self.loaded.tensors)

    @cached_property
    def kept(self) -> KeptExport | None:
        """The export that is in the cache already."""
        return find_export(self.checkpoint, self.sha256)

    @cached_property
    def int8(self) -> Int8Export | None:
        """The int8 export that was made of this checkpoint, if it can still be run."""
        if not has_int8():
            return None
        return find_int8(self.sha256, json.dumps(to_dict(self.checkpoint.config)))

    @cached_property
    def export(self) -> KeptExport:
        return self.kept or make_export(self.checkpoint, self.sha256)

    @property
    def num_bytes(self) -> int:
        """Of the weights in float32."""
        return sum(4 * tensor.numel() for tensor in self.loaded.tensors.values())

    def can_convert(self, runtime: RuntimeName) -> bool:
        """Whether it is worth thinking of this runtime: what it needs is installed, and the model suits it."""
        if runtime == "torch":
            return True
        installed = all(find_spec(name) is not None for name in NEEDS[runtime])
        return installed and self.own.device.type == "cpu" and self.num_bytes <= MOST_BYTES

    def open(self, way: Way) -> Runtime:
        """The model on a runtime, in the numbers of that way."""
        if way == PLAIN:
            return self.own
        if way.precision == "int8":
            assert self.int8 is not None
            return self.int8.runtime
        if way.runtime == "torch":
            return TorchRuntime(copy.deepcopy(self.own.model).to(torch.bfloat16), self.own.extras)
        path, manifest = self.export.path, self.export.manifest
        if way.runtime == "onnx":
            return onnx_runtime.make_runtime(path, manifest)
        model = openvino_runtime.read_model(path)
        for port, name in zip(model.outputs, manifest.outputs, strict=True):
            port.get_tensor().set_names({name})
        return openvino_runtime.make_runtime(model, manifest, way.precision, str(path))
