"""Checkpoints: any format in, any format out.

`formats` reads and writes them all; each foreign format is one file with one key table used in both directions;
`native` is our own self-describing file; `adapt` fits weights to other classes, sizes and channels; `hub` finds them.
"""
