"""Relative links lead to files that exist, and their anchors to headings."""

import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, pages

ELSEWHERE = [Path(name) for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    return FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*pages(), *ELSEWHERE], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(text_of(page)):
        if re.match(r"https?://|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        assert target.exists(), f"{page}: {link} does not exist"
        assert not anchor or anchor in anchors(target.relative_to(ROOT)), f"{page}: {link} has no such heading"
