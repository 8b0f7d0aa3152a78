"""Models in which exactly one thing differs: its place and cause are named, in Python and on the command line."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import timm, transformers
from torch import Tensor

from conftest import TINY, randomize
from vitrail.cli.main import main
from vitrail.data.preprocess import Preprocess, preset
from vitrail.errors import ConfigError, WeightsError
from vitrail.model import BlockConfig, PositionConfig, ViT
from vitrail.model.parts import Rope
from vitrail.verbs.diff import Divergence, diff
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Origin
from vitrail.weights.native import save_checkpoint
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint

Tensors = dict[str, Tensor]
CLASSES = tuple("abcdefg")
SPEC = preset("timm", 32)


@pytest.fixture
def save(inside: Path) -> Callable[..., str]:
    """Writes a tiny model with random weights, some of them changed; the file's name."""

    def save(
        name: str = "b.safetensors",
        change: Callable[[Tensors], Tensors] = dict,
        *,
        classes: tuple[str, ...] | None = CLASSES,
        spec: Preprocess = SPEC,
        **options: Any,
    ) -> str:
        config = replace(TINY, **options)
        tensors = change(randomize(ViT(config)).state_dict())
        names = classes if config.num_classes else None
        save_checkpoint(Checkpoint(config=config, tensors=tensors, preprocess=spec, classes=names), name)
        return name

    return save


@pytest.fixture
def first(save: Callable[..., str]) -> str:
    return save("a.safetensors")


def only_finding(found: Divergence) -> tuple[str, str]:
    """The place and the cause of the only difference, which is gone without its cause."""
    (finding,) = found.findings
    assert finding.after is not None
    assert finding.after < 1e-9 < 1e-6 < finding.before
    assert found.exit_code == 1
    return finding.place, finding.cause


def test_the_same_model(first: str, save: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    found = diff(first, save())
    assert found.same
    assert (found.options, found.other_tensors, found.findings, found.notes) == ((), (), (), ())
    assert (found.tensors, found.classes) == (44, "7 in both, the same names")
    assert [step.name for step in found.steps] == [
        "the pixels",
        "the patch embeddings",
        "the tokens with their positions",
        "the output of block 0",
        "the output of block 1",
        "what enters the last norm",
        "the last norm",
        "the features",
        "the logits",
    ]
    assert {step.difference for step in found.steps} == {0.0}
    assert main(["diff", first, "b.safetensors"]) == 0
    assert "They compute the same on 4 pictures of 32×32 pixels." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "place", "cause"),
    [
        (
            {"block": BlockConfig(norm_eps=1e-4)},
            "the norm before attention of block 0",
            "the epsilon of LayerNorm (block.norm_eps): 1e-06 in A, 0.0001 in B",
        ),
        (
            {"block": BlockConfig(activation="gelu_tanh")},
            "the activation of the MLP of block 0",
            "the form of GELU (block.activation): gelu in A, gelu_tanh in B",
        ),
        (
            {"block": BlockConfig(activation="quick_gelu")},
            "the activation of the MLP of block 0",
            "the form of GELU (block.activation): gelu in A, quick_gelu in B",
        ),
        (
            {"relative": Rope()},
            "what attention mixes of block 0",
            "how attention knows where tokens are (relative): none in A, rope in B",
        ),
        (
            {"block": BlockConfig(attention_scale=0.1)},
            "what attention mixes of block 0",
            "the scale of the attention scores (block.attention_scale): none in A, 0.1 in B",
        ),
        (
            {"heads": 8},
            "what attention mixes of block 0",
            "the heads, among which the width is divided (heads): 4 in A, 8 in B",
        ),
        ({"pooling": "mean"}, "the features", "which tokens are read (pooling): cls in A, mean in B"),
        (
            {"merge": (2, 0, 0)},
            "the sum after attention of block 0",
            "token merging (merge): () in A, (2, 0, 0) in B",
        ),
    ],
)
def test_an_option(first: str, save: Callable[..., str], options: dict[str, Any], place: str, cause: str) -> None:
    found = diff(first, save(**options))
    assert only_finding(found) == (place, cause)
    assert len(found.options) == 1
    assert (found.tensors, found.other_tensors, found.only_a, found.only_b) == (44, (), (), ())


def test_the_place_of_the_last_norm(save: Callable[..., str]) -> None:
    found = diff(save("a.safetensors", pooling="mean"), save(pooling="mean", pool_norm="after"))
    assert only_finding(found) == (
        "what enters the last norm",
        "where the last LayerNorm is (pool_norm): before in A, after in B",
    )


@pytest.mark.parametrize(
    ("options", "place", "cause"),
    [
        ({"pool_norm": "none"}, "the features", "where the last LayerNorm is (pool_norm): before in A, none in B"),
        (
            {"block": BlockConfig(qkv_bias=False)},
            "the queries, keys and values of block 0",
            "block.qkv_bias: yes in A, no in B",
        ),
    ],
)
def test_what_one_of_them_lacks(
    first: str, save: Callable[..., str], options: dict[str, Any], place: str, cause: str
) -> None:
    whole = randomize(ViT(TINY)).state_dict()
    found = diff(first, save(change=lambda part: {name: whole[name] for name in part}, **options))
    assert only_finding(found) == (place, cause)
    assert found.only_a
    assert (found.only_b, found.other_tensors) == ((), ())


def test_a_kernel_shows_at_other_sizes_only(first: str, save: Callable[..., str]) -> None:
    other = save(positions=PositionConfig(resample="timm"))
    found = diff(first, other)
    assert found.same
    assert "A resamples its positions as google does and B as timm does" in found.notes[0]
    place, cause = only_finding(diff(first, other, image_size="40x48"))
    assert place == "the tokens with their positions"
    assert cause == "the kernel that resamples positions (positions.resample): google in A, timm in B"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"mean": (0.4, 0.5, 0.5)}, "the preprocessing: mean is (0.5, 0.5, 0.5) in A and (0.4, 0.5, 0.5) in B"),
        ({"crop": 0.5, "animated": "error"}, "the preprocessing: crop is 0.9 in A and 0.5 in B"),
        (
            {"crop": 0.5, "interpolation": "nearest"},
            "the preprocessing: crop is 0.9 in A and 0.5 in B; interpolation is bicubic in A and nearest in B",
        ),
    ],
)
def test_preprocessing(first: str, save: Callable[..., str], changes: dict[str, Any], cause: str) -> None:
    found = diff(first, save(spec=replace(SPEC, **changes)))
    assert only_finding(found) == ("the pixels", cause)
    assert [option[0] for option in found.options] == [f"preprocess.{name}" for name in changes]
    assert found.steps[-1].difference == 0  # the same pixels give the same logits


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: change(tensors[name]).contiguous()}


QKV = "blocks.1.attention.qkv.weight"
PERTURB = changed("blocks.1.mlp.fc1.weight", lambda tensor: tensor + 0.1 * torch.eye(64, 32))


@pytest.mark.parametrize(
    ("change", "place", "cause"),
    [
        (
            PERTURB,
            "the first layer of the MLP of block 1",
            "other weights in blocks.1.mlp.fc1.weight, which differ by up to 1.00e-01",
        ),
        (
            changed(QKV, lambda tensor: tensor.roll(32, 0)),
            "the queries, keys and values of block 1",
            "the order of queries, keys and values: B has values, queries, keys",
        ),
        (
            changed(QKV, lambda tensor: tensor.unflatten(0, (3, 4, 8)).transpose(0, 1).flatten(0, 2)),
            "the queries, keys and values of block 1",
            "how the heads are split: B's queries, keys and values lie head by head, each with its queries, keys and "
            "values",
        ),
        (
            changed("embed.patches.weight", lambda tensor: tensor.flip(1)),
            "the patch embeddings",
            "the order of channels: B reads BGR",
        ),
        (
            lambda tensors: {name: tensor.half().float() for name, tensor in tensors.items()},
            "the patch embeddings",
            "the number type: B's weights are A's, rounded to float16",
        ),
    ],
)
def test_weights(
    first: str, save: Callable[..., str], change: Callable[[Tensors], Tensors], place: str, cause: str
) -> None:
    found = diff(first, save(change=change))
    assert only_finding(found) == (place, cause)
    assert found.options == ()
    assert found.other_tensors


def test_classes_are_compared_by_name(first: str, save: Callable[..., str]) -> None:
    shuffled = tuple("gfedcba")
    assert only_finding(diff(first, save(classes=shuffled))) == (
        "the logits",
        "the class names are in another order, beside the same rows of the head",
    )

    def turn(tensors: Tensors) -> Tensors:
        return {**tensors, **{f"head.{part}": tensors[f"head.{part}"].flip(0) for part in ("weight", "bias")}}

    found = diff(first, save(change=turn, classes=shuffled))
    assert found.same
    assert found.classes == "7 in both, compared by name: they are in another order"
    (finding,) = diff(first, save(classes=tuple("abcdefx"))).findings
    assert (finding.place, finding.cause) == ("the classes", "6 in both, compared by name; only in A: g; only in B: x")
    (finding,) = diff(first, save(num_classes=0)).findings  # the features are the same
    assert (finding.place, finding.cause) == ("the classes", "7 in A, 0 in B")


def test_causes_one_behind_the_other(first: str, save: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    save(change=PERTURB, block=BlockConfig(norm_eps=1e-3, activation="gelu_tanh"))
    assert main(["diff", first, "b.safetensors"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    parts = [
        "They differ on 4 pictures of 32×32 pixels.",
        "first difference: the norm before attention of block 0",
        "with that removed, the next: the activation of the MLP of block 0",
        "with that removed, the next: the first layer of the MLP of block 1",
        "option A B block.norm_eps 1e-06 0.001 block.activation gelu gelu_tanh",
        "weights: 44 tensors in both, 1 of them with other numbers",
    ]
    assert [printed.find(part) for part in parts] == sorted(printed.find(part) for part in parts)
    assert -1 not in [printed.find(part) for part in parts]
    assert main(["diff", first, "b.safetensors", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert not facts["same"]
    assert facts["findings"][0]["place"] == "the norm before attention of block 0"
    assert "- the norm before attention of block 0" in diff(first, "b.safetensors")._repr_markdown_()


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"width": 48}, "the models have different sizes: width is 32 in A and 48 in B"),
        ({"patch_size": 16}, "the models have different sizes: patch_size is (8, 8) in A and (16, 16) in B"),
        ({"channels": 1, "spec": preset("timm", 32, 1)}, "A reads pictures of 3 channels and B of 1"),
        (
            {"patch_size": 12, "image_size": 36, "spec": preset("timm", 36)},
            "B cannot read pictures of 32×32 pixels: image_size must be a multiple of 12",
        ),
    ],
)
def test_other_sizes_are_told_in_words(
    first: str, save: Callable[..., str], options: dict[str, Any], cause: str
) -> None:
    found = diff(first, save(**options))
    assert cause in found.findings[-1].cause
    assert found.findings[-1].after is None
    assert json.dumps(found.to_dict(), allow_nan=False)
    assert list(found.lines())


def test_another_depth(save: Callable[..., str]) -> None:
    found = diff(save("a.safetensors", num_classes=0), save(num_classes=0, depth=2))
    assert found.findings[0].cause == "the number of blocks (depth): 3 in A, 2 in B"
    assert found.steps[-1].name == "the features"
    assert found.only_a[0].startswith("blocks.2.")


def save_transformers(folder: str, **options: Any) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=7, **options)
    randomize(transformers.ViTForImageClassification(config)).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)


def save_timm(folder: str, **options: Any) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2}
    model = randomize(timm.create_model("vit_base_patch16_224", num_classes=7, **sizes, **options))
    model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (3, 32, 32), "num_classes": 7}
    timm.models.save_for_hf(model, folder, safe_serialization=True, model_args={**sizes, **options})


@pytest.mark.parametrize(("write", "library"), [(save_transformers, "transformers"), (save_timm, "timm")])
def test_a_librarys_own_model(inside: Path, write: Callable[..., None], library: str) -> None:
    write("folder")
    read = read_checkpoint("folder")
    save_checkpoint(read, "a.safetensors")
    found = diff("a.safetensors", "folder", library=True)
    assert found.same
    assert found.library == library
    assert len(found.steps) == 8
    assert 0 < max(step.relative for step in found.steps[1:]) < 1e-12  # they were really computed by two
    block = replace(read.config.block, activation="gelu_tanh")
    save_checkpoint(replace(read, config=replace(read.config, block=block)), "a.safetensors")
    place, cause = only_finding(diff("a.safetensors", "folder", library=True))
    assert place == "the activation of the MLP of block 0"
    assert cause == "the form of GELU (block.activation): gelu_tanh in A, gelu in B"


def test_what_a_library_computes_is_found_although_nothing_states_it(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_timm("folder", qkv_bias=True)
    save_checkpoint(read_checkpoint("folder"), "a.safetensors")
    monkeypatch.setattr(timm.layers.LayerNorm, "forward", lambda self, x: _with_epsilon(self, x))
    place, cause = only_finding(diff("a.safetensors", "folder", library=True))
    assert place == "the norm before attention of block 0"
    assert cause == "the epsilon of LayerNorm (block.norm_eps): 1e-06 in A, B computes as with 0.001"


def _with_epsilon(norm: Any, tokens: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(tokens, norm.normalized_shape, norm.weight, norm.bias, 1e-3)


def test_an_architecture_of_timm_with_our_weights(save: Callable[..., str]) -> None:
    sizes = {"width": 192, "depth": 12, "heads": 3, "mlp_width": 768, "patch_size": 16, "image_size": 32}
    ours = save("a.safetensors", **sizes, block=BlockConfig(activation="gelu_tanh"))
    found = diff(ours, "timm:vit_tiny_patch16_224")
    assert only_finding(found)[1] == "the form of GELU (block.activation): gelu_tanh in A, gelu in B"
    assert (found.library, found.other_tensors, found.tensors) == ("timm", (), 152)
    with pytest.raises(WeightsError, match=r"timm's vit_small_patch16_224 cannot hold .*: embed_dim is 384 there and"):
        diff(ours, "timm:vit_small_patch16_224")


def test_what_a_file_leaves_open_is_noted_with_its_name(first: str, capsys: pytest.CaptureFixture[str]) -> None:
    fixture = Path(__file__).parents[1] / "weights" / "fixtures" / "google_token.npz"
    assert main(["diff", first, str(fixture)]) == 1
    captured = capsys.readouterr()
    assert "note: B: the file does not state the shape of its grid" in captured.out
    assert captured.err == ""


def test_mistakes(first: str) -> None:
    write_checkpoint(replace(read_checkpoint(first), origin=Origin()), "bare.pth", "timm")
    with pytest.raises(
        WeightsError, match=r"pass heads=, one of 1, 2, 4; convert it with that, and compare the result"
    ):
        diff(first, "bare.pth")
    with pytest.raises(WeightsError, match=r"nowhere.safetensors"):
        diff(first, "nowhere.safetensors")
    with pytest.raises(ConfigError, match="no library that runs on PyTorch reads vitrail files; omit library="):
        diff(first, first, library=True)
    with pytest.raises(ConfigError, match="tolerance must be 0 or more; got nan"):
        diff(first, first, tolerance=float("nan"))
    with pytest.raises(ConfigError, match="image_size must be one number or HEIGHTxWIDTH"):
        diff(first, first, image_size="large")
