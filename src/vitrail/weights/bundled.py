"""The checkpoints that come with vitrail, by name: what `vitrail.load()` and the verbs use if no model is named."""

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
            f"the bundled model {name} is missing from this installation ({path}); reinstall vitrail, "
            "or name a checkpoint: a file, a run folder, hf://owner/name or google://NAME."
        )
    return path
