"""Our preprocessing against the families' own, on real photographs, to the tolerances that docs/data.md states."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.peers import timm, torchvision, transformers
from PIL import Image
from scipy.ndimage import map_coordinates
from sklearn.datasets import load_sample_images

from vitrail.data.preprocess import Preprocess, preset
from vitrail.data.transform import prepare

ROUNDING = 1e-6  # the order in which a float32 is scaled, shifted and divided
PHOTOGRAPHS = [Image.fromarray(image) for image in load_sample_images().images]
ODD = PHOTOGRAPHS[0].crop((3, 5, 338, 452))  # portrait, odd sides
PICTURES = [*PHOTOGRAPHS, ODD, PHOTOGRAPHS[1].resize((97, 61))]  # the last is smaller than the target


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.float32
    assert (ours - theirs).abs().max().item() <= ROUNDING


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: str(picture.size))
@pytest.mark.parametrize(
    "model", ["vit_base_patch16_224", "vit_base_patch16_384", "deit_small_patch16_224", "vit_small_patch14_dinov2"]
)
def test_timm(picture: Image.Image, model: str) -> None:
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(model).to_dict())
    name = "timm" if config["mean"] == (0.5, 0.5, 0.5) else "timm-imagenet"
    spec = replace(preset(name, config["input_size"][1:]), crop=config["crop_pct"])
    if "dinov2" not in model:  # which takes the whole of its 518 pixels, as our preset does from 384 on
        assert spec == preset(name, config["input_size"][1:])
    assert_same(prepare(picture, spec), timm.data.create_transform(**config)(picture))


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: str(picture.size))
def test_timm_other_shapes_and_modes(picture: Image.Image, crop_mode: str) -> None:
    theirs = timm.data.create_transform((3, 160, 224), crop_pct=0.95, crop_mode=crop_mode, interpolation="bilinear")
    spec = replace(
        preset("torchvision", (160, 224)), crop=0.95, resize="shortest" if crop_mode == "center" else "squash"
    )
    assert_same(prepare(picture, spec), theirs(picture))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: str(picture.size))
@pytest.mark.parametrize(("size", "resize"), [(224, 256), (224, 242), (384, 384)])
def test_torchvision(picture: Image.Image, size: int, resize: int) -> None:
    theirs = torchvision.transforms._presets.ImageClassification(crop_size=size, resize_size=resize)  # pyright: ignore[reportAttributeAccessIssue]
    spec = Preprocess(
        size=(size, size),
        resize="shortest",
        resize_to=resize,
        mean=preset("torchvision").mean,
        std=preset("torchvision").std,
    )
    if resize == 256:
        assert spec == preset("torchvision")
    assert_same(prepare(picture, spec), theirs(picture))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: str(picture.size))
def test_transformers_vit(picture: Image.Image) -> None:
    theirs = transformers.ViTImageProcessor()(picture, return_tensors="pt")["pixel_values"][0]
    assert_same(prepare(picture, preset("hf")), theirs)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: str(picture.size))
def test_transformers_vit_pillow_backend(picture: Image.Image) -> None:
    processor = transformers.models.vit.image_processing_pil_vit.ViTImageProcessorPil()
    theirs = torch.as_tensor(processor(picture, return_tensors="pt")["pixel_values"][0])
    assert_same(prepare(picture, replace(preset("hf"), kernel="pillow")), theirs)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: str(picture.size))
def test_transformers_clip_and_dinov2(picture: Image.Image) -> None:
    theirs = transformers.CLIPImageProcessor()(picture, return_tensors="pt")["pixel_values"][0]
    assert_same(prepare(picture, replace(preset("clip"), kernel="bytes", anchor="floor")), theirs)
    dinov2 = preset("dinov2")
    processor = transformers.BitImageProcessor(
        size={"shortest_edge": 256}, image_mean=list(dinov2.mean), image_std=list(dinov2.std)
    )
    theirs = processor(picture, return_tensors="pt")["pixel_values"][0]
    assert_same(prepare(picture, replace(dinov2, kernel="bytes", anchor="floor")), theirs)


@pytest.mark.parametrize("preset_name", ["clip", "dinov2"])
@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: str(picture.size))
def test_original_clip_and_dinov2(picture: Image.Image, preset_name: str) -> None:
    transforms, spec = torchvision.transforms, preset(preset_name)
    theirs = transforms.Compose(
        [
            transforms.Resize(spec.resize_to or 224, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(spec.mean, spec.std),
        ]
    )
    assert_same(prepare(picture, spec), theirs(picture))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: str(picture.size))
def test_google(picture: Image.Image) -> None:
    """TensorFlow's bilinear resize is linear interpolation at half-pixel centres; scipy's is the oracle here."""
    pixels = np.asarray(picture, dtype=np.float64)
    rows = (np.arange(224) + 0.5) * pixels.shape[0] / 224 - 0.5
    columns = (np.arange(224) + 0.5) * pixels.shape[1] / 224 - 0.5
    grid = np.meshgrid(rows, columns, indexing="ij")
    resized = np.stack([map_coordinates(pixels[..., c], grid, order=1, mode="nearest") for c in range(3)])
    theirs = torch.from_numpy((resized - 127.5) / 127.5).float()
    assert (prepare(picture, preset("google")) - theirs).abs().max().item() <= 1e-4
