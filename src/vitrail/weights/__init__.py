"""Checkpoints: any format in, any format out.

`resolve` finds the files that a string stands for; `read` reads every format, `write` writes them and proves it. Each
foreign format is one file with a `ForeignFormat`, whose key table is used in both directions. `native` is our own
self-describing file; `adapt` fits weights to other classes, sizes and channels.
"""
