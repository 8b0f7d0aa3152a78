"""`vitrail.models`: the architectures that can be built by name, and the pretrained weights to start from."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from vitrail.errors import ConfigError
from vitrail.machine import main_memory
from vitrail.progress import progress_bar, table
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.model import Summary
    from vitrail.weights.pretrained import Pretrained

COLUMNS = ("model", "pixels", "patch", "layers", "width", "MLP", "heads", "parameters", "GMACs")
WEIGHT_COLUMNS = ("family", "size", "weights", "licence", "gate", "pixels", "parameters", "MB", "accuracy", "kind")


class Models(dict[str, "Summary"]):
    """Name → what that model is and takes."""

    exit_code = 0

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of a table with these `COLUMNS`."""
        return [(name, *_cells(summary)) for name, summary in self.items()]

    def to_dict(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [{"name": name, "parameters": row.parameters, "macs": row.macs} for name, row in self.items()]

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        yield table(self.rows, *COLUMNS)
        yield '\nDetails of one:  vitrail summary vit-b16\nIn Python: vitrail.create("vit-b16", num_classes=10)'

    def _repr_markdown_(self) -> str:
        return _markdown(COLUMNS, self.rows)


def _cells(summary: "Summary") -> tuple[str, ...]:
    config = summary.config
    numbers = (config.image_size[0], config.stride[0], config.depth, config.width, config.hidden_width, config.heads)
    return *map(str, numbers), f"{summary.parameters / 1e6:,.1f} M", f"{summary.macs / 1e9:,.2f}"


def _markdown(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, ("---", *["--:"] * (len(columns) - 1)), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


@dataclass(frozen=True, kw_only=True)
class PretrainedModels:
    """Weights on the hub to start from, as of a date; and the speed of their architectures here, if it was measured."""

    as_of: str
    weights: "tuple[Pretrained, ...]"
    images_per_second: tuple[float | None, ...] | None = None  # one for each, None where that would take too long

    exit_code = 0

    def __len__(self) -> int:
        return len(self.weights)

    def __iter__(self) -> "Iterator[Pretrained]":
        return iter(self.weights)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*WEIGHT_COLUMNS, *(() if self.images_per_second is None else ("images/s",)))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of a table with these `columns`."""
        speeds = self.images_per_second
        shown = [()] * len(self.weights) if speeds is None else [("" if it is None else f"{it:.3g}",) for it in speeds]
        return [(*_weight_cells(row), *speed) for row, speed in zip(self.weights, shown, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        speeds = self.images_per_second or (None,) * len(self.weights)
        facts = [
            {
                "family": row.family,
                "size": row.size,
                "weights": row.source,
                "licence": row.licence,
                "commercial": row.commercial,
                "gated": row.gated,
                "pixels": row.pixels,
                "parameters": row.parameters,
                "megabytes": row.megabytes,
                "accuracy": row.accuracy,
                "measure": row.measure or None,
                "reference": row.reference or None,
                **({} if self.images_per_second is None else {"images_per_second": speed}),
            }
            for row, speed in zip(self.weights, speeds, strict=True)
        ]
        return {"as_of": self.as_of, "weights": facts}

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        if not self.weights:
            yield f"None of the weights that were listed on {self.as_of} fits."
            return
        yield table(self.rows, *self.columns, left=5, whole=True)
        yield (
            f"\n{counted(len(self.weights), 'row')}, as of {self.as_of}. MB: the file in float32. accuracy: top-1 on "
            "ImageNet-1k in %, as published; compare only those of one kind."
        )
        references = dict.fromkeys(row.reference for row in self.weights if row.reference)
        for reference in references:
            families = dict.fromkeys(row.family for row in self.weights if row.reference == reference)
            yield f"  {', '.join(families)}: {reference}"
        if self.images_per_second is not None:
            yield (
                "images/s: the architecture with random weights, in torch, on this machine, at the size at which it is "
                "fine-tuned (224 pixels for larger weights without a head); empty if that would take too long."
            )
        yield f"next: vitrail train PICTURES --weights {self._best().source}"

    def _best(self) -> "Pretrained":
        """What a run would start from by default, if it is among them."""
        from vitrail.weights.pretrained import DEFAULTS

        return next((row for row in self.weights if row.repository in DEFAULTS.values()), self.weights[0])

    def _repr_markdown_(self) -> str:
        return f"{_markdown(self.columns, self.rows)}\n\nAs of {self.as_of}."


def _weight_cells(row: "Pretrained") -> tuple[str, ...]:
    accuracy = "" if row.accuracy is None else f"{row.accuracy:.1f}"
    parameters = f"{row.parameters / 1e6:,.1f} M"
    about = (row.family, row.size, row.source, row.licence, "gated" if row.gated else "")
    return *about, str(row.pixels), parameters, f"{row.megabytes:,}", accuracy, row.measure


def models(
    *,
    pretrained: bool = False,
    commercial: bool = False,
    ungated: bool = False,
    max_mb: float | None = None,
    measure: bool = False,
    progress: bool = False,
) -> Models | PretrainedModels:
    """Every model that `vitrail.create` and `vitrail.train` know by name; or the weights that a run can start from.

    Args:
        pretrained: List pretrained weights on the hub instead: licence, gate, size, published accuracy.
        commercial: Of these, only those whose licence clearly allows commercial use.
        ungated: Of these, only those that anybody can download without asking.
        max_mb: Of these, only those whose file has at most this many megabytes.
        measure: Also measure how many pictures per second each architecture computes on this machine; a few seconds
            each.
        progress: Show progress on the error stream.
    """
    if not pretrained:
        asked = {"commercial": commercial, "ungated": ungated, "max_mb": max_mb is not None, "measure": measure}
        if needless := next((name for name, passed in asked.items() if passed), ""):
            raise ConfigError("is about pretrained weights; pass `pretrained=` too.", field=needless)
        from vitrail.model import summarize, variants

        return Models({name: summarize(config) for name, config in variants().items()})
    if max_mb is not None and not max_mb > 0:
        raise ConfigError(f"must be above 0; got {max_mb:g}.", field="max_mb")

    from vitrail.weights.pretrained import AS_OF, measure_speeds, select

    rows = tuple(select(commercial=commercial, ungated=ungated, max_mb=max_mb))
    speeds = None
    if measure:
        with progress_bar("measuring", len(rows), speaks=progress) as advance:
            speeds = tuple(measure_speeds(rows, (main_memory() or 8e9) / 2, advance))
    return PretrainedModels(as_of=AS_OF, weights=rows, images_per_second=speeds)
