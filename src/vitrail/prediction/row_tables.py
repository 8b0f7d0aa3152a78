"""Predictions and embeddings as Arrow tables: the rows of a Parquet file, and of a job's parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.files import as_utf8, load_pyarrow
from vitrail.prediction.results import Floats, Prediction


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What rows of predictions hold besides the picture and its error."""

    top_k: int
    label_set: bool = False  # a coverage was requested
    familiarity: bool = False  # the model can tell

    @property
    def extra(self) -> list[str]:
        """The fields of a `Prediction` that only some have."""
        return ["label_set"] * self.label_set + ["familiarity", "familiar"] * self.familiarity


def fields_of(row: Prediction, columns: Columns) -> dict[str, Any]:
    """A prediction as JSON lines and tables hold it."""
    extra = {name: getattr(row, name) for name in columns.extra}
    return {"picture": row.picture, "labels": row.labels, "scores": row.scores, **extra, "error": row.error}


def prediction_schema(columns: Columns) -> Any:
    """The columns of predictions in a Parquet file."""
    pa, _ = load_pyarrow("writing Parquet")
    types = {"label_set": pa.list_(pa.string()), "familiarity": pa.float64(), "familiar": pa.bool_()}
    return pa.schema(
        {
            "picture": pa.string(),
            "labels": pa.list_(pa.string()),
            "scores": pa.list_(pa.float64()),
            **{name: types[name] for name in columns.extra},
            "error": pa.string(),
        }
    )


def prediction_table(rows: Sequence[Prediction], columns: Columns, schema: Any) -> Any:
    """Predictions as a table of `prediction_schema`."""
    pa, _ = load_pyarrow("writing Parquet")
    facts = [fields_of(row, columns) for row in rows]
    for fact in facts:  # the error names the picture
        fact |= {"picture": as_utf8(fact["picture"]), "error": fact["error"] and as_utf8(fact["error"])}
    return pa.Table.from_pylist(facts, schema)


def embedding_table(rows: Sequence[tuple[str, Floats | str]], width: int) -> Any:
    """Embeddings, or why there are none, as a table: picture, features, error."""
    pa, _ = load_pyarrow("writing Parquet")
    values = np.zeros((len(rows), width), dtype=np.float32)
    missing = np.zeros(len(rows), dtype=bool)
    for index, (_, value) in enumerate(rows):
        if isinstance(value, str):
            missing[index] = True
        else:
            values[index] = value
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), width, mask=pa.array(missing))
    errors = [as_utf8(value) if isinstance(value, str) else None for _, value in rows]
    names = [as_utf8(name) for name, _ in rows]
    return pa.table(
        {"picture": pa.array(names, pa.string()), "features": lists, "error": pa.array(errors, pa.string())}
    )
