"""Who computes the units of a job: the threads of this process, the ranks that torchrun started, or the actors of Ray.

All of them do the same with a unit: read its pictures, prepare, compute, answer, and create its part. Pictures are
computed in the same batches everywhere, so that the rows are the same, too.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.errors import ConfigError, DataError, MissingExtraError, VitrailError
from vitrail.files import sha256_of
from vitrail.prediction.job import Job
from vitrail.prediction.listing import Item, read_items
from vitrail.prediction.predictor import Predictor, load
from vitrail.prediction.results import Floats, Named, Request
from vitrail.prediction.row_tables import columns_of, embedding_table, prediction_schema, prediction_table
from vitrail.prediction.steps import answer, run_steps
from vitrail.storage import is_address
from vitrail.threads import in_chunks, map_in_order
from vitrail.weights.resolve import files_of, locate
from vitrail.wording import reason

READERS = 4  # batches that are fetched from an object store in advance, by a thread each
POLL = 0.5  # seconds between two looks at what another process has done
Outputs = list[tuple[str, Floats | str]]


class UnitDone(NamedTuple):
    """A unit that was computed."""

    unit: int
    rows: int
    errors: int


class _Batch(NamedTuple):
    """Some pictures of a unit."""

    unit: int
    items: list[Item]
    is_last: bool
    pictures: list[Any]  # their contents, or why they cannot be read; empty if they have not been read yet


@dataclass(frozen=True, kw_only=True)
class UnitWorker:
    """A job and its model: computes units one after the other, on all cores of this process."""

    job: Job
    predictor: Predictor

    def run(self, units: Iterable[int]) -> Iterator[UnitDone]:
        """Compute units and write their parts, in the order given; the next ones are begun before one is written."""
        self.predictor_check()
        batches = self._batches(units)
        if any(map(is_address, self.job.spec.pictures)) or self.job.spec.list_file is not None:
            batches = map_in_order(_read, batches, READERS)
        waiting: Outputs = []
        for batch, outputs in map_in_order(self._compute, batches, self.predictor.runtime.threads):
            waiting += outputs
            if batch.is_last:
                self.job.write_part(batch.unit, self._table(waiting))
                yield UnitDone(batch.unit, len(waiting), self._errors(waiting))
                waiting = []

    def predictor_check(self) -> None:
        """Refuse what this model cannot answer."""
        if self.job.spec.task == "predict":
            self._request.check(self.predictor, self.predictor.runtime)

    def _batches(self, units: Iterable[int]) -> Iterator[_Batch]:
        size = int(self.job.spec.resolved["batch_size"])
        for unit in units:
            chunks = list(in_chunks(self.job.items(unit), size))
            for number, chunk in enumerate(chunks, start=1):
                yield _Batch(unit, chunk, number == len(chunks), [])

    def _compute(self, batch: _Batch) -> tuple[_Batch, Outputs]:
        batch = batch if batch.pictures else _read(batch)
        readable: list[Named] = [
            (item.name, picture)
            for item, picture in zip(batch.items, batch.pictures, strict=True)
            if not isinstance(picture, OSError)
        ]
        wanted = "features" if self.job.spec.task == "embed" else "answers"
        outputs = iter(run_steps(self.predictor, self.predictor.runtime, readable, wanted))
        rows = [
            (item.name, f"{item.name}: {reason(picture)}") if isinstance(picture, OSError) else next(outputs)
            for item, picture in zip(batch.items, batch.pictures, strict=True)
        ]
        return batch._replace(pictures=[]), rows

    @property
    def _request(self) -> Request:
        settings = self.job.spec.settings
        return Request(top_k=settings["top_k"], coverage=settings["coverage"], abstain=settings["abstain"])

    def _table(self, rows: Outputs) -> Any:
        if self.job.spec.task == "embed":
            return embedding_table(rows, int(self.job.spec.resolved["width"]))
        request, model = self._request, self.predictor
        columns = columns_of(model, request)
        answers = [answer(model, name, value, model.num_classes, request) for name, value in rows]
        return prediction_table(answers, columns, prediction_schema(columns))

    @staticmethod
    def _errors(rows: Outputs) -> int:
        return sum(isinstance(value, str) for _, value in rows)


def _read(batch: _Batch) -> _Batch:
    return batch._replace(pictures=read_items(batch.items))


def open_model(job: Job, device: str = "auto") -> Predictor:
    """The model of a job, as it was when the job began, on the runtime that was chosen there."""
    from vitrail.machine import pick_device

    spec = job.spec
    check_model(job)
    return load(
        spec.model["source"],
        class_names=spec.settings["class_names"],
        merge=spec.settings["merge"],
        preprocess=spec.settings["preprocess"],
        runtime=spec.resolved["runtime"],
        precision=spec.resolved["precision"],
        device=pick_device(device) if spec.resolved["runtime"] == "torch" else "cpu",
    )


def check_model(job: Job) -> None:
    """Refuse a model that is not the one with which the job began."""
    files = checksums(job.spec.model["source"])
    if files != job.spec.model["files"]:
        source, where = job.spec.model["source"], job.store.root
        raise ConfigError(f"{source} has changed since the job {where} began; restore it, or begin a new job.")


def checksums(source: str) -> dict[str, str]:
    """The files of a model, by name, and their checksums."""
    return {file.name: sha256_of(file) for file in files_of(locate(source, allow_export=True).fetch())}


def run_in_threads(job: Job, predictor: Predictor) -> Iterator[UnitDone]:
    """All units that are not finished, in this process; pictures are listed as they are needed."""
    finished = job.finished()

    def units() -> Iterator[int]:
        first = 0
        for listed in job.list_pictures():
            yield from (unit for unit in range(first, listed) if unit not in finished)
            first = listed

    return UnitWorker(job=job, predictor=predictor).run(units())


def run_in_ranks(job: Job, predictor: Predictor, rank: int, world_size: int) -> Iterator[UnitDone]:
    """This rank's share of the units; the first rank lists the pictures, and the others wait for what they need."""
    finished = job.finished()

    def units() -> Iterator[int]:
        listing = job.list_pictures() if rank == 0 else None
        known = 0
        for unit in count(rank, world_size):
            while unit >= known and listing is not None and (more := next(listing, None)) is not None:
                known = more
            if not _is_there(job, unit, waits=listing is None):
                return
            if unit not in finished:
                yield unit

    return UnitWorker(job=job, predictor=predictor).run(units())


def _is_there(job: Job, unit: int, *, waits: bool) -> bool:
    """Whether there is such a unit, as soon as that is known."""
    while True:
        listed = job.listed()
        if listed is not None:
            return unit < listed.units
        if job.is_listed(unit):
            return True
        if not waits:
            return False
        time.sleep(POLL)


def run_on_ray(job: Job, device: str, workers: int | None) -> Iterator[UnitDone]:
    """All units that are not finished, by the actors of Ray: on a running cluster ($RAY_ADDRESS), or on this machine.

    A row of Ray's data set is the number of a unit, and not a picture, so that its store of objects stays empty. An
    actor that is lost is started again, and with it the unit that it was computing.
    """
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        from ray.data import ActorPoolStrategy, DataContext, from_items
    except ImportError:
        raise MissingExtraError("`engine='ray'`", "ray") from None
    out = job.out if is_address(job.out) else str(Path(job.store.root).absolute())  # an actor has a folder of its own
    finished = job.finished()
    total = max(job.list_pictures())
    units = [{"unit": unit} for unit in range(total) if unit not in finished]
    if not units:
        return
    for logger in ("ray", "ray.data"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    try:
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        resources: Any = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if device in ("auto", "cuda") else 0
        most = workers or gpus or int(resources["CPU"])
        needs: dict[str, Any] = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        rows: Any = from_items(units, override_num_blocks=min(len(units), MOST_BLOCKS)).map_batches(
            RayWorker,
            fn_constructor_kwargs={"out": out, "device": device},
            batch_size=1,
            compute=ActorPoolStrategy(size=min(most, len(units))),
            **needs,
        )
        for row in rows.iter_rows():
            if row["failure"]:
                raise DataError(row["failure"])
            yield UnitDone(int(row["unit"]), int(row["rows"]), int(row["errors"]))
    finally:
        if started:
            ray.shutdown()


# Read by Ray when it is imported and when its processes start: no usage reports, no messages to nobody.
RAY_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_DEDUP_LOGS": "0"}
MOST_BLOCKS = 1000  # of Ray's data set: each costs a little; a lost actor computes what is left of its block again


class RayWorker:
    """An actor: a model that computes units, and tells no more than how many rows it has written."""

    def __init__(self, out: str, device: str) -> None:
        self._out, self._device = out, device

    @cached_property
    def _worker(self) -> UnitWorker:
        job = Job.open(self._out)
        return UnitWorker(job=job, predictor=open_model(job, self._device))

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """What was computed; or what the user can mend, as a row, since Ray turns every error into one of its own."""
        units = [int(unit) for unit in batch["unit"]]
        done, failure = list[UnitDone](), ""
        try:
            left = [unit for unit in units if not self._worker.job.is_finished(unit)]
            done = list(self._worker.run(left))
        except VitrailError as error:
            done, failure = [UnitDone(units[0], 0, 0)], error.message
        except OSError as error:
            done, failure = [UnitDone(units[0], 0, 0)], f"{reason(error)}."
        facts = {name: [getattr(each, name) for each in done] for name in UnitDone._fields}
        return {**facts, "failure": [failure] * len(done)}
