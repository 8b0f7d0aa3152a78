"""Jobs: every row exactly once, on each kind of store, whatever fails and whoever dies."""

import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.prediction.conftest import write_tiny
from tests.prediction.test_listing import encoded, table_of, tar_of

import vitrail
import vitrail.verbs.run_job as verb
from fuzzing import TIMES, in_fuzz_only
from processes import run, run_ranks, start, wait_for
from stores import contents, failing_stores, put, remove
from vitrail.cli.main import main
from vitrail.errors import ConfigError, DataError
from vitrail.prediction import job as jobs
from vitrail.prediction.executors import RayWorker, UnitWorker
from vitrail.verbs.run_job import JobResult, run_job

UNIT = 4
COUNT = 18  # pictures: four units, and a half


@pytest.fixture(autouse=True)
def _small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_units(monkeypatch)


def use_small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "UNIT", UNIT)
    monkeypatch.setattr(jobs, "UNITS_PER_FILE", 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("model") / "tiny.safetensors"))


@pytest.fixture
def photos(store_root: str) -> str:
    return put_photos(f"{store_root}/photos")


def put_photos(root: str) -> str:
    files = {f"{number:02d}.png": encoded(number) for number in range(COUNT)}
    put(root, files | {"05.png": b"no picture"})
    return root


def work(model: str, photos: str, out: str, **options: Any) -> JobResult:
    result = run_job(model, photos, out, runtime="torch", batch_size=3, **options)
    assert isinstance(result, JobResult)
    return result


def rows_of(result: JobResult) -> pa.Table:
    return pa.concat_tables(result.parts())


def test_a_job_gives_the_rows_of_predict(model: str, photos: str, store_root: str) -> None:
    result = work(model, photos, f"{store_root}/out", top_k=2)
    assert (result.pictures, result.units, result.errors, result.computed) == (COUNT, 5, 1, COUNT)
    assert result.exit_code == 1
    expected = list(vitrail.predict(model, photos, top_k=2, runtime="torch", batch_size=3))
    rows = rows_of(result).to_pylist()
    assert [row["picture"] for row in rows] == [row.picture for row in expected]
    assert [tuple(row["labels"]) for row in rows] == [row.labels for row in expected]
    assert [row["scores"] for row in rows] == [pytest.approx(row.scores, rel=1e-5) for row in expected]
    assert [row["error"] for row in rows] == [row.error for row in expected]
    names = [name for name in contents(f"{store_root}/out") if name.startswith("parts/")]
    assert names == [f"parts/part-{number:08d}.parquet" for number in range(5)]
    assert json.loads(contents(f"{store_root}/out")["_DONE"]) == {"pictures": COUNT, "units": 5, "errors": 1}
    text = "\n".join(map(str, result.lines()))
    assert "18 pictures in 5 parts" in text
    assert "a million take" in text
    assert "1 could not be read" in text


def test_a_job_of_embeddings(model: str, photos: str, store_root: str) -> None:
    result = run_job(model, photos, f"{store_root}/out", task="embed", runtime="torch", batch_size=3)
    assert isinstance(result, JobResult)
    rows = rows_of(result).to_pylist()
    expected = list(vitrail.load(model).embed([f"{photos}/{number:02d}.png" for number in range(COUNT)], batch_size=3))
    for row, one in zip(rows, expected, strict=True):
        assert row["error"] == one.error
        assert row["features"] is None if one.vector is None else row["features"] == pytest.approx(one.vector, rel=1e-5)
    assert "vitrail search" in result.following


def test_resume_computes_only_what_is_missing(model: str, photos: str, store_root: str) -> None:
    out = f"{store_root}/out"
    whole = rows_of(work(model, photos, out))
    before = contents(out)
    for name in ("parts/part-00000001.parquet", "_DONE"):
        remove(out, name)
    result = work(model, photos, out, resume=True)
    assert result.computed == UNIT
    assert rows_of(result).equals(whole)
    assert contents(out) == before
    assert work(model, photos, out, resume=True).computed == 0


def test_a_listing_goes_on_where_it_stopped(model: str, photos: str, store_root: str) -> None:
    out = f"{store_root}/out"
    work(model, photos, out)
    before = contents(out)
    for name in ("manifest/_DONE", "manifest/names-00002.parquet", "_DONE"):
        remove(out, name)
    put(photos, {"005.png": encoded(1)})  # before what was listed, so it is not seen; a new listing would move all
    assert work(model, photos, out, resume=True).computed == 0
    assert contents(out) == before


def test_a_listing_that_ended_without_saying_so(model: str, tmp_path: Path) -> None:
    photos, out = put_photos(str(tmp_path / "photos")), str(tmp_path / "out")
    work(model, photos, out)
    before = contents(out)
    for name in ("manifest/_DONE", "_DONE"):
        remove(out, name)
    assert work(model, photos, out, resume=True).computed == 0
    assert contents(out) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"is a job already; resume=True continues it, or name another place"),
        ({"resume": True, "top_k": 3}, r"other settings: top_k= must be omitted, as when it began; got 3"),
        ({"resume": True, "task": "embed"}, r"task= must be 'predict', as when it began; got 'embed'"),
        ({"resume": True, "batch_size": 5}, r"batch_size= must be 3, as when it began; got 5"),
    ],
)
def test_another_job_in_the_same_place_is_refused(
    model: str, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    photos = put_photos(str(tmp_path / "photos"))
    work(model, photos, str(tmp_path / "out"))
    before = contents(str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=message):
        run_job(model, photos, tmp_path / "out", **{"runtime": "torch", "batch_size": 3, **changes})
    assert contents(str(tmp_path / "out")) == before


def test_another_model_or_other_pictures_are_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "own.safetensors")
    photos = put_photos(str(tmp_path / "photos"))
    work(str(path), photos, str(tmp_path / "out"))
    with pytest.raises(
        ConfigError, match=r"pictures= must be \['.*/photos'\], as when it began; got \['.*/photos/01.png"
    ):
        work(str(path), f"{photos}/01.png", str(tmp_path / "out"), resume=True)
    write_tiny(path, ("one", "two"))
    with pytest.raises(ConfigError, match=r"the files of the model must be"):
        work(str(path), photos, str(tmp_path / "out"), resume=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "spark"}, "engine= has no 'spark'"),
        ({"engine": "torchrun"}, "engine= needs ranks, which torchrun starts"),
        ({"workers": 2}, "workers= must be at least 1, and goes with engine='ray'"),
        ({"precision": "auto"}, "precision= must be float32 or bf16"),
        ({"out": ""}, "out= must name the folder or address"),
        (
            {"pictures": "s3://me:secret@bucket/x"},
            r"^s3://bucket/x: an address of data must not hold a password",
        ),
        ({"pictures": ["gone.jpg"]}, "gone.jpg: there is no such picture"),
        ({"pictures": ""}, "a picture's name is empty"),
        ({"pictures": "-"}, "must find its pictures again when it is resumed: not on standard input"),
        ({"list_file": "-"}, "must find its pictures again when it is resumed: not on standard input"),
        ({"task": "predicted"}, "task= must be predict or embed; got 'predicted'"),
        ({"top_k": 0}, "top_k= must be at least 1"),
        ({"coverage": 0.9}, "coverage= needs a calibrated model"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    model: str, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    usual = {"pictures": put_photos(str(tmp_path / "photos")), "out": tmp_path / "out", "runtime": "torch"}
    with pytest.raises(vitrail.VitrailError, match=message) as raised:
        run_job(model, **{**usual, **arguments})
    assert "secret" not in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["predict", "--job", "j", "--out", "x.csv", "--format", "csv"],
            "--format and --out cannot be used with --job",
        ),
        (["predict", "--job", "j", "--raw"], "--raw cannot be used with --job"),
        (["embed", "--job", "j", "--format", "npy", "--map", "tsne"], "--format and --map cannot be used with --job"),
        (["embed", "--job", "j", "--data", "photos"], "--data cannot be used with --job"),
        (["embed", "--job", "j", "--val-rate", "0.3"], "--val-rate cannot be used with --job"),
        (["predict", "--engine", "ray"], "--engine goes with --job"),
        (["embed", "--resume"], "--resume goes with --job"),
    ],
)
def test_the_command_refuses_what_a_job_cannot_have(
    model: str, words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    put_photos("photos")
    verb, *rest = words
    assert main([verb, model, "photos", *rest]) == 2
    assert why in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_under_torchrun_only_a_job_shares_the_pictures(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["predict", model, put_photos(str(tmp_path / "photos"))]) == 2
    assert "every rank would compute every picture; --job shares them" in capsys.readouterr().err


def test_a_job_needs_what_other_processes_can_open(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="paths or addresses of its pictures; got bytes"):
        run_job(model, [b"x"], tmp_path / "j")  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="not a loaded model"):
        run_job(vitrail.load(model), put_photos(str(tmp_path / "photos")), tmp_path / "j")


def test_both_doors_give_the_same_rows(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    put_photos("photos")
    words = ["predict", model, "photos", "--job", "typed", "--top-k", "2", "--runtime", "torch", "--batch-size", "3"]
    assert main(words) == 1  # a picture cannot be read
    assert "18 pictures in 5 parts" in capsys.readouterr().out
    assert pq.read_table("typed/parts").equals(rows_of(work(model, "photos", "called", top_k=2)))
    assert main([*words, "--resume"]) == 1
    assert "18 of them finished before" in capsys.readouterr().out


def test_a_damaged_part_is_found(model: str, tmp_path: Path) -> None:
    photos, out = put_photos(str(tmp_path / "photos")), tmp_path / "out"
    work(model, photos, str(out))
    (out / "_DONE").unlink()
    part = out / "parts" / "part-00000002.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"part-00000002.parquet: damaged .*; delete it, and resume the job"):
        work(model, photos, str(out), resume=True)
    table = pq.read_table(part.with_name("part-00000001.parquet"))
    pq.write_table(table.slice(1), part)
    with pytest.raises(DataError, match=r"must hold 18 rows; got 17"):
        work(model, photos, str(out), resume=True)
    part.unlink()
    work(model, photos, str(out), resume=True)
    assert part.read_bytes() == whole
    assert (out / "_DONE").exists()


def test_files_of_another_job_are_found(model: str, tmp_path: Path) -> None:
    photos, out = put_photos(str(tmp_path / "photos")), tmp_path / "out"
    work(model, photos, str(out))
    foreign = out / "parts" / "part-00000099.parquet"
    foreign.write_bytes(b"")
    with pytest.raises(DataError, match=r"part-00000099.parquet: not of this job, which has 5 parts; delete it"):
        work(model, photos, str(out), resume=True)
    foreign.unlink()
    (out / "job.json").unlink()
    with pytest.raises(ConfigError, match=r"holds rows of a job, but not its job.json; delete them"):
        work(model, photos, str(out), top_k=1)
    assert not (out / "job.json").exists()


@pytest.mark.parametrize(("name", "lost"), [("names-00001.parquet", 3), ("_DONE", 0)])
def test_a_damaged_manifest_is_found(model: str, tmp_path: Path, name: str, lost: int) -> None:
    photos, out = put_photos(str(tmp_path / "photos")), tmp_path / "out"
    work(model, photos, str(out))
    (out / "parts" / f"part-{lost:08d}.parquet").unlink()
    file = out / "manifest" / name
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"{name}: cannot be read .*; restore it, or begin a new job"):
        work(model, photos, str(out), resume=True)


def stop_listing(out: Path) -> None:
    """A job as it was when the first file of its manifest, and nothing else, was there."""
    for path in (*(out / "parts").iterdir(), *(out / "manifest").iterdir(), out / "_DONE"):
        if path.name != "names-00000.parquet":
            path.unlink()


def test_relative_paths_of_a_list_are_those_where_the_job_began(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_photos(str(tmp_path / "photos"))
    names = tmp_path / "names.txt"
    names.write_text("".join(f"photos/{number:02d}.png\n" for number in range(COUNT)))
    monkeypatch.chdir(tmp_path)
    whole = rows_of(run_list(model, names, "out"))
    stop_listing(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert rows_of(run_list(model, names, tmp_path / "out", resume=True)).equals(whole)
    assert whole.column("error").null_count == COUNT - 1


def test_a_list_that_changed_while_it_was_read_is_refused(model: str, tmp_path: Path) -> None:
    photos = put_photos(str(tmp_path / "photos"))
    lines = [f"{photos}/{number:02d}.png\n" for number in range(COUNT)]
    names = tmp_path / "names.txt"
    names.write_text("".join(lines))
    run_list(model, names, tmp_path / "out")
    stop_listing(tmp_path / "out")
    names.write_text("".join(lines[1:]))
    with pytest.raises(DataError, match=r"names.txt: line 8 must be .*07.png, as when the listing began"):
        run_list(model, names, tmp_path / "out", resume=True)


def run_list(model: str, names: Path, out: str | Path, **options: Any) -> JobResult:
    result = run_job(model, [], out, list_file=names, runtime="torch", batch_size=3, **options)
    assert isinstance(result, JobResult)
    return result


def test_a_listing_that_another_process_overtakes(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, out = put_photos(str(tmp_path / "photos")), tmp_path / "out"
    whole = rows_of(work(model, photos, str(out)))
    first = (out / "manifest" / "names-00000.parquet").read_bytes()
    stop_listing(out)
    (out / "manifest" / "names-00000.parquet").unlink()
    put(photos, {"005.png": encoded(1)})  # which the other process has not seen
    real = jobs.Job._write_manifest

    def overtaken(self: jobs.Job, number: int, found: Any) -> int:
        if number == 0:
            put(str(out), {"manifest/names-00000.parquet": first})
        return real(self, number, found)

    monkeypatch.setattr(jobs.Job, "_write_manifest", overtaken)
    assert rows_of(work(model, photos, str(out), resume=True)).equals(whole)


def test_two_that_begin_a_job_at_once(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, out = put_photos(str(tmp_path / "photos")), str(tmp_path / "out")
    real = verb._resolve

    def overtaken(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(verb, "_resolve", real)
        work(model, photos, out)
        return real(*arguments, **options)

    monkeypatch.setattr(verb, "_resolve", overtaken)
    assert work(model, photos, out, resume=True).computed == 0


def test_a_table_that_is_gone_is_rows_with_errors(model: str, tmp_path: Path) -> None:
    pictures, out = tmp_path / "tables", tmp_path / "out"
    put(str(pictures), {f"{name}.parquet": table_of([encoded(1), encoded(2), None]) for name in "ab"})
    assert work(model, str(pictures), str(out)).errors == 2
    stop_listing(out)
    (pictures / "a.parquet").unlink()
    assert work(model, f"{pictures}", str(out), resume=True).errors == 4


def test_an_actor_tells_what_failed_as_a_row(model: str, tmp_path: Path) -> None:
    photos, out = put_photos(str(tmp_path / "photos")), tmp_path / "out"
    work(model, photos, str(out))
    (out / "parts" / "part-00000000.parquet").unlink()
    manifest = out / "manifest" / "names-00000.parquet"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-9])
    failed = RayWorker(str(out), "cpu")({"unit": [0]})
    assert failed["unit"] == [0]
    assert "names-00000.parquet: cannot be read" in failed["failure"][0]
    manifest.write_bytes(whole)
    done = {"unit": [0], "rows": [UNIT], "errors": [0], "failure": [""]}
    assert RayWorker(str(out), "cpu")({"unit": [0]}) == done
    assert RayWorker(str(out), "cpu")({"unit": [0]}) == {name: [] for name in done}, "somebody has computed it"
    assert "no-such" in RayWorker(str(tmp_path / "no-such"), "cpu")({"unit": [0]})["failure"][0]


@pytest.mark.parametrize("late", [False, True] if TIMES > 1 else [True])
def test_a_store_that_fails_once_leaves_no_half_part_and_no_missing_row(model: str, late: bool) -> None:
    root = f"memory://failing-{late}"
    photos = put_photos(f"{root}/photos")
    whole = rows_of(work(model, photos, f"{root}/whole"))
    number, failed = 0, 0
    while True:
        number += 1
        out = f"{root}/out-{number}"
        with failing_stores(number, late=late) as store:
            try:
                work(model, photos, out)
            except (DataError, ConfigError):
                failed += 1
        if not store.failed:
            break
        assert rows_of(work(model, photos, out, resume=True)).equals(whole), store.failed
        assert contents(out).keys() == contents(f"{root}/whole").keys()
    assert failed >= 20


# Processes that are killed: `work_logged` notes which units were computed before they are written.


def work_logged(model: str, photos: str, out: str, log: str, seconds: float = 0.0) -> None:
    real = UnitWorker._compute

    def compute(self: UnitWorker, batch: Any) -> Any:
        time.sleep(seconds)
        if batch.is_last:
            with Path(log).open("a") as file:
                file.write(f"{batch.unit}\n")
        return real(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        use_small_units(patch)
        patch.setattr(UnitWorker, "_compute", compute)
        run_job(model, photos, out, runtime="torch", batch_size=3, resume=True)


@in_fuzz_only
def test_a_driver_that_is_killed_at_ten_random_moments(model: str, tmp_path: Path) -> None:
    photos, out, log = put_photos(str(tmp_path / "photos")), tmp_path / "out", tmp_path / "log"
    whole = rows_of(work(model, photos, str(tmp_path / "whole")))
    draw = random.Random(0)
    computed: Counter[int] = Counter()
    for _ in range(10):
        finished = {int(path.stem[5:]) for path in (out / "parts").glob("*.parquet")}
        log.unlink(missing_ok=True)
        process = start(work_logged, model, photos, str(out), str(log), 0.03)
        wait_for(out.exists)
        time.sleep(draw.uniform(0.0, 0.6))
        process.kill()
        process.join()
        units = {int(line) for line in log.read_text().split()} if log.exists() else set()
        assert not units & finished, "a finished unit was computed again"
        computed.update(units)
    assert run(work_logged, model, photos, str(out), str(log)) == 0
    result = work(model, photos, str(out), resume=True)
    assert result.computed == 0
    assert rows_of(result).equals(whole)


def work_as_rank(model: str, photos: str, out: str, log: str) -> None:
    work_logged(model, photos, out, f"{log}-{os.environ['RANK']}")


@in_fuzz_only
def test_ranks_share_the_units(model: str, tmp_path: Path) -> None:
    photos, out, log = put_photos(str(tmp_path / "photos")), str(tmp_path / "out"), str(tmp_path / "log")
    whole = rows_of(work(model, photos, str(tmp_path / "whole")))
    assert run_ranks(work_as_rank, model, photos, out, log) == [0, 0]
    shares = [{int(line) for line in Path(f"{log}-{rank}").read_text().split()} for rank in range(2)]
    assert shares == [{0, 2, 4}, {1, 3}]
    result = work(model, photos, out, resume=True)
    assert result.computed == 0
    assert rows_of(result).equals(whole)


SMALL, SHARDS = 20_000, 40


@in_fuzz_only
def test_every_engine_gives_the_same_rows_and_survives_a_killed_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # units of their usual size
    model = str(write_tiny(tmp_path / "tiny.safetensors"))
    pictures = [encoded(seed) for seed in range(50)]
    each = SMALL // SHARDS
    shards = {
        f"t-{shard:03d}.tar": tar_of(**{f"{index:04d}_png": pictures[(shard + index) % 50] for index in range(each)})
        for shard in range(SHARDS)
    }
    put(str(tmp_path / "shards"), shards)
    threads = work_large(model, tmp_path, "threads")
    assert isinstance(threads, JobResult)
    whole = rows_of(threads)
    assert len(whole) == SMALL
    assert run_ranks(work_large, model, tmp_path, "torchrun") == [0, 0]
    driver = start(work_large, model, tmp_path, "ray")
    parts = tmp_path / "ray" / "parts"
    wait_for(lambda: parts.exists() and any(parts.iterdir()))
    actors = [child for child in psutil.Process(driver.pid).children(recursive=True) if "RayWorker" in child.name()]
    actors[0].kill()
    driver.join()
    assert driver.exitcode == 0
    for name in ("torchrun", "ray"):
        result = run_job(model, tmp_path / "shards", tmp_path / name, runtime="torch", resume=True)
        assert isinstance(result, JobResult)
        assert result.computed == 0
        assert rows_of(result).equals(whole), name


def work_large(model: str, folder: Path, engine: Any) -> Any:
    return run_job(model, folder / "shards", folder / engine, engine=engine, runtime="torch")


def test_a_bundled_model_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though there is a folder of that name, which `predict` would not take for the model either."""
    monkeypatch.chdir(tmp_path)
    put_photos("photos")
    Path("cifar10").mkdir()
    assert isinstance(run_job("cifar10", "photos", "out", runtime="torch"), JobResult)
    assert json.loads(Path("out/job.json").read_text())["model"]["source"] == "cifar10"
