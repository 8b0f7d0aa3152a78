"""What `data check` finds, and that it finds nothing where nothing is."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_images
from tests.data.conftest import picture
from tests.data.test_pixels import write_png

from vitrail.data import ArraySource, DataConfig, Dataset, open_data
from vitrail.data.check import duplicates
from vitrail.data.check.duplicates import near_pairs, partners
from vitrail.data.check.findings import CheckRecord, Report, Trouble, check_data, read_record, sum_up, write_record
from vitrail.data.check.scan import PictureFacts
from vitrail.data.sheet import augmentation_sheet, contact_sheet
from vitrail.errors import DataError

PHOTOGRAPH = Image.fromarray(load_sample_images().images[0])


@pytest.fixture
def root(make_folder) -> Path:
    return make_folder("train/cat", "train/dog", "val/cat", "val/dog", count=12)


def found(report: Report) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for finding in report.findings:
        result.setdefault(f"{finding.severity}: {finding.what}", []).append(finding.key)
    return result


def check(root: Path) -> Report:
    return check_data(open_data(root), workers=2)


def test_nothing_to_find(root: Path) -> None:
    report = check(root)
    tiny = {"note: tiny (a side below 32)"}  # the fixture's pictures are 40×30
    assert set(found(report)) == tiny
    assert report.exit_code == 0
    assert report.counts() == {"cat": {"train": 12, "val": 12}, "dog": {"train": 12, "val": 12}}


def test_each_kind_of_finding(root: Path) -> None:
    cat, dog, val = root / "train/cat", root / "train/dog", root / "val/dog"
    photograph = PHOTOGRAPH.crop((0, 0, 300, 200))
    photograph.save(cat / "original.png")
    photograph.save(val / "leak.png")  # the same pixels in another split and class
    photograph.save(cat / "again.bmp")
    other = PHOTOGRAPH.crop((300, 150, 640, 427))
    other.save(cat / "near.png")
    ImageEnhance.Brightness(other.resize((200, 163))).enhance(1.02).save(root / "val/cat/near.jpg", quality=70)
    picture(50, (64, 64)).save(dog / "wrong.jpg", "PNG")
    picture(51, (64, 64)).convert("L").save(dog / "grey.png")
    picture(52, (64, 64)).convert("CMYK").save(dog / "cmyk.jpg")
    alpha = picture(53, (64, 64)).convert("RGBA")
    alpha.putalpha(120)
    alpha.save(dog / "alpha.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(54, (64, 64)).save(dog / "turned.jpg", exif=exif)
    frames = [picture(seed, (64, 64)) for seed in (55, 56)]
    frames[0].save(dog / "moving.gif", save_all=True, append_images=frames[1:])
    Image.fromarray(np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16).save(dog / "deep.png")
    findings = found(check(root))
    assert findings["error: the same picture in two classes"] == ["train/cat/original.png", "val/dog/leak.png"]
    assert findings["warning: nearly the same picture in two splits"] == ["val/cat/near.jpg"]
    assert findings["warning: wrong extension"] == ["train/dog/wrong.jpg"]
    assert findings["note: grey"] == ["train/dog/grey.png"]
    assert findings["note: CMYK"] == ["train/dog/cmyk.jpg"]
    assert "train/dog/alpha.png" in findings["note: alpha"]
    assert findings["note: rotated by EXIF"] == ["train/dog/turned.jpg"]
    assert findings["note: animated"] == ["train/dog/moving.gif"]
    assert findings["note: 16 bits"] == ["train/dog/deep.png"]


def test_files_that_were_passed_over_are_named(root: Path) -> None:
    name = sorted(folder.name for folder in (root / "train").iterdir())[0]
    (root / "train" / name / "photo.heic").write_bytes(b"x")
    (root / "train" / "loose.jpg").write_bytes(b"x")
    (root / "README.txt").write_text("hello")
    dataset = open_data(root)
    assert sorted(dataset.ignored) == ["README.txt", f"train/{name}/photo.heic", "train/loose.jpg"]
    found = [finding for finding in check_data(dataset, workers=0).findings if finding.what.startswith("file ignored")]
    assert {finding.severity for finding in found} == {"note"}
    assert sorted(finding.key for finding in found) == sorted(dataset.ignored)


def test_duplicates_by_place(root: Path) -> None:
    photograph = PHOTOGRAPH.crop((0, 0, 120, 90))
    for name in ("train/cat/a.png", "train/cat/b.bmp"):
        photograph.save(root / name)
    other = PHOTOGRAPH.crop((200, 200, 320, 290))
    for name in ("train/dog/a.png", "val/dog/a.png"):
        other.save(root / name)
    report = check(root)
    assert found(report)["warning: duplicate in the same split"] == ["train/cat/b.bmp"]
    assert found(report)["error: the same picture in two splits"] == ["val/dog/a.png"]
    assert report.exit_code == 1


def test_broken_files_make_the_data_unusable(root: Path) -> None:
    (root / "train/cat/empty.jpg").touch()
    (root / "train/cat/text.png").write_text("hello")
    (root / "train/cat/bomb.png").write_bytes(write_png(60_000, 60_000))
    cut = (root / "train/dog/000.jpg").read_bytes()[:-60]
    (root / "train/dog/000.jpg").write_bytes(cut)
    report = check(root)
    assert found(report)["error: cannot be read"] == [
        "train/cat/bomb.png",
        "train/cat/empty.jpg",
        "train/cat/text.png",
        "train/dog/000.jpg",
    ]
    assert report.exit_code == 2  # 4 of 51 are more than training accepts
    with pytest.raises(DataError, match=r"4 of 51 pictures cannot be read, more than 1 % of a split:") as error:
        report.refuse_broken()
    assert "\n  train/cat/empty.jpg: " in str(error.value)
    assert str(error.value).endswith("or leave them out with max_broken_rate=0.15."), "4 of the 27 for training"
    assert check_data(open_data(root, DataConfig(max_broken_rate=0.15)), workers=2).exit_code == 1


def test_one_broken_file_in_a_hundred_is_a_problem_not_the_end(make_folder) -> None:
    root = make_folder("train/cat", "train/dog", count=60)
    (root / "train/cat/empty.jpg").touch()
    assert check(root).exit_code == 1


def test_sizes_and_balance(make_folder) -> None:
    root = make_folder("train/cat", "train/dog", count=3)
    for number in range(60):
        picture(100 + number, (33, 33)).save(root / f"train/dog/more{number}.png")
    Image.new("1", (6000, 5000)).save(root / "train/cat/huge.png")
    findings = found(check(root))
    assert findings["note: huge (over 25 megapixels)"] == ["train/cat/huge.png"]
    assert findings["warning: fewer than 10 training pictures"] == ["cat"]
    assert findings["warning: unbalanced classes (over 10:1)"] == ["cat"]


def test_different_photographs_are_not_near_duplicates(make_folder) -> None:
    root = make_folder("train/a", "train/b", count=10)
    for number in range(40):
        left, top = 8 * number, 4 * number
        PHOTOGRAPH.crop((left, top, left + 160, top + 120)).save(root / f"train/a/c{number}.png")
    near = [key for name, keys in found(check(root)).items() if "near" in name for key in keys]
    assert near == []


def test_large_sets_are_compared_by_pivots(make_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder("train/a", "train/b", count=10)
    for number in range(60):
        picture(300 + number, (64, 48)).save(root / f"train/a/c{number}.png")
        if number % 3 == 0:
            picture(300 + number, (80, 60)).save(root / f"train/b/c{number}.jpg", quality=60)
    expected = found(check(root))["note: near duplicate in the same split"]
    assert len(expected) == 20
    monkeypatch.setattr(duplicates, "ALL_PAIRS", 50)
    assert found(check(root))["note: near duplicate in the same split"] == expected


def test_arrays() -> None:
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[30] = images[2]
    train = ArraySource(images[:30], np.arange(30) % 2, "t")
    val = ArraySource(images[30:], np.arange(10) % 2, "v")
    report = check_data(Dataset(name="x", classes=("a", "b"), splits={"train": train, "val": val}), workers=2)
    assert found(report) == {"error: the same picture in two splits": ["v/0"]}


def test_the_csv_has_a_row_for_each(root: Path, tmp_path: Path) -> None:
    (root / 'train/cat/é, "x".jpg').touch()
    report = check(root)
    report.write_csv(tmp_path / "check.csv")
    with (tmp_path / "check.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(report.findings)
    assert rows[0]["key"] == 'train/cat/é, "x".jpg'
    assert (rows[0]["severity"], rows[0]["finding"], rows[0]["class"]) == ("error", "cannot be read", "cat")


def test_the_sheets_show_pictures(root: Path) -> None:
    PHOTOGRAPH.crop((0, 0, 120, 90)).save(root / "train/cat/a.png")
    PHOTOGRAPH.crop((0, 0, 120, 90)).save(root / "val/cat/a.png")
    (root / "train/dog/empty.jpg").touch()
    report = check(root)
    without = contact_sheet(Report(dataset=report.dataset, facts=report.facts, findings=[]))
    sheet = contact_sheet(report)
    assert sheet.height > without.height  # the row of duplicates
    assert len(np.unique(np.asarray(sheet).reshape(-1, 3), axis=0)) > 1000
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")


def test_the_augmentation_sheet_shows_evaluation_first() -> None:
    from vitrail.data import Augment, Preprocess

    digits = open_data("digits")
    spec = Preprocess(size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    still = augmentation_sheet(digits, spec, Augment(flip_rate=0.0), num_pictures=2)
    moving = augmentation_sheet(digits, spec, Augment(crop="pad", pad=2, mixup=1.0), num_pictures=2)
    first = (16, 50, 16 + 112, 50 + 112)
    assert np.array_equal(np.asarray(still.crop(first)), np.asarray(moving.crop(first)))
    second = (16 + 120, 50, 16 + 232, 50 + 112)
    assert np.array_equal(np.asarray(still.crop(first)), np.asarray(still.crop(second)))
    assert not np.array_equal(np.asarray(moving.crop(first)), np.asarray(moving.crop(second)))


def facts_of(thumbnails: list[bytes], digest: bytes | None = None) -> list[PictureFacts]:
    """Made-up facts, the last quarter of them in the test split."""
    count = len(thumbnails)
    return [
        PictureFacts(
            split="test" if index >= 3 * count // 4 else "train",
            index=index,
            key=f"{index}",
            label=0,
            width=64,
            height=64,
            digest=digest or f"{index}".encode(),
            thumbnail=thumbnail,
        )
        for index, thumbnail in enumerate(thumbnails)
    ]


def test_the_frames_of_a_film_do_not_fill_the_memory() -> None:
    """Of 2,000 pictures that are all alike there are two million pairs, and nobody looks at them."""
    random = np.random.default_rng(0)
    base = random.integers(0, 250, 256)
    facts = facts_of([(base + random.integers(0, 5, 256)).astype(np.uint8).tobytes() for _ in range(2000)])
    pairs = [(left.index, right.index) for left, right in near_pairs(facts)]
    assert len(pairs) < 2 * 8 * 2000
    assert {right for _, right in pairs} == set(range(1, 2000))  # each is reported
    leaked = {right for left, right in pairs if left < 1500 <= right}
    assert leaked == set(range(1500, 2000))


def test_mirror_images_are_found_if_they_are_asked_for() -> None:
    random = np.random.default_rng(0)
    levels = np.kron(random.integers(0, 250, (40, 8, 8), dtype=np.uint8), np.ones((1, 2, 2), dtype=np.uint8))
    facts = facts_of([each.tobytes() for each in (*levels[:30], *(levels[:10, :, ::-1] + 2))])
    assert not list(near_pairs(facts))
    pairs = {(left.index, right.index) for left, right in near_pairs(facts, mirrored=True)}
    assert pairs == {(index, 30 + index) for index in range(10)}


def test_copies_in_many_places_are_shown_with_the_one_that_matters() -> None:
    facts = facts_of([b""] * 8, digest=b"same")
    shown = [(left.split, right.split) for left, right in partners(facts, range(8))]
    assert all(left != right for left, right in shown)
    assert len(shown) == 7


def test_two_fields_below_two_skies_are_not_near_duplicates(tmp_path: Path) -> None:
    """Pictures of one layout, whose thumbnails correlate by 0.97 and more, are told from copies of one of them."""
    layout = np.concatenate([np.linspace(210, 190, 90), np.linspace(90, 120, 134)])[:, None]
    for number in range(6):
        texture = Image.fromarray(np.random.default_rng(number).integers(0, 256, (28, 28), dtype=np.uint8))
        texture = np.asarray(texture.resize((224, 224), Image.Resampling.BICUBIC), dtype=np.float32) - 128
        field = np.clip(layout + texture * 0.2 * (np.arange(224)[:, None] > 90), 0, 255).astype(np.uint8)
        folder = tmp_path / ("train" if number % 2 else "val") / ("a", "b")[number // 2 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(field).save(folder / f"{number}.png")
        if number == 0:
            for name in ("train/b", "train/a"):
                (tmp_path / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(field).resize((112, 112)).save(tmp_path / "train" / "b" / "copy.jpg", quality=60)
    report = check_data(open_data(tmp_path), 1)
    pairs = [{fact.key.split("/")[-1] for fact in finding.pair} for finding in report.findings if finding.pair]
    assert pairs == [{"0.png", "copy.jpg"}]


def test_class_names_that_cannot_be_drawn(tmp_path: Path) -> None:
    for name in ("a\nb", "c\td\x1b[31m"):
        (tmp_path / name).mkdir()
        for number in range(8):
            Image.fromarray(np.full((40, 40), 20 * number, dtype=np.uint8)).save(tmp_path / name / f"{number}.png")
    contact_sheet(check_data(open_data(tmp_path), 1))


def test_a_check_is_summed_up_and_read_back(make_folder, tmp_path: Path) -> None:
    root = make_folder("train/cat", "train/dog", "val/cat", "val/dog", count=12)
    (root / "val/cat/000.jpg").write_bytes((root / "train/cat/000.jpg").read_bytes())
    report = check_data(open_data(root), workers=1)
    record = sum_up(report)
    assert record.pictures == 48
    assert record.serious[0] == Trouble(
        severity="error",
        finding="the same picture in two splits",
        count=1,
        example="val/cat/000.jpg",
        detail="same as train/cat/000.jpg",
    )
    write_record(record, tmp_path / "a.json")
    assert read_record(tmp_path / "a.json") == record
    assert read_record(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"data": 3, "pictures": 1}', '{"data": "a", "pictures": 1, "more": 2}', "[" * 100_000, "\x00"],
)
def test_a_damaged_record_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match="must be the record of a data check"):
        read_record(tmp_path / "a.json")


def test_long_names_are_cut_and_long_files_refused(tmp_path: Path) -> None:
    record = CheckRecord(data="a", pictures=1, findings=(Trouble(severity="note", finding="x", count=1, example="y"),))
    assert record.serious == ()
    (tmp_path / "a.json").write_text(" " * 1_000_001)
    with pytest.raises(DataError, match="it has 1,000,001"):
        read_record(tmp_path / "a.json")
