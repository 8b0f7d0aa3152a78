"""Where pictures come from: one file per kind of source, all giving a `Dataset`; `opening.py` decides which."""
