"""The other libraries, importable on a machine whose torchvision has no matching binary (oracles and benchmarks only).

`import_peer` says what it takes. Import the peers from here, never directly.
"""

from vitrail.weights.peers import import_peer

import_peer("torchvision")

import timm  # noqa: E402
import torchmetrics.classification  # noqa: E402
import torchvision.transforms.v2  # noqa: E402
import transformers  # noqa: E402

__all__ = ["timm", "torchmetrics", "torchvision", "transformers"]
