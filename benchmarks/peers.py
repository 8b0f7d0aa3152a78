"""The other libraries, importable on a machine whose torchvision has no matching binary (oracles and benchmarks only).

torchvision's wheel may not load its compiled operators beside a CPU build of torch, and then fails at import while
registering stubs for them; transformers and torchmetrics in turn fail to import with such a torchvision. ViTs need
none of those operators, so they are ignored during that one import. Import the peers from here, never directly.
"""

from collections.abc import Callable
from typing import Any

import torch


def _import_torchvision() -> Any:
    register_fake = torch.library.register_fake

    def skip_torchvision(op: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        if isinstance(op, str) and op.startswith("torchvision::"):
            return lambda function: function
        return register_fake(op, *args, **kwargs)

    torch.library.register_fake = skip_torchvision  # pyright: ignore
    try:
        import torchvision.transforms.v2
    finally:
        torch.library.register_fake = register_fake
    return torchvision


torchvision = _import_torchvision()

import timm  # noqa: E402
import torchmetrics.classification  # noqa: E402
import transformers  # noqa: E402

__all__ = ["timm", "torchmetrics", "torchvision", "transformers"]
