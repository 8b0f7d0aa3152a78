"""A model's repository on the hub: which files go there, proven before anybody can see them, and the one commit that
adds them.

There is our own file, which keeps everything (calibration, class names, resampling), and timm's two, which timm and
transformers read, if timm can hold the model.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from vitrail.errors import WeightsError, list_names
from vitrail.weights.addresses import OURS
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.write import CHECKPOINT_FILES, Conversion, convert
from vitrail.wording import reason

CARD = "README.md"
EMPTY = frozenset({".gitattributes"})  # what a repository holds from its beginning


@dataclass(frozen=True, kw_only=True)
class HubFiles:
    """What was written for the hub, and its proofs."""

    ours: Conversion
    timm: Conversion | None
    refusal: str  # why there are no files for timm and transformers, or ""


@dataclass(frozen=True, kw_only=True)
class HubRepository:
    """A repository as it was before the push."""

    name: str  # OWNER/NAME
    commit: str | None = None  # its newest; None: there is no such repository yet
    files: frozenset[str] = frozenset()


def check_name(name: str) -> None:
    """Raise unless this is OWNER/NAME, as the hub allows it."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    why = "; omit hf://" if name.startswith("hf://") else ""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        why = why or f" ({reason(error).splitlines()[0].rstrip('.')})"
    else:
        if "/" in name:
            return
    raise WeightsError(f"a model on the hub is called OWNER/NAME, such as anna/flowers; got {name!r}{why}.")


def write_files(source: str | Path, folder: Path, *, verify_with_peer: bool = False) -> HubFiles:
    """Write a model into a folder as the hub will have it; every file is read back and must answer the same."""
    ours = convert(source, folder / OURS, change=_without_paths)
    draft = folder / "timm"
    try:
        theirs = convert(folder / OURS, draft, "timm")
    except WeightsError as error:
        return HubFiles(ours=ours, timm=None, refusal=error.message.removesuffix(" Nothing was written.").rstrip("."))
    if verify_with_peer:  # what timm itself objects to is an error
        theirs = convert(folder / OURS, draft, "timm", verify_with_peer=True, overwrite=True)
    for file in draft.iterdir():
        file.replace(folder / file.name)
    draft.rmdir()
    return HubFiles(ours=ours, timm=theirs, refusal="")


def _without_paths(checkpoint: Checkpoint) -> Checkpoint:
    """Where the weights came from, without the folders of this machine, which concern nobody else."""
    source = checkpoint.origin.source
    if "://" in source or not re.search(r"[/\\]", source):
        return checkpoint
    return replace(checkpoint, origin=replace(checkpoint.origin, source=PurePath(source.replace("\\", "/")).name))


def find_repository(name: str, *, private: bool, overwrite: bool) -> HubRepository:
    """What the hub has under a name; an error if nothing may be added there, or something would be replaced unasked."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if get_token() is None:
        raise WeightsError(
            f"pushing to {name} needs a token of the hub: log in with: hf auth login (or set HF_TOKEN), and push again."
        )
    with _explained(name):
        try:
            info = HfApi().model_info(name)
        except RepositoryNotFoundError as error:
            if isinstance(error, GatedRepoError):
                raise
            return HubRepository(name=name)
    files = frozenset(each.rfilename for each in info.siblings or ())
    if private and not info.private:
        raise WeightsError(
            f"{name} exists and is public; `private=` is for a new one: change it in its settings first."
        )
    if (others := sorted(files - EMPTY)) and not overwrite:
        raise WeightsError(
            f"{name} exists and holds {list_names(others, most=4)}; choose another name, or pass `overwrite=` to "
            "replace the model and its card there (its history keeps the old ones)."
        )
    return HubRepository(name=name, commit=info.sha, files=files)


def upload(folder: Path, repository: HubRepository, *, private: bool) -> str:
    """Add the files of a folder in one commit, in place of the model that was there; the address of the page."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api, files = HfApi(), sorted(folder.iterdir())
    names = {file.name for file in files}
    old = sorted(name for name in repository.files - names if name == OURS or CHECKPOINT_FILES.fullmatch(name))
    with _explained(repository.name):
        if repository.commit is None:
            api.create_repo(repository.name, private=private or None)
    made = "" if repository.commit else f" (the repository {repository.name} was created, and is still empty)"
    with _explained(repository.name, made):
        api.create_commit(
            repository.name,
            [
                *(CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=file) for file in files),
                *(CommitOperationDelete(path_in_repo=name) for name in old),
            ],
            commit_message="Replace the model" if repository.files - EMPTY else "Add the model",
            parent_commit=repository.commit,
        )
    return f"{api.endpoint}/{repository.name}"


@contextmanager
def _explained(name: str, beside: str = "") -> Generator[None]:
    """Whatever the hub or the network's library raises as an error for users, in one line, without the token."""
    try:
        yield
    except Exception as error:  # of the hub, of the network's library or of the disk
        from huggingface_hub import get_token

        text = f"nothing was pushed to {name}: {_explain(error, name)}{beside}."
        raise WeightsError(text.replace(get_token() or "\0", "…")) from error


def _explain(error: Exception, name: str) -> str:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):  # one of several uploads
        error = error.__cause__
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so the hub is not asked"
    text = "; ".join(line.strip(" -") for line in reason(error).splitlines() if line.strip())
    if not isinstance(error, HfHubHTTPError):
        known = isinstance(error, ValueError)  # what huggingface_hub itself refuses, such as a card's metadata
        return text.rstrip(".") if known else f"the hub cannot be reached ({text.rstrip('.')})"
    status = error.response.status_code
    if status == 401:
        return "the hub does not accept the token; log in again with: hf auth login"
    if status == 403:
        owner = name.partition("/")[0]
        return (
            f"the token may not write there; check the name, or make a token that may write for {owner} at "
            "https://huggingface.co/settings/tokens"
        )
    if status == 412:
        return "the repository has changed in the meantime; push again"
    return f"the hub answers {status}: {(error.server_message or text).rstrip('.')}"
