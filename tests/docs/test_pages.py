"""What the tests of the documentation rest on: finding blocks, and comparing what they print."""

from pathlib import Path

import pytest
from tests.docs.pages import agree, agree_in_words, blocks

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


TRAINED = """writing to runs/train-1
epoch 1/3  loss 2.30  0 s
epoch 2/3  loss 2.10  2 min  best
note: no improvement for 20 epochs: stopping early
wrote report.html, best.safetensors
"""


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        (TRAINED, True),
        (TRAINED.replace("2.30", "1,234"), True),
        ("…\nepoch 7/9  loss 0.1  5 s  best\n…\nwrote report.html, …\n", True),
        ("…\nepoch 7/9  loss 0.1  5 s\n", False),  # more was printed
        ("writing to runs/train-1\nwrote report.html, …\n", False),  # the epochs are left out without a word
        (TRAINED.replace("loss", "the loss"), False),
        (TRAINED.replace("wrote", "saved"), False),
    ],
)
def test_outputs_of_real_pictures_are_compared_by_their_words(shown, same) -> None:
    assert agree_in_words(TRAINED, shown, ("cat", "dog")) is same


def test_names_and_sets_of_classes_may_be_others() -> None:
    printed = "a.jpg  90% cat  5% dog  {cat}\nmistakes: cat → dog 2×\n"
    shown = (
        "a.jpg  61% dog  4% cat  {dog, cat}  unlike anything seen in training\nmistakes: dog → cat 1×, cat → dog 1×\n"
    )
    assert agree_in_words(printed, shown, ("cat", "dog"))
    assert not agree_in_words(printed, shown, ("cat",))
