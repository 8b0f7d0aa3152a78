"""Report pages: one HTML file that holds all it shows, opens offline, and follows the reader's light or dark theme.

blocks    what a page consists of, as values: texts, tables, curves, encoded photographs and figures
sections  the data, the training and the results; insights: single predictions, how far to trust them, attention
assembly  the whole page, of a training run or an evaluation; command_lines: what a reader may run next
render    a page as HTML, by the templates in `templates/`
"""
