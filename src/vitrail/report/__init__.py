"""Report pages: one HTML file that holds all it shows, opens offline, and follows the reader's light or dark theme.

page         what a page consists of, as values
render       a page as HTML, by the templates in `templates/`; layout: its curves; pictures: its photographs and figures
sections     the data and the results; learning: the training; insights: what predictions rest on, attention
assembly     the whole page; commands: what a reader may run next
runs         `report_on_run`: the page of a training run
evaluations  what the page of an evaluation shows, and the files beside it; notebook: a table of it
"""
