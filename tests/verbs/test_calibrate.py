"""`vitrail.calibrate` and `vitrail calibrate`, and what the other verbs do with a calibrated model."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import ImageOps
from tests.data.conftest import picture
from tests.prediction.conftest import CLASSES, write_tiny
from tests.report.test_render import check_page

import vitrail
from vitrail.cli.main import main
from vitrail.data import Dataset, open_data
from vitrail.data.source import Source
from vitrail.errors import ConfigError, DataError, WeightsError
from vitrail.prediction import Predictor
from vitrail.tasks.familiarity import Familiarity
from vitrail.verbs.calibrate import MADE
from vitrail.weights.native import read_native
from vitrail.weights.write import convert


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, pictures of its classes in three splits, pictures of something else, and a calibrated model."""
    root = tmp_path_factory.mktemp("world")
    for split, count in (("train", 12), ("val", 10), ("test", 4)):
        for label, name in enumerate(CLASSES):
            (root / "animals" / split / name).mkdir(parents=True)
            for index in range(count):
                seed = 10_000 * label + 100 * index + len(split)
                picture(seed, (32, 32)).save(root / "animals" / split / name / f"{index}.png")
    (root / "others").mkdir()
    for index in range(8):
        ImageOps.posterize(picture(index, (32, 32)), 1).save(root / "others" / f"{index}.png")
    model = write_tiny(root / "tiny.safetensors")
    vitrail.calibrate(model, root / "animals", out=root / "calibrated.safetensors")
    return root


@pytest.fixture(autouse=True)
def _inside(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in world.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)


def read_csv(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines()))


def test_both_doors_write_the_same(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "tiny.safetensors", "animals", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    found = vitrail.calibrate("tiny.safetensors", "animals", out="again.safetensors")
    assert {**found.facts(), "path": facts["path"]} == facts
    assert facts["path"] == "tiny-calibrated.safetensors"
    written = read_native(Path("tiny-calibrated.safetensors"))
    assert written.trust == read_native(Path("again.safetensors")).trust == found.trust
    assert written.tensors.keys() == read_native(Path("tiny.safetensors")).tensors.keys()
    assert found.after.metrics.nll <= found.before.metrics.nll == found.before.uncalibrated.nll
    assert found.trust.pictures == 70
    assert main(["calibrate", "tiny.safetensors", "animals", "--out", "c.safetensors"]) == 0
    printed = capsys.readouterr().out
    assert "on 70 pictures of animals, val: temperature" in printed
    assert "label sets for a coverage of up to 0.985" in printed
    assert "wrote c.safetensors" in printed


def test_more_may_count_as_unfamiliar(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The share is the file's: whatever opens it marks as many pictures."""
    arguments = ["animals", "--unfamiliar-rate", "0.3", "--out", "strict.safetensors"]
    assert main(["calibrate", "tiny.safetensors", *arguments]) == 0
    assert "30% of ordinary pictures are marked too" in " ".join(capsys.readouterr().out.split())
    found = vitrail.calibrate("tiny.safetensors", "animals", unfamiliar_rate=0.3, out="python.safetensors")
    assert found.trust == read_native(Path("strict.safetensors")).trust
    assert found.after.familiar is not None
    assert (~found.after.familiar).mean() == pytest.approx(0.3, abs=0.02)
    assert read_native(Path("strict.safetensors")).suits_older_readers is False
    again = vitrail.calibrate("strict.safetensors", "animals", out="again.safetensors").trust  # keeps its own share
    assert again == found.trust
    pictures = sorted(str(path) for path in (world / "animals" / "val").rglob("*.png"))
    vitrail.export("strict.safetensors", "strict.onnx")
    for model in ("strict.safetensors", "strict.onnx"):
        assert [row.familiar for row in vitrail.load(model).predict(pictures)].count(False) == 21
    few = Dataset(
        name="few", classes=CLASSES, splits={"train": whole_val().select(range(0, 70, 5)), "val": whole_val()}
    )
    with pytest.raises(ConfigError, match="unfamiliar_rate= needs at least 50 training pictures; got 14"):
        vitrail.calibrate("tiny.safetensors", few, unfamiliar_rate=0.3, out="x.safetensors")


def whole_val() -> Source:
    return open_data("animals").split("val")


def test_the_calibrated_file_lies_beside_the_checkpoint(world: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    write_tiny(tmp_path / "models" / "own.safetensors")
    assert vitrail.calibrate("models/own.safetensors", "animals").path == Path("models/own-calibrated.safetensors")
    assert Path("models/own-calibrated.safetensors").is_file()


def test_in_place_only_if_asked_and_only_ours(world: Path, tmp_path: Path) -> None:
    own = write_tiny(tmp_path / "own.safetensors")
    assert vitrail.calibrate(own, "animals", in_place=True).path == own
    assert vitrail.load(own).trust == vitrail.load("calibrated.safetensors").trust
    convert(own, "folder", "hf")
    with pytest.raises(ConfigError, match="in_place= is for files of vitrail; folder is not one"):
        vitrail.calibrate("folder", "animals", in_place=True)
    found = vitrail.calibrate("folder", "animals", out="ours.safetensors")
    assert list(vitrail.load("ours.safetensors").origin.sha256) == ["model.safetensors"]
    assert found.trust.temperature == pytest.approx(vitrail.load(own).trust.temperature, rel=1e-3)  # pyright: ignore


def test_data_without_a_validation_split(world: Path) -> None:
    whole = open_data("animals")
    bare = Dataset(name="bare", classes=whole.classes, splits={"train": whole.split("train")})
    found = vitrail.calibrate("tiny.safetensors", bare, out="bare.safetensors", val_rate=0.7)
    assert found.notes == (MADE,)
    assert found.trust.data == "bare, val"
    with pytest.raises(DataError, match="at least 50 pictures that were not trained on; test has 28 pictures"):
        vitrail.calibrate("tiny.safetensors", "animals", split="test", out="few.safetensors")
    assert not Path("few.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny.safetensors", "animals", "--out", "calibrated.safetensors"], "calibrated.safetensors exists"),
        (["tiny.safetensors", "animals", "--out", "a.npz"], "--out must end in .safetensors"),
        (["tiny.safetensors", "animals", "--in-place", "--out", "b.safetensors"], "omit --out"),
        (["cifar10", "animals", "--in-place"], "--in-place cannot change the bundled model; pass --out"),
        (["gone.onnx", "animals"], "there is no"),
        (["tiny.safetensors", "anmals"], "did you mean animals?"),
        (["tiny.safetensors", "animals", "--split", "dev"], "has no split 'dev'"),
        (["tiny.safetensors", "animals", "--unfamiliar-rate", "1"], "--unfamiliar-rate must be at least 0 and below 1"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_classes(tmp_path: Path) -> None:
    vitrail.convert("tiny.safetensors", "headless.safetensors", num_classes=0)
    with pytest.raises(WeightsError, match="has no head, so there are no probabilities to calibrate"):
        vitrail.calibrate("headless.safetensors", "animals", out="x.safetensors")


def test_eval_measures_sets_and_strangers(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--coverage", "0.8", "--unfamiliar", "others", "--out", "result"]
    assert main(["eval", "calibrated.safetensors", "animals", *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "80 % label sets" in printed
    assert "told from others AUROC" in printed
    facts = json.loads(Path("result/metrics.json").read_text())
    evaluation = vitrail.evaluate("calibrated.safetensors", "animals", coverage=0.8, unfamiliar="others")
    facts.pop("images_per_second")
    assert facts == {name: value for name, value in evaluation.facts.items() if name != "images_per_second"}
    assert facts["calibration_error"] != facts["calibration_error_before"]
    assert facts["label_sets"]["requested"] == 0.8
    assert [each["requested"] for each in facts["label_sets"]["curve"]][-1] == 0.98
    assert facts["unfamiliar"]["pictures"] == 8
    rows = read_csv("result/predictions.csv")
    assert sum(int(row["in_set"]) for row in rows) == facts["label_sets"]["coverage"]["correct"]
    assert sum(int(row["set_size"]) for row in rows) / len(rows) == pytest.approx(facts["label_sets"]["mean_size"])
    assert sum(row["familiar"] == "0" for row in rows) == facts["familiarity"]["unfamiliar"]["correct"]
    classes = read_csv("result/classes.csv")
    assert all(float(row["mean_set_size"]) >= 1 for row in classes)
    for row in classes:
        low, coverage, high = (float(row[name]) for name in ("coverage_low", "coverage", "coverage_high"))
        assert 0 <= low <= coverage <= high <= 1
        assert low < high
    page = " ".join(check_page(Path("result/report.html").read_text(encoding="utf-8")).text)
    assert "How far to trust it" in page
    assert "told from others" in page
    assert "--coverage 0.8 --unfamiliar others" in page


def test_eval_refuses_what_an_uncalibrated_model_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (["--coverage", "0.9"], "--coverage needs a calibrated model"),
        (["--unfamiliar", "others"], "--unfamiliar needs a model that can tell what is unfamiliar"),
        (["--unfamiliar", "othres"], "did you mean others?"),
        (["--unfamiliar", "others", "--tta", "flip"], "--unfamiliar compares pictures as they are; omit --tta"),
    ):
        assert main(["eval", "tiny.safetensors", "animals", *options]) == 2
        assert message in capsys.readouterr().err


def test_predictions_carry_it_as_columns(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"coverage": 0.9, "top_k": 2}
    pictures = [f"others/{index}.png" for index in range(3)]
    rows = list(vitrail.predict("calibrated.safetensors", pictures, **options))  # pyright: ignore
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        vitrail.predict("calibrated.safetensors", pictures, **options).save(name)  # pyright: ignore
    table = read_csv("a.csv")
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    columns = pq.read_table("a.parquet").to_pylist()
    for row, cells, fields, record in zip(rows, table, lines, columns, strict=True):
        assert list(cells) == [
            "picture",
            "label_1",
            "score_1",
            "label_2",
            "score_2",
            "label_set",
            "familiarity",
            "familiar",
            "error",
        ]
        assert cells["label_set"].split(" | ") == fields["label_set"] == record["label_set"] == list(row.label_set)
        assert float(cells["familiarity"]) == pytest.approx(row.familiarity, abs=1e-6)
        assert fields["familiarity"] == record["familiarity"] == row.familiarity
        assert bool(int(cells["familiar"])) == fields["familiar"] == record["familiar"] == row.familiar
    assert main(["predict", "calibrated.safetensors", "others", "--coverage", "0.9"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "{" + ", ".join(rows[0].label_set) + "}" in first


def test_the_command_abstains(world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Familiarity, "accepts", lambda *_: False)
    assert main(["predict", "calibrated.safetensors", "others", "--abstain"]) == 0
    printed = capsys.readouterr()
    assert all("no answer: unlike anything seen in training" in line for line in printed.out.splitlines())
    assert "8 unlike anything seen in training" in printed.err
    assert main(["predict", "calibrated.safetensors", "others", "--abstain", "--format", "csv"]) == 0
    row = next(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert (row["label_1"], row["score_1"], row["familiar"]) == ("", "", "0")
    assert main(["predict", "tiny.safetensors", "others", "--abstain"]) == 2
    assert "--abstain needs a model that can tell" in capsys.readouterr().err


def test_inspect_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "calibrated.safetensors"]) == 0
    assert "temperature" in capsys.readouterr().out
    assert main(["inspect", "tiny.safetensors"]) == 0
    assert "none; vitrail calibrate makes one" in capsys.readouterr().out
    assert isinstance(vitrail.load("calibrated.safetensors"), Predictor)
