"""The other libraries, importable on a machine whose torchvision has no matching binary (oracles and benchmarks only).

`import_peer` says what it takes. Import the peers from here, never directly: each takes seconds, and is imported when
its name is asked for.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitrail.weights.peers import import_peer

if TYPE_CHECKING:
    import timm
    import torchmetrics.classification
    import torchvision.transforms.v2
    import transformers

import_peer("torchvision")
PARTS = {"torchmetrics": "torchmetrics.classification", "torchvision": "torchvision.transforms.v2"}

__all__ = ["timm", "torchmetrics", "torchvision", "transformers"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    import_module(PARTS.get(name, name))
    return sys.modules[name]
