import os
from pathlib import Path

import pytest

from vitrail.wording import agree, counted, hint_path, near_paths, plain, reason


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (0, "picture", "0 pictures"),
        (1, "picture", "1 picture"),
        (2000, "epoch", "2,000 epochs"),
        (1, "class", "1 class"),
        (7, "class", "7 classes"),
    ],
)
def test_counts_agree_with_their_nouns(number: int, noun: str, expected: str) -> None:
    assert counted(number, noun) == expected


def test_a_plural_of_its_own() -> None:
    assert agree(1, "is", "are") == "is"
    assert agree(3, "is", "are") == "are"
    assert agree(1.0, "minute") == "minute"


def test_nothing_that_is_plain_can_steer_a_terminal() -> None:
    every = "".join(chr(code) for code in range(0x110000))
    assert plain("a Ünï\u4e00 name.jpg") == "a Ünï\u4e00 name.jpg"
    assert plain(every).isprintable()
    assert plain(plain("\x1b[31m\u202e\udcff\x9b")) == plain("\x1b[31m\u202e\udcff\x9b") == r"\x1b[31m\u202e\udcff\x9b"
    assert plain("two\nlines\r", lines=True) == "two\nlines\\r"


def test_the_system_speaks_without_numbers(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Errno") as caught:
        (tmp_path / "gone").read_text()
    assert reason(caught.value) == f"{tmp_path / 'gone'}: No such file or directory"
    assert reason(OSError("cannot write")) == "cannot write"
    assert reason(ValueError("bad")) == "bad"
    assert reason(ValueError()) == "ValueError"


def test_near_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/train-1", "runs/eval-1", "photos/a"):
        (tmp_path / name).mkdir(parents=True)
    assert near_paths("runs/train-l") == ["runs/train-1"]
    assert near_paths("train-1") == ["runs/train-1"]
    assert near_paths("photo") == ["photos"]
    assert near_paths("phots/a") == ["photos/a"]
    assert hint_path("nothing-like-it") == ""
    assert hint_path(os.fsdecode(b"\xff\0")) == ""
    assert hint_path("photo") == "did you mean photos?"
