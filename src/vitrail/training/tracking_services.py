"""The services that a run can be tracked with, each behind the same four methods.

A new one is a class, its line in `SERVICES` and its name in `TrackerName`; what it needs is imported when it opens.
"""

import logging
import netrc
import os
import re
import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

TrackerName = Literal["tensorboard", "wandb", "mlflow"]
Ending = Literal["finished", "stopped", "failed"]
PROJECT = "vitrail"  # where the user's own settings name no other


@dataclass(frozen=True)
class TrackedRun:
    """What a service must know to begin or continue a run."""

    folder: Path
    name: str
    config: dict[str, Any]  # on one level, without folders
    done_steps: int  # what comes after them is replaced, where the service can do that
    id: str  # that the service gave when the run began; empty if it did not


@dataclass(frozen=True)
class Result:
    """What a finished run has to show."""

    numbers: dict[str, float]
    figures: Sequence[Path]
    checkpoint: Path  # of the best weights
    step: int  # its last


class Service(ABC):
    """One place to write numbers and figures to."""

    name: ClassVar[TrackerName]
    extra: ClassVar[str]  # of vitrail, that installs what it needs
    packages: ClassVar[tuple[str, ...]]  # that must be there
    environment: ClassVar[dict[str, str]] = {}  # while it works, unless the user has set other values

    @abstractmethod
    def open(self, run: TrackedRun) -> str:
        """Begin or continue a run; the id by which it can be continued, if there is one."""

    @abstractmethod
    def log(self, numbers: dict[str, float], step: int) -> None:
        """Write some numbers."""

    @abstractmethod
    def keep(self, result: Result) -> None:
        """Keep what a finished run has to show."""

    @abstractmethod
    def close(self, ending: Ending) -> None:
        """Write what is left."""


class TensorBoard(Service):
    """Writes to `tensorboard/` in the run folder; a resumed run replaces what came after its checkpoint."""

    name, extra, packages = "tensorboard", "track", ("tensorboard",)

    def open(self, run: TrackedRun) -> str:
        self._folder = run.folder / "tensorboard"
        self._forget_host()
        module: Any = import_module("torch.utils.tensorboard")
        self._writer = module.SummaryWriter(str(self._folder), purge_step=run.done_steps + 1)
        rows = "".join(f"| {name} | {value} |\n" for name, value in run.config.items())
        self._writer.add_text("config", f"| setting | value |\n|---|---|\n{rows}", run.done_steps + 1)
        return ""

    def log(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def keep(self, result: Result) -> None:
        import numpy as np
        from PIL import Image

        self.log(result.numbers, result.step)
        for path in result.figures:
            with Image.open(path) as figure:
                self._writer.add_image(path.stem, np.asarray(figure.convert("RGB")), result.step, dataformats="HWC")

    def close(self, ending: Ending) -> None:
        self._writer.close()
        self._forget_host()

    def _forget_host(self) -> None:
        """The writer puts the host's name into that of its file; "0" sorts before it, so no reader takes it for new."""
        for path in self._folder.glob(f"*.{socket.gethostname()}.*"):
            path.rename(path.with_name(path.name.replace(f".{socket.gethostname()}.", ".0.", 1)))


class WandB(Service):
    """Weights & Biases: online for those who have logged in, otherwise files in `wandb/` for `wandb sync`."""

    name, extra, packages = "wandb", "wandb", ("wandb",)
    # By default it sends the host, the user, the program with its arguments, the packages, the code and its git remote.
    PRIVATE: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("disable_git", "disable_code", "x_disable_meta", "x_disable_stats"), True),
        **dict.fromkeys(("x_disable_machine_info", "disable_job_creation", "silent"), True),
        **dict.fromkeys(("save_code", "x_save_requirements", "symlink"), False),
        **dict.fromkeys(("host", "username", "email", "program", "program_abspath", "program_relpath"), ""),
        "x_executable": "",
        "console": "off",
        "init_timeout": 30,
    }

    def open(self, run: TrackedRun) -> str:
        wandb: Any = import_module("wandb")
        self._image = wandb.Image
        known = wandb.Settings.model_fields
        self._own = [run.folder / "wandb" / "cache"]
        with environment({"WANDB_CACHE_DIR": str(self._own[0].absolute())}):
            address = str(wandb.setup().settings.base_url)
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=run.name,
                id=run.id or None,
                resume="allow",
                reinit="create_new",  # beside a run that the user may have
                dir=os.path.relpath(run.folder),
                config=run.config,
                mode=os.environ.get("WANDB_MODE") or ("online" if has_wandb_key(address) else "offline"),
                settings=wandb.Settings(**{name: value for name, value in self.PRIVATE.items() if name in known}),
            )
        self._own.append(Path(self._run.dir).parent / "logs")
        # Its own steps only ever rise; ours go back when a run is rescued. Online, it knows how far it has come.
        self._run.define_metric("*", step_metric="step")
        self._seen = int(dict(self._run.summary).get("step") or 0) if self._run.resumed else 0
        return str(self._run.id)

    def log(self, numbers: dict[str, float], step: int) -> None:
        if step > self._seen:
            self._run.log({**numbers, "step": step})

    def keep(self, result: Result) -> None:
        self._run.summary.update(result.numbers)
        self._run.log({path.stem: self._image(str(path)) for path in result.figures} | {"step": result.step})

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=int(ending != "finished"))
        for folder in self._own:  # logs of its own work, which name this machine's folders
            shutil.rmtree(folder, ignore_errors=True)


def has_wandb_key(address: str) -> bool:
    """Whether the user has logged in at this address; otherwise it would ask on the terminal."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    hosts = [urlsplit(address).netloc]
    if hosts[0].endswith(("wandb.ai", "coreweave.com")):  # two names of one service
        hosts.append("api.wandb.ai")
    with suppress(OSError, netrc.NetrcParseError):
        logins = netrc.netrc(os.environ.get("NETRC"))
        return any(logins.authenticators(host) for host in hosts)
    return False


class MLflow(Service):
    """MLflow: the user's tracking server, or a database and files in `mlflow/` of the run folder.

    The best checkpoint becomes a model that `mlflow.pyfunc.load_model` opens. Everything goes through a client of our
    own, so that the user's active run and tracking URI stay as they are.
    """

    name, extra, packages = "mlflow", "mlflow", ("mlflow", "sqlalchemy", "alembic", "pandas")
    environment: ClassVar[dict[str, str]] = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # a server that is away must not hold up training for many minutes
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
        "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",  # which asks an index on the network
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
    STATUS: ClassVar[dict[Ending, str]] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
    CHUNK = 100  # numbers or settings in one request; it takes no more
    PATIENCE = 5.0  # seconds until numbers that wait for others are sent

    def open(self, run: TrackedRun) -> str:
        mlflow: Any = import_module("mlflow")
        self._batch: list[Any] = []
        self._sent = time.monotonic()
        self._metric = mlflow.entities.Metric
        self._seen: dict[str, int] = {}  # metric → its last step before the run was resumed
        local = None if mlflow.is_tracking_uri_set() else run.folder.resolve() / "mlflow"
        if local is not None:
            local.mkdir(exist_ok=True)
        with _quiet("mlflow"):
            self._client = mlflow.MlflowClient(None if local is None else f"sqlite:///{local / 'mlflow.db'}")
            self._experiment = self._find_experiment(None if local is None else (local / "artifacts").as_uri())
        self._resumed = bool(run.id) and self._reopen(run.id, mlflow.exceptions.MlflowException)
        if self._resumed:
            self._id = run.id
        else:
            tags = {"mlflow.user": PROJECT, "mlflow.source.name": PROJECT, "mlflow.source.type": "LOCAL"}
            self._id = str(self._client.create_run(self._experiment, tags=tags, run_name=run.name).info.run_id)
            settings = [mlflow.entities.Param(name, str(value)[:500]) for name, value in run.config.items()]
            for start in range(0, len(settings), self.CHUNK):
                self._client.log_batch(self._id, params=settings[start : start + self.CHUNK])
        return self._id

    def _find_experiment(self, artifacts: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment else self._client.create_experiment(name, artifacts)

    def _reopen(self, run_id: str, error: type[Exception]) -> bool:
        """Whether the service still has the run, which is then continued."""
        with suppress(error):
            self._client.update_run(run_id, status="RUNNING")
            return True
        return False

    def log(self, numbers: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        for name, value in numbers.items():
            key = re.sub(r"[^\w\-. :/]", "_", name)
            if step > self._last_step(key):
                self._batch.append(self._metric(key, value, now, step))
        if len(self._batch) >= self.CHUNK or time.monotonic() - self._sent > self.PATIENCE:
            self._send()

    def _last_step(self, key: str) -> int:
        """A resumed run computes the same numbers again, and what was written cannot be replaced: it is kept."""
        if self._resumed and key not in self._seen:
            history = self._client.get_metric_history(self._id, key)
            self._seen[key] = max((each.step for each in history), default=-1)
        return self._seen.get(key, -1)

    def _send(self) -> None:
        while self._batch:
            self._client.log_batch(self._id, metrics=self._batch[: self.CHUNK])
            del self._batch[: self.CHUNK]
        self._sent = time.monotonic()

    def keep(self, result: Result) -> None:
        self.log(result.numbers, result.step)
        self._send()
        for path in result.figures:
            self._client.log_artifact(self._id, str(path), "figures")
        self._keep_model(result)

    def _keep_model(self, result: Result) -> None:
        mlflow: Any = import_module("mlflow")
        logged = self._client.create_logged_model(self._experiment, name="model", source_run_id=self._id)
        with TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            facts = mlflow.models.Model(run_id=self._id, model_id=logged.model_id, artifact_path=None)
            write_model(result.checkpoint, folder, facts)
            self._client.log_model_artifacts(logged.model_id, str(folder))
        self._client.finalize_logged_model(logged.model_id, "READY")
        self._client.log_outputs(self._id, [mlflow.entities.LoggedModelOutput(logged.model_id, step=result.step)])

    def close(self, ending: Ending) -> None:
        self._send()
        self._client.set_terminated(self._id, self.STATUS[ending])


def write_model(checkpoint: Path, folder: Path, facts: Any) -> None:
    """A model for MLflow: the checkpoint, and `mlflow_model.py`, which opens it; nothing is pickled."""
    from PIL import Image

    from vitrail import __version__

    mlflow: Any = import_module("mlflow")
    mlflow.pyfunc.save_model(
        str(folder),
        python_model=str(Path(__file__).with_name("mlflow_model.py")),
        artifacts={"checkpoint": str(checkpoint)},
        pip_requirements=[f"vitrail[mlflow]>={__version__}"],
        mlflow_model=facts,
    )
    # Any picture shows what the answers are like; of the input, a table's columns would forbid arrays and lists.
    answer = mlflow.pyfunc.load_model(str(folder)).predict(Image.new("RGB", (64, 64), "gray"))
    facts.signature = mlflow.models.infer_signature(model_output=answer)
    flavor = facts.flavors["python_function"]  # has whole paths where MLflow reads only their last parts
    flavor["artifacts"]["checkpoint"]["uri"] = checkpoint.name
    flavor["model_code_path"] = "mlflow_model.py"
    facts.save(str(folder / "MLmodel"))


@contextmanager
def environment(settings: Mapping[str, str]) -> Generator[None]:
    """With these environment variables, where the user has not set them."""
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _quiet(name: str) -> Generator[None]:
    """Without what a library logs of its ordinary work."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


SERVICES: dict[TrackerName, type[Service]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
