"""vitrail: one tool for the whole life of a Vision Transformer.

Every verb of the command is a function here, with the same defaults, checks and results. The public names load what
they need when first used, so that `import vitrail` (and `vitrail --help`) stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.diagnosis import doctor
    from vitrail.errors import AssumptionWarning, VitrailError
    from vitrail.model import ViT, ViTConfig, create, variants
    from vitrail.prediction import Predictor, load
    from vitrail.training.config import TrainConfig
    from vitrail.training.recipes import recipe
    from vitrail.training.run import Run
    from vitrail.verbs.benchmark import benchmark
    from vitrail.verbs.convert import convert
    from vitrail.verbs.data import check_data, open_data, shard_data, show_data
    from vitrail.verbs.embed import embed
    from vitrail.verbs.evaluate import evaluate
    from vitrail.verbs.evaluation import Evaluation
    from vitrail.verbs.explain import explain
    from vitrail.verbs.export import export
    from vitrail.verbs.figures import figures
    from vitrail.verbs.inspect import inspect
    from vitrail.verbs.train import demo, plan, resume, train
    from vitrail.weights.infer import Hints

__version__ = "0.1.0.dev0"

# Public name → the module that defines it.
_HOME = {
    "AssumptionWarning": "vitrail.errors",
    "Evaluation": "vitrail.verbs.evaluation",
    "Hints": "vitrail.weights.infer",
    "Predictor": "vitrail.prediction",
    "Run": "vitrail.training.run",
    "TrainConfig": "vitrail.training.config",
    "ViT": "vitrail.model",
    "ViTConfig": "vitrail.model",
    "VitrailError": "vitrail.errors",
    "benchmark": "vitrail.verbs.benchmark",
    "check_data": "vitrail.verbs.data",
    "convert": "vitrail.verbs.convert",
    "create": "vitrail.model",
    "demo": "vitrail.verbs.train",
    "doctor": "vitrail.diagnosis",
    "embed": "vitrail.verbs.embed",
    "evaluate": "vitrail.verbs.evaluate",
    "explain": "vitrail.verbs.explain",
    "export": "vitrail.verbs.export",
    "figures": "vitrail.verbs.figures",
    "inspect": "vitrail.verbs.inspect",
    "load": "vitrail.prediction",
    "open_data": "vitrail.verbs.data",
    "plan": "vitrail.verbs.train",
    "recipe": "vitrail.training.recipes",
    "resume": "vitrail.verbs.train",
    "shard_data": "vitrail.verbs.data",
    "show_data": "vitrail.verbs.data",
    "train": "vitrail.verbs.train",
    "variants": "vitrail.model",
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
    "open_data",
    "plan",
    "recipe",
    "resume",
    "shard_data",
    "show_data",
    "train",
    "variants",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
