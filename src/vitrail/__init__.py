"""vitrail: one tool for the whole life of a Vision Transformer.

The public names load what they need when first used, so that `import vitrail` (and `vitrail --help`) stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.errors import AssumptionWarning, VitrailError
    from vitrail.model import ViT, ViTConfig, create, variants
    from vitrail.prediction import Predictor, load

__version__ = "0.1.0.dev0"

# Public name → the module that defines it.
_HOME = {
    "AssumptionWarning": "vitrail.errors",
    "Predictor": "vitrail.prediction",
    "ViT": "vitrail.model",
    "ViTConfig": "vitrail.model",
    "VitrailError": "vitrail.errors",
    "create": "vitrail.model",
    "load": "vitrail.prediction",
    "variants": "vitrail.model",
}

__all__ = [
    "AssumptionWarning",
    "Predictor",
    "ViT",
    "ViTConfig",
    "VitrailError",
    "__version__",
    "create",
    "load",
    "variants",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
