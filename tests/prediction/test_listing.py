import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.data.conftest import picture

from fuzzing import in_fuzz_only
from stores import put
from vitrail.errors import DataError, InputError, MissingExtraError
from vitrail.prediction.inputs import count_pictures, find_pictures, stands_for_several
from vitrail.prediction.listing import Item, list_items, read_items


def encoded(seed: int) -> bytes:
    content = io.BytesIO()
    picture(seed).save(content, "PNG")
    return content.getvalue()


def tar_of(**files: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name.replace("_", "."))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def table_of(values: list[Any], column: str = "image", group: int = 2) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table({column: values, "label": ["x"] * len(values)}), content, row_group_size=group)
    return content.getvalue()


PICTURES = {
    "a/1.png": encoded(1),
    "a/2.jpg": encoded(2),
    "a/deep/3.png": encoded(3),
    "a/notes.txt": b"",
    "b.png": encoded(4),
}
ARCHIVES = {
    "s/t-000.tar": tar_of(x_png=encoded(5), x_cls=b"0", y_png=encoded(6), y_cls=b"1"),
    "s/t-001.tar": tar_of(z_png=encoded(7), z_cls=b"0"),
    "q/rows.parquet": table_of([encoded(8), encoded(9), encoded(10)]),
    "q/structs.parquet": table_of([{"bytes": encoded(11), "path": None}]),
}


@pytest.fixture
def root(store_root: str) -> str:
    put(store_root, PICTURES | ARCHIVES)
    return store_root


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a", ["a/1.png", "a/2.jpg", "a/deep/3.png"]),
        ("a/2.jpg", ["a/2.jpg"]),
        ("a/*.png", ["a/1.png"]),
        ("**/*.png", ["a/1.png", "a/deep/3.png", "b.png"]),
        ("s", ["s/t-000.tar:x.png", "s/t-000.tar:y.png", "s/t-001.tar:z.png"]),
        ("s/t-{000..001}.tar", ["s/t-000.tar:x.png", "s/t-000.tar:y.png", "s/t-001.tar:z.png"]),
        ("s/t-001.tar", ["s/t-001.tar:z.png"]),
        ("s/t-*.tar", ["s/t-000.tar:x.png", "s/t-000.tar:y.png", "s/t-001.tar:z.png"]),
        ("q/rows.parquet", ["q/rows.parquet:0", "q/rows.parquet:1", "q/rows.parquet:2"]),
        ("q", ["q/rows.parquet:0", "q/rows.parquet:1", "q/rows.parquet:2", "q/structs.parquet:0"]),
    ],
)
def test_what_a_source_stands_for_and_going_on_after_each_picture(root: str, source: str, expected: list[str]) -> None:
    sources = [f"{root}/{source}", f"{root}/b.png"]
    found = list(list_items(sources))
    assert [item.name for _, item in found] == [f"{root}/{name}" for name in (*expected, "b.png")]
    for number, (cursor, _) in enumerate(found):
        assert list(list_items(sources, after=cursor)) == found[number + 1 :]
    assert stands_for_several(sources[0]) == (source != "a/2.jpg")
    assert count_pictures(sources) == len(found)


def test_the_contents_are_those_that_were_stored(root: str) -> None:
    items = [item for name in ("a", "s", "q") for _, item in list_items([f"{root}/{name}"])]
    contents = [content.read_bytes() if isinstance(content, Path) else content for content in read_items(items)]
    assert contents == [encoded(seed) for seed in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11)]
    streamed = dict(find_pictures([f"{root}/s", f"{root}/q"]))
    assert list(streamed.values()) == contents[3:]
    gone = read_items([Item("x", f"{root}/a/gone.png")])[0]
    assert isinstance(gone, OSError | Path)


def test_a_list_may_be_in_a_store_and_go_on(root: str) -> None:
    put(root, {"names.txt": f"{root}/a/1.png\n\n{root}/b.png\r\n".encode()})
    found = list(list_items([f"{root}/s"], f"{root}/names.txt"))
    assert [item.name for _, item in found][3:] == [f"{root}/a/1.png", f"{root}/b.png"]
    for number, (cursor, _) in enumerate(found):
        assert list(list_items([f"{root}/s"], f"{root}/names.txt", cursor)) == found[number + 1 :]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.parquet", table_of(["a.png"]), "image must hold encoded pictures; it holds string: pass its paths with"),
        ("t.parquet", table_of([1]), "image must hold encoded pictures; it holds int64: encode them"),
        ("t.parquet", table_of([b"x"], "stuff"), "the column of pictures must be one of path, file"),
        ("t.parquet", b"PAR1", "not a readable Parquet table"),
        ("t.tar", b"x" * 100, "damaged or truncated"),
        ("t.tar", tar_of(x_png=encoded(1))[:700], "truncated"),
        ("t.tar", tar_of(x_txt=b"nothing"), "no picture in this file"),
        ("empty/notes.txt", b"", "no pictures in this folder|there is no such folder"),
    ],
)
def test_what_cannot_be_listed_is_refused(store_root: str, name: str, content: bytes, message: str) -> None:
    put(store_root, {name: content})
    with pytest.raises((DataError, InputError), match=message):
        find_pictures([f"{store_root}/{name.removesuffix('/notes.txt')}"])


@pytest.mark.parametrize("name", ["s3://vitrail-tests/nowhere", "memory://nowhere/at-all"])
@pytest.mark.usefixtures("s3_server")
def test_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises((InputError, DataError), match="there is no such folder in the store|cannot be accessed"):
        find_pictures([name])


def test_a_missing_package_names_what_to_install() -> None:
    with pytest.raises(MissingExtraError, match=r'pip install "vitrail\[gs\]"'):
        find_pictures(["gs://bucket/photos"])


def test_a_table_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    for seed in (1, 2):
        path.write_bytes(table_of([encoded(seed)]))
        assert [content for _, content in find_pictures([str(path)])] == [encoded(seed)]


def test_a_row_without_a_picture_is_a_row_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(table_of([encoded(1), None]))
    assert [content for _, content in find_pictures([str(tmp_path / "t.parquet")])] == [encoded(1), b""]


def test_hidden_files_of_a_shard_are_not_pictures(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        for name in ("./a.png", "./._a.png", ".trash/b.png"):
            entry = tarfile.TarInfo(name)
            entry.size = len(encoded(1))
            archive.addfile(entry, io.BytesIO(encoded(1)))
    assert [name for name, _ in find_pictures([str(tmp_path / "t.tar")])] == [f"{tmp_path}/t.tar:./a.png"]


def test_pictures_beside_archives_hide_them(tmp_path: Path) -> None:
    put(str(tmp_path), {"x.tar": tar_of(x_png=encoded(1)), "cat/1.png": encoded(1)})
    assert [name for name, _ in find_pictures([str(tmp_path)])] == [str(tmp_path / "cat/1.png")]
    Image.open(tmp_path / "cat/1.png").close()


PEAK = """
import sys, tracemalloc
from vitrail.prediction.listing import list_items

sources, file = ([], sys.argv[2]) if sys.argv[1] == "list" else ([sys.argv[2]], None)
tracemalloc.start()
for _ in list_items(sources, file):
    pass
print(tracemalloc.get_traced_memory()[1])
"""


@in_fuzz_only
def test_a_listing_of_many_names_takes_the_memory_of_few(tmp_path: Path) -> None:
    """The peak of what Python holds, for a list of names and for one folder with all of them.

    In small processes of its own: the parts of paths pass through Python's table of interned strings, which takes many
    megabytes more at once when it is resized in a process with as many modules as this one.
    """
    peaks: dict[str, list[int]] = {"list": [], "folder": []}
    for count in (10_000, 100_000):
        names = tmp_path / f"{count}.txt"
        names.write_text("".join(f"photos/{number:08d}.jpg\n" for number in range(count)))
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            os.close(os.open(f"{folder}/{number}.jpg", os.O_CREAT))
        for kind, source in (("list", names), ("folder", folder)):
            command = [sys.executable, "-c", PEAK, kind, str(source)]
            peaks[kind].append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert peaks["list"][1] - peaks["list"][0] < 1e6
    assert peaks["folder"][1] - peaks["folder"][0] < 7e6, "one run of 25,000 names, and a line of the others"


def test_a_listing_goes_on_with_the_kind_of_files_that_it_began_with(tmp_path: Path) -> None:
    put(str(tmp_path), {f"{name}.tar": tar_of(x_png=encoded(1), y_png=encoded(2)) for name in "ab"})
    found = list(list_items([str(tmp_path)]))
    put(str(tmp_path), {"c.png": encoded(1)})
    assert list(list_items([str(tmp_path)], after=found[0][0])) == found[1:]


def test_a_pattern_cannot_go_on_after_a_file_that_is_gone(tmp_path: Path) -> None:
    put(str(tmp_path), {f"{name}.png": encoded(1) for name in "abc"})
    found = list(list_items([f"{tmp_path}/*.png"]))
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataError, match=r"b.png: is gone, so the listing of .* cannot go on after it"):
        list(list_items([f"{tmp_path}/*.png"], after=found[1][0]))


def test_a_column_of_pictures_is_preferred_to_one_of_paths(tmp_path: Path) -> None:
    pq.write_table(pa.table({"path": ["a.png"], "image": [encoded(3)]}), tmp_path / "t.parquet")
    assert [content for _, content in find_pictures([f"{tmp_path}/t.parquet"])] == [encoded(3)]


@pytest.mark.usefixtures("s3_server")
def test_a_file_that_is_not_in_a_store(store_root: str) -> None:
    put(store_root, {"a.png": encoded(1)})
    gone = read_items([Item("x", f"{store_root}/gone.png"), Item("x", f"{store_root}/a.png")])[0]
    assert isinstance(gone, Path) or (isinstance(gone, OSError) and gone.strerror == "there is no such file")
