"""Checkpoints: any format in, any format out.

`locate` finds a source; `formats` reads and writes all formats. Each foreign format is one file with a `ForeignFormat`,
whose key table is used in both directions; `catalogue` lists them. `native` is our own self-describing file; `adapt`
fits weights to other classes, sizes and channels; `convert` proves what it writes.
"""
