"""Likely problems of a data set.

scan        examines every picture once: `scan` → one `Facts` per sample
duplicates  the same picture twice, exactly or nearly
findings    judges the facts: findings with a severity, and what of them stays with a run
"""
