"""Oracle: tintn/vision-transformer-from-scratch, rebuilt from its facts: the same names, shapes and arithmetic."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import randomize
from vitrail.errors import WeightsError
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import convert, write_checkpoint

CONFIG: dict[str, Any] = {
    "patch_size": 4,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
    "image_size": 16,
    "num_classes": 5,
    "num_channels": 3,
    "qkv_bias": True,
    "use_faster_attention": True,
}


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).softmax(dim=-1) @ value


class Head(nn.Module):
    def __init__(self, width: int, size: int, bias: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, size, bias=bias) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        return attend(self.query(tokens), self.key(tokens), self.value(tokens))


class Heads(nn.Module):
    """Attention with layers of its own for each head, or with one layer for all (`use_faster_attention`)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, self.count, bias = config["hidden_size"], config["num_attention_heads"], config["qkv_bias"]
        if config.get("use_faster_attention", False):
            self.heads, self.qkv_projection = None, nn.Linear(width, 3 * width, bias=bias)
        else:
            self.heads = nn.ModuleList(Head(width, width // self.count, bias) for _ in range(self.count))
        self.output_projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.heads is not None:
            return self.output_projection(torch.cat([head(tokens) for head in self.heads], dim=-1))
        parts = self.qkv_projection(tokens).chunk(3, dim=-1)
        mixed = attend(*(part.unflatten(-1, (self.count, -1)).transpose(1, 2) for part in parts))
        return self.output_projection(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.dense_1 = nn.Linear(config["hidden_size"], config["intermediate_size"])
        self.dense_2 = nn.Linear(config["intermediate_size"], config["hidden_size"])

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.dense_1(tokens)
        inner = math.sqrt(2.0 / math.pi) * (hidden + 0.044715 * hidden**3)
        return self.dense_2(0.5 * hidden * (1.0 + inner.tanh()))


class Block(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.attention, self.mlp = Heads(config), Mlp(config)
        self.layernorm_1, self.layernorm_2 = (nn.LayerNorm(config["hidden_size"]) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.layernorm_1(tokens))
        return tokens + self.mlp(self.layernorm_2(tokens))


class Patches(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            config["num_channels"], config["hidden_size"], config["patch_size"], stride=config["patch_size"]
        )


class Embeddings(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        count, width = (config["image_size"] // config["patch_size"]) ** 2, config["hidden_size"]
        self.patch_embeddings = Patches(config)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.position_embeddings = nn.Parameter(torch.empty(1, count + 1, width))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embeddings.projection(images).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1) + self.position_embeddings


class Encoder(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))


class Oracle(nn.Module):
    """`ViTForClassfication`, whose classifier reads [cls] without a last LayerNorm."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        config = {**CONFIG, **changes}
        self.embedding, self.encoder = Embeddings(config), Encoder(config)
        self.classifier = nn.Linear(config["hidden_size"], config["num_classes"])

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embedding(images)
        for block in self.encoder.blocks:
            tokens = block(tokens)
        return self.classifier(tokens[:, 0])


def save_experiment(folder: Path, oracle: nn.Module, **changes: Any) -> Path:
    """As the write-up's function of this name does."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}, sort_keys=True, indent=4))
    (folder / "metrics.json").write_text("{}")
    torch.save(oracle.state_dict(), folder / "model_final.pt")
    return folder


@pytest.mark.parametrize("faster", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_an_experiment_gives_its_own_logits_and_is_written_back_key_by_key(
    tmp_path: Path, faster: bool, bias: bool
) -> None:
    changes = {"use_faster_attention": faster, "qkv_bias": bias, "hidden_dropout_prob": 0.1}
    oracle = randomize(Oracle(**changes)).eval()
    folder = save_experiment(tmp_path / "experiment", oracle, **changes)
    checkpoint = read_checkpoint(folder, allow_pickle=True)
    assert (checkpoint.config.heads, checkpoint.config.rates.dropout) == (4, 0.1)
    images = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        expected = oracle(images)
        assert (checkpoint.build()(images) - expected).abs().max() <= 1e-6 * expected.abs().max()
    write_checkpoint(checkpoint, tmp_path / "ours.safetensors")
    write_checkpoint(read_checkpoint(tmp_path / "ours.safetensors"), tmp_path / "again", "tintn")
    written = torch.load(tmp_path / "again" / "model_final.pt", weights_only=True)
    assert written.keys() == oracle.state_dict().keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in oracle.state_dict().items())
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == {**CONFIG, **changes}
    assert json.loads((tmp_path / "again" / "metrics.json").read_text()).keys() == {
        "train_losses",
        "test_losses",
        "accuracies",
    }


def test_the_write_ups_model_has_as_many_parameters_as_ours(tmp_path: Path) -> None:
    sizes = {"hidden_size": 48, "num_hidden_layers": 4, "intermediate_size": 192, "image_size": 32, "num_classes": 10}
    oracle = randomize(Oracle(**sizes))
    torch.save(oracle.state_dict(), tmp_path / "a.pt")
    model = read_checkpoint(tmp_path / "a.pt", hints=Hints(heads=4), allow_pickle=True).build()
    assert sum(parameter.numel() for parameter in model.parameters()) == 119_098


def test_without_its_config_the_merged_form_needs_the_heads(tmp_path: Path) -> None:
    for faster in (True, False):
        torch.save(randomize(Oracle(use_faster_attention=faster)).state_dict(), tmp_path / f"{faster}.pt")
    with pytest.raises(WeightsError, match="how many heads it has, .* one of 1, 2, 4"):
        read_checkpoint(tmp_path / "True.pt", allow_pickle=True)
    checkpoint = read_checkpoint(tmp_path / "False.pt", allow_pickle=True)
    assert checkpoint.config.heads == 4
    assert len(checkpoint.notes) == 1  # the preprocessing


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": 48}, "hidden_size is 48 there and 32 in the weights"),
    ({"image_size": 32}, r"image_size is \(32, 32\) there and \(16, 16\)"),
    ({"use_faster_attention": False}, "use_faster_attention is False there and True"),
    ({"num_attention_heads": "4"}, "num_attention_heads must be a whole number"),
    ({"architectures": ["ViT"]}, "config.json has architectures, which the write-up's does not have"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_its_config_is_a_closed_world(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = save_experiment(tmp_path / "experiment", randomize(Oracle()), **changes)
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(folder, allow_pickle=True)


def test_a_config_that_lacks_something(tmp_path: Path) -> None:
    folder = save_experiment(tmp_path / "experiment", randomize(Oracle()))
    (folder / "config.json").write_text('{"hidden_size": 32}')
    with pytest.raises(WeightsError, match="must have .*num_attention_heads"):
        read_checkpoint(folder, allow_pickle=True)


@pytest.mark.filterwarnings("ignore::vitrail.errors.AssumptionWarning")
def test_convert_proves_it(tmp_path: Path) -> None:
    folder = save_experiment(tmp_path / "experiment", randomize(Oracle()))
    convert(folder, tmp_path / "ours.safetensors")
    conversion = convert(tmp_path / "ours.safetensors", tmp_path / "again", "tintn")
    assert conversion.agreement.difference == 0
    assert conversion.how_to_load == f'load_experiment("again", base_dir="{tmp_path}")'
    conversion = convert(folder, tmp_path / "model_final.pt", "tintn")
    assert '"model_final.pt"' not in conversion.how_to_load
    assert "ViTForClassfication({" in conversion.how_to_load
