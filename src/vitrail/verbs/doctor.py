"""What a bug report needs to know about a machine, an installation, a checkpoint and a data set, as Markdown.

Nothing here identifies its user: the home folder is written as `~`, and no environment variable is printed.
"""

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from vitrail import __version__
from vitrail.cache import cache_folder, size_on_disk
from vitrail.errors import VitrailError
from vitrail.machine import ONEDNN_LIMIT, has_unusable_amx, installed_version, main_memory, processor_name
from vitrail.threads import usable_cores
from vitrail.wording import counted

ROOT = Path(__file__).resolve().parents[1]
CHECKED_PICTURES = 20_000  # for a larger data set, only the counts are reported
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;\s*extra\s*==\s*['\"]([\w-]+)['\"])?")


@dataclass(frozen=True, kw_only=True)
class DiagnosisSection:
    """Facts under one heading, and the problems among them."""

    title: str
    facts: tuple[tuple[str, str], ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that `doctor` found."""

    sections: tuple[DiagnosisSection, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems of all sections."""
        return tuple(problem for section in self.sections for problem in section.problems)

    @property
    def markdown(self) -> str:
        """To paste into an issue."""
        lines: list[str] = []
        for section in self.sections:
            lines += [f"### {section.title}", "", "| | |", "|---|---|"]
            lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in section.facts]
            lines += ["", *(f"- **problem**: {_cell(problem)}" for problem in section.problems)]
            lines += [""] if section.problems else []
        return "\n".join(lines).rstrip() + "\n"

    def _repr_markdown_(self) -> str:
        return self.markdown

    @property
    def exit_code(self) -> int:
        """1: something is wrong."""
        return int(bool(self.problems))

    def lines(self) -> Iterator[str]:
        """What the command prints."""
        yield self.markdown.rstrip()


def doctor(model: str | Path | None = None, data: str | Path | None = None) -> Diagnosis:
    """Examine this installation, and a checkpoint and a data set if they are given.

    Args:
        model: Also examine this checkpoint: a file, a run folder, hf://owner/name or google://NAME.
        data: Also examine this data set.
    """
    sections = [_machine(), _installation()]
    if model is not None:
        sections.append(_guarded("Checkpoint", str(model), _checkpoint))
    if data is not None:
        sections.append(_guarded("Data", str(data), _data))
    return Diagnosis(sections=tuple(sections))


def _cell(text: str) -> str:
    """Text for a table or a list: no line breaks, bars or control characters, and the home folder as `~`."""
    text = " ".join(text.replace(str(Path.home()), "~").split())
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text).replace("|", "\\|")


def _guarded(title: str, name: str, examine: Callable[[str], DiagnosisSection]) -> DiagnosisSection:
    """A section about something that may be missing or broken: then its error is the problem."""
    try:
        return examine(name)
    except (VitrailError, OSError) as error:
        return DiagnosisSection(title=title, facts=(("name", name),), problems=(str(error),))


def _machine() -> DiagnosisSection:
    import torch

    cores, usable, memory = os.cpu_count() or 1, usable_cores(), main_memory()
    of_them = "" if usable == cores else f" ({usable} usable)"
    limit = f", without AMX ({ONEDNN_LIMIT}={os.environ.get(ONEDNN_LIMIT)})" if has_unusable_amx() else ""
    capability = torch.backends.cpu.get_cpu_capability()
    facts = [
        ("system", platform.platform()),
        ("processor", f"{processor_name()}, {counted(cores, 'core')}{of_them}, {capability}{limit}"),
        ("memory", f"{memory / 2**30:.1f} GiB" if memory else "unknown"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
    ]
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    facts += [
        (f"GPU {index}", f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB, compute capability {gpu.major}.{gpu.minor}")
        for index, gpu in enumerate(gpus)
    ]
    if torch.backends.mps.is_available():
        facts.append(("GPU", "Apple (mps)"))
    elif not gpus:
        facts.append(("GPU", "none that torch can use"))
    return DiagnosisSection(title="Machine", facts=tuple(facts))


def _installation() -> DiagnosisSection:
    from huggingface_hub.constants import HF_HUB_CACHE

    from vitrail.weights.resolve import DEFAULT_MODEL

    core, extras = _requirements()
    facts = [
        ("vitrail", f"{__version__}, {'installed' if 'site-packages' in ROOT.parts else f'from {ROOT}'}"),
        ("Python", f"{platform.python_implementation()} {sys.version.split()[0]}"),
        ("packages", ", ".join(f"{name} {installed_version(name) or 'MISSING'}" for name in core)),
    ]
    for extra, names in extras.items():
        missing = [name for name in names if installed_version(name) is None]
        there = ", ".join(f"{name} {installed_version(name)}" for name in names if name not in missing)
        lacking = f'missing {", ".join(missing)} (pip install "vitrail[{extra}]")' if missing else ""
        facts.append((f"extra {extra}", "; ".join(filter(None, (there, lacking)))))
    facts.append(("Hugging Face cache", _cache(Path(HF_HUB_CACHE))))
    facts.append(("vitrail's cache", f"{cache_folder()}: {size_on_disk(cache_folder()) / 2**20:,.0f} MiB"))
    problems = [
        f"the package {name} is not installed; run: pip install {name}" for name in core if not installed_version(name)
    ]
    try:
        from vitrail.weights.read import open_checkpoint

        open_checkpoint(DEFAULT_MODEL)
    except VitrailError as error:
        problems.append(str(error))
    return DiagnosisSection(title="Installation", facts=tuple(facts), problems=tuple(problems))


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """The packages that vitrail needs, and those of each extra, as the package itself declares them."""
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        declared = distribution("vitrail").requires or []
    except PackageNotFoundError:  # a working copy on the path
        return ["torch", "numpy", "pillow", "safetensors"], {}
    for requirement in declared:
        match = _REQUIREMENT.match(requirement)
        assert match is not None
        name, extra = match.groups()
        (core if extra is None else extras.setdefault(extra, [])).append(name)
    return core, {name: names for name, names in extras.items() if name not in ("dev", "peers")}


def _cache(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: empty"
    models = [path.name.removeprefix("models--").replace("--", "/") for path in sorted(folder.glob("models--*"))]
    size = sum(path.stat().st_size for path in folder.glob("*/blobs/*") if path.is_file())
    shown = ", ".join(models[:8]) + (f" and {len(models) - 8} more" if len(models) > 8 else "")
    return f"{folder}: {size / 2**20:,.0f} MiB; {shown or 'no models'}"


def _checkpoint(name: str) -> DiagnosisSection:
    """What a checkpoint is, likely problems with it, and whether it can process a photograph."""
    from vitrail.prediction import load
    from vitrail.weights.proof import sample_photos
    from vitrail.weights.read import open_checkpoint
    from vitrail.weights.sanity import diagnose

    checkpoint = open_checkpoint(name, allow_pickle=True)
    config = checkpoint.config
    facts = [
        ("name", name),
        ("format", checkpoint.file_format),
        ("model", f"{config.depth} blocks, width {config.width}, {config.heads} heads, patches {config.patch_size}"),
        ("input", f"{config.channels}×{config.image_size[0]}×{config.image_size[1]}, {config.num_classes} classes"),
    ]
    findings = diagnose(checkpoint)
    facts += [("warning", finding.message) for finding in findings if finding.severity == "warning"]
    problems = [finding.message for finding in findings if finding.severity == "error"]
    if not problems and checkpoint.file_format == "vitrail":
        vector = load(name).embed(sample_photos()[0]).vector
        assert vector is not None
        facts.append(("a photograph", f"gives {len(vector)} finite features"))
    return DiagnosisSection(title="Checkpoint", facts=tuple(facts), problems=tuple(problems))


def _data(name: str) -> DiagnosisSection:
    """How many pictures there are, and what the data check finds."""
    from vitrail.data.check.findings import check_data
    from vitrail.data.datasets import open_data

    dataset = open_data(name)
    counts = ", ".join(f"{split} {len(source):,}" for split, source in dataset.splits.items())
    facts = [("name", dataset.name), ("classes", f"{len(dataset.classes):,}"), ("pictures", counts)]
    total = dataset.num_pictures
    if total > CHECKED_PICTURES:
        facts.append(("check", "too many pictures to check here; run: vitrail data check"))
        return DiagnosisSection(title="Data", facts=tuple(facts))
    findings = [
        (item.severity, f"{item.what}: {count:,}, for example {item.key}")
        for item, count in check_data(dataset, os.cpu_count() or 1).summary()
    ]
    facts += [(severity, text) for severity, text in findings if severity != "error"]
    problems = tuple(text for severity, text in findings if severity == "error")
    return DiagnosisSection(title="Data", facts=tuple(facts), problems=problems)
