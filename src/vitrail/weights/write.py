"""Any format, written completely or not at all; and conversion with proof.

The result of a conversion is read back, and its outputs must be the same.
"""

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitrail.errors import WeightsError
from vitrail.files import atomic_path
from vitrail.model import ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.divergence import explain_failure
from vitrail.weights.foreign.timm_architecture import name_hint
from vitrail.weights.infer import Hints
from vitrail.weights.peers import LIBRARIES, NO_LIBRARY, agree_with_peer
from vitrail.weights.proof import (
    TOLERANCE,
    Agreement,
    Photographs,
    agree,
    describe_changes,
    outputs,
    photograph_files,
    sample_images,
)
from vitrail.weights.read import FORMATS, check_format, open_checkpoint, read_checkpoint
from vitrail.weights.resolve import FormatName, Located, checksums_of, find_files, locate

# The names of files in which libraries keep a model in a folder.
CHECKPOINT_FILES = re.compile(
    r"(config|(pre)?processor_config)\.json|(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?"
)


def check_target(path: Path, format_name: FormatName) -> None:
    """Raise unless the path can hold the format."""
    check_format(format_name)
    if path.suffix not in FORMATS[format_name].suffixes:
        kinds = " or ".join(suffix or "no suffix (a folder)" for suffix in FORMATS[format_name].suffixes)
        raise WeightsError(f"a {format_name} checkpoint must have {kinds}; got {path}.")


def check_writable(config: ViTConfig, path: Path, format_name: FormatName) -> None:
    """Raise unless the format can hold the model and the path can hold the format."""
    check_target(path, format_name)
    if reasons := FORMATS[format_name].refusals(config):
        raise WeightsError(f"{format_name} cannot hold this model: {'; '.join(reasons)}.")


def check_task(checkpoint: Checkpoint, format_name: FormatName) -> None:
    """Raise for a head whose outputs another project's readers would take for classes."""
    task = checkpoint.task
    if task.kind != "one" and checkpoint.config.num_classes and format_name != "vitrail":
        raise WeightsError(
            f"{format_name} cannot hold this model: its readers expect one class per picture, and this head gives "
            f"{task.noun[1]} (task {task.kind}); keep our format, export the model, or remove its head with "
            "`num_classes=0`."
        )


def check_replaceable(path: Path) -> None:
    """Raise if a folder that would be replaced holds anything but a checkpoint."""
    if not path.is_dir():
        return
    others = sorted(item.name for item in path.iterdir() if not CHECKPOINT_FILES.fullmatch(item.name) or item.is_dir())
    if others:
        raise WeightsError(
            f"{path} holds other things, which we will not delete: {', '.join(others[:5])}; name another folder."
        )


def write_checkpoint(checkpoint: Checkpoint, path: str | Path, format_name: FormatName = "vitrail") -> None:
    """Write any format, atomically; what the format cannot express is an error, never dropped."""
    target = Path(path)
    check_writable(checkpoint.config, target, format_name)
    check_task(checkpoint, format_name)
    check_replaceable(target)
    with atomic_path(target) as draft:
        write_draft(checkpoint, draft, format_name)


def write_draft(checkpoint: Checkpoint, draft: Path, format_name: FormatName) -> None:
    """Write to a temporary path; `check_writable` comes first."""
    FORMATS[format_name].write(checkpoint, draft)


ROUNDED = {torch.float16: 5e-3, torch.bfloat16: 5e-2}  # the same for weights that are written with fewer digits


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What a conversion read, wrote and proved."""

    source_format: FormatName
    target_format: FormatName
    agreement: Agreement  # on the same pictures
    photographs: Agreement | None  # from picture files, each with its own preprocessing, if the target holds one
    source_peer: Agreement | None  # the source format's own library, on the source
    peer: Agreement | None  # the target format's own library, on the result
    notes: tuple[str, ...]
    assumed: tuple[str, ...]  # the notes that opening the source warned about
    how_to_load: str
    source: str = ""
    target: str = ""

    exit_code = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        facts = asdict(self)
        del facts["source"]
        return {"target": facts.pop("target"), **facts}

    def lines(self) -> Iterator[str]:
        """What the command prints."""
        yield f"{self.source} ({self.source_format}) → {self.target} ({self.target_format})"
        proofs = {
            f"{self.source_format}'s own library, on the source": self.source_peer,
            "read back": self.agreement,
            "from photograph files to outputs": self.photographs,
            f"{self.target_format}'s own library": self.peer,
        }
        for who, proof in proofs.items():
            if proof is not None:
                yield f"{who}: {proof.describe()}"
        yield from (f"note: {note}" for note in self.notes if note not in self.assumed)  # of which a warning told
        if self.how_to_load:
            yield f"load it: {self.how_to_load}"
        yield f"inspect it: vitrail inspect {self.target}"


def convert(
    source: str | Path,
    target: str | Path,
    to: FormatName = "vitrail",
    *,
    source_format: FormatName | None = None,
    hints: Hints | None = None,
    change: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint,
    dtype: torch.dtype | None = None,
    tolerance: float | None = None,
    pictures: Sequence[Path] = (),
    verify_with_peer: bool = False,
    overwrite: bool = False,
) -> Conversion:
    """Read, `change` (see `adapt`), write and check; nothing is left at `target` unless the check passes.

    With a `dtype`, the weights are rounded to it; the check compares with the weights before rounding.
    """
    strict = TOLERANCE if tolerance is None else tolerance  # the source's own library uses the unrounded weights
    tolerance = ROUNDED.get(dtype, TOLERANCE) if dtype is not None and tolerance is None else strict
    path = Path(target)
    check_target(path, to)
    if source_format is not None:
        check_format(source_format)
    _check_unused(path, Path(source), overwrite)
    located = locate(source, allow_pickle=True)
    original = _open(located, source_format, hints)
    checkpoint = change(original)
    check_writable(checkpoint.config, path, to)
    check_task(checkpoint, to)
    notes = _check_input_size(checkpoint, to, path)
    source_peer = None
    if verify_with_peer:
        source_peer, unasked = _ask_source(original, located, hints, strict, pictures)
        notes += unasked
        if to not in LIBRARIES and source_peer is None:
            raise WeightsError(NO_LIBRARY.format(to))
    del original
    images = sample_images(checkpoint, pictures)
    expected = outputs(checkpoint, images)
    photographs = Photographs(checkpoint, pictures) if path.suffix in FORMATS[to].self_describing else None
    before = replace(checkpoint, tensors={name: tensor.to("meta") for name, tensor in checkpoint.tensors.items()})
    with atomic_path(path) as draft:
        write_draft(checkpoint if dtype is None else checkpoint.rounded(dtype), draft, to)
        del checkpoint  # frees the memory of its weights for what is read back
        _return_memory()
        written, unstated = _read_again(draft, to, before)

        def why(library_files: Path | None = None) -> str:
            source = written if library_files else change(_open(located, source_format, hints))
            return explain_failure(source, written, images, tolerance, library_files)

        agreement = agree(expected, outputs(written, images), tolerance, f"the {to} checkpoint, read back,", why)
        seen, kernels = None, ()
        if photographs is not None:
            seen, kernels = photographs.prove(written, tolerance, to)
        peer = None
        if verify_with_peer and to in LIBRARIES:
            who = f"{to}'s own library"
            files = photograph_files(before, pictures)
            peer = agree_with_peer(written, draft, expected, images, files, tolerance, who, lambda: why(draft))
    return Conversion(
        source_format=before.file_format,
        target_format=to,
        agreement=agreement,
        photographs=seen,
        source_peer=source_peer,
        peer=peer,
        notes=(*before.notes, *before.remarks, *notes, *unstated, *_losses(before, written, kernels)),
        assumed=() if before.file_format == "vitrail" else before.notes,
        how_to_load=FORMATS[to].how_to_load(before, path),
    )


def _check_input_size(checkpoint: Checkpoint, to: FormatName, path: Path) -> tuple[str, ...]:
    """Raise if a folder's preprocessing gives pictures that its own library's model refuses; otherwise add a note."""
    prepared, expected = checkpoint.preprocess.size, checkpoint.config.image_size
    if prepared == expected:
        return ()
    sizes = f"the preprocessing gives pictures of {prepared[0]}×{prepared[1]}, "
    sizes += f"and the model expects {expected[0]}×{expected[1]}"
    if path.suffix in FORMATS[to].self_describing and not FORMATS[to].resamples(checkpoint.config):
        raise WeightsError(
            f"{sizes}; {to} needs these to be equal: resample the positions with "
            f'`resize="{prepared[0]}x{prepared[1]}"`.'
        )
    return (f"{sizes}: its positions are resampled for every picture",)


def _check_unused(path: Path, source: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise WeightsError(f"{path} exists; choose another name, or pass `overwrite=` to replace it.")
    check_replaceable(path)
    if path.is_dir() and path.resolve() in (source.resolve(), *source.resolve().parents):
        raise WeightsError(f"{path} holds the source itself; choose another name.")


def _ask_source(
    original: Checkpoint, located: Located, hints: Hints | None, tolerance: float, pictures: Sequence[Path]
) -> tuple[Agreement | None, tuple[str, ...]]:
    """The source's own library, built from the source's files, compared with what we read from them."""
    files = find_files(located.fetch(allow_pickle=True))
    if original.file_format not in ("hf", "timm") or not (files[0].parent / "config.json").is_file():
        return None, ()
    if hints not in (None, Hints()) or located.is_google:
        return None, ("the source's own library was not run, because hints override what the source says",)
    images = sample_images(original, pictures)
    photos = photograph_files(original, pictures)
    where = files[0] if original.file_format == "timm" else files[0].parent
    who = f"{LIBRARIES[original.file_format]}, run on the source itself,"

    def why() -> str:
        return explain_failure(original, original, images, tolerance, where)

    return agree_with_peer(original, where, outputs(original, images), images, photos, tolerance, who, why), ()


def _open(located: Located, source_format: FormatName | None, hints: Hints | None) -> Checkpoint:
    """The source, with the checksums of its files in its origin."""
    checkpoint = open_checkpoint(located, format_name=source_format, hints=hints, allow_pickle=True)
    if checkpoint.file_format == "vitrail":
        return checkpoint  # it records its own origin
    sums = checksums_of(located.fetch(allow_pickle=True))
    return replace(checkpoint, origin=replace(checkpoint.origin, sha256=sums))


def _return_memory() -> None:
    """Let glibc return the memory of freed weights; other systems do so by themselves, or keep it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _losses(before: Checkpoint, after: Checkpoint, kernels: Sequence[str]) -> list[str]:
    """What the target format does not keep, although the outputs are the same."""
    notes = list(kernels)
    if (changed := describe_changes(before.preprocess, after.preprocess)) and not kernels:
        notes.append(f"the target has another preprocessing: {changed}")
    positions = before.config.positions, after.config.positions
    if positions[0].kind != "none" and (changed := describe_changes(*positions)):
        notes.append(f"the target uses another kernel for other picture sizes: {changed}")
    if before.classes and not after.classes:
        notes.append("the target does not keep the class names")
    if before.trust and not after.trust:
        notes.append("the target does not keep what the calibration found: its probabilities are the uncalibrated ones")
    if before.config.rates != after.config.rates:
        notes.append("the target does not keep all dropout rates, which matter in training only")
    if lost := sorted(before.extras.keys() - after.extras.keys()):
        notes.append(f"the target does not keep {', '.join(lost)}, which no forward pass reads")
    return notes


def _read_again(draft: Path, to: FormatName, before: Checkpoint) -> tuple[Checkpoint, tuple[str, ...]]:
    """The result as any reader reads it; or with hints for what the file does not state, and a note that lists them."""
    known = _unstated_in_some(before.config)
    if to == "timm":
        known["architecture"] = name_hint(before.config, before.origin.dialect_of("timm"))
    try:
        written = read_checkpoint(draft, format_name=to, allow_pickle=True)
    except WeightsError:
        unstated = [name for name, value in known.items() if value is not None]
    else:
        unstated = [name for name, value in _unstated_in_some(written.config).items() if known[name] != value]
        if known.get("architecture") and written.config.relative != before.config.relative:
            unstated.append("architecture")
        if not unstated:
            return written, ()
    written = read_checkpoint(draft, format_name=to, hints=Hints(**known), allow_pickle=True)
    listed = ", ".join(f"{name} {known[name]}" for name in unstated)
    return written, (f"such a file does not state everything, so its readers must know: {listed}",)


def _unstated_in_some(config: ViTConfig) -> dict[str, Any]:
    """What the files of some formats do not state, as hints."""
    hints = {"heads": config.heads, "pooling": config.pooling, "activation": config.block.activation}
    hints |= {"norm_eps": config.block.norm_eps}
    return {**hints, "image_size": config.image_size, "patch_size": config.patch_size}
