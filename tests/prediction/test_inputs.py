import io
from pathlib import Path

import pytest

from vitrail.errors import InputError
from vitrail.prediction.inputs import find_pictures
from vitrail.prediction.listing import read_list


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b.jpg", "a.PNG", "notes.txt", "deep/c.webp", "deep/er/d.gif", ".hidden.jpg", "[x].jpg"):
        (tmp_path / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / name).touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["p"], ["p/[x].jpg", "p/a.PNG", "p/b.jpg", "p/deep/c.webp", "p/deep/er/d.gif"]),
        (["p/b.jpg", "p/deep"], ["p/b.jpg", "p/deep/c.webp", "p/deep/er/d.gif"]),
        (["p/*.jpg"], ["p/[x].jpg", "p/b.jpg"]),
        (["p/**/*.gif", "p/a.PNG"], ["p/deep/er/d.gif", "p/a.PNG"]),
        (["p/[x].jpg"], ["p/[x].jpg"]),  # a file of that name is no pattern
        (["p/notes.txt"], ["p/notes.txt"]),  # a named file is tried, and may fail
    ],
)
def test_what_names_stand_for(folder: Path, names: list[str], expected: list[str]) -> None:
    found = list(find_pictures(names))
    assert [name for name, _ in found] == expected
    assert all(str(picture) == name for name, picture in found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "no pictures in this folder"),
        ("p/*.tif", "no picture matches"),
        ("gone.jpg", r"gone.jpg: there is no such picture, folder or checkpoint\."),
        ("p/deap", r"p/deap: there is no such picture, folder or checkpoint; did you mean p/deep\?"),
        ("p/\0.jpg", "there is no such picture|cannot be accessed"),
        ("x" * 5000, "there is no such picture|cannot be accessed"),
    ],
)
def test_nothing_at_all_is_an_error_at_once(folder: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_pictures(["p/b.jpg", name])


def test_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a picture's bytes")))
    assert list(find_pictures(["-"])) == [("-", b"a picture's bytes")]
    monkeypatch.setattr("sys.stdin", io.StringIO("a.jpg\n\nb c.jpg\r\n"))
    assert list(read_list("-")) == ["a.jpg", "b c.jpg"]
    (tmp_path / "list").write_text("x.jpg\ny.jpg")
    assert list(read_list(str(tmp_path / "list"))) == ["x.jpg", "y.jpg"]
    with pytest.raises(InputError, match="list of pictures cannot be read"):
        list(read_list("nowhere"))
