"""transformers' ViT and its relatives with the same modules: DeiT, MAE, MSN, I-JEPA.

Some modules have one name in the files of the hub, and another one in transformers 5.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.model import ViTConfig
from vitrail.weights.foreign.huggingface_family import DROPOUT, HEAD, QKV_BIAS, Family, Fields, Model, eps, sizes
from vitrail.weights.foreign.mae import spell
from vitrail.weights.keys import Names, under

EMBEDDINGS: Names = {
    "embed.class_token": "embeddings.cls_token",
    "embed.registers": "embeddings.register_tokens",
    "embed.positions": "embeddings.position_embeddings",
    "embed.patches": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
    "representation": "pooler.dense",
}
ATTENTION: dict[str, Names] = {
    "files": {
        "attention.qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
        "attention.proj": "attention.output.dense",
    },
    "modules": {
        "attention.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        "attention.proj": "attention.o_proj",
    },
}
NORMS: Names = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
BLOCK: dict[str, Names] = {
    "files": {**NORMS, **ATTENTION["files"], "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"},
    "modules": {**NORMS, **ATTENTION["modules"], "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"},
}
LAYERS = {"files": "encoder.layer.{}.", "modules": "layers.{}."}
VIT_NAMES: dict[str, Names] = {
    generation: {**EMBEDDINGS, **under("blocks.{}", LAYERS[generation], BLOCK[generation])} for generation in BLOCK
}
VIT_FIELDS: Fields = {**sizes(), **DROPOUT, **QKV_BIAS}
POOLER_WORDS = frozenset(("pooler_output_size", "pooler_act"))
POOLER_REMARK = "the pooler beside the classifier is kept but not used, as transformers does"


def _pooler_words(config: ViTConfig, extras: Mapping[str, Tensor]) -> Mapping[str, Any]:
    words: dict[str, Any] = {"encoder_stride": config.patch_size[0]}
    return words | (
        {"pooler_output_size": config.representation, "pooler_act": "tanh"} if config.representation else {}
    )


VIT = Family(
    kind="vit",
    models=(
        Model(
            name="ViTForImageClassification",
            prefixes=("vit.",),
            signs=("classifier.weight",),
            outer=HEAD,
            unused=("pooler.dense.",),
            remark=POOLER_REMARK,
            answer="logits",
        ),
        Model(name="ViTModel", prefixes=("", "vit."), pooler="pooler.dense"),
    ),
    names=VIT_NAMES,
    fields={**VIT_FIELDS, **eps(1e-12)},
    fixed={"positions.resample": "hf"},
    words=POOLER_WORDS,
    write=_pooler_words,
)

DEIT = Family(
    kind="deit",
    models=(
        Model(
            name="DeiTForImageClassificationWithTeacher",
            prefixes=("deit.",),
            signs=("cls_classifier.weight",),
            outer={"head": "cls_classifier", "distilled_head": "distillation_classifier"},
            fields={"summary_tokens": 2, "distilled": True},
            answer="logits",
        ),
        Model(
            name="DeiTForImageClassification",
            prefixes=("deit.",),
            signs=("classifier.weight",),
            outer=HEAD,
            unused=("pooler.dense.",),
            remark=POOLER_REMARK,
            answer="logits",
        ),
        Model(name="DeiTModel", prefixes=("", "deit."), pooler="pooler.dense"),
    ),
    names={
        generation: {**names, "embed.registers": "embeddings.distillation_token"}
        for generation, names in VIT_NAMES.items()
    },
    sign=r"\bdistillation_token$",
    fields={**VIT_FIELDS, **eps(1e-12)},
    fixed={"positions.resample": "hf", "positions.covers": "all", "registers": 1},
    words=POOLER_WORDS,
    write=_pooler_words,
    processor="DeiTImageProcessor",
    preset="hf-imagenet",
)

_DECODER = """
    decoder_num_attention_heads decoder_hidden_size decoder_num_hidden_layers decoder_intermediate_size
    mask_ratio norm_pix_loss
"""
# As on the hub, as modules, and as transformers 5 writes them.
DECODERS = (
    spell("decoder.", "decoder_layers.{}.", BLOCK["files"]),
    spell("decoder.", "decoder_layers.{}.", BLOCK["modules"]),
    spell("decoder.", "decoder_encoder.layer.{}.", BLOCK["files"]),
)
MAE = Family(
    kind="vit_mae",
    models=(
        Model(
            name="ViTMAEForPreTraining",
            prefixes=("vit.",),
            signs=("decoder.decoder_embed.weight",),
            left_out=("decoder.",),
            decoders=DECODERS,
            remark="the decoder of masked pictures was left out; the encoder is the model",
            run_as="ViTMAEModel",
            arguments={"mask_ratio": 0.0},
            written=False,
        ),
        Model(name="ViTMAEModel", prefixes=("", "vit."), arguments={"mask_ratio": 0.0}),
    ),
    names=VIT_NAMES,
    sign=r"^decoder\.decoder_embed\.",
    fields={**VIT_FIELDS, **eps(1e-12)},
    fixed={"positions.resample": "hf"},
    irrelevant=frozenset(_DECODER.split()),
    preset="hf-imagenet",
)

MSN = Family(
    kind="vit_msn",
    models=(
        Model(
            name="ViTMSNForImageClassification",
            prefixes=("vit.",),
            signs=("classifier.weight",),
            outer=HEAD,
            answer="logits",
        ),
        Model(name="ViTMSNModel", prefixes=("", "vit.")),
    ),
    names=VIT_NAMES,
    fields={**VIT_FIELDS, **eps(1e-6)},
    fixed={"positions.resample": "hf"},
    preset="hf-imagenet",
)

IJEPA = Family(
    kind="ijepa",
    models=(
        Model(
            name="IJepaForImageClassification",
            prefixes=("ijepa.",),
            signs=("classifier.weight",),
            outer=HEAD,
            fields={"pooling": "mean"},
            answer="logits",
        ),
        Model(
            name="IJepaModel",
            prefixes=("", "ijepa."),
            fields={"pooling": "mean"},
            remark="the features are the mean of the patches, which I-JEPA's classifier reads",
            answer="mean token",
        ),
    ),
    names=VIT_NAMES,
    sign=r"\A(?![\s\S]*cls_token)[\s\S]*embeddings\.patch_embeddings\.projection",
    fields={**VIT_FIELDS, **eps(1e-12)},
    fixed={"positions.resample": "hf", "positions.covers": "patches", "class_token": False},
    words=POOLER_WORDS,
    preset="hf-imagenet",
)
