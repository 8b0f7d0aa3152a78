"""`vitrail.push`: a model and its card to the hub, where vitrail, timm and transformers load it by its name."""

import shlex
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from vitrail.errors import ConfigError
from vitrail.files import atomic_path, check_run_folder, new_run_folder
from vitrail.progress import ending, working

if TYPE_CHECKING:
    from vitrail.training.result import Run
    from vitrail.weights.hub_repository import HubFiles


@dataclass(frozen=True, kw_only=True)
class Push:
    """What was written, proven and, unless it was a dry run, pushed."""

    source: str
    name: str  # OWNER/NAME on the hub
    url: str  # of its page; "" for a dry run
    folder: Path | None  # where the files are on this machine; None if they were not kept
    files: "HubFiles"
    megabytes: float

    exit_code = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        timm = self.files.timm
        return {
            "name": self.name,
            "url": self.url or None,
            "folder": None if self.folder is None else str(self.folder),
            "megabytes": self.megabytes,
            "agreement": asdict(self.files.ours.agreement),
            "timm": None if timm is None else asdict(timm.agreement),
            "timm_own_library": None if timm is None or timm.peer is None else asdict(timm.peer),
            "why_not_timm": self.files.refusal or None,
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        timm = self.files.timm
        where = self.url or f"{self.folder} (a dry run: nothing was pushed to {self.name})"
        yield f"{self.source} → {where}, {self.megabytes:.1f} MB"
        yield f"for vitrail, read back: {self.files.ours.agreement.describe()}"
        if timm is None:
            yield f"without files for timm and transformers: {self.files.refusal}"
        else:
            yield f"for timm and transformers, read back: {timm.agreement.describe()}"
            if timm.peer is not None:
                yield f"timm's own library: {timm.peer.describe()}"
        notes = dict.fromkeys(note for each in (self.files.ours, timm) if each is not None for note in each.notes)
        yield from (f"note: {note}" for note in notes if note not in self.files.ours.assumed)
        written = [] if self.folder is None else sorted(self.folder.iterdir())
        if self.url:
            yield from ending(written, f"vitrail predict hf://{self.name} PICTURES")
        else:
            yield from ending(written, f"read the card, then: vitrail push {shlex.quote(self.source)} {self.name}")


def push(
    model: "str | Path | Run",
    name: str,
    *,
    licence: str | None = None,
    private: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    out: str | Path | None = None,
    verify_with_peer: bool = False,
    progress: bool = False,
) -> Push:
    """Push a model and its card to the Hugging Face hub, in a layout that vitrail, timm and transformers read.

    Every file is written to a folder of this machine first, read back and proven to give the same outputs. One commit
    then adds them all. The token is the one of `hf auth login`, or HF_TOKEN.

    Args:
        model: A training run, or a checkpoint: a file, a folder, hf://owner/name or google://NAME. In Python, also a
            run as training returns it.
        name: OWNER/NAME of the repository on the hub, which is made if it does not exist.
        licence: The licence of the model, as the hub abbreviates it, such as apache-2.0 or cc-by-4.0 [default: none is
            stated].
        private: Make the new repository private.
        overwrite: Replace the model and its card, if the repository has some.
        dry_run: Only write the files and prove them; the hub is not contacted.
        out: A new folder to keep the files in [default: runs/push-N for a dry run, else none].
        verify_with_peer: Also let timm itself run its files; it must be installed.
        progress: Show progress on the error stream.
    """
    from vitrail.report.assembly import run_of
    from vitrail.report.model_card import model_card
    from vitrail.report.run_facts import read_facts
    from vitrail.weights import hub_repository
    from vitrail.weights.addresses import OURS
    from vitrail.weights.native import read_native
    from vitrail.weights.resolve import is_run, locate

    source = str(model) if isinstance(model, str | Path) else str(model.folder)
    hub_repository.check_name(name)
    locate(source)
    run = run_of(source)
    facts = read_facts(run) if is_run(run) else None
    _check_out(out)
    repository = None if dry_run else hub_repository.find_repository(name, private=private, overwrite=overwrite)
    with _staging(out, dry_run=dry_run) as (draft, folder):
        with working("writing and proving the files", speaks=progress):
            files = hub_repository.write_files(source, draft, verify_with_peer=verify_with_peer)
            card = model_card(name, read_native(draft / OURS), files, facts, licence)
            (draft / hub_repository.CARD).write_text(card, encoding="utf-8")
        megabytes = sum(file.stat().st_size for file in draft.iterdir()) / 1e6
        url = ""
        if repository is not None:
            with _hub_bars(progress):
                url = hub_repository.upload(draft, repository, private=private)
    return Push(source=source, name=name, url=url, folder=folder, files=files, megabytes=megabytes)


def _check_out(out: str | Path | None) -> None:
    """Refuse a folder that exists or cannot be made, before there is work to lose."""
    if out is None:
        return
    if Path(out).exists():
        raise ConfigError(f"`out=` must be a new folder; {out} exists.")
    check_run_folder(Path(out).parent)


@contextmanager
def _staging(out: str | Path | None, *, dry_run: bool) -> Generator[tuple[Path, Path | None]]:
    """A folder to write the files into, and where they will be when all has gone well; None: nowhere."""
    if out is None and not dry_run:
        with TemporaryDirectory(prefix="vitrail-push-") as draft:
            yield Path(draft), None
        return
    folder = new_run_folder("push") if out is None else Path(out)
    try:
        with atomic_path(folder) as draft:
            draft.mkdir()
            yield draft, folder
    except BaseException:
        if out is None:
            folder.rmdir()
        raise


@contextmanager
def _hub_bars(shown: bool) -> Generator[None]:
    """Let huggingface_hub show how far it is, or not."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
