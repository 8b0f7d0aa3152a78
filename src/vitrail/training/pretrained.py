"""The weights that a run starts from if nobody says otherwise: which, for whom, and how they get here."""

from collections.abc import Callable
from dataclasses import dataclass

from vitrail.errors import WeightsError
from vitrail.weights.hub import is_cached
from vitrail.weights.locate import locate

AUTO, NONE = "auto", "none"  # of `weights=`: what suits the data, and from scratch


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A pretrained ViT on the hub that anybody may download and use."""

    name: str
    source: str
    megabytes: int
    licence: str
    image_size: tuple[int, int]  # at which it is trained further; its positions are resampled

    @property
    def repository(self) -> str:
        return self.source.removeprefix("hf://")


SMALL = Backbone(
    name="DINOv2-S",
    source="hf://facebook/dinov2-small",
    megabytes=88,
    licence="Apache-2.0",
    image_size=(224, 224),
)
BASE = Backbone(
    name="DINOv2-B",
    source="hf://facebook/dinov2-base",
    megabytes=346,
    licence="Apache-2.0",
    image_size=(224, 224),
)
# By the kind of device. A forward and a backward pass of the small one take a CPU core about a third of a second per
# picture; a GPU has time for the larger.
BACKBONES = {"cpu": SMALL, "mps": SMALL, "cuda": BASE}


def pick_backbone(device: str) -> Backbone:
    """The one for a kind of device."""
    return BACKBONES.get(device, SMALL)


def fetch(backbone: Backbone, say: Callable[[str], None]) -> str:
    """Get a backbone into the hub's cache, if it is not there; why that failed, in one line, or ""."""
    located = locate(backbone.source)
    if is_cached(located.address):
        return ""
    about = f"{backbone.megabytes} MB, {backbone.licence}"
    say(f"downloading {backbone.name} ({backbone.source}, {about}) to the hub's cache")
    try:
        located.fetch()
    except WeightsError as error:
        return str(error).rstrip(".")
    return ""


def explain_how_to_bring(backbone: Backbone) -> str:
    """What to do on a machine that cannot download a backbone."""
    folder = backbone.repository.partition("/")[2]
    return (
        f"to start from {backbone.name}, run hf download {backbone.repository} --local-dir {folder} where there is a "
        f'network, and pass weights="{folder}"'
    )
