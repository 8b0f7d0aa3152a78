"""What travels inside an export beside its graph, so that it needs no file beside it. No torch."""

import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.data.preprocess import preset
from vitrail.errors import VitrailError, WeightsError
from vitrail.registry import GraphPrecision
from vitrail.runtimes.runtime import LoadOptions
from vitrail.schema import from_dict, to_dict
from vitrail.weights.metadata import Metadata, name_classes, read_class_names

KEY = "vitrail"  # under which an export keeps it
VERSION = 3
# What exports of one class per picture still are, so that older readers read them: with a calibration, and without.
BEFORE_TASKS, BEFORE_TRUST = 2, 1
IMAGES, LOGITS, FEATURES = "images", "logits", "features"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an export says about itself; a foreign one says nothing, and the user must."""

    facts: Metadata
    num_classes: int  # 0: the graph gives features only
    tokens: int  # of one picture, which decides how many suit one call
    outputs: tuple[str, ...]  # in the order of the graph: logits or probabilities, features, attention_0 …
    precision: GraphPrecision = "float32"  # of the numbers in the graph
    preprocesses: bool = False  # the graph takes bytes (B, H, W, 3) of any size and does the preprocessing itself
    config: str = "{}"  # the model's config, as JSON
    weights_sha256: str = ""  # of the weights that were exported
    graph_crc32: int = 0  # of the numbers in the graph, so that a damaged file is an error
    agreement: float = 1.0  # the share of held-out pictures that get the same answer as before 8 bits

    def to_json(self) -> str:
        version = BEFORE_TRUST if self.facts.trust is None else BEFORE_TASKS
        version = version if self.facts.suits_older_readers else VERSION
        return json.dumps({"version": version, **to_dict(self)}, ensure_ascii=False)

    @property
    def scores(self) -> str:
        """The output that has the answer."""
        return self.facts.task.output if self.gives_answers else LOGITS

    @property
    def gives_answers(self) -> bool:
        """Whether the graph gives what logits mean instead of them."""
        return self.facts.task.output in self.outputs


@dataclass(frozen=True, kw_only=True)
class GraphFile:
    """An ONNX file of ours, and what it says about itself."""

    path: Path
    manifest: Manifest


def crc_of_file(path: Path, start: int = 0) -> int:
    """The checksum of a file, or of what came before it and the file."""
    value = start
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            value = zlib.crc32(piece, value)
    return value


def read_manifest(text: str, path: Path) -> Manifest:
    """What an export of ours says about itself, checked."""
    try:
        values: Any = json.loads(text)
        version = values.pop("version")
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise WeightsError(f"{path} is damaged: what it says about itself cannot be read.") from error
    if isinstance(version, int) and version > VERSION:
        raise WeightsError(
            f"{path} was exported by a newer vitrail (format {version}); upgrade: pip install -U vitrail"
        )
    try:
        manifest = from_dict(Manifest, values, "manifest")
        manifest.facts.task.check(manifest.num_classes, manifest.facts.trust)
        if manifest.facts.trust is not None and manifest.facts.trust.familiarity is not None:
            config = json.loads(manifest.config)
            pooled = config["width"] * config.get("summary_tokens", 1)
            width = config["representation"] or config.get("projection") or pooled
            manifest.facts.trust.familiarity.check_width(width)
    except (VitrailError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise WeightsError(f"{path} is damaged: {error}") from error
    classes = manifest.facts.classes
    if manifest.num_classes < 0 or (classes is not None and len(classes) != manifest.num_classes):
        raise WeightsError(f"{path} is damaged: its class names do not fit its number of classes.")
    return manifest


def foreign_manifest(
    path: Path, size: tuple[int, int], channels: int, num_classes: int, options: LoadOptions
) -> Manifest:
    """For another tool's export, pictures in and a row of logits out: the user must say the rest."""
    if options.preprocess is None:
        raise WeightsError(
            f"{path} does not say how its pictures are prepared: it is not an export of vitrail, or its metadata was "
            "stripped. Pass `preprocess=` (google, timm, timm-imagenet, hf, torchvision, dinov2, clip, or "
            "a Preprocess), "
            "and the class names with `class_names=`"
        )
    spec = options.preprocess
    spec = preset(spec, size, channels) if isinstance(spec, str) else spec
    if spec.size != size or spec.channels != channels:
        raise WeightsError(
            f"{path} takes pictures of {size[0]}×{size[1]} with {channels} channels; `preprocess=` makes "
            f"{spec.size[0]}×{spec.size[1]} with {spec.channels}."
        )
    return Manifest(
        facts=Metadata(preprocess=spec), num_classes=num_classes, tokens=size[0] * size[1] // 256, outputs=(LOGITS,)
    )


def settle(manifest: Manifest, options: LoadOptions, path: Path) -> Manifest:
    """With the class names and the preprocessing that the user gave."""
    if options.preprocess is not None and manifest.weights_sha256:
        raise WeightsError(
            f"cannot change {path}, which says itself how its pictures are prepared.", field="preprocess"
        )
    if options.class_names is None:
        return manifest
    names = read_class_names(options.class_names)
    where = str(options.class_names) if isinstance(options.class_names, str | Path) else "class_names"
    return replace(manifest, facts=name_classes(manifest.facts, manifest.num_classes, names, where))
