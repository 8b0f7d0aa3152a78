"""The attention that we show is the one that transformers' eager model says it has."""

import numpy as np
import torch
from benchmarks.peers import transformers

from conftest import randomize
from vitrail.explanation.raw_attention import attention_maps
from vitrail.explanation.relevance import rollout
from vitrail.weights.read import read_checkpoint


def test_attention_and_rollout_of_a_converted_model(tmp_path) -> None:
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=7,
        attn_implementation="eager",
    )
    peer = randomize(transformers.ViTForImageClassification(config)).eval()
    peer.save_pretrained(tmp_path / "peer")
    model = read_checkpoint(tmp_path / "peer").build()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        theirs = peer(pixel_values=images, output_attentions=True)
    ours = attention_maps(model, images)
    assert torch.allclose(ours.logits, theirs.logits, atol=1e-4)
    product = np.eye(17)
    for layer, probabilities in enumerate(theirs.attentions):
        assert torch.allclose(ours.maps[:, layer].flatten(2), probabilities[:, :, 0, 1:], atol=1e-5)
        mean = probabilities.mean(dim=1).double().numpy()
        product = (mean + np.eye(17)) / 2 @ product
    assert np.allclose(rollout(model, images)[0].flatten(1).numpy(), product[:, 0, 1:], atol=1e-6)
