"""The texts of the library mark arguments, `weights=`, so that the command can show its flags instead."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

import vitrail
from vitrail.verbs import keywords

ROOT = Path(vitrail.__file__).parent
COMMAND_LINE = re.compile(r"\b(vitrail [a-z{]|docker run|curl|hf download)")  # is shown as it is typed


def arguments() -> set[str]:
    """What can be passed to the public functions by name."""
    functions = [getattr(vitrail, name) for name in vitrail.__all__]
    named = {name for each in functions if inspect.isfunction(each) for name in inspect.signature(each).parameters}
    typed = [each for each in vars(keywords).values() if isinstance(each, type) and hasattr(each, "__total__")]
    return named | {name for each in typed for name in get_type_hints(each)}


def texts(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Every text but docstrings, {} where something is put in."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node, "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def unmarked(source: str, known: set[str]) -> Iterator[str]:
    """The texts that name an argument without marking it, or a flag."""
    tree = ast.parse(source)
    raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    for node, text in texts(tree):
        bare = re.sub(r"`[^`]*`", "", text)
        names = set(re.findall(r"(?<![\w<.-])(?<!, )([a-z][a-z0-9_]*)=(?!=)", bare))  # after a comma: in code
        put_in = id(node) in raised and re.search(r"(?<!says )\{\}=", bare)  # a file may say anything
        flag = re.search(r"(?<![\w`-])--[a-z]", bare) and " " in bare and not COMMAND_LINE.search(text)
        if names & known or put_in or flag:
            yield f"line {node.lineno}: {text}"


def test_texts_mark_arguments_and_name_no_flags() -> None:
    known = arguments()
    assert {"weights", "norm_eps", "fold_class_position", "max_batch", "lr"} <= known
    found = [
        f"{file.relative_to(ROOT)}, {text}"
        for file in sorted(ROOT.rglob("*.py"))
        if file.parent.name != "cli" and file != ROOT / "verbs" / "__init__.py"  # which speak to users of the command
        for text in unmarked(file.read_text(encoding="utf-8"), known)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'raise ConfigError("omit weights= here")',
        'raise ConfigError(f"omit {name}={value}")',
        'note = f"assumed {eps} (norm_eps={eps} changes that)"',
        'raise ConfigError("pass --weights FILE")',
    ],
)
def test_what_is_not_marked_is_found(source: str) -> None:
    assert list(unmarked(source, {"weights", "norm_eps"}))


@pytest.mark.parametrize(
    "source",
    [
        'raise ConfigError("omit `weights=` here")',
        'raise ConfigError("must be a file", field="weights")',
        'raise WeightsError(f"{file} says {name}={value}")',
        'how = "vitrail train --weights FILE"',
        'how = f"model = ViT({width}, weights={name})"',
    ],
)
def test_what_is_marked_is_not_found(source: str) -> None:
    assert not list(unmarked(source, {"weights"}))
