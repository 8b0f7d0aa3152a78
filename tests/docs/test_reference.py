"""docs/reference says what the code says: its generated parts are current, and nothing is left out."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from docs.reference.generate import FOLDER, SECTIONS, pages, renew
from docs.reference.sections import config, http, python
from tests.docs.pages import ROOT

import vitrail
from vitrail import errors
from vitrail.cli.main import build_app
from vitrail.cli.usage import flags_of
from vitrail.serving.exchange import CODES
from vitrail.verbs import VERBS


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_pages_are_current(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # which nothing depends on
    monkeypatch.setenv("VITRAIL_DATA", "/elsewhere")
    text = page.read_text(encoding="utf-8")
    assert renew(text) == text, f"{page.relative_to(ROOT)} is old; run: python -m docs.reference.generate"


def test_generated_parts_are_written_anew() -> None:
    text = text_of("errors.md")
    assert renew(text.replace("`queue_full`", "`queue_empty`")) == text


def test_every_section_is_on_one_page() -> None:
    found = [name for page in pages() for name in re.findall(r"<!-- generated: ([a-z ]+) -->", text_of(page.name))]
    assert sorted(found) == sorted(SECTIONS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_is_listed(verb: str) -> None:
    section = text_of("command.md").split(f"\n## vitrail {verb}\n")[1].split("\n## ")[0]
    app = build_app()
    inner = [[verb, name] for name in app[verb] if not name.startswith("-")] or [[verb]]
    for tokens in inner:
        for flag in flags_of(app, tokens):
            if flag != "*" and not flag.startswith(("--no-", "--empty-")):
                listed = re.search(rf"`{flag}[.`]|`{flag.strip('-').upper()}…?`", section)  # --columns.label
                assert listed, f"{tokens}: {flag}"


def test_every_public_name_is_listed() -> None:
    listed = [name for names in python.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(set(vitrail.__all__) - {"__version__"})


def test_every_field_says_what_it_is() -> None:
    for each in (each for group in config.GROUPS.values() for each in group):
        about, notes = inspect.getdoc(each) or "", config.field_notes(each)
        for field in dataclasses.fields(each):
            said = notes.get(field.name) or f"`{field.name}`" in about or field.name == "kind"
            assert said, f"{each.__name__}.{field.name} needs a comment beside it, or a text below it"


def test_every_route_is_listed_with_its_errors() -> None:
    text = text_of("http.md")
    for path, methods in http.description()["paths"].items():
        for method in methods:
            assert f"### {method.upper()} {path}\n" in text
    unrouted = {"not_found", "method_not_allowed"}  # what no route answers
    assert {code for code in CODES if f"`{code}`" in text} == set(CODES) - unrouted


def test_every_exception_has_an_example() -> None:
    text = text_of("errors.md")
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, Exception) and kind is not errors.VitrailError:
            section = text.split(f"\n### {name}\n")[1].split("\n#")[0]
            assert "```python" in section, name
            assert "```text\n" in section, name
