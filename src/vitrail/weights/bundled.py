"""The checkpoints that come with vitrail, by name: what `vitrail.load()` and the verbs take when no model is named."""

from pathlib import Path

from vitrail.errors import WeightsError

FOLDER = Path(__file__).parent / "bundled"
NAMES = ("cifar10",)
DEFAULT = "cifar10"


def bundled_path(name: str) -> Path:
    """The file of a bundled checkpoint."""
    path = FOLDER / f"{name}.safetensors"
    if not path.is_file():
        raise WeightsError(
            f"the bundled model {name} is not in this installation ({path} is missing); install vitrail again, "
            "or name a checkpoint: a file, a run folder, hf://owner/name or google://NAME."
        )
    return path
