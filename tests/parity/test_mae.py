"""Oracle: transformers' ViTMAEForPreTraining with the same weights and the same hidden patches."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.model.mae_decoder import EXTRAS, Decoder, cut_patches
from vitrail.training.config import Pretraining
from vitrail.training.masked import build_decoder, draw_patches, masked_loss, predict_pixels
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.mae import KEPT
from vitrail.weights.infer import Hints
from vitrail.weights.read import open_checkpoint, read_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.AssumptionWarning")

SIZES: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "decoder_hidden_size": 64,
    "decoder_num_attention_heads": 2,
    "decoder_num_hidden_layers": 2,
    "decoder_intermediate_size": 256,
}
SAME = {"rtol": 1e-5, "atol": 1e-5}


def make_peer(**settings: Any) -> Any:
    torch.manual_seed(0)
    peer = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**SIZES, **settings))
    peer.decoder.initialize_weights(16)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():  # biases and tokens too, or their places could be swapped
            if name != "decoder.decoder_pos_embed":
                parameter.add_(torch.randn_like(parameter) * 0.05)
    assert peer.decoder.decoder_pos_embed.any()
    return peer.eval()


def noise_for(visible: Tensor, hidden: Tensor) -> Tensor:
    """Noise that transformers sorts into the same order: the lowest are visible."""
    order = torch.cat([visible, hidden], dim=1)
    return torch.empty(order.shape).scatter_(1, order, torch.linspace(0, 1, order.shape[1]).expand(order.shape))


@pytest.mark.parametrize("pixels", ["normalized", "raw"])
def test_loss_gradients_and_pixels(tmp_path: Path, pixels: str) -> None:
    peer = make_peer(norm_pix_loss=pixels == "normalized")
    peer.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    model: Any = checkpoint.build()
    decoder = build_decoder_of(checkpoint)
    images = torch.randn(3, 3, 32, 32)
    visible, hidden = draw_patches(torch.arange(3), (4, 4), 0.75, seed=0, epoch=0)
    assert (visible.shape[1], hidden.shape[1]) == (4, 12)

    theirs = peer(pixel_values=images, noise=noise_for(visible, hidden))
    ours = masked_loss(model, decoder, images, visible, hidden, pixels)
    torch.testing.assert_close(ours, theirs.loss, **SAME)
    predicted = predict_pixels(model, decoder, images, visible, hidden)
    torch.testing.assert_close(predicted, theirs.logits.gather(1, hidden[..., None].expand_as(predicted)), **SAME)
    torch.testing.assert_close(cut_patches(images, (8, 8)), peer.patchify(images))

    theirs.loss.backward()
    ours.backward()
    pairs: dict[str, tuple[Any, Any]] = {
        "patches": (model.embed.patches.weight, peer.vit.embeddings.patch_embeddings.projection.weight),
        "[cls]": (model.embed.class_token, peer.vit.embeddings.cls_token),
        "norm": (model.blocks[0].norm1.weight, peer.vit.layers[0].layernorm_before.weight),
        "decoder": (decoder.embed.weight, peer.decoder.decoder_embed.weight),
        "mask token": (decoder.mask_token, peer.decoder.mask_token),
        "last": (decoder.predict.weight, peer.decoder.decoder_pred.weight),
    }
    for name, (mine, other) in pairs.items():
        torch.testing.assert_close(mine.grad, other.grad, **SAME, msg=name)


# transformers' names → those of facebookresearch/mae, whose blocks are timm's.
ORIGINAL = (
    (r"^vit\.embeddings\.position_embeddings", "pos_embed"),
    (r"^vit\.embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"^vit\.(embeddings\.)?|^decoder\.", ""),
    (r"^layers\.", "blocks."),
    (r"^decoder_layers\.", "decoder_blocks."),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"^layernorm\.", "norm."),
    (r"attention\.o_proj", "attn.proj"),
    (r"attention\.q_proj", "attn.qkv"),
)


def original_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            tensor = torch.cat([tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
        for theirs, own in ORIGINAL:
            name = re.sub(theirs, own, name)
        renamed[name] = tensor
    return renamed


def test_the_authors_file_is_read_with_its_decoder(tmp_path: Path) -> None:
    peer = make_peer()
    peer.save_pretrained(tmp_path / "hf")
    torch.save({"model": original_names(peer.state_dict())}, tmp_path / "mae.pth")
    one = open_checkpoint(tmp_path / "hf")
    other = read_checkpoint(tmp_path / "mae.pth", hints=Hints(heads=4), allow_pickle=True)
    assert one.remarks == other.remarks == (KEPT,)
    assert one.extras.keys() == other.extras.keys() == {EXTRAS + name for name in build_decoder_of(one).state_dict()}
    for name, tensor in one.extras.items():
        assert torch.equal(tensor, other.extras[name]), name
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name


def test_the_hubs_spelling(tmp_path: Path) -> None:
    """`save_pretrained` of transformers 5 calls the decoder's blocks otherwise than the files of the hub do."""
    peer = make_peer()
    peer.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    one = open_checkpoint(tmp_path)
    tensors = {
        name.replace("decoder_encoder.layer.", "decoder_layers."): each for name, each in load_file(file).items()
    }
    assert any(name.startswith("decoder.decoder_layers.0.attention.attention.query") for name in tensors)
    for stored in (tensors, peer.state_dict()):
        save_file(dict(stored), file)
        other = open_checkpoint(tmp_path)
        assert len(other.extras) == len(one.extras) > 0
        assert all(torch.equal(tensor, other.extras[name]) for name, tensor in one.extras.items())


def build_decoder_of(checkpoint: Checkpoint) -> Decoder:
    return build_decoder(checkpoint.config, Pretraining(method="mae"), checkpoint.extras, 0)


def test_a_decoder_with_other_heads_or_positions_is_left_out(tmp_path: Path) -> None:
    peer = make_peer()
    peer.config.decoder_num_attention_heads = 4
    peer.save_pretrained(tmp_path / "heads")
    peer.config.decoder_num_attention_heads = 2
    with torch.no_grad():
        peer.decoder.decoder_pos_embed.mul_(2)
    peer.save_pretrained(tmp_path / "positions")
    for folder in ("heads", "positions"):
        read = open_checkpoint(tmp_path / folder)
        assert not read.extras
        assert "was left out" in read.remarks[0]
