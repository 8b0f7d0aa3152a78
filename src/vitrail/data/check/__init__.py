"""What may be wrong with a data set.

scan        looks at every picture once: `scan` → one `Facts` per sample
duplicates  the same picture twice, exactly or nearly
report      the facts judged: `check_data` → a `Report` of findings with a severity
record      a report in brief, as the file that stays with a run
"""
