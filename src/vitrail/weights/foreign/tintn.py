"""tintn/vision-transformer-from-scratch: `model_final.pt`, and `config.json` beside it.

The write-up's ViT has the tanh form of GELU and no last LayerNorm. Its attention has layers of its own for every head,
or one layer for all (`use_faster_attention`).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.data.preprocess import Preprocess, preset
from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, Rates, ViTConfig
from vitrail.model.parts import Pair
from vitrail.weights import keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, anything, computes, only, positions
from vitrail.weights.infer import Hints, Raw, assumed_heads, infer_config
from vitrail.weights.keys import Names, Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.resolve import EXPERIMENT
from vitrail.weights.sidecars import CONFIG, Settings, write_json
from vitrail.weights.tensor_files import write_pickle

BLOCK = BlockConfig(activation="gelu_tanh", norm_eps=1e-5)  # what the write-up computes
FASTER = "use_faster_attention"
# Key of config.json → our field with the same value.
FIELDS = {
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "hidden_width",
    "num_classes": "num_classes",
    "num_channels": "channels",
}
SIDES = ("image_size", "patch_size")  # of squares
RATES = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention"}
KNOWN = frozenset({*FIELDS, *SIDES, *RATES, "qkv_bias", FASTER, "initializer_range"})


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    attention = ("qkv_projection.weight", "heads.0.query.weight")
    blocks = any(f"encoder.blocks.0.attention.{name}" in tensors for name in attention)
    return blocks and "embedding.patch_embeddings.projection.weight" in tensors


def names_of(heads: int | None) -> Names:
    """Our modules → theirs; `heads` is their number where each has layers of its own."""
    qkv = ("qkv_projection",)
    if heads is not None:
        qkv = tuple(f"heads.{head}.{part}" for part in ("query", "key", "value") for head in range(heads))
    block = {
        "norm1": "layernorm_1",
        "attention.qkv": tuple(f"attention.{name}" for name in qkv),
        "attention.proj": "attention.output_projection",
        "norm2": "layernorm_2",
        "mlp.fc1": "mlp.dense_1",
        "mlp.fc2": "mlp.dense_2",
    }
    return {
        "embed.class_token": "embedding.cls_token",
        "embed.positions": "embedding.position_embeddings",
        "embed.patches": "embedding.patch_embeddings.projection",
        **under("blocks.{}", "encoder.blocks.{}.", block),
        "head": "classifier",
    }


def key_table(config: ViTConfig, dialect: Mapping[str, str]) -> list[Rule]:
    return keys.key_table(config, names_of(config.heads if dialect.get("attention") == "heads" else None))


def read(raw: Raw, hints: Hints) -> Checkpoint:
    apart = "encoder.blocks.0.attention.heads.0.query.weight" in raw.tensors
    dialect = {"attention": "heads" if apart else "merged"}
    heads = raw.count_layers(r"encoder\.blocks\.0\.attention\.heads\.(\d+)\.") if apart else None
    stated = read_config(raw.sidecars)
    known = replace(hints, heads=heads or hints.heads or (stated and stated.whole("num_attention_heads")))
    config = infer_config(raw, known, names_of(heads), block=BLOCK, positions=PositionConfig(), pool_norm="none")
    notes = () if known.heads else assumed_heads(config, hints)
    if stated:
        check(stated, config, apart)
        config = replace(config, rates=Rates(**{ours: stated.number(theirs) for theirs, ours in RATES.items()}))
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, dialect), raw.tensors),
        preprocess=write_up(config),
        origin=Origin(format="tintn", dialect=dialect),
        notes=(*notes, PREPROCESS),
    )


METRICS = {"train_losses": [], "test_losses": [], "accuracies": []}  # without which `load_experiment` fails
PREPROCESS = "the file does not state its preprocessing: assumed the write-up's own (squashed, mean and std 0.5)"


def write_up(config: ViTConfig) -> Preprocess:
    """Its `ToTensor`, `Resize` and `Normalize`, in this order."""
    return replace(preset("google", config.image_size, config.channels), antialias=True)


def read_config(sidecars: Mapping[str, Any]) -> Settings | None:
    """The `config.json` beside the weights, where there is one."""
    if CONFIG not in sidecars:
        return None
    stated = Settings(CONFIG, sidecars[CONFIG])
    stated.refuse_unknown(KNOWN, {}, "the write-up's does not have, so it belongs to something else")
    if missing := sorted(KNOWN - {FASTER} - stated.keys()):
        raise WeightsError(f"{CONFIG} must have {', '.join(missing)}, as the write-up's has.")
    return stated


def check(stated: Settings, config: ViTConfig, apart: bool) -> None:
    """Raise unless the weights are those of the model that `config.json` describes."""
    shown = [key for key in FIELDS if apart or key != "num_attention_heads"]  # which no key of the merged form shows
    pairs: list[tuple[str, Any, Any]] = [(key, stated.whole(key), getattr(config, FIELDS[key])) for key in shown]
    pairs += [(key, stated.pair(key), getattr(config, key)) for key in SIDES]
    pairs += [("qkv_bias", stated.flag("qkv_bias"), config.block.qkv_bias), (FASTER, stated.flag(FASTER), not apart)]
    for key, said, actual in pairs:
        if said != actual:
            raise WeightsError(
                f"the weights do not fit their {CONFIG}: {key} is {said} there and {actual} in the weights."
            )


def _squares(value: Pair, config: ViTConfig) -> str:
    return "" if value[0] == value[1] else "its pictures and patches are square"


HOLDS: Holds = {
    **COMMON,
    **positions("learned", covers="class"),
    **dict.fromkeys(SIDES, _squares),
    "num_classes": lambda value, config: "" if value else "it always has a head",
    "pool_norm": only("none", reason="it has no last LayerNorm"),
    "block.qkv_bias": anything,
    **computes(BLOCK),
}


def describe(config: ViTConfig, apart: bool) -> dict[str, Any]:
    """The `config.json` of a model."""
    return {
        **{key: getattr(config, ours) for key, ours in FIELDS.items()},
        **{key: getattr(config, key)[0] for key in SIDES},
        **{key: getattr(config.rates, ours) for key, ours in RATES.items()},
        "qkv_bias": config.block.qkv_bias,
        FASTER: not apart,
        "initializer_range": 0.02,
    }


def write(checkpoint: Checkpoint, path: Path) -> None:
    dialect = checkpoint.origin.dialect_of("tintn")
    tensors = write_tensors(key_table(checkpoint.config, dialect), checkpoint.tensors)
    if path.suffix:
        write_pickle(path, tensors)
        return
    path.mkdir()
    write_pickle(path / EXPERIMENT, tensors)
    write_json(path / CONFIG, describe(checkpoint.config, dialect.get("attention") == "heads"))
    write_json(path / "metrics.json", METRICS)


def how_to_load(checkpoint: Checkpoint, path: Path) -> str:
    if path.suffix:
        apart = checkpoint.origin.dialect_of("tintn").get("attention") == "heads"
        facts = describe(checkpoint.config, apart)
        return f'model = ViTForClassfication({facts}); model.load_state_dict(torch.load("{path}"))'
    return f'load_experiment("{path.name}", base_dir="{path.parent}")'


FORMAT = ForeignFormat(
    name="tintn",
    suffixes=(".pt", ""),
    holds=lambda config: HOLDS,
    write=write,
    how_to_load=how_to_load,
    resamples=lambda config: False,
    recognises=recognises,
    read=read,
)
