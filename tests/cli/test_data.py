"""`vitrail data` from the outside."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from tests.data.conftest import make_folder  # noqa: F401

from vitrail.cli.main import main


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_check_prints_writes_and_exits(make_folder, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    root = make_folder("cat [x]", "dog", count=60)
    (root / "dog" / "empty.jpg").touch()
    assert main(["data", "check", str(root), "--max-broken-rate", "0.1"]) == 1
    output = capsys.readouterr().out
    for text in ("cat [x]", "dog/empty.jpg", "the file is empty", "next: vitrail data show", "121"):
        assert text in output
    folder = Path("runs/data-check-1")
    assert sorted(path.name for path in folder.iterdir()) == ["check.csv", "contact_sheet.png", "split.csv"]
    with Image.open(folder / "contact_sheet.png") as sheet:
        assert sheet.width > 400
    flags = ["--split-file", str(folder / "split.csv"), "--out", "other"]
    assert main(["data", "check", str(root), *flags]) == 2, "1 of 9 pictures for testing cannot be read"
    assert sorted(path.name for path in Path("other").iterdir()) == ["check.csv", "contact_sheet.png"]


def test_some_are_excluded(make_folder, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    root = make_folder("train/cat", "train/dog", count=12)
    for name, key in (("labels.csv", "train/cat/003.jpg"), ("more.csv", "train/dog/004.jpg")):
        Path(name).write_text(f"key\n{key}\n")
    assert main(["data", "check", str(root), "--exclude", "labels.csv,more.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"cat": {"train": 11}, "dog": {"train": 11}}
    assert main(["data", "check", str(root), "--exclude", "labels.csv"]) == 0
    assert "1 picture excluded" in capsys.readouterr().out


def test_cells_of_the_check_are_harmless_unless_raw(make_folder) -> None:  # noqa: F811
    root = make_folder("train/=cat", "train/dog", "val/=cat", "val/dog")
    assert main(["data", "check", str(root), "--out", "safe"]) == 1
    assert main(["data", "check", str(root), "--out", "raw", "--raw"]) == 1
    assert ",'=cat," in Path("safe/check.csv").read_text()
    assert ",=cat," in Path("raw/check.csv").read_text()


def test_check_as_json(make_folder, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    root = make_folder("train/a", "train/b", count=10)
    assert main(["data", "check", str(root), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["counts"] == {"a": {"train": 10}, "b": {"train": 10}}
    assert result["exit_code"] == 0
    assert all(Path(path).is_file() for path in result["written"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "nowhere"], "no such file or folder"),
        (["check", "digits", "--wrokers", "3"], "--workers"),
        (["check", "."], "an empty folder"),
        (["show", "digits", "--policy", "random"], "rand"),
        (["show", "digits", "--flip-rate", "3"], "--flip-rate must be between 0 and 1"),
        (["show", "digits", "--preset", "tim"], "did you mean timm"),
        (["show", "digits", "--pictures", "0"], "pictures must be at least 1"),
        (["show", "digits", "--size", "0"], "size must be"),
        (["check", "digits", "--out", "/dev/null/x"], "must be a folder"),
        (["shard", "digits", "/dev/null"], "must be a folder"),
        (["shard", "digits", "/dev/null/x"], "cannot be written"),
    ],
)
def test_mistakes_exit_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_unusable_data_exit_with_2(make_folder, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    root = make_folder("train/a", "train/b", count=10)
    (root / "train/a/x.jpg").touch()
    assert main(["data", "check", str(root)]) == 2
    assert "cannot be read" in capsys.readouterr().out


def test_show_numbers_its_folders(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        assert main(["data", "show", "digits", "--crop", "pad", "--pad", "1", "--mixup", "0.5", "--pictures", "2"]) == 0
        assert f"runs/data-show-{number}/augmented.png" in capsys.readouterr().out


def test_shard_and_read_again(make_folder, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    root = make_folder("train/a", "train/b", "val/a", "val/b", count=10)
    assert main(["data", "shard", str(root), "out"]) == 0
    assert "40 pictures in 2 shards" in capsys.readouterr().out
    assert main(["data", "check", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["a"] == {"train": 10, "val": 10}
    assert main(["data", "shard", str(root), "out"]) == 2
    (root / "train/a/x.jpg").touch()
    assert main(["data", "shard", str(root), "again"]) == 1
    assert "left out" in capsys.readouterr().out


def test_help_loads_no_torch() -> None:
    code = (
        "import sys; from vitrail.cli.main import main; main(['data', 'show', '--help']); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"
    for text in ("--policy", "RandAugment", "--data-dir"):
        assert text in result.stdout


def test_the_csv_names_the_broken(make_folder) -> None:  # noqa: F811
    root = make_folder("train/a", "train/b", count=60)
    (root / "train/b/cut.jpg").write_bytes((root / "train/b/000.jpg").read_bytes()[:-50])
    assert main(["data", "check", str(root), "--out", "o"]) == 1
    with Path("o/check.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert first["key"] == "train/b/cut.jpg"
    assert "truncated" in first["detail"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_names_that_are_not_unicode_can_be_printed(
    make_folder,  # noqa: F811
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = make_folder("a", "b", count=12)
    (root / "a").rename(root / os.fsdecode(b"caf\xe9"))
    (root / "b" / os.fsdecode(b"\xff.jpg")).touch()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict"))
    assert main(["data", "check", str(root), *options]) == 2
    sys.stdout.flush()
    assert b"caf" in sys.stdout.buffer.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "Traceback" not in capsys.readouterr().err
