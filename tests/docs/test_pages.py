"""What the tests of the documentation rest on: finding blocks, and comparing what they print."""

from pathlib import Path

import pytest
from tests.docs.pages import agree, blocks

PAGE = """# A page
<!-- not run: needs the network -->
```python
fetch()
```
Some words.
```sh
vitrail models
```

<!-- within 5 % -->

```text
0.53
```
"""


def test_blocks_are_found_with_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    python, shell, text = blocks(page)
    assert (python.language, python.text, python.line) == ("python", "fetch()\n", 4)
    assert python.marks == {"not run": "needs the network"}
    assert (shell.language, shell.marks) == ("sh", {})
    assert (text.text, text.marks) == ("0.53\n", {"within": "5 %"})


@pytest.mark.parametrize(
    ("printed", "shown", "within", "same"),
    [
        ("loss 0.531\n", "loss 0.532\n", "", True),
        ("loss 0.531\n", "loss 0.533\n", "", False),
        ("loss 0.531\n", "lose 0.531\n", "", False),
        ("loss 0.531\n", "loss 0.551\n", "0.02", True),
        ("loss 0.531\n", "loss 0.552\n", "0.02", False),
        ("loss 0.53\n", "loss 0.55\n", "5 %", True),
        ("loss 0.50\n", "loss 0.55\n", "5 %", False),
        ("(1, 196, 768)\n", "(1, 197, 768)\n", "5 %", False),  # counts are exact
        ("119,194 \n", "119,194\n", "", True),
        ("9e-08\n", "2e-07\n", "", False),
        ("1.9e-07\n", "2.0e-07\n", "", True),
        ("1\n2\n", "1\n", "", False),
    ],
)
def test_outputs_are_compared_as_precisely_as_they_are_shown(printed, shown, within, same) -> None:
    assert agree(printed, shown, within) is same
