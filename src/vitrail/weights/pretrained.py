"""Weights to start from: one dated table of what the hub offers, with licences, gates, sizes and published accuracies.

An accuracy is the publisher's, or that of the library that measured it. What it is of differs between families (a
linear probe, zero-shot, fine-tuned): only those of one kind can be compared. Where nothing is published, there is none.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal

import torch

from vitrail.model import BlockConfig, PositionConfig, ViT, ViTConfig, summarize
from vitrail.model.parts import Pair, RelativeBias, Rope
from vitrail.threads import cores, num_cores
from vitrail.timing import best_of, take_turns, undisturbed

AS_OF = "2026-11-18"  # when the table was last compared with its sources

Measure = Literal["linear probe", "linear probe, ReaL", "attentive probe", "zero-shot", "fine-tuned", ""]
Shape = tuple[int, int, int, int]  # width, depth, heads, MLP width
# Licences that clearly allow commercial use; DINOv3's is Meta's own, with terms about what the weights are used for.
COMMERCIAL = ("Apache-2.0", "MIT", "DINOv3")

# Size → its shape, with plain MLPs.
SIZES: dict[str, Shape] = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "M": (512, 12, 8, 2048),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "So400m": (1152, 27, 16, 4304),
    "H": (1280, 32, 16, 5120),
    "g-opt": (1536, 40, 16, 6144),
    "G": (1536, 50, 16, 8960),
}
GIANT: dict[str, Shape] = {"g": (1536, 40, 24, 4096)}  # DINOv2's, whose MLPs are gated


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the weights of one family have in common."""

    licence: str = "Apache-2.0"
    measure: Measure = ""  # what the accuracies are of
    reference: str = ""  # where they are published
    gated_mlps: Mapping[str, Shape] = field(default_factory=dict[str, Shape])  # sizes with SwiGLU
    projections: Mapping[str, int] = field(default_factory=dict[str, int])  # size → width of the last projection
    num_classes: int = 0  # of the head in the files
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])  # other fields of ViTConfig


TIMM = "github.com/huggingface/pytorch-image-models, results/results-imagenet.csv"
OPENCLIP = "github.com/mlfoundations/open_clip, docs/openclip_results.csv"
DINOV2 = "github.com/facebookresearch/dinov2, README.md"
SCALED = BlockConfig(layer_scale=1e-5)
WITHOUT_KEY_BIAS = replace(SCALED, key_bias=False)
ROTATED: dict[str, Any] = {"registers": 4, "positions": PositionConfig(kind="none"), "relative": Rope()}
BEIT = Family(
    measure="fine-tuned",
    reference=TIMM,
    num_classes=1000,
    config={
        "block": WITHOUT_KEY_BIAS,
        "positions": PositionConfig(kind="none"),
        "relative": RelativeBias(),
        "pooling": "mean",
        "pool_norm": "after",
    },
)
CLIP = Family(
    licence="MIT",
    measure="zero-shot",
    reference=OPENCLIP,
    projections={"B": 512, "L": 768, "H": 1024},
    config={"pre_norm": True, "patch_bias": False},
)
SIGLIP = Family(measure="zero-shot", reference=OPENCLIP, config={"class_token": False, "pooling": "map"})

FAMILIES = {
    "AugReg": Family(measure="fine-tuned", reference=TIMM, num_classes=1000),
    "DeiT": Family(measure="fine-tuned", reference=TIMM, num_classes=1000),
    "DeiT-III": Family(
        measure="fine-tuned",
        reference=TIMM,
        num_classes=1000,
        config={"block": SCALED, "positions": PositionConfig(covers="patches")},
    ),
    "DINOv2": Family(measure="linear probe", reference=DINOV2, gated_mlps=GIANT, config={"block": SCALED}),
    "DINOv2-reg": Family(
        measure="linear probe", reference=DINOV2, gated_mlps=GIANT, config={"block": SCALED, "registers": 4}
    ),
    "DINOv3": Family(
        licence="DINOv3",
        measure="linear probe, ReaL",
        reference="github.com/facebookresearch/dinov3, MODEL_CARD.md",
        gated_mlps={"S+": (384, 12, 6, 1536), "H+": (1280, 32, 20, 5120), "7B": (4096, 40, 32, 8192)},
        config={"block": replace(SCALED, qkv_bias=False), **ROTATED},
    ),
    "LingBot": Family(gated_mlps=GIANT, config={"block": WITHOUT_KEY_BIAS, **ROTATED}),
    "EUPE": Family(licence="FAIR non-commercial", config={"block": WITHOUT_KEY_BIAS, **ROTATED}),
    "SigLIP": SIGLIP,
    "SigLIP2": replace(
        SIGLIP,
        reference="github.com/google-research/big_vision, big_vision/configs/proj/image_text/README_siglip2.md",
    ),
    "CLIP": CLIP,
    "CLIP-LAION": replace(CLIP, licence="Apache-2.0"),
    "CLIP-DataComp": replace(CLIP, licence="Apache-2.0"),
    "CLIP-DFN": replace(CLIP, licence="Apple ASCL"),
    "MetaCLIP": replace(CLIP, licence="CC-BY-NC-4.0"),
    "PE-Core": Family(
        measure="zero-shot",
        reference="github.com/facebookresearch/perception_models, apps/pe/README.md",
        projections={"Ti": 512, "S": 512, "B": 1024, "L": 1024, "G": 1280},
        config={
            "pre_norm": True,
            "patch_bias": False,
            "relative": Rope(base=10_000.0, coordinates="index", pairing="interleaved"),
            "pooling": "map",
            "pool_heads": 8,
            "pool_prefix": True,
        },
    ),
    "EVA-02": Family(
        licence="MIT",
        measure="fine-tuned",
        reference=TIMM,
        gated_mlps={
            "Ti": (192, 12, 3, 512),
            "S": (384, 12, 6, 1024),
            "B": (768, 12, 12, 2048),
            "L": (1024, 24, 16, 2730),
        },
        num_classes=1000,
        config={
            "block": BlockConfig(key_bias=False),
            "relative": Rope(base=10_000.0, coordinates="reference", reference=(16, 16), pairing="interleaved"),
        },
    ),
    "BEiT": BEIT,
    "BEiTv2": BEIT,
    "MAE": Family(
        licence="CC-BY-NC-4.0", measure="fine-tuned", reference="github.com/facebookresearch/mae, FINETUNE.md"
    ),
    "AIMv2": Family(
        licence="Apple ASCL",
        measure="attentive probe",
        reference="github.com/apple/ml-aim, README.md",
        gated_mlps={"L": (1024, 24, 8, 2816), "H": (1536, 24, 12, 4096), "1B": (2048, 24, 16, 5632)},
        config={
            "block": BlockConfig(norm="rms", qkv_bias=False, proj_bias=False, norm_eps=1e-5),
            "class_token": False,
            "pooling": "mean",
            "patch_norm": True,
        },
    ),
}

# Each line: family, size/patch, pixels, accuracy in % ("-" if none is published), name on the hub, "gated" if it is.
_TABLE = """\
AugReg Ti/16 224 75.45 timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k
AugReg S/32 224 76.01 timm/vit_small_patch32_224.augreg_in21k_ft_in1k
AugReg S/16 224 81.40 timm/vit_small_patch16_224.augreg_in21k_ft_in1k
AugReg B/32 224 80.73 timm/vit_base_patch32_224.augreg_in21k_ft_in1k
AugReg B/16 224 84.53 timm/vit_base_patch16_224.augreg_in21k_ft_in1k
AugReg B/8 224 85.84 timm/vit_base_patch8_224.augreg_in21k_ft_in1k
AugReg L/16 224 85.86 timm/vit_large_patch16_224.augreg_in21k_ft_in1k
DeiT Ti/16 224 72.19 timm/deit_tiny_patch16_224.fb_in1k
DeiT S/16 224 79.86 timm/deit_small_patch16_224.fb_in1k
DeiT B/16 224 81.98 timm/deit_base_patch16_224.fb_in1k
DeiT-III S/16 224 83.08 timm/deit3_small_patch16_224.fb_in22k_ft_in1k
DeiT-III M/16 224 84.55 timm/deit3_medium_patch16_224.fb_in22k_ft_in1k
DeiT-III B/16 224 85.73 timm/deit3_base_patch16_224.fb_in22k_ft_in1k
DeiT-III L/16 224 86.99 timm/deit3_large_patch16_224.fb_in22k_ft_in1k
DeiT-III H/14 224 87.18 timm/deit3_huge_patch14_224.fb_in22k_ft_in1k
DINOv2 S/14 518 81.1 facebook/dinov2-small
DINOv2 B/14 518 84.5 facebook/dinov2-base
DINOv2 L/14 518 86.3 facebook/dinov2-large
DINOv2 g/14 518 86.5 facebook/dinov2-giant
DINOv2-reg S/14 518 80.9 facebook/dinov2-with-registers-small
DINOv2-reg B/14 518 84.6 facebook/dinov2-with-registers-base
DINOv2-reg L/14 518 86.7 facebook/dinov2-with-registers-large
DINOv2-reg g/14 518 87.1 facebook/dinov2-with-registers-giant
DINOv3 S/16 256 87.0 timm/vit_small_patch16_dinov3.lvd1689m
DINOv3 S+/16 256 88.0 timm/vit_small_plus_patch16_dinov3.lvd1689m
DINOv3 B/16 256 89.3 timm/vit_base_patch16_dinov3.lvd1689m
DINOv3 L/16 256 90.2 timm/vit_large_patch16_dinov3.lvd1689m
DINOv3 H+/16 256 90.3 timm/vit_huge_plus_patch16_dinov3.lvd1689m
DINOv3 7B/16 256 90.4 timm/vit_7b_patch16_dinov3.lvd1689m
DINOv3 S/16 224 87.0 facebook/dinov3-vits16-pretrain-lvd1689m gated
DINOv3 B/16 224 89.3 facebook/dinov3-vitb16-pretrain-lvd1689m gated
DINOv3 L/16 224 90.2 facebook/dinov3-vitl16-pretrain-lvd1689m gated
LingBot S/16 512 - belfner/vit_small_patch16_lingbot.robbyant
LingBot B/16 512 - belfner/vit_base_patch16_lingbot.robbyant
LingBot L/16 512 - belfner/vit_large_patch16_lingbot.robbyant
LingBot g/16 512 - belfner/vit_giant_patch16_lingbot.robbyant
EUPE Ti/16 256 - timm/vit_tiny_patch16_dinov3_qkvb.eupe_lvd1689m
EUPE S/16 256 - timm/vit_small_patch16_dinov3_qkvb.eupe_lvd1689m
EUPE B/16 256 - timm/vit_base_patch16_dinov3_qkvb.eupe_lvd1689m
SigLIP B/16 224 76.04 timm/vit_base_patch16_siglip_224.webli
SigLIP L/16 256 80.45 timm/vit_large_patch16_siglip_256.webli
SigLIP So400m/14 224 82.03 timm/vit_so400m_patch14_siglip_224.webli
SigLIP2 B/32 256 74.0 timm/vit_base_patch32_siglip_256.v2_webli
SigLIP2 B/16 224 78.2 timm/vit_base_patch16_siglip_224.v2_webli
SigLIP2 L/16 256 82.5 timm/vit_large_patch16_siglip_256.v2_webli
SigLIP2 So400m/16 256 83.4 timm/vit_so400m_patch16_siglip_256.v2_webli
SigLIP2 g-opt/16 256 84.5 timm/vit_giantopt_patch16_siglip_256.v2_webli
CLIP B/32 224 63.32 timm/vit_base_patch32_clip_224.openai
CLIP B/16 224 68.34 timm/vit_base_patch16_clip_224.openai
CLIP L/14 224 75.54 timm/vit_large_patch14_clip_224.openai
CLIP L/14 336 76.56 timm/vit_large_patch14_clip_336.openai
CLIP-LAION B/32 224 66.56 timm/vit_base_patch32_clip_224.laion2b
CLIP-LAION B/16 224 70.23 timm/vit_base_patch16_clip_224.laion2b
CLIP-LAION L/14 224 75.25 timm/vit_large_patch14_clip_224.laion2b
CLIP-LAION H/14 224 77.96 timm/vit_huge_patch14_clip_224.laion2b
CLIP-DataComp B/32 224 69.17 timm/vit_base_patch32_clip_224.datacompxl
CLIP-DataComp B/16 224 73.49 timm/vit_base_patch16_clip_224.datacompxl
CLIP-DataComp L/14 224 79.21 timm/vit_large_patch14_clip_224.datacompxl
CLIP-DFN B/16 224 76.24 timm/vit_base_patch16_clip_224.dfn2b
CLIP-DFN L/14 224 81.41 timm/vit_large_patch14_clip_224.dfn2b
MetaCLIP B/16 224 72.12 timm/vit_base_patch16_clip_224.metaclip_2pt5b
MetaCLIP L/14 224 79.17 timm/vit_large_patch14_clip_224.metaclip_2pt5b
PE-Core Ti/16 384 62.1 timm/vit_pe_core_tiny_patch16_384.fb
PE-Core S/16 384 72.7 timm/vit_pe_core_small_patch16_384.fb
PE-Core B/16 224 78.4 timm/vit_pe_core_base_patch16_224.fb
PE-Core L/14 336 83.5 timm/vit_pe_core_large_patch14_336.fb
PE-Core G/14 448 85.4 timm/vit_pe_core_gigantic_patch14_448.fb
EVA-02 Ti/14 336 80.65 timm/eva02_tiny_patch14_336.mim_in22k_ft_in1k
EVA-02 S/14 336 85.77 timm/eva02_small_patch14_336.mim_in22k_ft_in1k
EVA-02 B/14 448 88.68 timm/eva02_base_patch14_448.mim_in22k_ft_in22k_in1k
EVA-02 L/14 448 90.06 timm/eva02_large_patch14_448.mim_m38m_ft_in22k_in1k
BEiT B/16 224 85.24 timm/beit_base_patch16_224.in22k_ft_in22k_in1k
BEiT L/16 224 87.49 timm/beit_large_patch16_224.in22k_ft_in22k_in1k
BEiTv2 B/16 224 86.49 timm/beitv2_base_patch16_224.in1k_ft_in22k_in1k
BEiTv2 L/16 224 88.41 timm/beitv2_large_patch16_224.in1k_ft_in22k_in1k
MAE B/16 224 83.66 timm/vit_base_patch16_224.mae
MAE L/16 224 85.95 timm/vit_large_patch16_224.mae
MAE H/14 224 86.93 timm/vit_huge_patch14_224.mae
AIMv2 L/14 224 86.6 timm/aimv2_large_patch14_224.apple_pt
AIMv2 H/14 224 87.5 timm/aimv2_huge_patch14_224.apple_pt
AIMv2 1B/14 224 88.1 timm/aimv2_1b_patch14_224.apple_pt
"""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """Weights on the hub that a run can start from."""

    family: str
    size: str  # with the patch: S/14
    pixels: int  # of the pictures that they are made for
    accuracy: float | None  # on ImageNet-1k, in %, as published; None if nothing is
    repository: str  # owner/name on the hub
    gated: bool = False  # whether one must accept terms on its page first

    @property
    def name(self) -> str:
        return f"{self.family}-{self.size.partition('/')[0]}"

    @property
    def source(self) -> str:
        return f"hf://{self.repository}"

    @property
    def licence(self) -> str:
        return FAMILIES[self.family].licence

    @property
    def commercial(self) -> bool:
        """Whether the licence clearly allows commercial use."""
        return self.licence in COMMERCIAL

    @property
    def measure(self) -> Measure:
        """What the accuracy is of."""
        return "" if self.accuracy is None else FAMILIES[self.family].measure

    @property
    def reference(self) -> str:
        """Where the accuracy is published."""
        return "" if self.accuracy is None else FAMILIES[self.family].reference

    @cached_property
    def config(self) -> ViTConfig:
        """The architecture of its file, up to what neither its parameters nor its speed depend on."""
        family = FAMILIES[self.family]
        size, _, patch = self.size.partition("/")
        width, depth, heads, mlp_width = (family.gated_mlps if size in family.gated_mlps else SIZES)[size]
        fields = dict(family.config)
        block: BlockConfig = fields.pop("block", BlockConfig())
        if size in family.gated_mlps:
            block = replace(block, mlp="swiglu", mlp_norm=self.family == "EVA-02" and size in ("B", "L"))
        return ViTConfig(
            image_size=(self.pixels, self.pixels),
            patch_size=(int(patch), int(patch)),
            width=width,
            depth=depth,
            heads=heads,
            mlp_width=mlp_width,
            pool_mlp_width=4 * width if self.family == "PE-Core" else None,
            block=block,
            projection=family.projections.get(size),
            num_classes=family.num_classes,
            **fields,
        )

    @cached_property
    def parameters(self) -> int:
        return summarize(self.config).parameters

    @property
    def megabytes(self) -> int:
        """Of the file, whose numbers have four bytes each."""
        return round(self.parameters * 4 / 1e6)


@cache
def table() -> tuple[Pretrained, ...]:
    """Everything that the table lists."""
    rows: list[Pretrained] = []
    for line in _TABLE.splitlines():
        family, size, pixels, accuracy, repository, *gate = line.split()
        published = None if accuracy == "-" else float(accuracy)
        rows.append(
            Pretrained(
                family=family,
                size=size,
                pixels=int(pixels),
                accuracy=published,
                repository=repository,
                gated=bool(gate),
            )
        )
    return tuple(rows)


def find(repository: str) -> Pretrained | None:
    """What the table says of an owner/name on the hub; None if it does not list it."""
    return next((row for row in table() if row.repository == repository), None)


def select(*, commercial: bool = False, ungated: bool = False, max_mb: float | None = None) -> list[Pretrained]:
    """The rows that anybody may use commercially, download without asking, or with files of at most this size."""
    return [
        row
        for row in table()
        if (row.commercial or not commercial)
        and (not row.gated or not ungated)
        and (max_mb is None or row.megabytes <= max_mb)
    ]


# Kind of device → what a run on photographs starts from by default: anybody may download it and use it for anything.
# Of such weights of their size, none has a higher published accuracy with only a head on top, which is how a CPU trains
# them (registers change it by 0.2 %). LingBot-S has their licence, DINOv3's shape and 3/4 of the cost, and is made for
# dense tasks: its authors publish no accuracy of classification, so there is no evidence for it.
DEFAULTS = {"cpu": "facebook/dinov2-small", "cuda": "facebook/dinov2-base"}
USUAL_SIDE = 224  # pixels at which weights without a head are fine-tuned, even if their own size is larger


def default(device: str) -> Pretrained:
    """What a run starts from by default on a kind of device.

    A forward and a backward pass of the small one take a CPU core about a third of a second per picture; a GPU has time
    for the larger.
    """
    row = find(DEFAULTS["cuda" if device == "cuda" else "cpu"])
    assert row is not None
    return row


def usual_size(config: ViTConfig) -> Pair:
    """The size at which such weights are trained further: their own, or a smaller one for weights without a head.

    Weights without a head were not tuned to a size; DINOv2's own, 518 pixels, costs over five times the usual one.
    """
    if config.num_classes or max(config.image_size) <= USUAL_SIDE:
        return config.image_size
    height, width = (side * max(USUAL_SIDE // side, 1) for side in config.patch_size)
    return height, width


BATCH = 2  # pictures in a pass that is timed
ROUNDS = 4  # passes, of which the first warms up
PATIENCE = 3.0  # seconds after which no further pass is begun
SLOWEST = 10.0  # seconds that a pass may be expected to take; slower architectures are not measured


def measure_speeds(
    rows: Sequence[Pretrained], memory: float, done: Callable[[int], object] = lambda _: None
) -> list[float | None]:
    """Pictures per second of each row's architecture with random weights, in torch, on this machine, at the usual size.

    Each core computes batches of its own, as in `predict`, so one core is measured. Architectures that several rows
    share are measured once, the cheapest first; None for those whose weights need more than `memory` bytes, or whose
    pass would take too long, judged by the speed of the one before.
    """
    configs = [replace(row.config, image_size=usual_size(row.config), num_classes=0) for row in rows]
    costs = {config: summarize(config) for config in configs}
    speeds: dict[ViTConfig, float | None] = {}
    rate = 0.0  # MACs per second of one core
    for config in sorted(costs, key=lambda config: costs[config].forward_macs):
        macs = costs[config].forward_macs
        fits = costs[config].parameters * 4 < memory and (not rate or BATCH * macs <= rate * SLOWEST)
        speed = speeds[config] = _measure_speed(config) if fits else None
        rate = rate if speed is None else speed * macs / num_cores()
        done(configs.count(config))
    return [speeds[config] for config in configs]


def _measure_speed(config: ViTConfig) -> float:
    with torch.device("meta"):
        model = ViT(config).eval()
    model.to_empty(device="cpu")
    with torch.inference_mode():
        for tensor in model.state_dict().values():
            tensor.normal_(std=0.02)
        images = torch.randn(BATCH, config.channels, *config.image_size)
        with cores(1):
            (laps,) = take_turns([lambda: model(images)], ROUNDS, patience=PATIENCE, work_clock=time.process_time)
    (seconds,) = undisturbed([best_of(laps, warm_up=1)], 1)
    return num_cores() * BATCH / seconds
