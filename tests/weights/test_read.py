import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.errors import VitrailError, WeightsError
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints
from vitrail.weights.read import open_checkpoint
from vitrail.weights.resolve import locate, names_model
from vitrail.weights.write import write_checkpoint
from weights_fixtures import FITTING


def test_load_gives_the_model_and_what_belongs_to_it(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    checkpoint = replace(make_checkpoint(), classes=tuple("abcdefg"))
    write_checkpoint(checkpoint, tmp_path / "a.safetensors")
    loaded = vitrail.load(tmp_path / "a.safetensors")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(images), checkpoint.build()(images), rtol=0, atol=0)
    assert loaded.classes == checkpoint.classes
    assert loaded.preprocess == checkpoint.preprocess
    assert not loaded.model.training


def test_load_adapts(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(representation=24), tmp_path / "a.safetensors")
    loaded = vitrail.load(tmp_path / "a.safetensors", num_classes=3, image_size=(48, 64), channels=1)
    assert loaded.model.config.representation is None
    assert loaded(torch.randn(1, 1, 48, 64)).shape == (1, 3)
    kept = vitrail.load(tmp_path / "a.safetensors", num_classes=3, drop_representation=False)
    assert kept.model.config.representation == 24
    same = vitrail.load(tmp_path / "a.safetensors", image_size=64)
    assert same.model.config.representation == 24


def test_a_run_folder_is_a_checkpoint(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "run-1" / "weights" / "best.safetensors")
    assert vitrail.load(tmp_path / "run-1").model.config.width == 32


def test_load_can_be_trained(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors")
    before = (tmp_path / "a.safetensors").read_bytes()
    model = vitrail.load(tmp_path / "a.safetensors").model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    optimiser.step()
    assert (tmp_path / "a.safetensors").read_bytes() == before  # the weights are mapped, not the file changed


def test_bad_requests(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors")
    with pytest.raises(VitrailError, match="image_size must be a multiple of 8"):
        vitrail.load(tmp_path / "a.safetensors", image_size=33)
    torch.save({}, tmp_path / "a.pth")
    with pytest.raises(WeightsError, match="vitrail convert"):
        vitrail.load(tmp_path / "a.pth")
    (tmp_path / "a.ONNX").touch()
    with pytest.raises(WeightsError, match="a.ONNX is damaged, or not an ONNX model"):
        vitrail.load(tmp_path / "a.ONNX")


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_refused(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], number: float
) -> None:
    checkpoint = make_checkpoint()
    tensors = {**checkpoint.tensors, "norm.bias": torch.full((32,), number)}
    write_checkpoint(replace(checkpoint, tensors=tensors), tmp_path / "a.safetensors", "vitrail")
    with pytest.raises(WeightsError, match=r"a.safetensors: NaN or infinite numbers in norm.bias"):
        vitrail.load(tmp_path / "a.safetensors")
    assert vitrail.load(tmp_path / "a.safetensors", verify=False).num_classes == 7


def test_a_source_is_parsed_once_and_passed_on(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "a.safetensors")
    located = locate(tmp_path / "a.safetensors")
    assert (located.suffix, located.fetch(), located.is_google) == (".safetensors", tmp_path / "a.safetensors", False)
    assert locate(located) is located
    assert open_checkpoint(located).config == open_checkpoint(tmp_path / "a.safetensors").config
    hub = locate("hf://someone/vit@main")
    assert (hub.path, hub.address, hub.suffix) == (None, "someone/vit@main", "")
    assert locate("google://Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0").is_google


def test_what_looks_like_a_checkpoint(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(make_checkpoint(), tmp_path / "run-1" / "weights" / "best.safetensors")
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    (tmp_path / "cifar10").mkdir()
    monkeypatch.chdir(tmp_path)
    for text in (
        "hf://a/b",
        "google://B_16",
        "cifar10",
        "a.npz",
        "missing.safetensors",
        "a.pt",
        "a.ckpt",
        "run-1",
        "a.onnx",
    ):
        assert names_model(text), text
    for text in ("pictures", "a.jpg", "./cifar10", "missing", "run-1/weights/none"):
        assert not names_model(text), text


def test_what_was_assumed_is_warned_of_once_and_stays_readable(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    fields = {**FITTING["timm"], "width": 192, "depth": 12, "heads": 3, "mlp_width": 96}
    write_checkpoint(make_checkpoint(**fields), tmp_path / "bare.safetensors", "timm")
    with pytest.warns(vitrail.AssumptionWarning) as caught:
        loaded = vitrail.load(tmp_path / "bare.safetensors")
    (warning,) = caught
    assert warning.filename == __file__  # the line that the user wrote
    assert isinstance(warning.message, vitrail.AssumptionWarning)
    assert set(warning.message.notes) <= set(loaded.notes)
    assert any("heads: assumed 3" in note for note in loaded.notes)
    assert all(note in str(warning.message) for note in loaded.notes)
    again = pickle.loads(pickle.dumps(warning.message))
    assert (again.source, again.notes, str(again)) == (
        warning.message.source,
        warning.message.notes,
        str(warning.message),
    )


def test_what_the_user_said_is_not_warned_of(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    write_checkpoint(make_checkpoint(**FITTING["google"]), tmp_path / "a.npz", "google")
    loaded = vitrail.load(tmp_path / "a.npz", hints=Hints(image_size=(32, 32)))  # warnings are errors here
    assert [note for note in loaded.notes if "assumed" in note] == []
    assert any(
        "the tanh form of GELU" in remark for remark in loaded.remarks
    )  # what the format implies is no assumption


def test_a_file_of_ours_keeps_the_notes_and_does_not_warn_again(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    write_checkpoint(make_checkpoint(**FITTING["google"]), tmp_path / "a.npz", "google")
    with pytest.warns(vitrail.AssumptionWarning):
        first = open_checkpoint(tmp_path / "a.npz")
    write_checkpoint(first, tmp_path / "a.safetensors")
    loaded = vitrail.load(tmp_path / "a.safetensors")
    assert (loaded.notes, loaded.remarks) == (first.notes, first.remarks)
    assert any("assumed square" in note for note in loaded.notes)


def test_our_own_small_models_are_no_convention_for_heads(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    write_checkpoint(
        make_checkpoint(**FITTING["timm"], width=128, depth=6, heads=8), tmp_path / "a.safetensors", "timm"
    )
    with pytest.raises(WeightsError, match="how many heads it has, and no published model has width 128 and depth 6"):
        vitrail.load(tmp_path / "a.safetensors")
