"""Run a page from top to bottom: its Python blocks in one namespace, its marked shell blocks by the command itself."""

import io
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tests.docs.pages import Block, blocks

from vitrail.cli.main import main

# Page → what takes hours or a large batch as it stands, and what is run in its place.
SHORTENED: dict[str, dict[str, str]] = {
    # without the network, photographs would start from scratch, in a model that no other format can hold
    "README.md": {'train("flowers")': 'train("flowers", epochs=1, weights="hf://google/vit-base-patch16-224")'},
    "docs/data.md": {"batch_size=256": "batch_size=4", "range(10)": "range(2)"},
    "docs/fast.md": {'exports=["model.onnx"])': 'exports=["model.onnx"], runtimes=["torch"], seconds=0.05, batch=[1])'},
    "docs/tutorial/4-training.md": {"epochs=25": "epochs=1"},
    "docs/train.md": {"minutes=30": "epochs=1", 'recipe="scratch"': 'recipe="scratch", image_size=64'},
}
# What only programs of their own contain: those with arguments, services and their clients, which have their own tests.
OWN_PROGRAMS = ("sys.argv", "vitrail.serve(", "127.0.0.1:8000")


def run_page(page: Path, namespace: dict[str, Any]) -> Iterator[tuple[Block, str, Block | None]]:
    """Each block that runs, what it printed, and the `text` block in which the page shows that."""
    all_blocks = blocks(page)
    for block, following in zip(all_blocks, [*all_blocks[1:], None], strict=True):
        if "not run" in block.marks or any(sign in block.text for sign in OWN_PROGRAMS):
            continue
        if block.language == "python":
            printed = _run_python(page, block, namespace)
        elif "run" in block.marks:
            printed = _run_commands(page, block)
        else:
            continue
        yield block, printed, following if following is not None and following.language == "text" else None


def _run_python(page: Path, block: Block, namespace: dict[str, Any]) -> str:
    text = block.text
    for old, new in SHORTENED.get(page.as_posix(), {}).items():
        text = text.replace(old, new)
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + text, str(page), "exec")  # errors name the line of the page
    with redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def _run_commands(page: Path, block: Block) -> str:
    printed = io.StringIO()
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "vitrail", f"{page}:{block.line}: only commands of vitrail can be run"
        with redirect_stdout(printed):
            code = main(words[1:])
        sys.stderr.flush()
        assert code == 0, f"{page}:{block.line}: {line} ended with exit code {code}"
    return printed.getvalue()
