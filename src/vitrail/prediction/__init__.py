"""Pictures in, labelled scores or embeddings out.

predictor  `load` and `Predictor`: what users work with
results    `Prediction` and `Embedding`, how they are made from a row of numbers, and several of them as a sequence
inputs     names of files, folders and patterns → pictures
bars       a prediction as a figure
collection, neighbours, inverted_lists: embeddings that are kept, and the nearest among them, exactly and approximately
"""

from vitrail.prediction.predictor import Predictor, load
from vitrail.prediction.results import Embedding, Prediction

__all__ = ["Embedding", "Prediction", "Predictor", "load"]
