import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import vitrail
from vitrail.errors import WeightsError
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import name_classes, read_class_names
from vitrail.weights.read import open_checkpoint
from vitrail.weights.write import write_checkpoint

NAMES = tuple("abcdefg")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "a\nb b\nc\n"),
        ("a", "\ufeffa\r\n  b b\r\nc\r\n\r\n\r\n"),
        ("a.json", '["a", "b b", "c"]'),
        ("a.JSON", '{"2": "c", "0": "a", "1": "b b"}'),
    ],
)
def test_files_of_names(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, newline="", encoding="utf-8")
    assert read_class_names(tmp_path / name) == ("a", "b b", "c")
    assert read_class_names(str(tmp_path / name)) == ("a", "b b", "c")


def test_a_hundred_names_by_index_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({str(index): f"class {index}" for index in reversed(range(100))}))
    assert read_class_names(tmp_path / "a.json") == tuple(f"class {index}" for index in range(100))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "a\n\nc\n", "line 2 is empty"),
        ("a.txt", "", "at least one class name"),
        ("a.txt", "a\nb\na\n", "the classes 0 and 2 are both called 'a'"),
        ("a.json", '{"0": "a", "2": "c"}', "every index from 0 to 1; 1 is missing"),
        ("a.json", '{"a": 0, "b": 1}', "must map an index to a name.*got 'a'; swap names and indices"),
        ("a.json", '{"0": "a", "²": "b"}', "got '²'"),
        ("a.json", '{"0": "a", "00": "b"}', "got '00'"),
        ("a.json", '{"0": "a", "0": "b"}', "the index '0' is in it twice"),
        ("a.json", '{"0": ["n01", "tench"]}', "the name of class 0 must be one line of text"),
        ("a.json", '["a", "b\\nc"]', "the name of class 1 must be one line of text"),
        ("a.json", '"a"', "must hold a list of class names"),
        ("a.json", "[" * 100_000, "is not valid JSON"),
        ("a.json", "a\nb", "is not valid JSON"),
    ],
)
def test_files_that_name_nothing(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(WeightsError, match=message):
        read_class_names(tmp_path / name)


def test_no_file_of_names(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(WeightsError, match=r"no file of class names .*clases\.txt; did you mean .*classes\.txt\?"):
        read_class_names(tmp_path / "clases.txt")
    with pytest.raises(WeightsError, match="must be UTF-8 text"):
        read_class_names(tmp_path / "classes.txt")
    with pytest.raises(WeightsError, match="must be a file; it is a folder"):
        read_class_names(tmp_path)


def test_names_are_given_to_the_head_as_it_is(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    bare = make_checkpoint()
    named = name_classes(bare, 7, NAMES)
    assert named.classes == NAMES
    assert named.tensors is bare.tensors
    with pytest.raises(WeightsError, match="it has 1 name, and the head of .* has 7 classes"):
        name_classes(bare, 7, ["a"])
    with pytest.raises(WeightsError, match=r"in another order: g, f, e, … instead of a, b, c, …"):
        name_classes(named, 7, NAMES[::-1])
    renamed = name_classes(named, 7, [f"class {name}" for name in NAMES])
    assert renamed.notes[-1] == (
        "the classes were renamed, in their order: a, b, c, … are now class a, class b, class c, …"
    )


def test_opening_and_loading_take_names(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(replace(make_checkpoint(), classes=None), tmp_path / "a.safetensors")
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    assert open_checkpoint(tmp_path / "a.safetensors", class_names=NAMES).classes == NAMES
    assert vitrail.load(tmp_path / "a.safetensors", class_names=tmp_path / "names.txt").classes == NAMES
    (tmp_path / "names.txt").write_text("one")
    with pytest.raises(WeightsError, match=r"names\.txt must have one name for each class"):
        vitrail.load(tmp_path / "a.safetensors", class_names=str(tmp_path / "names.txt"))
