"""The site builds without a warning, and an open page asks nobody for anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, pages

from fuzzing import FUZZ

pytestmark = [*FUZZ]

LOADED = re.compile(
    r'<(?:script|img|iframe|source)[^>]* src="([^"]+)"|<link[^>]* href="([^"]+)"|url\(([^)]+)\)|@import "?([^";]+)'
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in pages():
        if page.is_relative_to("docs") and page != Path("docs/README.md"):  # which is the home page
            assert (site / page.relative_to("docs").with_suffix(".html")).exists(), page
    assert (site / "search.html").exists()
    assert "<math" in (site / "tutorial" / "2-attention.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for groups in LOADED.findall(file.read_text(encoding="utf-8")):
            address = "".join(groups).strip("'\"")
            assert not re.match(r"(https?:)?//", address), f"{file.relative_to(site)} loads {address}"
