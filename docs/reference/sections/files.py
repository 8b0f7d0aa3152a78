"""Every source file with the first sentence that it says of itself, package by package."""

import ast
from pathlib import Path

import vitrail

_ROOT = Path(vitrail.__file__).parent


def files() -> str:
    """One tree for each package; the modules that stand on nothing but each other come first."""
    folders = sorted({path.parent for path in _ROOT.rglob("*.py")})
    return "\n\n".join(_tree(folder) for folder in folders)


def _tree(folder: Path) -> str:
    name = "/".join(("vitrail", *folder.relative_to(_ROOT).parts))
    modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    width = max((len(path.name) for path in modules), default=0) + 2
    lines = [f"{path.name:{width}}{_sentence(path)}" for path in modules]
    return "\n".join(
        [f"**{name}**: {_sentence(folder / '__init__.py')}", *(["", "```text", *lines, "```"] if lines else [])]
    )


def _sentence(path: Path) -> str:
    """The first line of a module's docstring, or as many as its first sentence has."""
    text = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    assert text, f"{path} does not say what it is"
    return " ".join(text.split())
