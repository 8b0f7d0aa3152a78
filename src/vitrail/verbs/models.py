"""`vitrail.models`: the table of variants."""

from vitrail.model import Summary, summarize, variants

COLUMNS = ("model", "pixels", "patch", "layers", "width", "MLP", "heads", "parameters", "GMACs")


class Models(dict[str, Summary]):
    """Name → what that model is and takes."""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of a table with these `COLUMNS`."""
        return [(name, *_cells(summary)) for name, summary in self.items()]

    def _repr_markdown_(self) -> str:
        lines = [COLUMNS, ("---", *["--:"] * (len(COLUMNS) - 1)), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def models() -> Models:
    """Every model that `vitrail.create` and `vitrail.train` know by name."""
    return Models({name: summarize(config) for name, config in variants().items()})


def _cells(summary: Summary) -> tuple[str, ...]:
    config = summary.config
    numbers = (config.image_size[0], config.stride[0], config.depth, config.width, config.hidden_width, config.heads)
    return *map(str, numbers), f"{summary.parameters / 1e6:,.1f} M", f"{summary.macs / 1e9:,.2f}"
