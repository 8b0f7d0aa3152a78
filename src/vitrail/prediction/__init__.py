"""Pictures in, labelled scores or embeddings out.

predictor  `load` and `Predictor`: what users work with
results    `Prediction` and `Embedding`
runtime    the interface to what computes: torch now, others behind the same calls
runtimes   the table of them: which one opens a located source
pictures   what the user names on the command line → pictures
"""

from vitrail.prediction.predictor import Predictor, load
from vitrail.prediction.results import Embedding, Prediction
from vitrail.prediction.runtime import Runtime, TorchRuntime

__all__ = ["Embedding", "Prediction", "Predictor", "Runtime", "TorchRuntime", "load"]
