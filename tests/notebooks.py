"""Notebooks as Jupyter runs them, without Jupyter: cell by cell, the last line of a cell shown by its rich form."""

import ast
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RICH = ("_repr_html_", "_repr_markdown_", "_repr_png_")  # as IPython's display protocol calls them


@dataclass
class Notebook:
    """A notebook file."""

    path: Path
    cells: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        book = json.loads(self.path.read_text(encoding="utf-8"))
        assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
        self.cells = book["cells"]

    @property
    def code(self) -> list[str]:
        return ["".join(cell["source"]) for cell in self.cells if cell["cell_type"] == "code"]

    @property
    def is_stripped(self) -> bool:
        """Whether it holds no results, which would be large and out of date."""
        return not any(cell.get("outputs") or cell.get("execution_count") for cell in self.cells)

    def run(self, shortened: dict[str, str] | None = None) -> list[Any]:
        """The values that the cells end with, in one namespace; None where a cell ends with a statement.

        `shortened`: what takes long as it stands → what is run in its place.
        """
        namespace: dict[str, Any] = {"__name__": "__main__"}
        values: list[Any] = []
        for number, source in enumerate(self.code, start=1):
            for old, new in (shortened or {}).items():
                source = source.replace(old, new)
            values.append(_run(source, f"{self.path.name}, cell {number}", namespace))
        return values


def rich_forms(value: Any) -> dict[str, str | bytes]:
    """How a notebook can show a value: name of the method → what it gave."""
    made = {name: getattr(value, name)() for name in RICH if hasattr(value, name)}
    return {name: form for name, form in made.items() if form is not None}


def _run(source: str, name: str, namespace: dict[str, Any]) -> Any:
    tree = ast.parse(source, name)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace)
