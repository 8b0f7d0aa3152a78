"""Write the parts of docs/reference that the code itself determines: `python -m docs.reference.generate`.

A page holds text by hand and, between two comments, what a function of `sections/` returns:

    <!-- generated: NAME -->
    …
    <!-- end -->

`tests/docs/test_reference.py` fails if a page is not current.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from docs.reference.sections import command, config, errors, files, http, python, tensors

FOLDER = Path(__file__).parent
SECTIONS: dict[str, Callable[[], str]] = {
    "verbs": command.verbs,
    "python": python.names,
    "tensors": tensors.tensors,
    "routes": http.routes,
    "shapes": http.shapes,
    "files": files.files,
    "exceptions": errors.exceptions,
    "exit codes": errors.exit_codes,
    "service codes": errors.service_codes,
    **{group: partial(config.sections, group) for group in config.GROUPS},
}
_GENERATED = re.compile(r"<!-- generated: ([a-z ]+) -->\n.*?<!-- end -->\n", re.DOTALL)


def pages() -> list[Path]:
    """The pages of the reference."""
    return sorted(FOLDER.glob("*.md"))


def renew(text: str) -> str:
    """The text of a page with its generated parts written anew."""
    return _GENERATED.sub(lambda part: f"<!-- generated: {part[1]} -->\n{SECTIONS[part[1]]()}\n<!-- end -->\n", text)


def main() -> None:
    """Write every page that is not current, and name it."""
    for page in pages():
        old = page.read_text(encoding="utf-8")
        new = renew(old)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(FOLDER.parents[1])}: written")


if __name__ == "__main__":
    main()
