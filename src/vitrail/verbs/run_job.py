"""`vitrail.run_job`: labels or embeddings for an archive of pictures, each exactly once, on one machine or many."""

import inspect
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from vitrail.errors import ConfigError, DataError, InputError, suggest
from vitrail.files import load_pyarrow
from vitrail.prediction.inputs import check_pictures
from vitrail.prediction.listing import STDIN, is_pattern
from vitrail.prediction.results import Request
from vitrail.progress import Progress, ending, pick_progress, say_line, silent
from vitrail.registry import PrecisionChoice, RuntimeChoice, key_of
from vitrail.storage import hide_secrets, is_address, refuse_secrets
from vitrail.threads import num_cores, usable_cores
from vitrail.verbs.call import RuntimeRequest, check_standard_input, resolve_model
from vitrail.weights.metadata import ClassNames, read_class_names
from vitrail.wording import counted, duration

if TYPE_CHECKING:
    import torch

    from vitrail.prediction.job import Job, JobSpec, Task, Totals
    from vitrail.prediction.predictor import Predictor
    from vitrail.verbs import Output
    from vitrail.verbs.call import ModelArgument

EngineName = Literal["threads", "torchrun", "ray"]
MILLION = 1_000_000
SAMPLE = 64  # pictures by which the fastest runtime is chosen
POLL = 1.0  # seconds between two looks at what another rank has done


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """A job that has come to its end; under torchrun, what its first rank knows."""

    out: str  # where the parts are
    pictures: int
    units: int
    errors: int  # pictures that could not be read: rows with an error
    computed: int = 0  # pictures of this call; the others were finished before
    seconds: float = 0.0  # of this call
    cores: int = 1
    task: "Task" = "predict"
    following: str = field(default="", repr=False)  # a command to try next

    @property
    def exit_code(self) -> int:
        """1: some pictures could not be read."""
        return int(self.errors > 0)

    @property
    def rate(self) -> float:
        """Pictures per second of this call."""
        return self.computed / self.seconds if self.seconds else 0.0

    def parts(self) -> Iterator[Any]:
        """The rows, as Arrow tables of 4,096, in the order of the pictures."""
        from vitrail.prediction.job import Job, part_file

        _, pq = load_pyarrow("reading a job")
        job = Job.open(self.out)
        for unit in range(self.units):
            with job.store.open(part_file(unit)) as file:
                yield pq.read_table(file)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        facts = {name: value for name, value in vars(self).items() if name != "following"}
        return facts | {"out": hide_secrets(self.out), "rate": self.rate}

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        done = f"{counted(self.pictures, 'picture')} in {counted(self.units, 'part')}"
        if self.computed < self.pictures:
            done += f", {self.pictures - self.computed:,} of them finished before"
        yield done
        if self.computed:
            yield f"{counted(self.computed, 'picture')} in {duration(self.seconds)}, {self.rate:,.0f} per second"
            million = MILLION / self.rate
            hours = f"{million * self.cores / 3600:,.1f} hours of a core"
            yield f"a million take {duration(million)} at this rate ({hours})"
        if self.errors:
            yield Text(f"{self.errors:,} could not be read: rows with an error", style="yellow")
        yield from ending([hide_secrets(self.out)], self.following)


def run_job(
    model: "Predictor | str | Path | None",
    pictures: str | Path | Sequence[str | Path] = (),
    out: str | Path = "",
    *,
    task: "Task" = "predict",
    list_file: str | Path | None = None,
    engine: EngineName | None = None,
    workers: int | None = None,
    resume: bool = False,
    class_names: ClassNames | None = None,
    top_k: int | None = None,
    coverage: float | None = None,
    abstain: bool = False,
    batch_size: int | None = None,
    runtime: RuntimeChoice = "auto",
    precision: PrecisionChoice = "float32",
    merge: int | Sequence[int] | None = None,
    preprocess: str | None = None,
    device: "str | torch.device" = "auto",
    progress: bool | Progress = False,
) -> JobResult | None:
    """Labels ("predict") or embeddings ("embed") of any number of pictures, as Parquet files of 4,096 rows in `out`.

    Pictures and `out` may be in object stores (s3://…). Whatever ends the job, or one of its processes, with `resume`
    it goes on: no finished row is computed again, and none is missing or there twice. The command has it as
    `vitrail predict … --job OUT` and `vitrail embed … --job OUT`. Under torchrun, only the first rank has a result.

    Args:
        model: A checkpoint, as for `vitrail predict`.
        pictures: Files, folders, patterns, .tar shards, .parquet tables, or addresses of them.
        out: The folder or address to write to.
        task: What to compute: predict or embed.
        list_file: A file with one path or address per line.
        engine: Who computes: threads, torchrun or ray [default: torchrun's ranks, or else the threads of this process].
        workers: Ray's actors [default: one per GPU of the cluster, or else one per core].
        resume: Continue a job that has begun.
        class_names: Names for the model's classes, or a file with them.
        top_k: How many labels to give for each picture, at most [default: 5 classes; of several labels, all that
            apply].
        coverage: Also give the set of labels, or the interval of each value, that holds the truth this often, such as
            0.95; for a calibrated model.
        abstain: Give no answer to pictures that are unlike anything seen in training; for a calibrated model.
        batch_size: Pictures per forward pass [default: whatever suits the model].
        runtime: The backend; auto: the fastest whose answers equal torch's, measured once.
        precision: The number format: float32 or bf16.
        merge: Merge about this many similar patches in each block, for speed.
        preprocess: For an ONNX file of another tool, how its pictures are prepared.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps, …
    """
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    chosen = _choose_engine(engine, world_size, workers)
    for name, number in (("top_k", top_k), ("batch_size", batch_size)):
        if number is not None and number < 1:
            raise ConfigError(f"must be at least 1; got {number}.", field=name)
    if task not in ("predict", "embed"):
        raise ConfigError(f"must be predict or embed; got {task!r}.", field="task")
    if precision == "auto":
        raise ConfigError("must be float32 or bf16, so that all rows of a job are alike.", field="precision")
    if not str(out):
        raise ConfigError("must name the folder or address to write to.", field="out")
    load_pyarrow("A job")
    if model is not None and not isinstance(model, str | Path):
        raise ConfigError("a job needs the file of its model, which other processes can open; not a loaded model.")
    given = _names(pictures)
    if STDIN in given or str(list_file) == STDIN:
        raise InputError("a job must find its pictures again when it is resumed: not on standard input.")
    if "" in given:
        check_pictures([""])
    sources = [_absolute(each) for each in given]
    listed = None if list_file is None else _absolute(list_file)
    check_standard_input(sources, listed)
    check_pictures(sources)
    request = RuntimeRequest(runtime=runtime, precision=precision, merge=merge, preprocess=preprocess)
    source = resolve_model(model, device=device, class_names=class_names, request=request)
    answers = Request(top_k=top_k, coverage=coverage, abstain=abstain)
    spec = _describe(source, task, sources, listed, class_names, answers, batch_size)
    where = str(out)
    _absolute(where)  # which refuses secrets
    shows = progress is not False and rank == 0
    job, predictor = _begin(source, where, spec, rank, resume=resume, speaks=shows)
    from vitrail.prediction.executors import run_in_ranks, run_in_threads, run_on_ray

    before, start = job.finished(), time.perf_counter()
    if chosen == "ray":
        done = run_on_ray(job, str(device), workers)
    elif chosen == "torchrun":
        done = run_in_ranks(job, predictor, rank, world_size)
    else:
        done = run_in_threads(job, predictor)
    try:
        with (pick_progress(progress) if rank == 0 else silent)("pictures") as advance:
            for unit in done:
                advance(unit.rows)
    except DataError as error:
        raise DataError(f"{error.message} What is finished is kept: `resume=True` continues the job.") from error
    except KeyboardInterrupt:
        if shows:
            say_line(f"interrupted: what is finished is kept in {job.store.root}, and can be resumed")
        raise
    if rank > 0:
        job.finish()
        return None
    totals = _wait_for_all(job, speaks=shows) if chosen == "torchrun" else job.finish()
    if totals is None:
        raise DataError(f"{job.store.root}: files of the job are gone; `resume=True` computes them again.")
    return JobResult(
        out=where,
        computed=totals.pictures - sum(job.size_of(unit, totals.pictures) for unit in before),
        seconds=time.perf_counter() - start,
        cores=(workers or usable_cores()) if chosen == "ray" else num_cores() * world_size,
        task=task,
        following=_following(source.source, given, where, task),
        **vars(totals),
    )


def _following(model: str, pictures: Sequence[str], out: str, task: "Task") -> str:
    """A command to try next."""
    if task == "embed":
        return shlex.join(["vitrail", "search", hide_secrets(out), "PICTURE"])
    return f"vitrail embed {shlex.join([model, *(pictures[:1] or ['PICTURES'])])} --job embeddings"


def run_predict(
    arguments: dict[str, Any],
    _: "Output",
    *,
    job: str | Path | None = None,
    engine: EngineName | None = None,
    workers: int | None = None,
) -> Any:
    """`vitrail predict`: as the verb does, or as a job.

    Args:
        job: Write the predictions to this folder or address (s3://…) as Parquet files of 4,096 rows, each row exactly
            once, whatever is interrupted; for archives, and for several processes or machines.
        engine: Who computes a job: threads, torchrun or ray [default: torchrun's ranks, or else the threads of this
            process].
        workers: Ray's actors [default: one per GPU of the cluster, or else one per core].
    """
    from vitrail.verbs.predict import predict

    return _call(predict, "predict", arguments, job, engine=engine, workers=workers)


def run_embed(
    arguments: dict[str, Any],
    _: "Output",
    *,
    job: str | Path | None = None,
    engine: EngineName | None = None,
    workers: int | None = None,
    resume: bool = False,
) -> Any:
    """`vitrail embed`: as the verb does, or as a job.

    Args:
        job: Write the embeddings to this folder or address (s3://…) as Parquet files of 4,096 rows, each row exactly
            once, whatever is interrupted; for archives, and for several processes or machines.
        engine: Who computes a job: threads, torchrun or ray [default: torchrun's ranks, or else the threads of this
            process].
        workers: Ray's actors [default: one per GPU of the cluster, or else one per core].
        resume: Continue a job.
    """
    from vitrail.verbs.embed import embed

    return _call(embed, "embed", arguments, job, engine=engine, workers=workers, resume=resume or None)


def _call(verb: Callable[..., Any], task: "Task", arguments: dict[str, Any], job: str | Path | None, **own: Any) -> Any:
    """The verb without a job; the job otherwise, which refuses what only the verb has."""
    given = {name: value for name, value in own.items() if value is not None}
    if job is None:
        if given:
            raise ConfigError("goes with `job=`, the place to write to.", field=next(iter(given)))
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("under torchrun, every rank would compute every picture; `job=` shares them.")
        return verb(progress=True, **arguments)
    known = inspect.signature(run_job).parameters
    typed = {name: value for name, value in arguments.items() if not (name == "out" and value is True)}
    if others := [f"`{name}=`" for name in typed if name not in known or name == "out"]:
        raise ConfigError(f"{' and '.join(others)} cannot be used with `job=`, which writes Parquet files of its own.")
    return run_job(**typed, **given, out=job, task=task, progress=True)


def _names(pictures: Any) -> list[str]:
    """The pictures of a job, which its processes must be able to find by their names."""
    several: list[Any] = [pictures] if isinstance(pictures, str | Path | bytes) else list(pictures)
    if others := [each for each in several if not isinstance(each, str | Path)]:
        raise ConfigError(f"a job needs the paths or addresses of its pictures; got {type(others[0]).__name__}.")
    return [str(each) for each in several]


def _choose_engine(asked: EngineName | None, world_size: int, workers: int | None) -> EngineName:
    if asked is not None and asked not in get_args(EngineName):
        raise ConfigError(f"has no {asked!r}; {suggest(str(asked), get_args(EngineName))}", field="engine")
    if world_size > 1 and asked not in (None, "torchrun"):
        raise ConfigError(f"under torchrun, its ranks compute; omit `engine={asked}`.")
    if asked == "torchrun" and "RANK" not in os.environ:
        command = "torchrun --nproc-per-node 2 -m vitrail predict …"
        raise ConfigError(f"needs ranks, which torchrun starts: {command}", field="engine")
    if workers is not None and (asked != "ray" or workers < 1):
        raise ConfigError("must be at least 1, and goes with `engine='ray'`.", field="workers")
    return asked or ("torchrun" if world_size > 1 else "threads")


def _absolute(where: str | Path) -> str:
    """A path as every process understands it; an address as it is, without secrets, since job.json keeps it."""
    text = str(where)
    if not is_address(text):
        return str(Path(escape(str(Path.cwd())), text)) if is_pattern(text) else str(Path(text).absolute())
    refuse_secrets(text)
    return text.rstrip("/")


def _describe(
    source: "ModelArgument",
    task: "Task",
    sources: Sequence[str],
    listed: str | None,
    class_names: ClassNames | None,
    answers: Request,
    batch_size: int | None,
) -> "JobSpec":
    from vitrail.prediction.executors import checksums
    from vitrail.prediction.job import JobSpec
    from vitrail.weights.resolve import BUNDLED, bundled_path

    place, path = source.source, source.place.path
    if path is not None and not (place in BUNDLED and path == bundled_path(place)):
        place = str(path.absolute())  # but a name of the hub or of a bundled model is the same everywhere
    merge = source.request.merge
    settings = {
        **vars(answers),
        **vars(source.request),
        "merge": merge if merge is None or isinstance(merge, int) else list(merge),
        "class_names": None if class_names is None else list(read_class_names(class_names)),
        "batch_size": batch_size,
    }
    model = {"source": place, "files": checksums(place)}
    return JobSpec(task=task, model=model, pictures=list(sources), list_file=listed, settings=settings)


def _begin(
    source: "ModelArgument", out: str, spec: "JobSpec", rank: int, *, resume: bool, speaks: bool
) -> "tuple[Job, Predictor]":
    """The job, begun here or before, and its model; the runtime is chosen once, by the process that begins it."""
    from vitrail.prediction.executors import open_model
    from vitrail.prediction.job import Job

    while True:
        try:
            job = Job.open(out)
            break
        except FileNotFoundError:
            if rank == 0:
                predictor, resolved = _resolve(source, spec, speaks=speaks)
                begun = Job.begin(out, replace(spec, resolved=resolved))
                if begun is not None:
                    return begun, predictor
            time.sleep(POLL)  # until the first rank has begun it
    if rank == 0 and not (resume or _was_restarted()):
        raise ConfigError(f"{job.store.root} is a job already; `resume=True` continues it, or name another place.")
    job.spec.check_same(spec, job.store.root)
    return job, open_model(job, str(source.device))


def _was_restarted() -> bool:
    from vitrail.ranks import was_restarted

    return was_restarted()


def _resolve(source: "ModelArgument", spec: "JobSpec", *, speaks: bool) -> "tuple[Predictor, dict[str, Any]]":
    """The model on the runtime that is fastest here, and how others find the same."""
    from vitrail.prediction.inputs import first_pictures
    from vitrail.prediction.predictor import MANY

    predictor = source.open(speaks=speaks)
    if spec.task == "predict":
        predictor.answering(Request(**{name: spec.settings[name] for name in vars(Request())}))
    some = islice(first_pictures(spec.pictures, spec.list_file), SAMPLE)
    predictor = source.put(predictor, MANY, some, speaks=speaks)
    spec_of = predictor.preprocess
    blank = np.zeros((1, spec_of.channels, *spec_of.size), dtype=np.float32)
    resolved = {
        "runtime": key_of(predictor.runtime.name) or "torch",
        "precision": source.request.precision,
        "batch_size": spec.settings["batch_size"] or predictor.runtime.batch_size,
        "folder": str(Path.cwd()),
        "width": int(predictor.runtime.features(blank).shape[1]) if spec.task == "embed" else None,
    }
    return predictor, resolved


def _wait_for_all(job: "Job", *, speaks: bool) -> "Totals":
    """The totals, as soon as all ranks have finished their units."""
    waits = False
    while (totals := job.finish()) is None:
        if speaks and not waits:
            say_line("waiting for the other ranks")
        waits = True
        time.sleep(POLL)
    return totals
