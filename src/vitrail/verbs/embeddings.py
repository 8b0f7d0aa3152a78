"""What `vitrail.embed` returns: features as a table, which can be saved and drawn as a map."""

from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vitrail.draws import permutation
from vitrail.errors import ConfigError
from vitrail.evaluation.plots import map_figure, save_figure
from vitrail.evaluation.projection import Method, project
from vitrail.files import atomic_path
from vitrail.tables import as_utf8, load_pyarrow
from vitrail.wording import counted

MOST_POINTS = 5000  # on a map; t-SNE of more takes minutes and shows no more

Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureMap:
    """Features as points on a plane; a notebook shows the drawing."""

    points: np.ndarray[Any, Any]  # (n, 2)
    places: np.ndarray[Any, Any]  # (n,) the rows of the features that they show
    labels: tuple[str, ...] | None
    title: str

    def figure(self) -> Figure:
        """The drawing, coloured by class."""
        return map_figure(self.points, self.labels, self.title)

    def save(self, path: str | Path) -> Path:
        """Write the drawing to a picture file."""
        save_figure(self.figure(), Path(path))
        return Path(path)

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.figure().savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()


@dataclass(frozen=True, kw_only=True, eq=False)
class Embeddings:
    """The features of pictures, one row each."""

    features: Floats = field(repr=False)  # (N, D)
    pictures: tuple[str, ...] = field(repr=False)  # (N,) their names
    labels: tuple[str, ...] = field(default=(), repr=False)  # (N,) of a data set
    splits: tuple[str, ...] = field(default=(), repr=False)  # (N,) of a data set
    errors: dict[str, str] = field(default_factory=dict[str, str], repr=False)  # picture → why it could not be read
    folder: Path | None = None
    written: tuple[Path, ...] = ()
    map_error: str = ""  # why no map could be drawn; the features are written

    def __len__(self) -> int:
        return len(self.features)

    def save(self, path: str | Path) -> Path:
        """Write the table to an .npz or .parquet file."""
        target = Path(path)
        columns = {"picture": self.pictures, "label": self.labels, "split": self.splits}
        columns: dict[str, Any] = {name: list(values) for name, values in columns.items() if values}
        if target.suffix not in (".npz", ".parquet"):
            raise ConfigError(f"features are saved as .npz or .parquet; got {target}.")
        with atomic_path(target) as draft:
            if target.suffix == ".npz":
                with draft.open("wb") as file:
                    np.savez(file, features=self.features, **columns)
            else:
                pa, pq = load_pyarrow("writing Parquet")
                columns = {name: list(map(as_utf8, values)) for name, values in columns.items()}
                lists = pa.FixedSizeListArray.from_arrays(pa.array(self.features.ravel()), self.features.shape[1])
                pq.write_table(pa.table({**columns, "features": lists}), draft)
        return target

    def map(self, method: Method = "pca") -> FeatureMap:
        """The features on a plane, by "pca" or "tsne"; of very many, a fixed sample."""
        places = np.sort(permutation(0, 0, len(self), "map")[:MOST_POINTS])
        count = counted(len(self), "picture")
        shown = count if len(places) == len(self) else f"{len(places):,} of {count}"
        return FeatureMap(
            points=project(self.features[places], method),
            places=places,
            labels=tuple(self.labels[place] for place in places) if self.labels else None,
            title=f"{'t-SNE' if method == 'tsne' else 'PCA'} of {shown}",
        )
