"""`vitrail predict` and `vitrail embed` from the outside."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.prediction.conftest import CLASSES, checkpoint_file, photos, write_tiny  # noqa: F401

import vitrail
from vitrail.cli.main import main
from vitrail.data import open_data
from vitrail.weights import resolve


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: list[Path], checkpoint_file: Path) -> Path:  # noqa: F811
    monkeypatch.setattr(resolve, "BUNDLED_FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows_of(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_table_with_a_row_for_each_and_exit_1_for_the_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "tiny.safetensors", "photos"]) == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert len(lines) == 11
    assert [line.split()[0] for line in lines] == [f"photos/{number:02d}.jpg" for number in range(11)]
    assert "error: photos/03.jpg: not a picture" in lines[3]
    first = vitrail.load("tiny.safetensors").predict("photos/00.jpg", top_k=3)
    assert f"{first.scores[0]:.1%} {first.labels[0]}" in lines[0]
    assert f"{first.scores[2]:.1%} {first.labels[2]}" in lines[0]
    assert "11 pictures" in captured.err
    assert "1 could not be read" in captured.err
    assert main(["predict", "tiny.safetensors", "photos/00.jpg"]) == 0


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "tiny.safetensors", "photos/*.jpg", "--format", "jsonl", "--top-k", "99"]) == 1
    rows = rows_of(capsys)
    assert sorted(rows[0]["labels"]) == sorted(CLASSES)
    assert sum(rows[0]["scores"]) == pytest.approx(1)
    assert rows[3]["labels"] == []
    assert "not a picture" in rows[3]["error"]


def test_csv_and_parquet_files_say_the_same(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.csv", "a.parquet", "a.jsonl"):
        assert main(["predict", "tiny.safetensors", "photos", "--out", name, "--top-k", "2"]) == 1
        assert f"wrote {name}" in capsys.readouterr().out
    table = pq.read_table(inside / "a.parquet").to_pylist()
    with (inside / "a.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (inside / "a.jsonl").read_text().splitlines()]
    assert lines == table
    assert list(rows[0]) == ["picture", "label_1", "score_1", "label_2", "score_2", "error"]
    for row, line in zip(rows, table, strict=True):
        assert row["picture"] == line["picture"]
        assert row["error"] == (line["error"] or "")
        assert [row["label_1"], row["label_2"]] == (line["labels"] or ["", ""])
        assert row["score_2"] == (f"{line['scores'][1]:.6f}" if line["scores"] else "")


def test_csv_cells_are_harmless_unless_raw(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("=cmd()", "+1-1", "@x", "\x1b[31m", "-0.5")
    write_tiny(inside / "odd.safetensors", names)
    (inside / "photos/00.jpg").rename(inside / "=a.jpg")
    arguments = ["predict", "odd.safetensors", "./=a.jpg", "--top-k", "5"]
    written: dict[str, set[str]] = {}
    for options in (["--format", "csv"], ["--format", "csv", "--raw"], ["--out", "a.csv"], ["--out", "b.csv", "--raw"]):
        assert main([*arguments, *options]) == 0
        out = capsys.readouterr().out
        text = out if options[0] == "--format" else (inside / options[1]).read_text(encoding="utf-8")
        (row,) = csv.DictReader(text.splitlines())
        written[" ".join(options)] = {row[f"label_{place}"] for place in range(1, 6)}
        assert all(float(row[f"score_{place}"]) > 0 for place in range(1, 6))
    safe, raw = {"'=cmd()", "'+1-1", "'@x", "\\x1b[31m", "-0.5"}, set(names)
    assert list(written.values()) == [safe, raw, safe, raw]
    assert main([*arguments, "--out", "a.jsonl"]) == 0
    assert set(json.loads((inside / "a.jsonl").read_text())["labels"]) == raw


def test_the_model_is_the_first_argument_or_an_option_or_the_bundled_one(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny(inside / "cifar10.safetensors", ("left", "right"))
    write_tiny(inside / "runs" / "train-1" / "weights" / "best.safetensors", ("up", "down"))
    asked = [["photos/00.jpg"], ["cifar10", "photos/00.jpg"], ["runs/train-1", "photos/00.jpg"]]
    asked += [["--model", "tiny.safetensors", "photos/00.jpg"]]
    found = []
    for arguments in asked:
        assert main(["predict", *arguments, "--format", "jsonl"]) == 0
        found.append(set(rows_of(capsys)[0]["labels"]))
    assert found[0] == found[1] == {"left", "right"}
    assert found[2] == {"up", "down"}
    assert found[3] < set(CLASSES)


def test_a_picture_or_a_list_on_standard_input(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(given: bytes, *arguments: str) -> list[dict[str, Any]]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert main(["predict", "tiny.safetensors", "--format", "jsonl", *arguments]) == 0
        return rows_of(capsys)

    (one,) = answer(Path("photos/00.jpg").read_bytes(), "-")
    rows = answer(b"photos/00.jpg\nphotos/01.jpg\n", "--list", "-")
    assert one["picture"] == "-"
    assert one["scores"] == pytest.approx(rows[0]["scores"], rel=1e-4)
    assert [row["picture"] for row in rows] == ["photos/00.jpg", "photos/01.jpg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict"], "name at least one picture"),
        (["predict", "tiny.safetensors"], "name at least one picture"),
        (["predict", "photos/00.jpg"], "the bundled model cifar10 is missing from this installation"),
        (["predict", "photos/00.jpg", "tiny.safetensors"], "tiny.safetensors is a checkpoint, not a picture"),
        (["predict", "gone.safetensors", "photos/00.jpg"], "no checkpoint gone.safetensors"),
        (["predict", "tiny.safetensors", "photos/*.tif"], "no picture matches"),
        (["predict", "tiny.safetensors", "-", "--list", "-"], "standard input can be read only once"),
        (["predict", "tiny.safetensors", "photos", "--format", "parquet"], "needs --out"),
        (["predict", "tiny.safetensors", "photos", "--out", "a.txt"], "must end in .jsonl"),
        (["predict", "tiny.safetensors", "photos", "--out", "a.txt", "--format", "table"], "for the terminal"),
        (["predict", "tiny.safetensors", "photos", "--out", "photos", "--format", "csv"], "photos is a folder"),
        (["predict", "tiny.safetensors", "photos", "--raw"], "--raw is about the cells of CSV files; omit it for"),
        (["predict", "tiny.safetensors", ""], "a picture's name is empty"),
        (["predict", "tiny.safetensors", "photos", "--device", "meta"], "device 'meta' cannot be used"),
        (["predict", "tiny.safetensors", "photos", "--tpo-k", "2"], "has no option --tpo-k; did you mean --top-k?"),
        (["predict", "--formt", "csv", "photos"], "did you mean --format?"),
        (["embed", "tiny.safetensors", "photos", "--maps", "pca"], "did you mean --map?"),
        (["predict", "tiny.safetensors", "photos", "--top-k", "0"], "--top-k must be at least 1"),
        (["predict", "tiny.safetensors", "photos", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["embed", "tiny.safetensors", "photos", "--data", "digits"], "pictures or --data, not both"),
        (["embed", "tiny.safetensors", "photos", "--split", "test"], "--split goes with --data"),
        (["embed", "tiny.safetensors", "photos/03.jpg"], "no picture could be read"),
    ],
)
def test_mistakes_exit_with_2_and_leave_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {str(path) for path in Path().rglob("*")}
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert {str(path) for path in Path().rglob("*")} == before


def test_names_cannot_send_codes_to_the_terminal(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "photos/03.jpg").rename(inside / "photos/evil\x1b[31m.jpg")
    assert main(["predict", "tiny.safetensors", "photos"]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_names_of_any_bytes(inside: Path) -> None:
    odd = os.fsdecode(b"photos/\xff.jpg")
    (inside / "photos/03.jpg").unlink()
    (inside / "photos/00.jpg").rename(inside / odd)
    assert main(["predict", "tiny.safetensors", "photos", "--out", "a.parquet"]) == 0
    assert pq.read_table("a.parquet")["picture"].to_pylist()[-1] == "photos/\\udcff.jpg"
    command = [sys.executable, "-m", "vitrail", "predict", "tiny.safetensors", "--list", "-", "--format", "csv"]
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, input=os.fsencode(odd) + b"\n", capture_output=True, env=strict, check=True)
    assert done.stdout.splitlines()[1].startswith(b"photos/\xff.jpg,")


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["predict", "tiny.safetensors", "-"]) == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(inside: Path) -> None:
    (inside / "photos/03.jpg").unlink()
    names = "photos " * 300  # more than a pipe holds
    command = f"{sys.executable} -m vitrail predict tiny.safetensors {names} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")


def test_a_pattern_gives_each_picture_once(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "tiny.safetensors", "**/**/00.jpg", "--format", "jsonl"]) == 0
    assert [row["picture"] for row in rows_of(capsys)] == ["photos/00.jpg"]


def test_embed_writes_features_and_a_map(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "tiny.safetensors", "photos"]) == 1
    printed = capsys.readouterr().out
    assert "10 pictures, 32 features each" in printed
    assert "left out photos/03.jpg: " in printed
    stored = np.load("runs/embed-1/features.npz")
    assert sorted(stored.files) == ["features", "picture"]
    one = vitrail.load("tiny.safetensors").embed("photos/04.jpg")
    assert stored["picture"][3] == "photos/04.jpg"
    assert one.vector is not None
    np.testing.assert_allclose(stored["features"][3], one.vector, rtol=1e-4, atol=1e-4)
    with Image.open("runs/embed-1/map_pca.png") as image:
        assert image.width > 500


def test_embed_a_data_set_with_its_labels(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["embed", "tiny.safetensors", "--data", "digits", "--split", "val", "test", "--format", "parquet"]
    assert main([*arguments, "--map", "none", "--out", "here"]) == 0
    table = pq.read_table("here/features.parquet")
    digits = open_data("digits")
    assert table.num_rows == len(digits.split("val")) + len(digits.split("test"))
    assert table["label"].to_pylist()[:9] == [digits.classes[label] for label in digits.split("val").labels[:9]]
    assert set(table["split"].to_pylist()) == {"val", "test"}
    assert len(table["features"][0]) == 32
    assert not Path("here/map_pca.png").exists()


def test_help_names_the_choice_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--help"]) == 0
    assert "[MODEL] PICTURES" in " ".join(capsys.readouterr().out.split())


def test_classes_are_named_from_a_file(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(inside / "bare.safetensors", None)
    (inside / "names.txt").write_text("\n".join(CLASSES))
    (inside / "few.json").write_text(json.dumps({"0": "a", "1": "b"}))
    asked = ["photos/00.jpg", "--format", "jsonl"]
    assert main(["predict", "bare.safetensors", *asked]) == 0
    numbers = rows_of(capsys)[0]["labels"]
    assert main(["predict", "bare.safetensors", *asked, "--classes", "names.txt"]) == 0
    assert rows_of(capsys)[0]["labels"] == [CLASSES[int(number)] for number in numbers]
    assert main(["predict", "bare.safetensors", *asked, "--classes", "few.json"]) == 2
    assert "few.json must have one name for each class of the head: it has 2 names" in capsys.readouterr().err
    assert main(["convert", "bare.safetensors", "named.safetensors", "--classes", "names.txt"]) == 0
    assert vitrail.load("named.safetensors").classes == CLASSES


def test_one_picture_is_no_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "tiny.safetensors", "photos/00.jpg"]) == 0
    assert capsys.readouterr().err.startswith("1 picture in ")


def test_a_list_may_name_what_is_not_there(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "list").write_text("photos/00.jpg\ngone.jpg\n")
    assert main(["predict", "tiny.safetensors", "--list", "list", "--format", "jsonl"]) == 1
    assert [bool(row["error"]) for row in rows_of(capsys)] == [False, True]


def test_names_are_whole_in_a_pipe(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = inside / ("a" * 100 + ".jpg")
    (inside / "photos/00.jpg").rename(long)
    assert main(["predict", "tiny.safetensors", str(long)]) == 0
    assert str(long) in capsys.readouterr().out
