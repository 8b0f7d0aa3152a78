"""Oracle: logits that the original Flax code computed from these files (random weights, width 32)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import VitrailError
from vitrail.model.positions import resample_positions
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint

FIXTURES = Path(__file__).parents[1] / "fixtures"
SHARED = Path(__file__).parents[4] / "shared" / "oracles" / "google"  # more of them, on a developer's machine
MORE = [path for path in sorted(SHARED.glob("*.npz")) if path.with_suffix(".io.npz").is_file()]


@pytest.mark.parametrize("path", [FIXTURES / "google_token.npz", *MORE], ids=lambda path: path.stem)
def test_flax_logits_are_reproduced(path: Path) -> None:
    told = np.load(path.with_suffix(".io.npz"))
    images = torch.from_numpy(told["images_nhwc"]).permute(0, 3, 1, 2)
    with torch.inference_mode():
        logits = read_checkpoint(path).build()(images).numpy()
    assert np.abs(logits - told["logits"]).max() <= 1e-5 * np.abs(told["logits"]).max()


def test_positions_are_resized_as_in_the_original() -> None:
    told = np.load(FIXTURES / "google_positions_4_to_6.npz")
    source, expected = torch.from_numpy(told["source"]), torch.from_numpy(told["resized"])
    resized = resample_positions(source[:, 1:], (4, 4), (6, 6), "google")
    torch.testing.assert_close(resized, expected[:, 1:], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(source[:, :1], expected[:, :1])


def rename(arrays: dict[str, Any], prefix: str, joint: bool) -> dict[str, Any]:
    """The same arrays as an older release named them."""
    table = {"MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1", "MlpBlock_0": "MlpBlock_3"}
    table["LayerNorm_1"] = "LayerNorm_2"
    renamed: dict[str, Any] = {}
    for name, array in arrays.items():
        new = name
        for old, other in table.items() if joint else ():
            new = new.replace(old, other)
        renamed[prefix + new] = array
    return renamed


@pytest.mark.parametrize("prefix", ["", "opt/target/", "params/", "params/img/"])
@pytest.mark.parametrize("joint", [False, True])
def test_old_and_new_names_give_the_same_model_and_are_written_back(tmp_path: Path, prefix: str, joint: bool) -> None:
    arrays = rename(dict(np.load(FIXTURES / "google_token.npz")), prefix, joint)
    np.savez(tmp_path / "renamed.npz", **arrays)
    checkpoint = read_checkpoint(tmp_path / "renamed.npz")
    original = read_checkpoint(FIXTURES / "google_token.npz")
    for name, tensor in original.tensors.items():
        assert torch.equal(checkpoint.tensors[name], tensor)
    write_checkpoint(checkpoint, tmp_path / "again.npz", "google")
    again = dict(np.load(tmp_path / "again.npz"))
    assert again.keys() == arrays.keys()
    assert all(np.array_equal(again[name], arrays[name]) for name in arrays)


def test_optimiser_state_is_left_out_with_a_note(tmp_path: Path) -> None:
    arrays = rename(dict(np.load(FIXTURES / "google_token.npz")), "opt/target/", joint=True)
    np.savez(tmp_path / "a.npz", **arrays, **{"opt/state/step": np.zeros(1)})
    remarks = read_checkpoint(tmp_path / "a.npz").remarks
    assert remarks[0] == "left out 1 tensor that does not start with opt/target/"


def test_early_group_norm_shapes_are_kept(tmp_path: Path, make_checkpoint: Any) -> None:
    from vitrail.model import BlockConfig, ResNetStem

    stem = ResNetStem(blocks=(1, 1), width_factor=0.5)
    checkpoint = make_checkpoint(patch_size=1, stem=stem, block=BlockConfig(activation="gelu_tanh"))
    write_checkpoint(checkpoint, tmp_path / "a.npz", "google")
    arrays = dict(np.load(tmp_path / "a.npz"))
    old = {name: array.reshape(1, 1, 1, -1) if "gn" in name else array for name, array in arrays.items()}
    np.savez(tmp_path / "old.npz", **old)
    read = read_checkpoint(tmp_path / "old.npz")
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in checkpoint.tensors.items())
    write_checkpoint(read, tmp_path / "again.npz", "google")
    assert {name: array.shape for name, array in np.load(tmp_path / "again.npz").items()} == {
        name: array.shape for name, array in old.items()
    }


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
def test_a_model_without_positions_is_not_given_fixed_ones(tmp_path: Path, prefix: str) -> None:
    """Oracle: the same weights with positions of zeros, which add nothing."""
    arrays = rename(dict(np.load(FIXTURES / "google_token.npz")), prefix, joint=True)
    positions = f"{prefix}Transformer/posembed_input/pos_embedding"
    np.savez(tmp_path / "zeros.npz", **{**arrays, positions: np.zeros_like(arrays[positions])})
    np.savez(tmp_path / "none.npz", **{name: array for name, array in arrays.items() if name != positions})
    read = read_checkpoint(tmp_path / "none.npz")
    assert (read.file_format, read.config.positions.kind, read.config.image_size) == ("google", "none", (224, 224))
    assert read.notes == (
        "the file has no positions, so it fits any picture: assumed 224×224; pass image_size for another",
    )
    images = torch.randn(2, 3, 32, 32)
    sized = read_checkpoint(tmp_path / "none.npz", hints=Hints(image_size=(32, 32)))
    assert sized.notes == ()
    with torch.inference_mode():
        expected = read_checkpoint(tmp_path / "zeros.npz").build()(images)
        torch.testing.assert_close(sized.build()(images), expected, rtol=0, atol=0)
    write_checkpoint(sized, tmp_path / "again.npz", "google")
    assert set(np.load(tmp_path / "again.npz").files) == set(np.load(tmp_path / "none.npz").files)


def test_new_numbering_without_positions_is_ambiguous_and_noted(tmp_path: Path) -> None:
    arrays = dict(np.load(FIXTURES / "google_token.npz"))
    del arrays["Transformer/posembed_input/pos_embedding"]
    np.savez(tmp_path / "a.npz", **arrays)
    guessed = read_checkpoint(tmp_path / "a.npz")
    assert guessed.config.positions.kind == "sincos"
    assert "a model of vision_transformer without positions is read with the format google" in guessed.notes[0]
    named = read_checkpoint(tmp_path / "a.npz", format_name="google")
    assert (named.file_format, named.config.positions.kind) == ("google", "none")


def test_what_the_keys_leave_open_is_noted(tmp_path: Path, make_checkpoint: Any) -> None:
    from vitrail.model import BlockConfig

    tall = make_checkpoint(image_size=(16, 64), block=BlockConfig(activation="gelu_tanh"))
    write_checkpoint(tall, tmp_path / "a.npz", "google")
    square = read_checkpoint(tmp_path / "a.npz")
    assert square.config.image_size == (32, 32)
    assert square.notes == (
        "the file does not state the shape of its grid of 16 patches: assumed square, pictures of 32×32; "
        "pass image_size if they were not",
    )
    assert square.remarks == (
        "the tanh form of GELU and a LayerNorm epsilon of 1e-6 are not in the file but in Google's code; "
        "pass activation or norm_eps if the weights were trained differently",
    )
    told = Hints(image_size=(16, 64), activation="gelu_tanh", norm_eps=1e-6)
    right = read_checkpoint(tmp_path / "a.npz", hints=told)
    assert (right.config, right.notes, right.remarks) == (tall.config, (), ())
    small = make_checkpoint(image_size=(24, 24), block=BlockConfig(activation="gelu_tanh"))
    write_checkpoint(small, tmp_path / "b.npz", "google")
    assert read_checkpoint(tmp_path / "b.npz").notes == ()  # 9 patches are 3×3


def test_the_mean_is_noted(tmp_path: Path, make_checkpoint: Any) -> None:
    from vitrail.model import BlockConfig

    fields = {"image_size": (24, 24), "class_token": False, "pooling": "mean"}
    write_checkpoint(make_checkpoint(**fields, block=BlockConfig(activation="gelu_tanh")), tmp_path / "a.npz", "google")
    notes = read_checkpoint(tmp_path / "a.npz").notes
    assert notes == ("the file does not state its pooling: assumed the mean, as it has no [cls] token",)
    assert read_checkpoint(tmp_path / "a.npz", hints=Hints(pooling="mean")).notes == ()


KEYS = sorted(np.load(FIXTURES / "google_token.npz").files)


@given(
    dropped=st.sets(st.sampled_from(KEYS), max_size=3),
    renamed=st.dictionaries(
        st.sampled_from(KEYS), st.sampled_from(["pos_embedding", "MAPHead_0/probe", "x/y"]), max_size=1
    ),
    joint=st.booleans(),
)
def test_any_keys_are_the_same_model_or_a_note_or_an_error(
    tmp_path: Path, dropped: set[str], renamed: dict[str, str], joint: bool
) -> None:
    whole = dict(np.load(FIXTURES / "google_token.npz"))
    arrays = {renamed.get(name, name): array for name, array in whole.items() if name not in dropped}
    np.savez(tmp_path / "any.npz", **rename(arrays, "", joint))
    try:
        read = read_checkpoint(tmp_path / "any.npz", hints=Hints(image_size=(32, 32)))
    except VitrailError:
        return
    original = read_checkpoint(FIXTURES / "google_token.npz", hints=Hints(image_size=(32, 32))).config
    same = {**vars(read.config), "num_classes": original.num_classes} == vars(original)  # a head may be missing
    assert same or read.config.positions.kind == "none" or read.notes
