"""Report pages: one HTML file that holds all it shows, opens offline, and follows the reader's light or dark.

page         what a page consists of, as values
render       a page as HTML, by the templates in `templates/`; svg: its curves; pictures: its photographs and figures
sections     the data and the results; learning: the training; insights: what answers rest on, how the model looks
assembly     a whole page of everything that is known; commands: what a reader may type next
runs         `report_on_run`: the page of a training run
evaluations  `report_on_eval`: the page of an evaluation, and the files beside it; notebook: a table of it
"""
