"""The small data set and model of the evaluation's tests."""

from tests.evaluation.conftest import arrays, predictor

__all__ = ["arrays", "predictor"]
