"""The programs of examples/ on small things, and its notebooks from top to bottom."""

import runpy
import sys
from pathlib import Path

import pytest
from tests.data.conftest import picture

from notebooks import Notebook, rich_forms

EXAMPLES = Path(__file__).parents[1] / "examples"
SHIP = str(Path(__file__).parents[1] / "docs" / "images" / "ship.png")


@pytest.fixture
def run_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a program of examples/ in an empty folder; what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def write_pictures(folder: str, count: int, first: int = 0) -> None:
    Path(folder).mkdir(parents=True)
    for number in range(count):
        picture(first + number).save(f"{folder}/{number:03d}.jpg", quality=95)


def test_train_on_a_folder(run_example, no_report: None) -> None:
    write_pictures("flowers/rose", count=14)
    write_pictures("flowers/tulip", count=14, first=100)
    printed = run_example("train_on_a_folder.py", "flowers", SHIP, "--epochs", "1")
    assert "of the test pictures are classified correctly" in printed
    assert Path("runs/train-1/weights/best.safetensors").exists()


def test_explain(run_example) -> None:
    printed = run_example("explain.py", SHIP, "why.png")
    assert "ship.png: ship (99.9%)" in printed
    assert Path("why.png").exists()


def test_export_and_run(run_example) -> None:
    assert "ship.png: ship (99." in run_example("export_and_run.py", "cifar10", "model.onnx", SHIP)


def test_search(run_example) -> None:
    write_pictures("photos", count=6)
    picture(3).save("wanted.jpg", quality=80)  # a recompressed 003.jpg
    best = run_example("search.py", "photos", "wanted.jpg").splitlines()[0]
    assert best.endswith("003.jpg")
    assert float(best.split()[0]) > 0.95


@pytest.fixture
def run_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a notebook of examples/ in a folder that has the project's docs; the rich forms that its cells show."""
    (tmp_path / "docs").symlink_to(EXAMPLES.parent / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))

    def run(name: str, shortened: dict[str, str]) -> list[set[str]]:
        notebook = Notebook(EXAMPLES / name)
        assert all(any(old in source for source in notebook.code) for old in shortened)
        return [set(rich_forms(value)) for value in notebook.run(shortened)]

    return run


MARKDOWN, PNG, HTML, NOTHING = {"_repr_markdown_"}, {"_repr_png_"}, {"_repr_html_"}, set[str]()


def test_digits_in_a_notebook(run_notebook, no_report: None) -> None:
    shown = run_notebook("digits.ipynb", {"epochs=12": "epochs=2"})
    assert shown == [NOTHING, MARKDOWN, PNG, MARKDOWN, PNG, HTML, PNG, PNG]


def test_explain_in_a_notebook(run_notebook, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_notebook("explain.ipynb", {})
    assert shown == [NOTHING, PNG, PNG, NOTHING, PNG, PNG, NOTHING]
    assert "random" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_hold_no_results(path: Path) -> None:
    assert Notebook(path).is_stripped


def test_every_example_is_tested() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    files = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]
    assert all(f'"{path.name}"' in tested for path in files)
