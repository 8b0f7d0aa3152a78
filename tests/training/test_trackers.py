"""A run that was stopped and resumed, in each service: every number once, nobody's name, a model that predicts."""

import csv
import json
import signal
import sqlite3
import struct
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from fuzzing import in_fuzz_only
from shortcuts import leave_blank
from vitrail.cli.main import main
from vitrail.errors import ConfigError, MissingExtraError
from vitrail.ranks import Ranks
from vitrail.training import Listener, TrainConfig, trackers
from vitrail.training.changes import apply_changes
from vitrail.training.signals import InterruptedRunError
from vitrail.training.trackers import Tracker, check_trackers, config_facts, final_numbers, row_numbers
from vitrail.training.tracking_services import SERVICES, Ending, Result, Service, TrackedRun, has_wandb_key
from vitrail.verbs import runs

pytestmark = [  # what MLflow itself warns of
    pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning"),
]
QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 256, "check": False}
NAMES = {"user": "wilhelmina", "host": "cellar-of-nobody", "folder": "top-secret", "home": "hidden-home"}
EPOCH = 4  # steps


class Stop(Listener):
    """Two steps after the checkpoint of the first epoch, as Ctrl-C would."""

    def __init__(self) -> None:
        self.folder = Path()
        self.notes: list[str] = []

    def opened(self, folder: Path, *, resume: bool) -> None:
        self.folder = folder

    def said(self, message: str) -> None:
        self.notes.append(message)

    def stepped(self, step: int, loss: float, images_per_second: float) -> None:
        if step == EPOCH + 3:
            raise InterruptedRunError(signal.SIGINT, self.folder)


def draw_only(folder: Path, *_: Any, **__: Any) -> list[Path]:
    """Of a report, which takes seconds, the figure that is tracked."""
    Image.new("RGB", (8, 8)).save(folder / "confusion_matrix.png")
    return [folder / "report.html"]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """The folder of a run, stopped and resumed, by somebody with a name, on a machine with a name."""
    folder = tmp_path_factory.mktemp(NAMES["folder"]) / "run"
    with pytest.MonkeyPatch.context() as patch:
        leave_blank(patch)
        patch.setattr("vitrail.verbs.runs.report_on_run", draw_only)
        patch.chdir(folder.parent)
        for name in ("WANDB_MODE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT"):
            patch.delenv(name, raising=False)
        home = folder.parent / NAMES["home"]
        home.mkdir()
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            patch.setenv(name, str(home))
        for name in ("USER", "LOGNAME", "USERNAME"):
            patch.setenv(name, NAMES["user"])
        patch.setattr("socket.gethostname", lambda: NAMES["host"])
        patch.setattr("platform.node", lambda: NAMES["host"])
        stop = Stop()
        every = ("tensorboard", "wandb", "mlflow")
        with pytest.raises(InterruptedRunError):
            vitrail.train("digits", out=folder, track=every, progress=stop, **QUICK)
        assert not [note for note in stop.notes if "tracking" in note]
        assert vitrail.resume(folder, track=",".join(every)).epochs == 3
        yield folder


@pytest.fixture(scope="module")
def expected(tracked: Path) -> dict[str, dict[int, float]]:
    """What results.csv and metrics.json say: name → step → value."""
    numbers: dict[str, dict[int, float]] = {}
    with (tracked / "results.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name in ("lr", "train_loss", "val_loss", "val_accuracy"):
                numbers.setdefault(f"epoch/{name}", {})[int(row["step"])] = float(row[name])
    facts = json.loads((tracked / "metrics.json").read_text())
    for split in ("val", "test"):
        numbers[f"final/{split}_accuracy"] = {3 * EPOCH: facts[split]["accuracy"]}
    return numbers


def check(points: dict[str, dict[int, float]], expected: dict[str, dict[int, float]]) -> None:
    assert sorted(points["train/loss"]) == list(range(1, 3 * EPOCH + 1)), "each step"
    for name, values in expected.items():
        assert sorted(points[name]) == sorted(values), name
        np.testing.assert_allclose([points[name][step] for step in sorted(values)], list(values.values()), rtol=1e-5)


@in_fuzz_only
def test_tensorboard_has_every_number_once(tracked: Path, expected: dict[str, dict[int, float]]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(tracked / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    points: dict[str, dict[int, float]] = {}
    for name in events.Tags()["scalars"]:
        scalars = events.Scalars(name)
        points[name] = {each.step: each.value for each in scalars}
        assert len(scalars) == len(points[name]), f"{name}: what came after the checkpoint was replaced"
    check(points, expected)
    assert set(events.Tags()["images"]) == {"results", "confusion_matrix"}
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| optim.optimizer | muon |" in text


def wandb_records(path: Path) -> Iterator[Any]:
    """What W&B wrote: a LevelDB log of protocol buffers, after a header of seven bytes."""
    record: Any = import_module("wandb.proto.wandb_internal_pb2").Record
    data, place, parts = path.read_bytes(), 7, b""
    while place < len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record.FromString(parts)
            parts = b""


@in_fuzz_only
def test_wandb_has_every_number_in_one_run(tracked: Path, expected: dict[str, dict[int, float]]) -> None:
    files = sorted((tracked / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert {path.stem for path in files} == {f"run-{json.loads((tracked / 'tracking.json').read_text())['wandb']}"}
    points: dict[str, dict[int, float]] = {}
    config: dict[str, Any] = {}
    for file in files:
        for record in wandb_records(file):
            told = [
                record.run.host,
                record.run.git.remote_url,
                record.run.settings.ListFields(),
                record.environment.ListFields(),
            ]
            assert not any(told), "no record of the machine, the user, the program and its repository"
            items = [("/".join(each.nested_key) or each.key, each.value_json) for each in record.history.item]
            row = {name: json.loads(value) for name, value in items}
            config |= {each.key: json.loads(each.value_json) for each in record.run.config.update}
            for name, value in row.items():
                if isinstance(value, float | int) and "step" in row:
                    before = points.setdefault(name, {}).setdefault(row["step"], value)
                    assert name[0] == "_" or before == value or name.endswith(("second", "seconds")), name
            for each in record.summary.update:
                if each.key.startswith("final/"):
                    points.setdefault(each.key, {})[3 * EPOCH] = json.loads(each.value_json)
    check(points, expected)
    assert config["optim.optimizer"] == "muon"
    others = [path for path in (tracked / "wandb").rglob("*") if path.is_file() and path not in files]
    assert {path.name.split("_")[0] for path in others} == {"results", "confusion"}, "its figures, and nothing else"


@in_fuzz_only
def test_mlflow_has_every_number_once(tracked: Path, expected: dict[str, dict[int, float]]) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tracked}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("vitrail")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    points: dict[str, dict[int, float]] = {}
    for name in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        points[name] = {each.step: each.value for each in history}
        assert len(history) == len(points[name]), name
    check(points, expected)
    assert run.data.params["optim.optimizer"] == "muon"
    figures = client.list_artifacts(run.info.run_id, "figures")
    assert {Path(each.path).name for each in figures} == set(trackers.FIGURES)


@in_fuzz_only
def test_what_is_written_names_nobody(tracked: Path) -> None:
    written = [path for name in ("tensorboard", "wandb", "mlflow") for path in (tracked / name).rglob("*")]
    assert len(written) > 15
    home = str(Path(vitrail.__file__).parents[1])  # where vitrail is installed
    for path in (*written, tracked / "tracking.json"):
        assert not any(name in str(path.relative_to(tracked)) for name in NAMES.values()), path
        assert not path.is_symlink(), path
        if path.is_file() and path.suffix != ".db":
            content = path.read_bytes()
            assert not [name for name in (*NAMES.values(), home, sys.executable) if name.encode() in content], path
    with closing(sqlite3.connect(tracked / "mlflow" / "mlflow.db")) as base:
        for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = base.execute(f"SELECT * FROM {table}")
            for row in cursor.fetchall():
                for (column, *_), value in zip(cursor.description, row, strict=True):
                    if not column.startswith("artifact_"):  # where its own files are: a local store needs that
                        assert not [name for name in (*NAMES.values(), home) if name in str(value)], (table, column)


@in_fuzz_only
def test_services_leave_nothing_at_home(tracked: Path) -> None:
    home = tracked.parent / NAMES["home"]
    assert not [path for path in home.rglob("*") if path.is_file() and "matplotlib" not in str(path)]


@in_fuzz_only
def test_the_model_of_mlflow_predicts(tracked: Path, tmp_path: Path) -> None:
    import mlflow
    import pandas as pd

    (folder,) = (tracked / "mlflow" / "artifacts" / "models").iterdir()
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pickle")]
    model = mlflow.pyfunc.load_model(str(folder / "artifacts"))
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(pixels).save(tmp_path / "a.png")
    paths = [str(tmp_path / "a.png")] * 2
    answer = vitrail.load(tracked).predict(tmp_path / "a.png")
    for given in (paths, pd.DataFrame({"any": paths}), np.stack([pixels] * 2)[..., None], np.array(paths)):
        table = model.predict(given)
        assert list(table["label"]) == [answer.label] * 2
        assert list(table["score"]) == pytest.approx([answer.score] * 2)
        assert table["labels"][0] == list(answer.labels)
    encoded = pd.DataFrame({"picture": [(tmp_path / "a.png").read_bytes(), b"no picture"], "other": 1})
    table = model.predict(encoded)
    assert table["label"][0] == answer.label
    assert "error" in table.columns
    assert {"label", "score"} <= {column.name for column in model.metadata.signature.outputs}
    with pytest.raises(vitrail.VitrailError, match="needs a column 'picture', or only one; got a, b"):
        model.predict(pd.DataFrame({"a": paths, "b": paths}))
    assert "vitrail" in (folder / "artifacts" / "requirements.txt").read_text()


class Toy(Service):
    """A service of one class and one line; it fails when it is told to."""

    name: Any = "toy"
    extra, packages = "toy", ()
    fails_at = 0
    heard: list[Any] = []  # noqa: RUF012

    def open(self, run: TrackedRun) -> str:
        self.heard.append(run.id)
        return "toy-1"

    def log(self, numbers: dict[str, float], step: int) -> None:
        if step == self.fails_at:
            raise OSError(28, "No space left on device")
        self.heard.append(step)

    def keep(self, result: Result) -> None:
        self.heard.append(result.checkpoint.name)

    def close(self, ending: Ending) -> None:
        self.heard.append(ending)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[Toy]:
    monkeypatch.setitem(SERVICES, "toy", Toy)
    monkeypatch.setattr(Toy, "heard", [])
    return Toy


def make_tracker(folder: Path, notes: list[str] | None = None) -> Tracker:
    return Tracker(["toy"], folder, TrainConfig(), [].append if notes is None else notes.append)


def test_a_service_that_fails_is_left_alone(toy: type[Toy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "fails_at", 2)
    notes: list[str] = []
    with make_tracker(tmp_path, notes) as tracker:
        tracker.began(3, 0, 1)
        for step in (1, 2, 3):
            tracker.stepped(step, 1.0, 1.0)
    assert toy.heard == ["", 1]
    assert notes == ["tracking with toy has stopped: [Errno 28] No space left on device; the run goes on without it"]


@pytest.mark.parametrize(
    ("error", "ending"), [(None, "finished"), (KeyboardInterrupt(), "stopped"), (ValueError(), "failed")]
)
def test_a_service_hears_how_a_run_ended(
    toy: type[Toy], tmp_path: Path, error: BaseException | None, ending: str
) -> None:
    try:
        with make_tracker(tmp_path) as tracker:
            tracker.began(1, 0, 1)
            if error is not None:
                raise error
    except (KeyboardInterrupt, ValueError):
        pass
    assert toy.heard[-1] == ending
    with make_tracker(tmp_path) as tracker:
        tracker.began(1, 0, 1)
    assert toy.heard[-2:] == ["toy-1", "finished"], "a resumed run has its id"


@pytest.mark.parametrize("damage", ["", "[1]", '{"toy": 1}', '{"toy": "a b"}', '{"toy": "../x"}'])
def test_a_damaged_file_of_ids_begins_anew(toy: type[Toy], tmp_path: Path, damage: str) -> None:
    (tmp_path / trackers.IDS).write_text(damage)
    with make_tracker(tmp_path) as tracker:
        tracker.began(1, 0, 1)
    assert toy.heard[0] == ""


def test_a_long_run_writes_every_few_steps(toy: type[Toy], tmp_path: Path) -> None:
    with make_tracker(tmp_path) as tracker:
        tracker.began(50_000, 0, 1)
        for step in range(1, 101):
            tracker.stepped(step, 1.0, 1.0)
    assert toy.heard[1:-1] == [25, 50, 75, 100]


def test_only_the_first_rank_tracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[tuple[str, ...]] = []

    def note(chosen: tuple[str, ...], *rest: Any) -> Tracker:
        names.append(chosen)
        raise StopIteration

    monkeypatch.setattr(runs, "Tracker", note)
    setup: Any = SimpleNamespace(config=None)
    for ranks in (Ranks(), replace(Ranks(), rank=1, world_size=2)):
        with pytest.raises(StopIteration):
            runs._carry_out(setup, ranks, tmp_path, Listener(), runs.RunOptions(track=("wandb",)), resume=False)
    assert names == [("wandb",), ()]


def test_trackers_are_checked_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_trackers(False) == ()
    assert check_trackers(True) == ("tensorboard",)
    assert check_trackers("wandb, mlflow") == check_trackers(["wandb", "mlflow", "wandb"]) == ("wandb", "mlflow")
    with pytest.raises(ConfigError, match="track= knows no tracker 'wanbd'; did you mean wandb?"):
        vitrail.train("no such data", track="wanbd")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r'run: pip install "vitrail\[wandb\]"'):
        vitrail.resume("no such run", track="wandb")


@pytest.mark.parametrize(
    ("flags", "track"),
    [
        (["--track"], ("tensorboard",)),
        (["--track", "--epochs", "1"], ("tensorboard",)),
        (["--track", "photos"], ("tensorboard",)),
        (["--track", "wandb,mlflow"], ("wandb", "mlflow")),
        (["--track=mlflow"], ("mlflow",)),
        (["--no-track"], False),
        ([], False),
    ],
)
def test_the_flag_needs_no_value(flags: list[str], track: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, Any] = {}

    def train(**arguments: Any) -> None:
        passed.update(arguments)

    monkeypatch.setattr(import_module("vitrail.verbs.terminal"), "train", train)
    assert main(["train", *([] if "photos" in flags else ["photos"]), *flags]) == 0
    assert (passed["data"], passed.get("track", False)) == ("photos", track)


def test_a_mistyped_tracker_is_no_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--track", "wanbd", "photos"]) == 2
    assert "any of tensorboard, wandb, mlflow; got 'wanbd'; did you mean wandb?" in capsys.readouterr().err


def test_a_path_is_logged_by_its_last_part() -> None:
    config = apply_changes(
        TrainConfig(data="/home/ann/photos/", chosen="/home/ann is a folder"),
        {"weights": r"C:\Users\ann\best.safetensors", "split_file": "s3://bucket-of-ann/split.csv"},
    )
    facts = config_facts(config)
    assert (facts["data"], facts["start.weights"]) == ("photos", "best.safetensors")
    assert facts["source.split_file"] == "split.csv"
    assert "ann" not in str(facts)


def test_numbers_have_names_whatever_is_measured() -> None:
    row = {"epoch": 1, "step": 4, "lr": 0.1, "train_loss": 2.0, "images_per_second": 9.0, "seconds": 1.0}
    several: Any = SimpleNamespace(**row, val_loss=1.0, metrics={"f1": 0.5, "mae": 2.0}, train_metrics={})
    numbers = row_numbers(several)
    assert (numbers["val_f1"], numbers["val_mae"], numbers["val_loss"]) == (0.5, 2.0, 1.0)
    unmeasured: Any = SimpleNamespace(**row, val_loss=None, metrics={}, train_metrics={})
    assert not [name for name in row_numbers(unmeasured) if name.startswith("val")]
    facts = {"epochs": 2, "val": {"loss": 1.0, "metrics": {"f1": 0.5}}, "test": None, "val_chose_epoch": True}
    assert final_numbers(facts) == {"epochs": 2, "val_loss": 1.0, "val_f1": 0.5}


def test_wandb_is_online_for_those_who_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    assert not has_wandb_key("https://api.wandb.ai")
    file.write_text("machine api.wandb.ai login user password not-a-key\n")
    file.chmod(0o600)
    assert has_wandb_key("https://api.wandb.ai")
    assert has_wandb_key("https://api.forge.coreweave.com")
    assert not has_wandb_key("https://wandb.example.org")
    monkeypatch.setenv("WANDB_API_KEY", "not-a-key")
    assert has_wandb_key("https://wandb.example.org")
