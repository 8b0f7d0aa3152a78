"""What MLflow runs to open a logged checkpoint and predict with it: a "model from code", which is copied beside it.

`mlflow.pyfunc.load_model(uri).predict(pictures)` takes paths, arrays, or a table with a column of paths or encoded
pictures, and gives a table with a row for each. The file is run on its own, so that it imports only what is installed.
"""

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

import vitrail
from vitrail.errors import InputError
from vitrail.prediction import Prediction

COLUMN = "picture"
FIRST = ("label", "score", "value")  # what most readers want, where a prediction has it


class VitrailModel(PythonModel):
    """A checkpoint behind MLflow's interface."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the checkpoint."""
        self.predictor = vitrail.load(context.artifacts["checkpoint"])

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride] - MLflow's own is typed as if it gave nothing
        self, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """A row for each picture; of this type MLflow checks nothing, so that lists and arrays come through too."""
        answer = self.predictor.predict(read_pictures(model_input))
        return tabulate([answer] if isinstance(answer, Prediction) else list(answer))


def read_pictures(given: Any) -> Any:
    """What was passed, as `Predictor.predict` takes it."""
    if isinstance(given, pd.DataFrame | Mapping):
        columns = list(cast("Mapping[str, Any]", given))
        column = COLUMN if COLUMN in columns else columns[0]
        if len(columns) != 1 and column != COLUMN:
            raise InputError(
                f"a table of pictures needs a column {COLUMN!r}, or only one; got {', '.join(map(str, columns))}."
            )
        given = given[column]
    if isinstance(given, pd.Series) or (isinstance(given, np.ndarray) and given.dtype.kind in "OSU"):
        given = given.tolist()
    return [_decode(each) for each in cast("list[Any]", given)] if isinstance(given, list) else _decode(given)


def _decode(picture: Any) -> Any:
    """JSON can hold an encoded picture only as text: data:image/png;base64,…"""
    if isinstance(picture, str) and picture.startswith("data:image/"):
        return base64.b64decode(picture.partition(",")[2])
    return picture


def tabulate(predictions: list[Prediction]) -> pd.DataFrame:
    """The fields of predictions as columns; those that no prediction has are left out."""
    rows: list[dict[str, Any]] = []
    for each in predictions:
        first = {name: getattr(each, name, None) for name in FIRST}
        fields = {field.name: getattr(each, field.name) for field in dataclasses.fields(each) if field.name != "source"}
        rows.append(
            {name: list(value) if isinstance(value, tuple) else value for name, value in (first | fields).items()}
        )
    filled = [name for name in rows[0] if any(row[name] not in (None, []) for row in rows)] if rows else []
    return pd.DataFrame([{name: row[name] for name in filled} for row in rows])


set_model(VitrailModel())
