"""Files that cannot be meant: pipes, devices, endless nesting, numbers without end."""

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from vitrail.errors import ConfigError, DataError, InputError, shorten
from vitrail.untrusted import MAX_CONFIG, check_regular, parse_json, read_bytes, read_yaml


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    assert check_regular(tmp_path / "file") == 5
    for name, message in (
        ("pipe", "must be a file; it is a pipe"),
        ("/dev/zero", "must be a file; it is a device"),
        (".", "must be a file; it is a folder"),
        ("gone", "no such file"),
        ("a\0b", "no file can have this name"),
        ("x" * 5000, "cannot be read"),
        ("\ud800", "no file can have this name"),
    ):
        with pytest.raises(DataError, match=message):
            check_regular(tmp_path / name)
    with pytest.raises(InputError, match="a device"):
        check_regular("/dev/zero", InputError)


def test_no_more_is_read_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(DataError, match="at most 4 bytes; it has 5"):
        read_bytes(tmp_path / "file", 4)


@pytest.mark.parametrize("text", ["[1, Infinity]", "NaN", "[" * 100_000, "9" * 9000, b"\xff", ""])
def test_json_that_is_none(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


NAMES = "abcdefghijklmnopqrst"
BOMB = "a: &a [x, x]\n" + "\n".join(f"{b}: &{b} [*{a}, *{a}]" for a, b in pairwise(NAMES))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"line 2 has the alias \*a; write its value out"),
        ("a: 1\nb: 2\na: 3", "line 3 has 'a' a second time"),
        ("[" * 50_000, "nested too deeply"),
        ("a: " + "{b: " * 2000, "nested too deeply"),
        ("seed: " + "9" * 9000, "not YAML"),
        ("!!bool x", "not YAML"),
        ("!!timestamp x", "not YAML"),
        ("!!python/object:os.system x", "not YAML"),
        ("a: [", "not YAML"),
        ("\x81", "not YAML"),
        ("x" * (MAX_CONFIG + 1), "at most 100,000 bytes"),
    ],
    ids=range(11),
)
def test_yaml_that_no_config_needs(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="latin-1")
    start = time.process_time()
    with pytest.raises(ConfigError, match=message) as error:
        read_yaml(tmp_path / "a.yaml")
    assert len(str(error.value)) < 1000
    assert time.process_time() - start < 10


def test_yaml_dates_stay_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("day: 2020-02-31\ntime: 2020-01-01 10:00:00\nnumbers: [1, 1.5, true, null]")
    assert read_yaml(tmp_path / "a.yaml") == {
        "day": "2020-02-31",
        "time": "2020-01-01 10:00:00",
        "numbers": [1, 1.5, True, None],
    }


def test_quoted_values_are_short() -> None:
    wide: list[object] = ["x"]
    for _ in range(60):
        wide = [wide, wide]  # 2**60 texts
    for value in (wide, "x" * 10**6, list(range(10**5)), 10**5000, {"a" * 9000: wide}, -(16**5000)):
        assert len(shorten(value)) < 400
    assert shorten([1, "a", None]) == "[1, 'a', None]"
