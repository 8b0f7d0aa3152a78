"""The names of an evaluation's options, which the command reads without torch."""

from typing import Literal

ViewName = Literal["flip", "shift", "full"]  # test-time augmentation
ProbeName = Literal["knn", "linear", "shots"]
