"""Predictions and embeddings as Arrow tables: the rows of a Parquet file, and of a job's parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.files import as_utf8, load_pyarrow
from vitrail.prediction.predictor import Predictor
from vitrail.prediction.results import TOP_K, Floats, Prediction, Request
from vitrail.registry import LabelKind

TAKEN = ("picture", "familiarity", "familiar", "error")  # columns beside those of values


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What rows of predictions hold besides the picture and its error."""

    top_k: int
    kind: LabelKind = "class"
    label_set: bool = False  # a coverage was requested
    familiarity: bool = False  # the model can tell
    values: tuple[str, ...] = ()  # the names of what the model measures
    intervals: bool = False  # a coverage was requested of them

    @property
    def extra(self) -> list[str]:
        """The fields of a `Prediction` that only some have."""
        return ["label_set"] * self.label_set + ["familiarity", "familiar"] * self.familiarity

    @property
    def measured(self) -> list[str]:
        """A column for each value, and with a coverage two for its interval."""
        names = [f"{name}_value" if name in TAKEN else name for name in self.values]
        return [column for name in names for column in (name, *([f"{name}_low", f"{name}_high"] * self.intervals))]


def columns_of(predictor: Predictor, request: Request) -> Columns:
    """What the rows of a model hold."""
    labels, count, asked = predictor.task.labels, predictor.num_classes, request.coverage is not None
    measures = labels == "values"
    return Columns(
        top_k=request.limit(predictor, count) if count else request.top_k or TOP_K,
        kind=labels,
        label_set=asked and not measures,
        familiarity=predictor.judges_familiarity,
        values=tuple(map(predictor.label, range(count))) if measures else (),
        intervals=asked and measures,
    )


def fields_of(row: Prediction, columns: Columns) -> dict[str, Any]:
    """A prediction as JSON lines and tables hold it."""
    answer: dict[str, Any] = {"labels": row.labels, "scores": row.scores}
    if columns.kind == "values":
        answer = dict(zip(columns.measured, measured_cells(row, columns), strict=True))
    extra = {name: getattr(row, name) for name in columns.extra}
    return {"picture": row.picture, **answer, **extra, "error": row.error}


def measured_cells(row: Prediction, columns: Columns) -> list[float | None]:
    """The cells of `Columns.measured`; a picture without an answer has none."""
    if not row.values:
        return [None] * len(columns.measured)
    pairs = row.intervals if columns.intervals and row.intervals else ((),) * len(row.values)
    return [cell for value, pair in zip(row.values, pairs, strict=True) for cell in (value, *pair)]


def prediction_schema(columns: Columns) -> Any:
    """The columns of predictions in a Parquet file."""
    pa, _ = load_pyarrow("writing Parquet")
    types = {"label_set": pa.list_(pa.string()), "familiarity": pa.float64(), "familiar": pa.bool_()}
    answer = {"labels": pa.list_(pa.string()), "scores": pa.list_(pa.float64())}
    if columns.kind == "values":
        answer = dict.fromkeys(columns.measured, pa.float64())
    extra = {name: types[name] for name in columns.extra}
    return pa.schema({"picture": pa.string(), **answer, **extra, "error": pa.string()})


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
