"""Where pictures come from: one file per kind of source, each returning a `Dataset`; `opening.py` decides which."""
