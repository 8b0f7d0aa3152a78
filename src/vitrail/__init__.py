"""vitrail: one tool for the whole life of a Vision Transformer.

Every verb of the command is a function here, with the same defaults, checks and results. The public names load what
they need when first used, so that `import vitrail` (and `vitrail --help`) stays light.
"""

import os
from typing import TYPE_CHECKING

from vitrail.lazy import lazy_names
from vitrail.machine import avoid_unusable_amx

if TYPE_CHECKING:
    from vitrail.errors import AssumptionWarning, VitrailError
    from vitrail.model import ViT, ViTConfig, create, variants
    from vitrail.prediction import Predictor, load
    from vitrail.training.config import TrainConfig
    from vitrail.training.recipes import recipe
    from vitrail.training.run import Run
    from vitrail.verbs.benchmark import benchmark
    from vitrail.verbs.calibrate import calibrate
    from vitrail.verbs.convert import convert
    from vitrail.verbs.data import check_data, open_data, shard_data, show_data
    from vitrail.verbs.doctor import doctor
    from vitrail.verbs.embed import embed
    from vitrail.verbs.evaluate import evaluate
    from vitrail.verbs.explain import explain
    from vitrail.verbs.export import export
    from vitrail.verbs.figures import figures
    from vitrail.verbs.inspect import inspect, models, summary
    from vitrail.verbs.predict import predict
    from vitrail.verbs.scores import Evaluation
    from vitrail.verbs.serve import serve
    from vitrail.verbs.train import demo, plan, resume, train
    from vitrail.weights.infer import Hints

__version__ = "0.1.0"

# Module → the public names that it defines; pyright wants `__all__` spelled out too, and a test compares them.
_HOMES = {
    "errors": (
        "AssumptionWarning",
        "VitrailError",
    ),
    "model": (
        "ViT",
        "ViTConfig",
        "create",
        "variants",
    ),
    "prediction": (
        "Predictor",
        "load",
    ),
    "training.config": ("TrainConfig",),
    "training.recipes": ("recipe",),
    "training.run": ("Run",),
    "verbs.benchmark": ("benchmark",),
    "verbs.calibrate": ("calibrate",),
    "verbs.convert": ("convert",),
    "verbs.data": (
        "check_data",
        "open_data",
        "shard_data",
        "show_data",
    ),
    "verbs.doctor": ("doctor",),
    "verbs.embed": ("embed",),
    "verbs.evaluate": ("evaluate",),
    "verbs.explain": ("explain",),
    "verbs.export": ("export",),
    "verbs.figures": ("figures",),
    "verbs.inspect": (
        "inspect",
        "models",
        "summary",
    ),
    "verbs.predict": ("predict",),
    "verbs.scores": ("Evaluation",),
    "verbs.serve": ("serve",),
    "verbs.train": (
        "demo",
        "plan",
        "resume",
        "train",
    ),
    "weights.infer": ("Hints",),
}

__all__ = [
    "AssumptionWarning",
    "Evaluation",
    "Hints",
    "Predictor",
    "Run",
    "TrainConfig",
    "ViT",
    "ViTConfig",
    "VitrailError",
    "__version__",
    "benchmark",
    "calibrate",
    "check_data",
    "convert",
    "create",
    "demo",
    "doctor",
    "embed",
    "evaluate",
    "explain",
    "export",
    "figures",
    "inspect",
    "load",
    "models",
    "open_data",
    "plan",
    "predict",
    "recipe",
    "resume",
    "serve",
    "shard_data",
    "show_data",
    "summary",
    "train",
    "variants",
]

# ONNX Runtime and huggingface_hub report their use to their makers unless these are set when they are imported.
# OpenVINO asks in Python: `runtimes/openvino_runtime.py`.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

avoid_unusable_amx()  # oneDNN asks once, when torch or OpenVINO first compute: later would be too late

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
