"""Models that vitrail cannot hold, as timm and transformers build them, are refused by name, by whatever reveals it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import timm, transformers
from safetensors.torch import save_file

import vitrail
from vitrail.errors import WeightsError
from vitrail.weights.families import ATTENDING, OTHERS, name_family
from vitrail.weights.read import FOREIGN

TIMM = {
    "swin_tiny_patch4_window7_224": "a Swin Transformer",
    "swinv2_tiny_window8_256": "a Swin Transformer",
    "hiera_tiny_224": "a Hiera",
    "sam2_hiera_tiny": "a Hiera",
    "mvitv2_tiny": "an MViT",
    "maxvit_tiny_tf_224": "a MaxViT or a CoAtNet",
    "coatnet_0_rw_224": "a MaxViT or a CoAtNet",
    "gcvit_xxtiny": "a GCViT",
    "cait_xxs24_224": "a CaiT",
    "xcit_nano_12_p16_224": "an XCiT",
    "convit_tiny": "a ConViT",
    "tnt_s_patch16_224": "a TNT",
    "crossvit_tiny_240": "a CrossViT",
    "coat_tiny": "a CoaT",
    "pit_ti_224": "a PiT",
    "nest_tiny": "a NesT",
    "volo_d1_224": "a VOLO",
    "levit_128s": "a LeViT or a relative",
    "vit_base_patch16_18x2_224": "a ViT with parallel blocks",
    "vit_base_patch16_xp_224": "a ViT with parallel blocks",
    "vit_dwee_patch16_reg1_gap_256": "a ViT with differential attention",
    "samvit_base_patch16": "a SAM, a ViTDet or a model like them",
    "mixer_s32_224": "an MLP-Mixer or a relative",
    "resnet18": "a ResNet",
    "convnext_atto": "a ConvNeXt or a relative",
    "efficientnet_b0": "an EfficientNet, a MobileNet or a relative",
    "mobilevit_xxs": "a convolutional network, or a transformer with one in it",
    "vgg11": "a VGG or another plain convolutional network",
    "davit_tiny": "a network in stages",
}


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def save_hollow(shapes: dict[str, tuple[int, ...]], path: Path) -> Path:
    """A file of tensors that are one number each, whatever their shape."""
    torch.save({name: torch.zeros(()).expand(shape) for name, shape in shapes.items()}, path)
    return path


@pytest.mark.parametrize("name", TIMM)
def test_timms_are_refused_by_their_keys(tmp_path: Path, name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    path = save_hollow(shapes_of(model), tmp_path / "a.pth")
    with pytest.raises(WeightsError) as caught:
        vitrail.inspect(path)
    message = str(caught.value)
    assert message.startswith(f"{path} looks like {TIMM[name]} (")
    assert f"vitrail reads plain ViTs only ({', '.join(FOREIGN)}): run it with the library" in message


HF: dict[str, tuple[str, dict[str, Any], str]] = {
    "swin": ("SwinModel", {"depths": [1, 1], "num_heads": [1, 2]}, "a Swin Transformer"),
    "hiera": ("HieraModel", {}, "a Hiera"),
    "vjepa2": ("VJEPA2Model", {"num_hidden_layers": 1, "pred_num_hidden_layers": 1}, "a V-JEPA 2"),
    "videomae": ("VideoMAEModel", {"num_hidden_layers": 1}, "a video transformer"),
    "timesformer": ("TimesformerModel", {"num_hidden_layers": 1}, "a video transformer"),
    "sam_vision_model": ("SamVisionModel", {"num_hidden_layers": 1}, "a SAM, a ViTDet or a model like them"),
    "vitdet": ("VitDetModel", {"num_hidden_layers": 1}, "a ViTDet or an LW-DETR"),
    "yolos": ("YolosModel", {"num_hidden_layers": 1}, "a detector"),
    "cvt": ("CvtModel", {}, "a pyramid of stages"),
    "focalnet": ("FocalNetModel", {}, "a pyramid of stages"),
    "convnext": ("ConvNextModel", {}, "a ConvNeXt or a relative"),
    "resnet": ("ResNetModel", {}, "a ResNet"),
}

STATED = {"vitdet": "a SAM, a ViTDet or a model like them"}  # where the config tells more than the keys


@pytest.mark.parametrize("kind", HF)
def test_transformers_are_refused_by_their_keys_or_their_config(tmp_path: Path, kind: str) -> None:
    name, options, family = HF[kind]
    with torch.device("meta"):
        model = getattr(transformers, name)(transformers.AutoConfig.for_model(kind, **options))
    save_hollow(shapes_of(model), tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError) as caught:
        vitrail.inspect(tmp_path / "pytorch_model.bin")
    assert f"looks like {family} (" in str(caught.value)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(WeightsError) as caught:
        vitrail.convert(tmp_path, tmp_path / "a.safetensors")
    assert f" looks like {STATED.get(kind, family)} (" in str(caught.value)


def test_keys_that_several_heads_share_are_told_by_their_shapes() -> None:
    layer = "model.layer.0.attention"
    shapes = {
        f"{layer}.q_proj.weight": (64, 64),
        f"{layer}.k_proj.weight": (16, 64),
        f"{layer}.v_proj.weight": (16, 64),
    }
    family = name_family(shapes, {})
    assert family is not None
    assert family.name == "a transformer with grouped-query attention"
    assert name_family({**shapes, f"{layer}.k_proj.weight": (64, 64)}, {}) is None
    packed = name_family({"blocks.0.attn.qkv.weight": (80, 64)}, {})
    assert packed is not None
    assert packed.name == family.name


def test_no_type_that_we_read_is_one_of_them() -> None:
    for kind in ("vit", "dinov2", "dinov2_with_registers", "deit", "clip_vision_model", "siglip_vision_model", "beit"):
        assert name_family({}, {"config.json": {"model_type": kind}}, (*ATTENDING, *OTHERS)) is None, kind


def test_load_says_it_too(tmp_path: Path) -> None:
    save_file({"layers.0.blocks.1.attn.relative_position_bias_table": torch.zeros(9, 2)}, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match=r"a.safetensors looks like a Swin Transformer \(it attends within shifted"):
        vitrail.load(tmp_path / "a.safetensors")
    save_file({"base_model.model.blocks.0.attn.qkv.lora_A.weight": torch.zeros(4, 2)}, tmp_path / "b.safetensors")
    with pytest.raises(
        WeightsError, match=r"looks like a LoRA adapter .*convert the model that it belongs to, with ada"
    ):
        vitrail.load(tmp_path / "b.safetensors")
