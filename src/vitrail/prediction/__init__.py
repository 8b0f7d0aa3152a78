"""Pictures in, labelled scores or embeddings out.

predictor    `load` and `Predictor`: what users work with
results      `Prediction` and `Embedding`
predictions  several predictions, as a sequence
pictures     what the user names on the command line → pictures
arguments    which of several arguments is the model and which are pictures
"""

from vitrail.prediction.predictor import Predictor, load
from vitrail.prediction.results import Embedding, Prediction

__all__ = ["Embedding", "Prediction", "Predictor", "load"]
