"""`vitrail doctor`: what a bug report needs, ready to paste."""

from vitrail.cli.printing import SteadyConsole

PROBLEMS = 1


def doctor(model: str | None = None, *, data: str | None = None) -> int:
    """Print what a bug report needs, as Markdown.

    Parameters
    ----------
    model
        Also examine this checkpoint: a file, a run folder, hf://owner/name or google://NAME.
    data
        Also examine this data set.
    """
    from vitrail.verbs.doctor import doctor as examine

    diagnosis = examine(model, data)
    SteadyConsole(highlight=False, markup=False, soft_wrap=True).print(diagnosis.markdown, end="")
    return PROBLEMS if diagnosis.problems else 0
