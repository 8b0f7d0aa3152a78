"""Likely problems of a data set.

scan        examines every picture once: `scan` → one `Facts` per sample
duplicates  the same picture twice, exactly or nearly
report      judges the facts: `check_data` → a `Report` of findings with a severity
record      a report in brief, as a file that stays with a run
"""
