"""The tiny checkpoint and the pictures of the predictor's tests."""

from tests.prediction.conftest import checkpoint_file, photos, predictor

__all__ = ["checkpoint_file", "photos", "predictor"]
