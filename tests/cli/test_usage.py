"""Messages of the library name arguments; the command shows them as its flags."""

import ast
import re
from pathlib import Path

import pytest

import vitrail
from vitrail.cli.main import build_app, main
from vitrail.cli.usage import as_flags, flags_of

FLAGS = {"--weights", "--split", "--image-size", "--from", "--to", "--overwrite", "--ema", "--no-ema"}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("pass `weights=`, or not.", "pass --weights, or not."),
        ('no test split; `split="all"` measures everything.', "no test split; --split all measures everything."),
        ("it exists; `overwrite=True` allows that.", "it exists; --overwrite allows that."),
        ("`ema=False` takes the others", "--no-ema takes the others"),
        ("name it: `source_format=timm`, `format=hf`", "name it: --from timm, --to hf"),
        ("`image_size=` changes that", "--image-size changes that"),
        ("`mean=0.5` is no flag", "mean=0.5 is no flag"),
        ("pass `image_size=(224, 320)`", "pass --image-size 224,320"),
        ("runs/weights=1/x: no such file; `vitrail.load(x, weights=1)` is code", None),
    ],
)
def test_arguments_become_flags(message: str, shown: str | None) -> None:
    assert as_flags(message, FLAGS) == (message if shown is None else shown)


def flags_of_verb(verb: str) -> set[str]:
    return flags_of(build_app(), verb.split())


def test_the_flags_of_a_verb() -> None:
    assert {"--weights", "--lr", "--resume"} <= flags_of(build_app(), ["train", "x", "--lr", "1"])
    assert "--weights" not in flags_of(build_app(), ["models"])
    assert flags_of(build_app(), []) == set()


# The commands that a report tells its reader to type, and the table of the command's verbs.
COMMANDS = (Path("report") / "command_lines.py", Path("verbs") / "__init__.py")
FLAG = re.compile(r"(?:^|\s)--[a-z-]+\b(?![-\w])")


def is_command(text: ast.JoinedStr) -> bool:
    """Whether a text is a whole command to type."""
    first = text.values[0]
    return isinstance(first, ast.Constant) and str(first.value).lstrip().startswith(
        ("vitrail ", "docker ", "serving on ")
    )


def test_no_message_of_the_library_speaks_of_flags() -> None:
    """Python's users have arguments, and the command translates; a whole command to type, `vitrail …`, is fine."""
    root = Path(vitrail.__file__).parent
    found: list[str] = []
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] in ("cli", "__main__.py") or path.relative_to(root) in COMMANDS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        commands = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and is_command(node)]
        inside = {id(part) for node in commands for part in node.values}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        texts = [node for node in texts if id(node) not in inside]
        flags = [node for node in texts if FLAG.search(str(node.value)) and "vitrail" not in str(node.value)]
        flags = [
            node for node in flags if str(node.value).strip() != "--local-dir"
        ]  # of `hf download`, which is not ours
        found += [f"{path.relative_to(root)}:{node.lineno}: {str(node.value)[:80]!r}" for node in flags]
    assert found == []


def test_an_error_is_shown_in_the_words_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrail.errors import ConfigError

    def fail() -> None:
        raise ConfigError("`as_json=True` and `weights=` do not go together")

    monkeypatch.setattr("vitrail.verbs.models.models", fail)
    assert main(["models"]) == 2
    assert "weights= do not go together" in capsys.readouterr().err  # `models` has no such flag
