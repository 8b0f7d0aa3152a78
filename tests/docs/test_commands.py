"""Every `vitrail` command of the documentation is one that the command line understands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import CycloptsError
from tests.docs.pages import ROOT, blocks, pages

from vitrail.cli.main import build_app
from vitrail.cli.usage import describe_usage
from vitrail.verbs import VERBS

SHELL = ("sh", "bash", "console", "")
COMMAND = re.compile(r"(?:^|[|] |-m |\$ )(?:[A-Z_]+=\S+ )*(vitrail .*)$")
INLINE = re.compile(r"`(vitrail [a-z-][^`]*)`")
CODE_OR_COMMENT = re.compile(r"^```.*?^```|<!--.*?-->", re.DOTALL | re.MULTILINE)
PLACEHOLDERS = ("…", "VERB")  # a span that shows a form rather than a command


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Where a command stands, and its words: those of shell blocks, and those in the text."""
    for block in blocks(page):
        if block.language in SHELL:
            for line in block.text.replace("\\\n", " ").splitlines():
                if found := COMMAND.search(line):
                    yield f"{page}:{block.line}", words_of(found[1])
    for span in INLINE.findall(CODE_OR_COMMENT.sub("", (ROOT / page).read_text(encoding="utf-8"))):
        if not any(sign in span for sign in PLACEHOLDERS):
            yield f"{page} (in the text)", words_of(span.replace("\n", " "))


def words_of(line: str) -> list[str]:
    """The words of a command, without what the shell does with it."""
    words = shlex.split(line, comments=True)
    end = next((index for index, word in enumerate(words) if word in (">", "|", "&", "&&", ";")), None)
    return words[:end]


@pytest.mark.parametrize("page", pages(), ids=str)
def test_commands_are_understood(page: Path) -> None:
    for place, words in commands(page):
        check(place, words[1:])


def check(place: str, tokens: list[str]) -> None:
    """Parse a command as `vitrail` does, without running it; a verb by itself is one that the text mentions."""
    app = build_app()
    try:
        verbs, _, rest = app.parse_commands(tokens)
        if rest or not verbs:
            _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
            options = [word for word in bound.args if str(word).startswith("--")]
            assert not options, f"{place}: unknown option {options[0]}"  # where pictures may begin with a hyphen
    except CycloptsError as error:
        pytest.fail(f"{place}: vitrail {shlex.join(tokens)}: {describe_usage(error, tuple(VERBS))}")


@pytest.mark.parametrize("wrong", ["train flowers --epoch 3", "explain cat.jpg --methods rollout", "classify cat.jpg"])
def test_a_wrong_command_would_be_found(wrong: str) -> None:
    with pytest.raises((pytest.fail.Exception, AssertionError), match="unknown option|no option|no verb"):
        check("a page", wrong.split())
