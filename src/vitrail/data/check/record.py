"""What a data check found, in brief: a small JSON file that stays with a run, for its report and for Python."""

import json
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.check.report import Report, Severity
from vitrail.errors import ConfigError, DataError
from vitrail.files import atomic_path
from vitrail.schema import from_dict, to_dict

RECORD = "data_check.json"
MOST_TEXT = 300  # characters of an example or a detail
MOST_BYTES = 1_000_000  # a record is a few hundred bytes


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One kind of finding: how many pictures or classes it concerns, and an example."""

    severity: Severity
    finding: str
    count: int
    example: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckRecord:
    """All kinds of findings, the worst first."""

    data: str
    pictures: int  # that were examined
    findings: tuple[Trouble, ...] = ()

    @property
    def serious(self) -> tuple[Trouble, ...]:
        """Errors and warnings, without notes."""
        return tuple(item for item in self.findings if item.severity != "note")


def sum_up(report: Report) -> CheckRecord:
    """The record of a check."""
    findings = tuple(
        Trouble(
            severity=item.severity,
            finding=item.what,
            count=count,
            example=_shorten(item.key),
            detail=_shorten(item.detail),
        )
        for item, count in report.summary()
    )
    return CheckRecord(data=report.dataset.name, pictures=len(report.facts), findings=findings)


def write_record(record: CheckRecord, path: Path) -> None:
    """Write it as JSON."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(to_dict(record), indent=1), encoding="utf-8")


def read_record(path: Path) -> CheckRecord | None:
    """What `write_record` wrote, or None if there was no check."""
    if not path.is_file():
        return None
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path} must be the record of a data check; it has {path.stat().st_size:,} bytes. Delete it.")
    try:
        return from_dict(CheckRecord, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise DataError(f"{path} must be the record of a data check; it cannot be read ({error}). Delete it.") from None


def _shorten(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"
