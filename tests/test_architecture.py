"""The direction of imports, the public names, and the sizes that keep the code readable."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import vitrail
import vitrail.data
import vitrail.training

ROOT = Path(vitrail.__file__).parent
# Modules that stand on nothing but each other.
FOUNDATIONS = {
    "cache",
    "blocks",
    "canvas",
    "errors",
    "files",
    "lazy",
    "machine",
    "object_store",
    "progress",
    "ranks",
    "registry",
    "rng",
    "schema",
    "storage",
    "synonyms",
    "threads",
    "timing",
    "untrusted",
    "wording",
}

# Room → the rooms that it may import, beside the foundations. Nothing imports `cli`.
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "data": set(),
    "tasks": {"model", "data"},
    "weights": {"model", "data", "tasks"},
    "runtimes": {"model", "data", "tasks", "weights"},
    "prediction": {"model", "data", "tasks", "weights", "runtimes"},
    "evaluation": {"model", "data", "tasks", "weights", "runtimes", "prediction"},
    "explanation": {"model", "data", "tasks", "weights", "runtimes", "prediction"},
    "training": {"model", "data", "tasks", "weights", "runtimes", "prediction", "evaluation"},
    "report": {"model", "data", "tasks", "weights", "runtimes", "prediction", "evaluation", "explanation", "training"},
    "serving": {"model", "data", "tasks", "weights", "runtimes", "prediction", "explanation"},
}
EVERYTHING = {"cli", "verbs", "__init__", "__main__"}  # they join the rooms
MODULES = sorted(ROOT.rglob("*.py"))


def part_of(module: Path) -> str:
    return module.relative_to(ROOT).with_suffix("").parts[0]


def parse(module: Path) -> tuple[str, ast.Module]:
    """A file by the name that failures give it, and what it says."""
    return str(module.relative_to(ROOT)), ast.parse(module.read_text(encoding="utf-8"))


def imported_names(name: str, tree: ast.Module) -> set[str]:
    """What a file's import statements name, wherever in the file they stand."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: write imports in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_imports_point_in_one_direction() -> None:
    for module in MODULES:
        name, tree = parse(module)
        parts = {part.split(".")[1] for part in imported_names(name, tree) if part.startswith("vitrail.")}
        room, imported = part_of(module), parts - {"__version__"}
        if room not in ("cli", "__main__"):
            assert "cli" not in imported, f"{name}: nothing imports the command"
        if room in EVERYTHING:
            continue
        allowed = FOUNDATIONS | (MAY_IMPORT[room] | {room} if room in MAY_IMPORT else set())
        assert room in MAY_IMPORT or room in FOUNDATIONS, f"{name}: {room} is no room that the architecture knows"
        assert imported <= allowed, f"{name}: {room} may not import {sorted(imported - allowed)}"


def test_model_needs_torch_alone() -> None:
    for module in sorted((ROOT / "model").glob("*.py")):
        name, tree = parse(module)
        roots = {part.split(".")[0] for part in imported_names(name, tree)}
        others = roots - {"torch", "vitrail"} - set(sys.stdlib_module_names)
        assert not others, f"{name} imports {sorted(others)}"
        assert len(module.read_text(encoding="utf-8").splitlines()) <= 300, f"{name} is too long"


# Files of one name, because they are one idea in several rooms.
NAMESAKES = {"config"}  # a room's settings, as dataclasses


def test_no_two_files_have_one_name() -> None:
    stems = Counter(module.stem for module in MODULES if module.stem not in ("__init__", "__main__"))
    assert {stem for stem, count in stems.items() if count > 1} == NAMESAKES


def test_every_file_is_reachable_from_the_architecture() -> None:
    docs = ROOT.parents[1] / "docs"
    assert "(reference/files.md)" in (docs / "architecture.md").read_text(encoding="utf-8")
    listed = (docs / "reference" / "files.md").read_text(encoding="utf-8")
    trees = dict(re.findall(r"\*\*vitrail(/?[\w/]*)\*\*: .*?```text\n(.*?)```", listed, re.DOTALL))
    for module in MODULES:
        if module.name != "__init__.py":
            folder = "/".join(("", *module.relative_to(ROOT).parent.parts))
            assert f"\n{module.name} " in f"\n{trees.get(folder.rstrip('/'), '')}", module


def test_public_names_are_few() -> None:
    assert len(vitrail.__all__) <= 45  # the verbs, and the few types that they take and return


@pytest.mark.parametrize("package", [vitrail, vitrail.data, vitrail.training], ids=lambda package: package.__name__)
def test_public_names_exist(package: Any) -> None:
    assert dir(package) == package.__all__
    assert len(package.__all__) > 10
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'creat'"):
        _ = package.creat


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["summary", "--help"], ["sumary"]])
def test_help_and_mistakes_do_not_load_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from vitrail.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'sklearn', 'matplotlib', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
