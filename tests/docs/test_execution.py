"""Every Python and shell block of README.md and docs/ runs, page by page, and prints what the page shows."""

from pathlib import Path
from typing import Any

import pytest
from tests.docs.desk import IMAGENETTE, lay_out, sit_down
from tests.docs.pages import Block, agree, agree_in_words, blocks, pages
from tests.docs.running import LONG, SHORTENED, Ran, run_page

from fuzzing import FUZZ

# Page → names that it expects the reader to have.
GIVEN: dict[str, dict[str, Any]] = {"docs/predict.md": {"paths": ["cat.jpg", "rose.jpg"]}}
# The examples of the reference are those of `--help`: they are parsed, and the other pages run commands like them.
EXECUTED = [
    pytest.param(page, marks=FUZZ) if page.as_posix() in LONG else page
    for page in pages()
    if page != Path("docs/reference/command.md") and any(block.language in ("python", "sh") for block in blocks(page))
]
MOST_NOT_RUN = 14


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    lay_out(folder)
    return folder


@pytest.mark.filterwarnings("ignore::vitrail.AssumptionWarning")  # of foreign checkpoints, as on the page
@pytest.mark.parametrize("page", EXECUTED, ids=str)
def test_pages_run(page: Path, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sit_down(page, desk, tmp_path / "desk", monkeypatch)
    for ran in run_page(page, {"__name__": page.stem, **GIVEN.get(page.as_posix(), {})}):
        place = f"{page}:{ran.block.line}"
        if ran.shown is not None:
            assert is_as_shown(ran, ran.shown), f"{place} printed\n{ran.everything}"
        elif page.is_relative_to("docs/tutorial") and ran.block.language == "python":
            assert not ran.output, f"{place} prints something that the page does not show:\n{ran.output}"


def is_as_shown(ran: Ran, shown: Block) -> bool:
    if "of real pictures" in shown.marks:
        return agree_in_words(ran.everything, shown.text, IMAGENETTE)
    printed = ran.everything if shown.text.startswith("error: ") else ran.output
    return agree(printed, shown.text, shown.marks.get("within", ""))


def test_what_is_shortened_is_still_there() -> None:
    for page, changes in SHORTENED.items():
        code = "".join(block.text for block in blocks(Path(page)) if block.language in ("python", "sh"))
        for old, new in changes.items():
            assert old in code, f"{page} no longer has {old}"
            code = code.replace(old, new)


def test_what_is_not_run_says_why_and_is_little() -> None:
    reasons = [block.marks["not run"] for page in pages() for block in blocks(page) if "not run" in block.marks]
    assert all(reasons)
    assert len(reasons) <= MOST_NOT_RUN


def test_a_command_is_in_a_block_that_is_run() -> None:
    for page in pages():
        for block in blocks(page):
            is_plain = block.language not in ("sh", "python", "text")
            is_command = any(line.startswith("vitrail ") for line in block.text.splitlines())
            assert not (is_plain and is_command), f"{page}:{block.line} should be a block of sh"
