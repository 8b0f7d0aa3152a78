"""Any checkpoint that we know, from a file or a folder."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError, WeightsError
from vitrail.weights import native
from vitrail.weights.catalogue import FormatName
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.files import Contents, read_contents
from vitrail.weights.formats import FOREIGN
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.layout import find_files, read_json
from vitrail.weights.wrappers import describe_parts, strip_prefix

# What a reader raises when a file has something absurd in place of a number or a list.
NONSENSE = (TypeError, ValueError, OverflowError, AttributeError, KeyError, IndexError, RuntimeError)
# What the names of a file that we cannot read reveal about it; all of them are searched as lines of one text.
TRANSFORMERS = (
    (r"(layers\.\d+\.blocks|features\.\d+\.\d+)\.\d*\.?att.*(relative_position_|logit_scale|_mlp)", "a Swin"),
    (r"blocks_token_only", "a CaiT"),
    (r"attn\.[qv]_bias$|\.lambda_1$|\brel_pos_bias\.", "a BEiT, an EVA or a data2vec model"),
    (r"storage_tokens|rope_embed\.periods|^(model\.)?layer\.\d+\.attention\.q_proj", "a DINOv3 (rotary positions)"),
    (r"mlp\.fc1_g\.|mlp\.w1\.|\brope\.", "an EVA-02 or another model with rotary positions or other gated MLPs"),
    (r"pre_layrnorm|\bresblocks\.\d+|\bnorm_pre\.", "a CLIP (a LayerNorm before its first block)"),
    (r"\bembeddings\.patch_embedding\.", "a SigLIP or BLIP of transformers (timm's copies of SigLIP can be read)"),
    (r"\brel_pos(_h)?\b", "a ViT with relative positions (SAM, ViTDet, timm's relpos)"),
    (r"mid_position_embeddings|detection_tokens", "a YOLOS detector"),
    (
        r"\bdecoder_blocks\.|\bdecoder\.decoder_layers\.|^decoder\.0\.",
        "a masked autoencoder with its decoder, of which only the encoder is a ViT: save it without the names that "
        "contain decoder or mask_token",
    ),
    (
        r"\A(?![\s\S]*(cls_token|stages\.))[\s\S]*\bembeddings\.(patch_embeddings\.)?projection",
        "an I-JEPA or another model of transformers without a [cls] token",
    ),
)
OTHERS = (
    (r"\blayer1\.0\.conv1\.|\bembedder\.embedder\.|\bresnet\.", "a ResNet"),
    (r"stages\.\d+\.(blocks|layers)\.\d+\.(conv_dw|dwconv)|features\.\d+\.\d+\.layer_scale", "a ConvNeXt"),
    (r"^conv_stem\.|blocks\.\d+\.\d+\.conv_dw", "an EfficientNet, a MobileNet or a relative of theirs"),
    (r"\brunning_mean$", "a convolutional network, or a transformer with one in it (it has batch norms)"),
    (r"\bfeatures\.\d+\.weight", "a VGG or another plain convolutional network"),
    (
        r"\b(stages|layers|stage\d)\.\d+\.\S*\d+\.|\b(stages|patch_embeddings|patch_embeds)\.\d+\.",
        "a network in stages",
    ),
)
SIDECARS = ("config.json", "preprocessor_config.json", "processor_config.json")


def read_checkpoint(
    path: str | Path,
    *,
    format_name: FormatName | None = None,
    hints: Hints | None = None,
    allow_pickle: bool = False,
    verify: bool = True,
) -> Checkpoint:
    """Any checkpoint that we know, from a file or a folder; `format_name` names the format if its keys do not.

    `verify` compares the checksums of our own files; npz and torch files are always checked by their archives.
    """
    source, hints = Path(path), hints or Hints()
    files = find_files(source)
    contents = read_files(files, allow_pickle, hints.ema)
    if "vitrail" in contents.metadata and format_name in (None, "vitrail"):
        return apply_hints(native.parse_native(files[0], contents.tensors, contents.metadata, verify), hints)
    if format_name == "vitrail":
        raise WeightsError(f"{source} is not a checkpoint of vitrail; omit the format to have it detected.")
    tensors, remarks = strip_prefix(contents.tensors, lambda state: bool(_matches(state, format_name)))
    check_distilled(tensors, source)
    names = list(tensors)  # reading takes the tensors out
    name = format_name or detect_format(tensors, source)
    raw = Raw(path=files[0], tensors=tensors, sidecars=read_sidecars(files[0].parent))
    try:
        checkpoint = FOREIGN[name].read(raw, hints)
    except VitrailError as error:
        refuse_family(names, source, TRANSFORMERS)
        message = str(error)
        raise WeightsError(message if str(source) in message else f"{source}, read as {name}: {message}") from error
    except NONSENSE as error:
        raise WeightsError(f"{source}, read as {name}, is inconsistent: {error}") from error
    return replace(
        checkpoint,
        file_format=name,
        origin=replace(checkpoint.origin, source=str(path)),
        notes=(*contents.notes, *checkpoint.notes),
        remarks=(*remarks, *checkpoint.remarks),
    )


def apply_hints(checkpoint: Checkpoint, hints: Hints) -> Checkpoint:
    """Our checkpoints state everything; the user's hints still override it, as far as the weights allow."""
    config = checkpoint.config
    block = replace(
        config.block,
        activation=hints.activation or config.block.activation,
        norm_eps=hints.norm_eps or config.block.norm_eps,
        attention_scale=hints.attention_scale or config.block.attention_scale,
    )
    pooling, heads = hints.pooling or config.pooling, hints.heads or config.heads
    if hints.image_size not in (None, config.image_size):
        raise WeightsError(f"this checkpoint is for pictures of {config.image_size}; resample it to change that.")
    return replace(checkpoint, config=replace(config, block=block, pooling=pooling, heads=heads))


def _matches(tensors: dict[str, Tensor], format_name: FormatName | None = None) -> list[FormatName]:
    """The formats, or the one in question, whose keys these are."""
    names: list[FormatName] = [format_name] if format_name else list(FOREIGN)
    return [name for name in names if FOREIGN[name].recognises(tensors)]


def check_distilled(tensors: Mapping[str, Tensor], source: Path) -> None:
    """Raise for a DeiT with a second class token and a second head, which are unlike anything in the paper's ViT."""
    for name in tensors:
        if name.rpartition(".")[2] in ("dist_token", "distillation_token"):
            raise WeightsError(
                f"{source} is a DeiT that was trained with distillation: it has the token {name} and a head of its own "
                "for it, which the paper's ViT does not have; use the DeiT without distillation "
                "(deit_base_patch16_224 instead of deit_base_distilled_patch16_224)."
            )


def refuse_family(names: Iterable[str], source: Path, families: Iterable[tuple[str, str]]) -> None:
    """Raise with the name of what this is, if the names of its tensors reveal it."""
    text = "\n".join(names)
    for pattern, family in families:
        if re.search(pattern, text, re.MULTILINE):
            raise WeightsError(f"{source} looks like {family}; vitrail reads plain ViTs only ({', '.join(FOREIGN)}).")


def detect_format(tensors: dict[str, Tensor], source: Path) -> FormatName:
    """The format whose keys these are."""
    matches = _matches(tensors)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise WeightsError(f"{source} could be {' or '.join(matches)}; name one with source_format=.")
    refuse_family(tensors, source, TRANSFORMERS)
    if parts := describe_parts(tensors, lambda state: bool(_matches(state))):
        raise WeightsError(f"the keys of {source} are not those of one ViT: {parts}.")
    refuse_family(tensors, source, OTHERS)
    shown = ", ".join(list(tensors)[:5]) or "none"
    raise WeightsError(
        f"the keys of {source} are those of no ViT that we know ({', '.join(FOREIGN)}); its first keys: {shown}."
    )


def read_files(files: list[Path], allow_pickle: bool, ema: bool | None = None) -> Contents:
    """What one or several files hold together."""
    contents = read_contents(files[0], allow_pickle, ema)
    for file in files[1:]:
        more = read_contents(file, allow_pickle, ema).tensors
        if twice := sorted(more.keys() & contents.tensors.keys()):
            raise WeightsError(f"{file} has tensors that another shard has too: {', '.join(twice[:5])}.")
        contents.tensors.update(more)
    return contents


def read_sidecars(folder: Path) -> dict[str, Any]:
    """The JSON files that describe the weights beside them."""
    return {name: read_json(folder / name) for name in SIDECARS if (folder / name).is_file()}
