"""Every Python block of README.md and docs/ runs, page by page, and prints what the page shows."""

from pathlib import Path
from typing import Any

import pytest
from tests.docs.desk import lay_out, sit_down
from tests.docs.pages import agree, blocks, pages
from tests.docs.running import SHORTENED, run_page

# Page → names that it expects the reader to have.
GIVEN: dict[str, dict[str, Any]] = {"docs/predict.md": {"paths": ["cat.jpg", "rose.jpg"]}}
EXECUTED = [
    page for page in pages() if any(block.language == "python" or "run" in block.marks for block in blocks(page))
]
MOST_NOT_RUN = 6


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    lay_out(folder)
    return folder


@pytest.mark.filterwarnings("ignore::vitrail.AssumptionWarning")  # of foreign checkpoints, as on the page
@pytest.mark.parametrize("page", EXECUTED, ids=str)
def test_pages_run(page: Path, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sit_down(desk, tmp_path / "desk", monkeypatch)
    for block, printed, shown in run_page(page, {"__name__": page.stem, **GIVEN.get(page.as_posix(), {})}):
        place = f"{page}:{block.line}"
        if shown is not None:
            assert agree(printed, shown.text, shown.marks.get("within", "")), f"{place} printed\n{printed}"
        elif page.is_relative_to("docs/tutorial"):
            assert not printed, f"{place} prints something that the page does not show:\n{printed}"


def test_what_is_shortened_is_still_there() -> None:
    for page, changes in SHORTENED.items():
        code = "".join(block.text for block in blocks(Path(page)) if block.language == "python")
        assert all(old in code for old in changes), page


def test_what_is_not_run_says_why_and_is_little() -> None:
    reasons = [block.marks["not run"] for page in pages() for block in blocks(page) if "not run" in block.marks]
    assert all(reasons)
    assert len(reasons) <= MOST_NOT_RUN
