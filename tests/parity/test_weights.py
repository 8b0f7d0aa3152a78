"""Logits equal those of the library that the weights came from, with every weight random.

Each case builds the peer's own model, lets the peer save it, reads the file, and compares; then writes it back and lets
the peer load what we wrote. 1e-5 is relative to the scale of the logits.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.peers import timm, torchvision, transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conftest import randomize
from vitrail.data.transform import prepare
from vitrail.model import variant
from vitrail.model.positions import resample_positions
from vitrail.weights.foreign.torchvision import assume_preprocess
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint

TIMM = timm.models.vision_transformer.VisionTransformer
SIZES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 7}


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    scale = theirs.abs().max()
    assert scale > 0.1
    assert (ours - theirs).abs().max() <= 1e-5 * scale


def hybrid_backbone(layers: tuple[int, ...]) -> nn.Module:
    return timm.models.vision_transformer_hybrid._resnetv2(layers)


def make_hybrid(layers: tuple[int, ...], patch: int) -> nn.Module:
    embed = partial(timm.models.vision_transformer_hybrid.HybridEmbed, backbone=hybrid_backbone(layers))
    return TIMM(**{**SIZES, "img_size": 64, "patch_size": patch}, embed_layer=embed)


TIMM_CASES: dict[str, tuple[Callable[[], nn.Module], Hints, tuple[int, int, int]]] = {
    "plain": (lambda: TIMM(**SIZES), Hints(heads=4), (3, 32, 32)),
    "no bias": (lambda: TIMM(**SIZES, qkv_bias=False), Hints(heads=4), (3, 32, 32)),
    "registers": (lambda: TIMM(**SIZES, reg_tokens=3), Hints(heads=4), (3, 32, 32)),
    "registers without positions": (
        lambda: TIMM(**SIZES, reg_tokens=3, no_embed_class=True),
        Hints(heads=4),
        (3, 32, 32),
    ),
    "no embed class": (lambda: TIMM(**SIZES, no_embed_class=True), Hints(heads=4), (3, 32, 32)),
    "mean": (lambda: TIMM(**SIZES, global_pool="avg"), Hints(heads=4), (3, 32, 32)),
    "mean, norm before": (
        lambda: TIMM(**SIZES, global_pool="avg", fc_norm=False),
        Hints(heads=4, pooling="mean"),
        (3, 32, 32),
    ),
    "mean without class token": (
        lambda: TIMM(**SIZES, global_pool="avg", class_token=False, fc_norm=False),
        Hints(heads=4),
        (3, 32, 32),
    ),
    "map": (lambda: TIMM(**SIZES, global_pool="map", class_token=False), Hints(heads=4), (3, 32, 32)),
    "qk-norm and layer scale": (lambda: TIMM(**SIZES, qk_norm=True, init_values=0.1), Hints(), (3, 32, 32)),
    "not square": (
        lambda: TIMM(**{**SIZES, "img_size": (32, 48), "patch_size": (8, 4)}),
        Hints(heads=4, image_size=(32, 48)),
        (3, 32, 48),
    ),
    "5 channels": (lambda: TIMM(**SIZES, in_chans=5), Hints(heads=4), (5, 32, 32)),
    "SwiGLU": (
        lambda: TIMM(**SIZES, mlp_layer=timm.layers.SwiGLUPacked, act_layer=nn.SiLU),
        Hints(heads=4),
        (3, 32, 32),
    ),
    "no head": (lambda: TIMM(**{**SIZES, "num_classes": 0}), Hints(heads=4), (3, 32, 32)),
    "hybrid": (lambda: make_hybrid((1, 2, 1), 1), Hints(heads=4), (3, 64, 64)),
    "hybrid, root only": (lambda: make_hybrid((), 8), Hints(heads=4), (3, 64, 64)),
}


@pytest.mark.parametrize("case", TIMM_CASES)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_timm(tmp_path: Path, case: str, suffix: str) -> None:
    make, hints, shape = TIMM_CASES[case]
    peer = randomize(make()).eval()
    path = tmp_path / f"model{suffix}"
    save_file(peer.state_dict(), path) if suffix == ".safetensors" else torch.save(peer.state_dict(), path)
    checkpoint = read_checkpoint(path, hints=hints, allow_pickle=True)
    images = torch.randn(2, *shape)
    with torch.inference_mode():
        expected = peer(images)
        assert_same(checkpoint.build()(images), expected)
        written = tmp_path / f"written{suffix}"
        write_checkpoint(checkpoint, written, "timm")
        fresh = make().eval()
        timm.models.load_checkpoint(fresh, str(written))
        assert_same(fresh(images), expected)
    for name, value in peer.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], value, rtol=0, atol=0)


def test_a_written_timm_file_loads_with_create_model(tmp_path: Path) -> None:
    peer = randomize(timm.create_model("vit_tiny_patch16_224", num_classes=3)).eval()
    save_file(peer.state_dict(), tmp_path / "a.safetensors")
    checkpoint = read_checkpoint(tmp_path / "a.safetensors")
    assert checkpoint.config.heads == 3
    write_checkpoint(checkpoint, tmp_path / "b.safetensors", "timm")
    write_checkpoint(checkpoint, tmp_path / "folder", "timm")
    images = torch.randn(1, 3, 224, 224)
    file = timm.create_model("vit_tiny_patch16_224", num_classes=3, checkpoint_path=str(tmp_path / "b.safetensors"))
    folder = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True)
    with torch.inference_mode():
        for model in (file, folder):
            torch.testing.assert_close(model.eval()(images), peer(images), rtol=0, atol=0)
    again = read_checkpoint(tmp_path / "folder")
    assert again.preprocess == checkpoint.preprocess
    assert again.config == checkpoint.config


def hf_vit(model: str = "ViTForImageClassification", **changes: Any) -> Any:
    fields = {
        "image_size": 32,
        "patch_size": 8,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "num_labels": 7,
        **changes,
    }
    return randomize(getattr(transformers, model)(transformers.ViTConfig(**fields))).eval()


def hf_logits(model: Any, images: Tensor) -> Tensor:
    output = model(images)
    if hasattr(output, "logits"):
        return output.logits
    return output.last_hidden_state[:, 0] if output.pooler_output is None else output.pooler_output


HF_CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "plain": (hf_vit, (3, 32, 32)),
    "tanh gelu, eps, no bias": (
        lambda: hf_vit(hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-3, qkv_bias=False),
        (3, 32, 32),
    ),
    "pooler": (lambda: hf_vit("ViTModel", pooler_output_size=24), (3, 32, 32)),
    "not square": (lambda: hf_vit(image_size=[32, 48], patch_size=[8, 4]), (3, 32, 48)),
    "1 channel": (lambda: hf_vit(num_channels=1), (1, 32, 32)),
}
DINO: dict[str, Any] = {
    "image_size": 70,
    "patch_size": 14,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "mlp_ratio": 2,
}


@pytest.mark.parametrize("case", HF_CASES)
def test_huggingface(tmp_path: Path, case: str) -> None:
    make, shape = HF_CASES[case]
    peer: Any = make()
    peer.save_pretrained(tmp_path / "saved")
    checkpoint = read_checkpoint(tmp_path / "saved")
    images = torch.randn(2, *shape)
    with torch.inference_mode():
        expected = hf_logits(peer, images)
        assert_same(checkpoint.build()(images), expected)
        write_checkpoint(checkpoint, tmp_path / "written", "hf")
        again = type(peer).from_pretrained(tmp_path / "written")
        torch.testing.assert_close(hf_logits(again, images), expected, rtol=0, atol=0)


def test_huggingface_module_names_and_shards(tmp_path: Path) -> None:
    """Both generations of keys; and a checkpoint in several files."""
    peer = hf_vit()
    peer.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    peer.save_pretrained(tmp_path / "modules")
    save_file(peer.state_dict(), tmp_path / "modules" / "model.safetensors")
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        for folder in ("shards", "modules"):
            assert_same(read_checkpoint(tmp_path / folder).build()(images), peer(images).logits)


def test_a_pooler_beside_the_classifier_is_kept_but_not_used(tmp_path: Path) -> None:
    peer = hf_vit()
    peer.save_pretrained(tmp_path / "saved")
    state = load_file(tmp_path / "saved" / "model.safetensors")
    state |= {"vit.pooler.dense.weight": torch.randn(32, 32), "vit.pooler.dense.bias": torch.randn(32)}
    save_file(state, tmp_path / "saved" / "model.safetensors")
    checkpoint = read_checkpoint(tmp_path / "saved")
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert_same(checkpoint.build()(images), peer(images).logits)
    write_checkpoint(checkpoint, tmp_path / "written", "hf")
    written = load_file(tmp_path / "written" / "model.safetensors")
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
        {"do_normalize": False},
        {"do_rescale": False, "image_mean": [100.0] * 3, "image_std": [50.0] * 3},
    ],
    ids=str,
)
def test_huggingface_processors_of_every_kind(tmp_path: Path, changes: dict[str, Any]) -> None:
    hf_vit().save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, **changes)
    processor.save_pretrained(tmp_path)
    photo = (torch.rand(3, 50, 40) * 255).byte()
    expected = processor(photo, return_tensors="pt")["pixel_values"][0]
    ours = prepare(photo, read_checkpoint(tmp_path).preprocess)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_huggingface_class_names_and_processor(tmp_path: Path) -> None:
    names = {0: "chat", 1: "chien", 2: "été"}
    peer = hf_vit(num_labels=3, id2label=names, label2id={name: index for index, name in names.items()})
    peer.save_pretrained(tmp_path / "saved")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(
        tmp_path / "saved"
    )
    checkpoint = read_checkpoint(tmp_path / "saved")
    assert checkpoint.classes == ("chat", "chien", "été")
    assert checkpoint.preprocess.mean == (0.1, 0.2, 0.3)
    assert checkpoint.preprocess.size == (32, 32)
    write_checkpoint(checkpoint, tmp_path / "written", "hf")
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "written")
    assert again.config.id2label == names
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "written")
    assert list(processor.image_mean) == [0.1, 0.2, 0.3]
    assert read_checkpoint(tmp_path / "written").preprocess == checkpoint.preprocess


def hf_dinov2(registers: int, **changes: Any) -> Any:
    if registers:
        config = transformers.Dinov2WithRegistersConfig(**{**DINO, **changes}, num_register_tokens=registers)
        return randomize(transformers.Dinov2WithRegistersModel(config)).eval()
    return randomize(transformers.Dinov2Model(transformers.Dinov2Config(**{**DINO, **changes}))).eval()


@pytest.mark.parametrize(("registers", "swiglu"), [(0, False), (3, False), (0, True), (3, True)])
def test_huggingface_dinov2_at_its_own_and_another_size(tmp_path: Path, registers: int, swiglu: bool) -> None:
    peer = hf_dinov2(registers, use_swiglu_ffn=swiglu)
    peer.save_pretrained(tmp_path / "saved")
    checkpoint = read_checkpoint(tmp_path / "saved")
    model = checkpoint.build()
    with torch.inference_mode():
        for size in ((70, 70), (42, 98)):
            images = torch.randn(2, 3, *size)
            assert_same(model.tokens(images), peer(images).last_hidden_state)
        write_checkpoint(checkpoint, tmp_path / "written", "hf")
        again = type(peer).from_pretrained(tmp_path / "written")
        for name, value in peer.state_dict().items():  # the mask token, which no forward pass reads, included
            torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=0)


BARE: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "ViT": (lambda: hf_vit("ViTModel", hidden_size=48, num_attention_heads=3), ["heads"]),
    "DINOv2": (lambda: hf_dinov2(0, hidden_size=128, num_attention_heads=2), []),
    "registers": (lambda: hf_dinov2(3, hidden_size=128, num_attention_heads=2), []),
    "SwiGLU": (lambda: hf_dinov2(0, hidden_size=128, num_attention_heads=2, use_swiglu_ffn=True), []),
}


@pytest.mark.parametrize("case", BARE)
@pytest.mark.parametrize("names", ["files", "modules"])
def test_huggingface_weights_without_their_config(tmp_path: Path, case: str, names: str) -> None:
    make, hinted = BARE[case]
    peer = make()
    peer.save_pretrained(tmp_path / "saved")
    if names == "modules":
        save_file(peer.state_dict(), tmp_path / "saved" / "model.safetensors")
    stated = read_checkpoint(tmp_path / "saved")
    bare = (tmp_path / "saved" / "model.safetensors").rename(tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(bare, hints=Hints(heads=3) if hinted else None)
    assert checkpoint.config == stated.config
    assert checkpoint.preprocess == stated.preprocess
    unstated = {note.partition(":")[0] for note in checkpoint.notes if note.startswith("the file does not state its")}
    expected = {"heads", "GELU", "LayerNorm epsilon"} - {*hinted, *(["GELU"] if case == "SwiGLU" else [])}
    assert unstated == {f"the file does not state its {what}" for what in expected}


@pytest.mark.parametrize(("registers", "swiglu"), [(0, False), (3, False), (0, True)])
def test_original_dinov2_layout(tmp_path: Path, registers: int, swiglu: bool) -> None:
    """timm's model in the key layout of the original repository, with the [cls] position still apart."""
    gated: dict[str, Any] = {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU} if swiglu else {}
    peer = randomize(
        TIMM(**{**SIZES, "num_classes": 0}, init_values=1.0, reg_tokens=registers, no_embed_class=True, **gated)
    ).eval()
    state = {name: value.clone() for name, value in peer.state_dict().items()}
    if swiglu:
        state = {name.replace("fc1", "w12").replace("fc2", "w3"): value for name, value in state.items()}
    class_position = torch.randn(1, 1, 32)
    state["cls_token"] -= class_position
    state["pos_embed"] = torch.cat([class_position, state["pos_embed"]], dim=1)
    if registers:
        state["register_tokens"] = state.pop("reg_token")
    state["mask_token"] = torch.randn(1, 32)
    torch.save(state, tmp_path / "dino.pth")
    checkpoint = read_checkpoint(tmp_path / "dino.pth", hints=Hints(heads=4), allow_pickle=True)
    assert checkpoint.origin.format == "dinov2"
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert_same(checkpoint.build()(images), peer(images))
    write_checkpoint(checkpoint, tmp_path / "again.pth", "dinov2")
    written = torch.load(tmp_path / "again.pth", weights_only=True)
    assert written.keys() == state.keys()
    for name, value in state.items():
        torch.testing.assert_close(written[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("representation", [None, 24])
def test_torchvision(tmp_path: Path, representation: int | None) -> None:
    def make() -> nn.Module:
        return torchvision.models.VisionTransformer(
            image_size=32,
            patch_size=8,
            num_layers=2,
            num_heads=4,
            hidden_dim=32,
            mlp_dim=64,
            num_classes=7,
            representation_size=representation,
        ).eval()

    peer = randomize(make())
    torch.save(peer.state_dict(), tmp_path / "model.pth")
    checkpoint = read_checkpoint(tmp_path / "model.pth", hints=Hints(heads=4), allow_pickle=True)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = peer(images)
        assert_same(checkpoint.build()(images), expected)
        write_checkpoint(checkpoint, tmp_path / "written.pth", "torchvision")
        again = make()
        again.load_state_dict(torch.load(tmp_path / "written.pth", weights_only=True))
        torch.testing.assert_close(again(images), expected, rtol=0, atol=0)


TORCHVISION = [
    weights
    for name in ("ViT_B_16", "ViT_B_32", "ViT_L_16", "ViT_L_32", "ViT_H_14")
    for weights in getattr(torchvision.models, f"{name}_Weights")
]


@pytest.mark.parametrize("weights", TORCHVISION, ids=str)
def test_torchvisions_own_files_get_their_own_pictures(weights: Any) -> None:
    file = Path(weights.url).name
    kind = re.match(r"vit_(.)_(\d+)", file)
    assert kind is not None
    model = variant(f"vit-{kind[1]}{kind[2]}", image_size=weights.meta["min_size"][0])
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 411, 3), np.uint8))
    spec, notes = assume_preprocess(Path(file), model)
    assert notes == ()
    torch.testing.assert_close(prepare(noise, spec), weights.transforms()(noise), rtol=1e-5, atol=1e-5)
    _, (note,) = assume_preprocess(Path("renamed.pth"), model)
    shared = [each for each in TORCHVISION if str(each) in note]
    assert weights in shared  # the others of its shape are named too
    assert len({each.meta["min_size"] for each in shared}) == 1


def test_torchvision_legacy_mlp_names(tmp_path: Path) -> None:
    peer = randomize(torchvision.models.vit_b_16(num_classes=2, image_size=32).eval())
    state = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): value
        for name, value in peer.state_dict().items()
    }
    torch.save(state, tmp_path / "old.pth")
    checkpoint = read_checkpoint(tmp_path / "old.pth", allow_pickle=True)  # ViT-B: the heads are known
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        assert_same(checkpoint.build()(images), peer(images))
    write_checkpoint(checkpoint, tmp_path / "again.pth", "torchvision")
    assert torch.load(tmp_path / "again.pth", weights_only=True).keys() == state.keys()


KERNELS = {
    "timm": lambda grid, new: timm.layers.resample_abs_pos_embed(grid, new_size=list(new), num_prefix_tokens=1),
    "torchvision": lambda grid, new: torchvision.models.vision_transformer.interpolate_embeddings(
        new[0] * 8, 8, {"encoder.pos_embedding": grid}
    )["encoder.pos_embedding"],
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_position_kernels_are_their_origins(kernel: str) -> None:
    grid = torch.randn(1, 17, 32)
    expected = KERNELS[kernel](grid, (6, 6))
    ours = resample_positions(grid[:, 1:], (4, 4), (6, 6), kernel)
    torch.testing.assert_close(ours, expected[:, 1:], rtol=1e-5, atol=1e-6)


def test_hf_position_kernel() -> None:
    peer = hf_vit()
    embeddings = peer.vit.embeddings
    expected = embeddings.interpolate_pos_encoding(torch.zeros(1, 49, 32), 48, 64)
    ours = resample_positions(embeddings.position_embeddings[:, 1:], (4, 4), (6, 8), "hf")
    torch.testing.assert_close(ours, expected[:, 1:], rtol=1e-5, atol=1e-6)
