"""Public names of a package that load their module when first used, so that importing the package stays light.

Each name is written once, as an import that only type checkers and editors carry out:

    if TYPE_CHECKING:
        from vitrail.model import ViT as ViT  # "as": the name is public

    __getattr__, __dir__, __all__ = lazy_names(__name__)
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package, from the imports below its `if TYPE_CHECKING`."""
    module: Any = sys.modules[package]
    blocks = (block for block in ast.parse(module.__loader__.get_source(package)).body if isinstance(block, ast.If))
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    home_of = {name.name: str(node.module) for node in imports for name in node.names}
    public = sorted({*home_of, *({"__version__"} & vars(module).keys())})

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return get, lambda: list(public), public
