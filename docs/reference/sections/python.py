"""The public names of vitrail: a table that reads as text, and what Sphinx makes the details from."""

import inspect
from typing import Any

from docs.reference.sections.markdown import code, joined, protected, table

import vitrail

# Heading → the names below it, in the order of a model's life.
GROUPS = {
    "Train": ("train", "resume", "plan", "demo", "recipe", "TrainConfig", "Run"),
    "In scikit-learn": ("Classifier", "Regressor"),
    "Data": ("open_data", "check_data", "audit_data", "show_data", "shard_data"),
    "Load and use": ("load", "Predictor", "predict", "embed", "run_job", "search", "explain", "figures"),
    "Evaluate": ("evaluate", "Evaluation", "calibrate"),
    "Checkpoints": ("inspect", "convert", "average", "diff", "Hints"),
    "Ship": ("export", "benchmark", "push", "serve"),
    "Build": ("create", "variants", "models", "summary", "ViT", "ViTConfig"),
    "Problems": ("doctor", "VitrailError", "AssumptionWarning"),
}


def names() -> str:
    """For each group, what each name is, and the directives that Sphinx replaces with signatures and docstrings."""
    return joined(
        part
        for heading, members in GROUPS.items()
        for part in (
            f"## {heading}",
            table(("name", ""), ((code(f"vitrail.{name}"), _about(getattr(vitrail, name))) for name in members)),
            "\n".join(["```{eval-rst}", *(_directive(name) for name in members), "```"]),
        )
    )


def _about(value: Any) -> str:
    return protected((inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " "))


def _directive(name: str) -> str:
    value = getattr(vitrail, name)
    if not inspect.isclass(value):
        return f".. autofunction:: vitrail.{name}"
    kind = "exception" if issubclass(value, Exception) else "class"
    return f".. auto{kind}:: vitrail.{name}\n   :members:"
