"""How good a model is, and where it fails.

metrics      pure functions of logits and targets, with NumPy only
measurement  `measure_split`: a predictor over one split, sharded over ranks, exact
views        test-time augmentation; corruptions: what a camera, a network or a tilted phone does to pictures
robustness   accuracy under each corruption and severity
probe        kNN, linear and n-shot classifiers on frozen features
plots        the figures; fonts: names of any script; projection: features as a map; mistakes: the top losses
"""
