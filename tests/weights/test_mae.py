"""Oracle: timm's ViT, of whose blocks facebookresearch/mae builds its encoder, decoder and fine-tuned classifiers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import timm

from conftest import randomize
from vitrail.data.preprocess import preset
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from weights_fixtures import check_features, check_written_back

SIZES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "mlp_ratio": 2}
DECODER = {
    "mask_token": torch.ones(1, 1, 24),
    "decoder_embed.weight": torch.ones(24, 48),
    "decoder_pos_embed": torch.ones(1, 17, 24),
    "decoder_blocks.0.attn.qkv.weight": torch.ones(72, 24),
    "decoder_norm.weight": torch.ones(24),
    "decoder_pred.weight": torch.ones(192, 24),
}


def build(**options: Any) -> Any:
    return randomize(timm.models.vision_transformer.VisionTransformer(**SIZES, **options)).eval()


@pytest.mark.parametrize("decoder", [True, False])
def test_a_pre_trained_encoder(tmp_path: Path, decoder: bool) -> None:
    oracle = build(num_classes=0)
    encoder = oracle.state_dict()
    torch.save({"model": {**encoder, **(DECODER if decoder else {})}}, tmp_path / "a.pth")
    read = read_checkpoint(tmp_path / "a.pth", hints=Hints(heads=3), allow_pickle=True)
    assert read.file_format == "timm"
    assert read.remarks == (("left out 6 tensors of the masked autoencoder's decoder",) if decoder else ())
    assert (read.preprocess == preset("dinov2", 32)) == decoder  # a bare encoder could be anybody's
    check_features(read, oracle, (32, 32))
    torch.save(encoder, tmp_path / "encoder.pth")
    check_written_back(read, tmp_path / "encoder.pth", tmp_path / "b.pth", "timm")


def test_a_fine_tuned_classifier(tmp_path: Path) -> None:
    oracle = build(num_classes=5, global_pool="avg", fc_norm=True)
    torch.save({"model": oracle.state_dict()}, tmp_path / "a.pth")
    read = read_checkpoint(tmp_path / "a.pth", hints=Hints(heads=3), allow_pickle=True)
    assert (read.config.pooling, read.config.pool_norm) == ("mean", "after")
    check_features(read, oracle, (32, 32))
