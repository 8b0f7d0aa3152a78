"""Models that vitrail cannot hold, recognised so that the refusal can name them and say what to do.

A `config.json` of transformers names them. Otherwise the names of the tensors tell, and for some their shapes. What
timm's own names stand for is known in `timm_names.py`.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from vitrail.weights.sidecars import CONFIG

Shapes = Mapping[str, tuple[int, ...]]  # of the tensors, by name

ELSEWHERE = "run it with the library that it comes from, or start from a ViT"
TOWER = "if its picture encoder is a plain ViT, save that by itself"


class Family(NamedTuple):
    """Models of one kind."""

    name: str
    why: str  # what they have that no model of ours has
    keys: str = ""  # a pattern, searched in all names at once, each of which is a line
    models: str = ""  # their types in a `config.json` of transformers, as patterns
    advice: str = ELSEWHERE


# Some of their keys are a ViT's: they are asked before a ViT is looked for, and when reading one has failed.
ATTENDING = (
    Family(
        "a LoRA adapter",
        "it holds changes to a model, not a model",
        r"\blora_(A|B|down|up|magnitude_vector)\b",
        advice="convert the model that it belongs to, with `adapter=` for the folder of the adapter",
    ),
    Family(
        "a Swin Transformer",
        "it attends within shifted windows",
        r"(layers\.\d+\.blocks|features\.\d+\.\d+)\.\d*\.?att.*(relative_position_|logit_scale|_mlp)",
        "swin swinv2 donut-swin maskformer-swin",
    ),
    Family(
        "a Hiera",
        "its stages pool queries within windows",
        r"\bencoder\.stages\.\d+\.layers\.\d+\.proj\.|\bpos_embed_window\b|\A(?![\s\S]*pixel_)[\s\S]*\bblocks\.\d+\.proj\.weight$",
        "hiera sam2*",
    ),
    Family("an MViT", "it pools queries, keys and values", r"\battn\.(pool|norm)_[qkv]\."),
    Family(
        "a MaxViT or a CoAtNet",
        "it alternates convolutions with attention within windows and grids",
        r"\battn_(block|grid)\.|stages\.\d+\.blocks\.\d+\.(conv\.)?conv1_1x1\.",
    ),
    Family("a GCViT", "it attends within windows and to global queries", r"\bglobal_block\."),
    Family("a CaiT", "its class token has blocks of its own", r"\bblocks_token_only\."),
    Family("an XCiT", "it attends between channels", r"\bcls_attn_blocks\.|\blocal_mp\."),
    Family("a ConViT", "its attention is gated by positions", r"\battn\.gating_param$"),
    Family("a TNT", "it has transformers within patches", r"\bpixel_(embed|pos)\b"),
    Family("a CrossViT", "it has two branches of patches", r"\b(revert_projs|cls_token_1)\b"),
    Family("a CoaT", "it has several scales in parallel", r"\bserial_blocks\d\."),
    Family("a PiT", "it pools between its transformers", r"\btransformers\.\d+\.blocks\."),
    Family("a NesT", "it attends within nested blocks", r"\blevels\.\d+\.transformer_encoder\."),
    Family("a VOLO", "it has outlook attention", r"\bpost_network\."),
    Family(
        "a LeViT or a relative",
        "its attention has biases that it learns, and its tokens become fewer",
        r"\battention_bias(es|_idxs)\b",
        "levit",
    ),
    Family(
        "a ViT with parallel blocks",
        "each block computes several branches side by side",
        r"\b(attns|ffns)\.\d+\.|\b(attn|mlp)_out_proj\.",
    ),
    Family(
        "a ViT with differential attention",
        "it subtracts one attention map from another",
        r"\blambda_[qk]1$",
    ),
    Family(
        "a SAM, a ViTDet or a model like them",
        "it attends within windows, with relative positions along both axes",
        r"\brel_pos_[hw]$",
        "sam sam_* vitdet deepseek_ocr2_sam*",
    ),
    Family(
        "a ViTDet or an LW-DETR",
        "it attends within windows",
        r"\bembeddings\.projection\.weight$",
        "lw_detr_vit",
    ),
    Family(
        "a V-JEPA 2",
        "it reads videos: patches of several frames",
        r"\bpredictor\.(embeddings\.)?(mask_tokens|predictor_embed)",
        "vjepa2",
    ),
    Family(
        "a video transformer",
        "its patches span several frames, or it attends along time",
        r"\btemporal_|\btime_embed",
        "videomae timesformer vivit videoprism* xclip*",
    ),
    Family(
        "a detector",
        "it predicts boxes",
        r"mid_position_embeddings|detection_tokens|bbox_(predictor|embed)|query_position_embeddings",
        "yolos *detr* owlvit* owlv2* rf_detr*",
    ),
    Family("a ViTPose", "it predicts keypoints", r"\bkeypoint_head\.", "vitpose*", TOWER),
    Family(
        "a model for segmentation or depth",
        "it has a decoder for maps",
        r"\b(decode_head|mask_decoder|segmentation_head|reassemble_stage|depth_head|pixel_decoder)\.",
        "dpt segformer* mask2former maskformer oneformer depth_anything* zoedepth upernet eomt* vitmatte",
        TOWER,
    ),
    Family(
        "a CoCa",
        "it pools with OpenCLIP's attentional pooler",
        r"\battn_pool\.(query|ln_q|ln_k)\b",
    ),
    Family(
        "a masked autoencoder with its decoder",
        "only its encoder is a ViT",
        r"^decoder\.0\.",
        advice="save it without the names that contain decoder or mask_token",
    ),
    Family(
        "an InternViT",
        "it normalises queries and keys of all heads together",
        r"\battention\.projection_layer\.",
        "internvl_vision",
    ),
    Family("a GroupViT", "it merges tokens into groups", r"\bgroup_token$", "groupvit*"),
    Family("an MLP-Mixer or a relative", "it has no attention", r"\bmlp_(tokens|channels)\.|\bMixerBlock_\d"),
    Family("a Mamba", "it has state spaces instead of attention", r"\bA_log$", "mamba mamba2"),
    Family("a mixture of experts", "its tokens choose among MLPs", r"\bexperts?[./]|\bMoe/", "*moe*"),
    Family("a Perceiver", "it attends from latent vectors", r"\bperceiver\.|\bself_attends\.", "perceiver*"),
    Family(
        "a language model that sees, or its picture encoder",
        "it is made for pictures of any size beside text",
        r"\b(language_model|text_embeddings|text_video_logit_scale)\b|\bvisual\.merger\.|\bmulti_modal_projector\.|\bpatch_conv\.[\s\S]*\bffn_norm\.",
        "llava* *_vl *_vl_* vilt pe_video pe_audio_video pixtral internvl paligemma gemma3 idefics* smolvlm mllama*",
        TOWER,
    ),
    Family(
        "a pyramid of stages",
        "its tokens become fewer and wider from stage to stage",
        r"\bencoder\.stages\.\d+\.layers\.\d+\.(att|modulation|layernorm_before)",
        "focalnet pvt pvt_v2 cvt poolformer efficientformer swiftformer",
    ),
)
# What has no keys of a ViT.
OTHERS = (
    Family(
        "another model of lucidrains/vit-pytorch than its ViT and SimpleViT",
        "it has other blocks",
        r"^transformer\.layers\.\d+\.\d+\.",
    ),
    Family(
        "a C-RADIO", "it was distilled from several teachers", r"\binput_conditioner\.|\bcls_register_token$", "radio"
    ),
    Family("a YOLO", "it is a convolutional detector", r"^(model\.)+\d+\.(cv\d|conv|m\.\d)"),
    Family(
        "a diffusion model or its autoencoder",
        "it makes pictures",
        r"\b(down_blocks|up_blocks|mid_block|input_blocks|first_stage_model)\.",
    ),
    Family(
        "a model of text, or of text and pictures",
        "it has word embeddings",
        r"\b(embed_tokens|word_embeddings|token_embedding|wte|lm_head)\b",
        "bert* gpt* llama* qwen* gemma* mistral* t5* imagegpt blip* git flava layoutlm*",
        TOWER,
    ),
    Family(
        "a ResNet",
        "it is a convolutional network",
        r"\blayer1\.0\.conv1\.|\bembedder\.embedder\.|\bresnet\.|\broot_block/",
        "*resnet* bit regnet",
    ),
    Family(
        "a ConvNeXt or a relative",
        "it is a convolutional network",
        r"stages\.\d+\.(blocks\.|layers\.)?\d+\.(conv_dw|dwconv|depthwise_conv)|features\.\d+\.\d+\.layer_scale",
        "*convnext*",
    ),
    Family(
        "an EfficientNet, a MobileNet or a relative",
        "it is a convolutional network",
        r"^conv_stem\.|blocks\.\d+\.\d+\.conv_dw",
        "efficientnet mobilenet*",
    ),
    Family(
        "a convolutional network, or a transformer with one in it",
        "it has batch norms",
        r"\brunning_mean$",
        "mobilevit*",
    ),
    Family("a VGG or another plain convolutional network", "it has no blocks", r"\bfeatures\.\d+\.weight"),
    Family(
        "a network in stages",
        "its features become fewer and wider from stage to stage",
        r"\b(dense_)?(stages|layers|stage\d)\.\d+\.(\S*\.)?\d+\.|\b(stages|patch_embeddings|patch_embeds)\.\d+\.",
    ),
)
VIDEO = Family("a video transformer", "its patches span several frames")
GROUPED = Family(
    "a transformer with grouped-query attention", "several heads share keys and values", models="sapiens2*"
)


def name_family(shapes: Shapes, sidecars: Mapping[str, Any], families: Iterable[Family] = ATTENDING) -> Family | None:
    """The family of a file, by its `config.json`, the names of its tensors, or their shapes."""
    rows = tuple(families)
    stated = str((sidecars.get(CONFIG) or {}).get("model_type"))
    for family in (*rows, GROUPED):
        if any(fnmatchcase(stated, pattern) for pattern in family.models.split()):
            return family
    text = "\n".join(shapes)
    for family in rows:
        if family.keys and re.search(family.keys, text, re.MULTILINE):
            return family
    return _by_shapes(shapes) if rows == ATTENDING else None


def _by_shapes(shapes: Shapes) -> Family | None:
    """Names of a ViT, but for other tensors: patches of several frames, fewer keys than queries."""
    for name, shape in shapes.items():
        if len(shape) == 5 and "patch" in name:
            return VIDEO
        queries = shapes.get(re.sub(r"\b(k_proj|key)\.weight$", lambda found: QUERIES[found[1]], name), shape)
        packed = re.search(r"\battn\.qkv\.weight$", name) is not None
        if len(shape) == len(queries) == 2 and (
            queries[0] > shape[0] or (packed and shape[0] < 3 * shape[1] and shape[0] % 3)
        ):
            return GROUPED
    return None


QUERIES = {"k_proj": "q_proj.weight", "key": "query.weight"}


def refuse(family: Family, source: object, formats: Iterable[str]) -> str:
    """The message with which such a file is refused."""
    return (
        f"{source} looks like {family.name} ({family.why}); vitrail reads plain ViTs only ({', '.join(formats)}): "
        f"{family.advice}."
    )
