"""Zero-shot: a tower that was trained with texts becomes a classifier, whose head is the texts' embeddings.

CLIP and SigLIP compare a picture with a text by the cosine of their embeddings, times a scale: that is a linear head on
features of length 1, whose rows are the texts. SigLIP adds a bias and asks about each text by itself (sigmoid); CLIP
asks which of them it is (softmax).
"""

import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import WeightsError, list_names
from vitrail.untrusted import read_bytes
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import LOGIT_BIAS, LOGIT_SCALE, Checkpoint
from vitrail.weights.metadata import check_names
from vitrail.weights.peers import import_peer
from vitrail.weights.resolve import Located
from vitrail.wording import counted

NEEDED, OPTIONAL = ("embeddings", "names"), ("scale", "bias")
USUAL_SCALE = 100.0  # where CLIP's training ends
PROMPT = "a photo of a {}."
MAX_BYTES = 4 * 2**30
MAX_PROMPT_BYTES = 20 * 2**20


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Labels with the embeddings of their texts, and how they were trained to be compared with pictures."""

    names: tuple[str, ...]
    embeddings: Tensor  # (labels, E), of any length
    scale: float | None = None  # what a cosine is multiplied by; None: the tower's own
    bias: float | None = None  # what is added to it; None: the tower's own, or none

    def __post_init__(self) -> None:
        rows = self.embeddings
        if rows.ndim != 2 or len(rows) != len(self.names) or not len(rows):
            raise WeightsError(
                f"there must be one embedding for each label, as rows of a matrix; got {tuple(rows.shape)} for "
                f"{counted(len(self.names), 'label')}."
            )
        if not rows.isfinite().all() or not rows.norm(dim=1).all():
            raise WeightsError("every embedding must be a vector of finite numbers that is not zero.")
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise WeightsError(f"the scale of the texts must be positive; got {self.scale}.")
        if self.bias is not None and not math.isfinite(self.bias):
            raise WeightsError(f"the bias of the texts must be a finite number; got {self.bias}.")


def add_texts(checkpoint: Checkpoint, texts: Texts) -> Checkpoint:
    """The tower with a head of these texts, and the labels for class names."""
    width = checkpoint.config.feature_width
    if texts.embeddings.shape[1] != width:
        raise WeightsError(
            f"the embeddings of the texts must have as many numbers as the picture's: {width}; got "
            f"{texts.embeddings.shape[1]}; texts and tower must be of the same model."
        )
    tower = adapt(checkpoint, num_classes=0) if checkpoint.config.num_classes else checkpoint
    scale, bias, assumed = _scale_of(checkpoint, texts)
    like = checkpoint.tensors["embed.patches.weight"]
    rows = F.normalize(texts.embeddings.double(), dim=1) * scale
    head = {
        "head.weight": rows.to(like.dtype),
        "head.bias": like.new_full((len(rows),), 0.0 if bias is None else bias),
    }
    return replace(
        tower,
        config=replace(tower.config, num_classes=len(rows), normalize_features=True),
        tensors={**tower.tensors, **head},
        extras={name: tensor for name, tensor in tower.extras.items() if name not in (LOGIT_SCALE, LOGIT_BIAS)},
        classes=texts.names,
        scores="softmax" if bias is None else "sigmoid",
        notes=(*tower.notes, *assumed),
        remarks=(*tower.remarks, f"the head is made of {counted(len(rows), 'text')}, not trained"),
    )


def _scale_of(checkpoint: Checkpoint, texts: Texts) -> tuple[float, float | None, tuple[str, ...]]:
    """The scale, the bias if there is one, and what was assumed: from the texts, or from the tower's own file."""
    own_scale, own_bias = (checkpoint.extras.get(name) for name in (LOGIT_SCALE, LOGIT_BIAS))
    bias = texts.bias if texts.bias is not None or own_bias is None else float(own_bias)
    if texts.scale is not None:
        return texts.scale, bias, ()
    if own_scale is not None:
        return math.exp(float(own_scale)), bias, ()
    if bias is not None:
        raise WeightsError("texts with a bias need their scale too; store it as `scale` beside them.")
    assumed = f"assumed that cosines are multiplied by {USUAL_SCALE:g}, as at the end of CLIP's training"
    return USUAL_SCALE, None, (assumed,)


def read_texts(path: Path) -> Texts:
    """A `.npz` with `embeddings` (labels, E) and `names`, perhaps with `scale` and `bias`."""
    if path.suffix != ".npz":
        raise WeightsError(f"embeddings of texts are a .npz with {list_names(NEEDED)}; got {path}.")
    if not path.is_file():
        raise WeightsError(f"there is no file {path}; write it with numpy.savez(path, names=…, embeddings=…).")
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise WeightsError(f"{path} must be smaller than {MAX_BYTES >> 30} GB.")
        with np.load(path, allow_pickle=False, max_header_size=10_000) as arrays:
            values: dict[str, Any] = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise WeightsError(f"{path} cannot be read as a .npz of plain arrays: {error}") from error
    missing, unknown = [name for name in NEEDED if name not in values], sorted(values.keys() - {*NEEDED, *OPTIONAL})
    if missing or unknown:
        wrong = "; ".join(
            f"{what} {list_names(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names
        )
        raise WeightsError(f"{path} must hold {list_names(NEEDED)}, and may hold {list_names(OPTIONAL)}: {wrong}.")
    numbers = {name: _number(path, name, values[name]) for name in OPTIONAL if name in values}
    embeddings, names = values["embeddings"], values["names"]
    if embeddings.dtype.kind != "f" or names.dtype.kind != "U" or names.ndim != 1:
        raise WeightsError(f"{path}: embeddings must be floats, and names a list of texts.")
    return Texts(
        names=check_names(names.tolist(), str(path)),
        embeddings=torch.from_numpy(embeddings.astype(np.float32)),
        **numbers,
    )


def _number(path: Path, name: str, value: Any) -> float:
    if value.dtype.kind not in "fiu" or value.size != 1:
        raise WeightsError(f"{path}: {name} must be one number.")
    return float(value.reshape(()))


def read_prompts(path: Path) -> dict[str, tuple[str, ...]]:
    """Label → its prompts. A line is a label, or `label: prompt`; several lines of one label are averaged."""
    if not path.is_file():
        raise WeightsError(f"there is no file of prompts {path}; it has a label on each line, or `label: prompt`.")
    try:
        text = read_bytes(path, MAX_PROMPT_BYTES, WeightsError).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WeightsError(f"{path} must be UTF-8 text with a label on each line, or `label: prompt`.") from error
    prompts: dict[str, tuple[str, ...]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        label, _, prompt = (part.strip() for part in line.partition(":"))
        prompts[label] = (*prompts.get(label, ()), prompt or PROMPT.format(label))
    check_names(list(prompts), str(path))
    return prompts


def embed_prompts(source: Located, prompts: Mapping[str, Sequence[str]]) -> Texts:
    """What the text tower beside a tower of transformers makes of prompts; those of one label are averaged."""
    transformers = import_peer("transformers")
    name, _, revision = source.address.partition("@")
    where: Any = {"revision": revision or None} if name else {"local_files_only": True}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name or source.path, **where)
        model = transformers.AutoModel.from_pretrained(name or source.path, **where).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise WeightsError(
            f"{source.name} must hold a text tower and its tokenizer, as transformers saves them, beside the tower of "
            f"the pictures: {error}"
        ) from error
    if not hasattr(model, "get_text_features"):
        raise WeightsError(
            f"{source.name} holds a {type(model).__name__}, which has no text tower; name the whole CLIP or SigLIP, or "
            "pass the embeddings of the texts with `texts=`."
        )
    length = model.config.text_config.max_position_embeddings
    rows: list[Tensor] = []
    for texts in prompts.values():
        tokens = tokenizer(list(texts), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            features = model.get_text_features(**tokens)
        features = features if isinstance(features, Tensor) else features.pooler_output
        row = F.normalize(features.float(), dim=1).mean(dim=0)
        if same := [name for name, other in zip(prompts, rows, strict=False) if torch.equal(row, other)]:
            raise WeightsError(
                f"texts must differ for {source.name}; those of {same[0]!r} and {list(prompts)[len(rows)]!r} have the "
                "same embedding; change them, or put the tokenizer's files (tokenizer.json) beside its config.json."
            )
        rows.append(row)
    bias = getattr(model, LOGIT_BIAS, None)
    return Texts(
        names=tuple(prompts),
        embeddings=torch.stack(rows),
        scale=model.logit_scale.exp().item(),
        bias=None if bias is None else bias.item(),
    )
