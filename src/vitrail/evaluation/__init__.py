"""How good a model is, and where it fails. Names of options are here: the command reads them without torch.

metrics      pure functions of logits and targets, with NumPy only
measurement  `measure_split`: a predictor over one split, sharded over ranks, exact; test-time augmentation
confidence   `fit_trust`: temperature and label sets; ood: pictures that are unlike the training pictures
robustness   accuracy under each corruption and severity
probe        kNN, linear and n-shot classifiers on frozen features; the features as a map
audit        wrong labels (label_noise), near_duplicates and outliers of a data set (gaussians); audit_output: its files
output       the numbers as JSON and CSV files; plots: the figures
"""

from typing import Literal

ViewName = Literal["flip", "shift", "full"]  # test-time augmentation
ProbeName = Literal["knn", "linear", "shots"]
MapMethod = Literal["pca", "tsne"]
