"""Side-by-side measurements against other libraries: one run, one table, ratios."""
