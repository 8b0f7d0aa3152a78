import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import benchmarks.peers
import pytest
import torch
from safetensors.torch import save_file

from conftest import randomize
from families import FAMILIES, write_family
from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, Rates
from vitrail.weights import write as module
from vitrail.weights.adapt import adapt, fold_class_position
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import huggingface_config, huggingface_preprocess
from vitrail.weights.infer import Hints
from vitrail.weights.proof import compare
from vitrail.weights.read import FORMATS, read_checkpoint
from vitrail.weights.resolve import FormatName
from vitrail.weights.write import convert, write_checkpoint
from weights_fixtures import FITTING


@pytest.mark.parametrize("name", FITTING)
def test_every_format_is_written_and_proved(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], name: FormatName
) -> None:
    write_checkpoint(make_checkpoint(**FITTING[name]), tmp_path / "a.safetensors")
    target = tmp_path / f"out{FORMATS[name].suffixes[0]}"
    conversion = convert(tmp_path / "a.safetensors", target, name)
    assert conversion.agreement.relative <= 1e-5
    assert conversion.agreement.top1 == 1.0
    assert target.exists()


@pytest.mark.parametrize("name", ["timm", "hf", "torchvision"])
def test_the_peer_is_a_witness(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], name: FormatName) -> None:
    write_checkpoint(make_checkpoint(**FITTING[name]), tmp_path / "a.safetensors")
    conversion = convert(
        tmp_path / "a.safetensors", tmp_path / f"out{FORMATS[name].suffixes[-1]}", name, verify_with_peer=True
    )
    assert conversion.peer is not None
    assert conversion.peer.relative <= 1e-5


def test_dinov2_to_timm_by_folding_with_the_peer_as_witness(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    fields = {**FITTING["dinov2"], "block": BlockConfig(layer_scale=1e-5)}
    write_checkpoint(make_checkpoint(**fields), tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="fold_class_position="):
        convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "timm")
    conversion = convert(
        tmp_path / "a.safetensors",
        tmp_path / "b.safetensors",
        "timm",
        change=fold_class_position,
        verify_with_peer=True,
    )
    assert conversion.peer is not None


def test_no_witness_for_npz(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(**FITTING["google"]), tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="omit verify_with_peer="):
        convert(tmp_path / "a.safetensors", tmp_path / "b.npz", "google", verify_with_peer=True)
    assert not (tmp_path / "b.npz").exists()


def test_a_wrong_writer_is_caught_and_leaves_nothing(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors")
    honest = module.write_draft

    def wrong(checkpoint: Checkpoint, draft: Path, name: FormatName) -> None:
        tensors = dict(checkpoint.tensors)
        q, k, v = tensors["blocks.1.attention.qkv.weight"].chunk(3)
        tensors["blocks.1.attention.qkv.weight"] = torch.cat([k, q, v])
        honest(replace(checkpoint, tensors=tensors), draft, name)

    monkeypatch.setattr(module, "write_draft", wrong)
    with pytest.raises(
        WeightsError, match="timm checkpoint, read back, gives different logits: .*Nothing was"
    ) as caught:
        convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "timm")
    assert "They first differ in the queries, keys and values of block 1, by " in str(caught.value)
    assert "likely cause: the order of queries, keys and values: B has keys, queries, values" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors"]


def test_a_failed_proof_is_told_even_if_it_cannot_be_explained(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors")

    def fail(*_: object) -> None:
        raise RuntimeError("no explanation")

    monkeypatch.setattr("vitrail.weights.divergence.find_causes", fail)
    with pytest.raises(WeightsError, match=r"gives different logits: .* the tolerance is 1e-20\. Nothing was written"):
        convert(tmp_path / "a.safetensors", tmp_path / "b", "hf", dtype=torch.float16, tolerance=1e-20)


def test_an_existing_target_is_kept(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_text("precious")
    with pytest.raises(WeightsError, match="exists; choose another name, or pass overwrite= to replace it"):
        convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "timm")
    assert (tmp_path / "b.safetensors").read_text() == "precious"
    convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "timm", overwrite=True)


def test_origin_and_checksums_are_recorded(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    import hashlib

    write_checkpoint(make_checkpoint(**FITTING["google"]), tmp_path / "a.npz", "google")
    convert(tmp_path / "a.npz", tmp_path / "b.safetensors", hints=Hints(image_size=(32, 32)))
    origin = read_checkpoint(tmp_path / "b.safetensors").origin
    assert origin.format == "google"
    assert origin.sha256 == {"a.npz": hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()}
    convert(
        tmp_path / "b.safetensors",
        tmp_path / "c.safetensors",
        change=lambda checkpoint: adapt(checkpoint, image_size=64),
    )
    assert read_checkpoint(tmp_path / "c.safetensors").origin == origin


def test_what_the_target_does_not_keep_is_said(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(replace(make_checkpoint(), classes=tuple("abcdefg")), tmp_path / "a.safetensors")
    notes = "\n".join(convert(tmp_path / "a.safetensors", tmp_path / "b.pth", "torchvision").notes)
    assert "resample google → torchvision" in notes
    assert "mean (0.5, 0.5, 0.5) → (0.485, 0.456, 0.406)" in notes
    assert "does not keep the class names" in notes


def test_the_users_own_pictures(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    from PIL import Image

    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors")
    pictures: list[Any] = []
    for index in range(3):
        pictures.append(tmp_path / f"{index}.png")
        Image.effect_noise((40, 30 + index), 80).convert("RGB").save(pictures[-1])
    conversion = convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "timm", pictures=pictures)
    assert conversion.agreement.pictures == 3


def test_nan_is_never_agreement() -> None:
    with pytest.raises(WeightsError, match="NaN or infinite"):
        compare("logits", torch.full((1, 2), torch.nan), torch.zeros(1, 2))


def test_a_head_of_zeros_is_proved_by_the_features(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(adapt(make_checkpoint(), num_classes=3), tmp_path / "a.safetensors")
    agreement = convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "timm").agreement
    assert agreement.what == "features"
    assert agreement.scale > 0.1
    with pytest.raises(WeightsError, match="timm's own library gives only zeros"):
        convert(tmp_path / "a.safetensors", tmp_path / "c.safetensors", "timm", verify_with_peer=True)


def test_what_the_file_does_not_say_is_noted(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(pooling="mean"), tmp_path / "a.safetensors")
    file = convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "timm")
    assert any("readers must know: heads 4, pooling mean" in note for note in file.notes)
    folder = convert(tmp_path / "a.safetensors", tmp_path / "b", "timm")  # with a config.json
    assert not any("must know" in note for note in folder.notes)
    assert read_checkpoint(tmp_path / "b").config.pooling == "mean"


def test_a_tolerance_of_nan_accepts_nothing(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="Nothing was written"):
        convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "timm", tolerance=float("nan"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("to", ["vitrail", "google", "hf"])
def test_rounded_weights(
    dtype: torch.dtype, to: FormatName, tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    checkpoint = make_checkpoint(**FITTING[to])
    write_checkpoint(checkpoint, tmp_path / "a.safetensors")
    target = tmp_path / ("b" if to == "hf" else "b.npz" if to == "google" else "b.safetensors")
    agreement = convert(tmp_path / "a.safetensors", target, to, dtype=dtype).agreement
    assert agreement.relative > 0  # compared with the weights before they were rounded
    written = read_checkpoint(target)
    for name, tensor in checkpoint.tensors.items():
        torch.testing.assert_close(written.tensors[name], tensor.to(dtype), rtol=0, atol=0)
    with pytest.raises(WeightsError, match="Nothing was written"):
        convert(tmp_path / "a.safetensors", tmp_path / "c.safetensors", dtype=dtype, tolerance=1e-7)


def test_weights_that_half_precision_cannot_hold(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint()
    large = {**checkpoint.tensors, "head.bias": torch.full_like(checkpoint.tensors["head.bias"], 1e5)}
    write_checkpoint(replace(checkpoint, tensors=large), tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="head.bias has numbers too large for float16: up to 100000"):
        convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", dtype=torch.float16)
    assert not (tmp_path / "b.safetensors").exists()


def test_the_target_never_swallows_its_source(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "model" / "model.safetensors")
    with pytest.raises(WeightsError, match="holds the source itself"):
        convert(tmp_path / "model" / "model.safetensors", tmp_path / "model", "hf", overwrite=True)
    assert read_checkpoint(tmp_path / "model").config.width == 32


def test_half_precision_with_the_peer(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint(**FITTING["hf"])
    half = {name: tensor.half() for name, tensor in checkpoint.tensors.items()}
    write_checkpoint(replace(checkpoint, tensors=half), tmp_path / "a.safetensors")
    conversion = convert(tmp_path / "a.safetensors", tmp_path / "b", "hf", verify_with_peer=True)
    assert conversion.peer is not None


def test_losses_in_training_are_noted(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    fields = {**FITTING["dinov2"], "rates": Rates(path=0.1)}
    checkpoint = replace(make_checkpoint(**fields), extras={"mask_token": torch.randn(1, 32)})
    write_checkpoint(checkpoint, tmp_path / "a.safetensors")
    notes = " ".join(
        convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "timm", change=fold_class_position).notes
    )
    assert "does not keep mask_token" in notes
    assert "does not keep all dropout rates" in notes


def test_photographs_are_proved_from_their_files_on(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(**FITTING["hf"]), tmp_path / "a.safetensors")
    same = convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors").photographs
    assert same is not None
    assert (same.difference, same.pictures) == (0.0, 2)
    other = convert(tmp_path / "a.safetensors", tmp_path / "c", "hf")  # Google's resize does not antialias
    assert other.photographs is not None
    assert other.photographs.relative > 1e-5
    assert "hf resizes pictures in its own way (kernel float → bytes, antialias False → True)" in other.notes[0]
    assert not any("another preprocessing" in note for note in other.notes)
    assert convert(tmp_path / "c", tmp_path / "d.pth", "torchvision").photographs is None  # which holds none


@pytest.mark.parametrize("to", ["hf", "timm"])
def test_preprocessing_that_is_written_wrong_is_refused(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch, to: FormatName
) -> None:
    write_checkpoint(make_checkpoint(**FITTING[to]), tmp_path / "a.safetensors")
    honest = module.write_draft

    def wrong(checkpoint: Checkpoint, draft: Path, name: FormatName) -> None:
        honest(replace(checkpoint, preprocess=replace(checkpoint.preprocess, mean=(0.5, 0.5, 0.4))), draft, name)

    monkeypatch.setattr(module, "write_draft", wrong)
    with pytest.raises(WeightsError, match=r"cannot hold this preprocessing: mean \(0.5, 0.5, 0.5\) → .*Nothing was"):
        convert(tmp_path / "a.safetensors", tmp_path / "b", to)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("to", ["hf", "timm"])
def test_pictures_that_the_model_does_not_read_are_refused(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], to: FormatName
) -> None:
    checkpoint = make_checkpoint(**FITTING[to])
    larger = replace(checkpoint, preprocess=replace(checkpoint.preprocess, size=(40, 40)))
    write_checkpoint(larger, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="gives pictures of 40×40, and the model expects 32×32"):
        convert(tmp_path / "a.safetensors", tmp_path / "b", to)
    convert(tmp_path / "a.safetensors", tmp_path / "c", to, change=lambda source: adapt(source, image_size=40))


@pytest.mark.parametrize("name", ["timm", "hf"])
def test_the_sources_own_library_is_a_witness_too(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], name: FormatName
) -> None:
    write_checkpoint(make_checkpoint(**FITTING[name]), tmp_path / "a", name)
    conversion = convert(tmp_path / "a", tmp_path / "b.safetensors", verify_with_peer=True)
    assert conversion.source_peer is not None
    assert conversion.source_peer.relative <= 1e-5
    assert conversion.peer is None  # nobody else reads ours


def test_a_misread_config_does_not_prove_itself(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = BlockConfig(activation="gelu_tanh")
    write_checkpoint(make_checkpoint(**FITTING["hf"], block=block), tmp_path / "a", "hf")
    monkeypatch.setitem(huggingface_config.ACTIVATIONS, "gelu_pytorch_tanh", "gelu")
    with pytest.raises(WeightsError, match="transformers, run on the source itself, gives different logits") as caught:
        convert(tmp_path / "a", tmp_path / "b.safetensors", verify_with_peer=True)
    assert "They first differ in the activation of the MLP of block 0, by " in str(caught.value)
    assert "the form of GELU (block.activation): gelu in A, B computes as with gelu_tanh" in str(caught.value)
    conversion = convert(
        tmp_path / "a", tmp_path / "c", "hf", hints=Hints(activation="gelu"), verify_with_peer=True
    )  # what the user says is not what the source says
    assert conversion.source_peer is None
    assert "was not run" in conversion.notes[0]


def test_a_misread_processor_does_not_prove_itself(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(make_checkpoint(**FITTING["hf"]), tmp_path / "a", "hf")
    monkeypatch.setitem(huggingface_preprocess.INTERPOLATIONS, 2, "bicubic")
    with pytest.raises(WeightsError, match=r"run on the source itself, prepares china.jpg differently"):
        convert(tmp_path / "a", tmp_path / "b.safetensors", verify_with_peer=True)


def test_another_architecture_with_the_same_keys_is_noticed(tmp_path: Path) -> None:
    """timm's residual post-norm has the keys of a plain ViT."""
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "class_token": True}
    name = "vit_base_patch16_rpn_224"
    peer = randomize(benchmarks.peers.timm.create_model(name, num_classes=3, **arguments))
    (tmp_path / "a").mkdir()
    save_file(peer.state_dict(), tmp_path / "a" / "model.safetensors")
    facts = {"architecture": name, "num_classes": 3, "model_args": arguments, "pretrained_cfg": {"num_classes": 3}}
    (tmp_path / "a" / "config.json").write_text(json.dumps(facts))
    with pytest.raises(WeightsError):
        convert(tmp_path / "a", tmp_path / "b.safetensors", verify_with_peer=True)


def test_positions_that_are_not_added_have_no_kernel(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    fields = {**FITTING["dinov3"], "positions": PositionConfig(kind="none", resample="timm")}
    write_checkpoint(make_checkpoint(**fields), tmp_path / "a.safetensors")
    done = convert(tmp_path / "a.safetensors", tmp_path / "b.pth", "dinov3")
    assert not any("kernel for other picture sizes" in note for note in done.notes)


def test_an_epsilon_that_timm_has_not_is_refused_with_the_one_that_it_has(tmp_path: Path) -> None:
    block = replace(FAMILIES["beit"].block, norm_eps=1e-12)
    source = write_family(tmp_path / "a.safetensors", "beit", block=block)
    with pytest.raises(WeightsError, match="epsilon 1e-06, not 1e-12 .*norm_eps=1e-06.* accepts that"):
        convert(source, tmp_path / "b", "timm")
