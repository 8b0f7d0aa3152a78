"""What training scripts save around a model. Oracle for averages and prefixes: timm's own `load_state_dict`."""

import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import timm
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from vitrail.errors import VitrailError, WeightsError
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint
from weights_fixtures import FITTING

State = dict[str, torch.Tensor]


@pytest.fixture
def state(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> State:
    """A model in timm's naming."""
    write_checkpoint(make_checkpoint(**FITTING["timm"]), tmp_path / "plain.pth", "timm")
    return torch.load(tmp_path / "plain.pth", weights_only=True)


def averaged(state: State) -> State:
    return {name: tensor * 0.9 for name, tensor in state.items()}


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def read(path: Path, **hints: Any) -> Checkpoint:
    return read_checkpoint(path, hints=Hints(heads=4, **hints), allow_pickle=True)


def choices(checkpoint: Checkpoint) -> list[str]:
    return [note for note in checkpoint.notes if note.startswith("the file holds")]


@pytest.mark.parametrize(
    ("plain", "average"),
    [("state_dict", "state_dict_ema"), ("model", "model_ema"), ("model", "ema"), ("net", "ema_state_dict")],
)
def test_the_average_is_taken_unless_the_user_says_otherwise(
    tmp_path: Path, state: State, plain: str, average: str
) -> None:
    torch.save({plain: state, average: averaged(state), "epoch": 3}, tmp_path / "a.pth")
    taken = read(tmp_path / "a.pth")
    assert torch.equal(taken.tensors["norm.weight"], state["norm.weight"] * 0.9)
    assert choices(taken) == [
        f"the file holds {plain} and {average}: {average} is used, the moving average"
        f"{', as timm does' if average in ('state_dict_ema', 'model_ema') else ''}; pass `ema=False` for the other"
    ]
    for ema, factor in ((True, 0.9), (False, 1.0)):
        chosen = read(tmp_path / "a.pth", ema=ema)
        assert torch.equal(chosen.tensors["norm.weight"], state["norm.weight"] * factor)
        assert choices(chosen) == []
        if average in ("state_dict_ema", "model_ema"):
            theirs = timm.models.load_state_dict(str(tmp_path / "a.pth"), use_ema=ema)
            assert torch.equal(chosen.tensors["norm.weight"], theirs["norm.weight"])


def test_an_average_without_the_weights_loads(tmp_path: Path, state: State) -> None:
    torch.save({"model_ema": averaged(state), "model": None}, tmp_path / "a.pth")
    assert torch.equal(read(tmp_path / "a.pth").tensors["norm.weight"], state["norm.weight"] * 0.9)
    with pytest.raises(WeightsError, match="has no weights that are not averaged; it holds model_ema"):
        read(tmp_path / "a.pth", ema=False)


def test_averages_of_torch_itself(tmp_path: Path, state: State) -> None:
    """torchvision's scripts save an AveragedModel, which counts beside the weights."""
    average = {"n_averaged": torch.tensor(7), **prefixed(averaged(state), "module.")}
    torch.save({"model": state, "model_ema": average}, tmp_path / "a.pth")
    taken = read(tmp_path / "a.pth")
    assert torch.equal(taken.tensors["norm.weight"], state["norm.weight"] * 0.9)
    assert taken.remarks == ("all names of the file begin with module., which was removed",)


def test_a_choice_where_there_is_none(tmp_path: Path, state: State) -> None:
    torch.save({"model": state}, tmp_path / "a.pth")
    with pytest.raises(WeightsError, match="has no averaged weights; it holds model; omit ema"):
        read(tmp_path / "a.pth", ema=True)
    for path, save in ((tmp_path / "b.pth", torch.save), (tmp_path / "b.safetensors", save_file)):
        save(state, path)
        with pytest.raises(WeightsError, match="nothing to choose with ema"):
            read(path, ema=False)


def test_a_teacher_is_an_average_only_of_a_student_of_its_size(tmp_path: Path, state: State) -> None:
    torch.save({"student": prefixed(state, "module."), "teacher": averaged(state)}, tmp_path / "a.pth")
    assert torch.equal(read(tmp_path / "a.pth").tensors["norm.weight"], state["norm.weight"] * 0.9)
    small = {name: tensor[:1] for name, tensor in state.items()}
    torch.save({"student": small, "teacher": state}, tmp_path / "b.pth")
    with pytest.raises(WeightsError, match=r"several sets of weights: student and teacher; save the one you mean"):
        read(tmp_path / "b.pth")


@pytest.mark.parametrize("name", ["model", "state_dict"])
def test_a_teacher_beside_a_model_is_not_its_average(tmp_path: Path, state: State, name: str) -> None:
    torch.save({"teacher": averaged(state), name: state}, tmp_path / "a.pth")
    taken = read(tmp_path / "a.pth")
    theirs = timm.models.load_state_dict(str(tmp_path / "a.pth"))
    assert torch.equal(taken.tensors["norm.weight"], theirs["norm.weight"])
    assert choices(taken) == [f"the file holds teacher and {name}: {name} is used, the usual name"]
    teacher = read(tmp_path / "a.pth", ema=True)
    assert torch.equal(teacher.tensors["norm.weight"], state["norm.weight"] * 0.9)


@pytest.mark.parametrize("name", ["state_dict", "model", "model_state_dict", "net", "teacher", "anything"])
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".ckpt"])
def test_wrappers(tmp_path: Path, state: State, name: str, suffix: str) -> None:
    extra = {"optimizer": {"state": {0: {"step": torch.ones(1)}}}, "rng": {"cpu": torch.zeros(9)}, "epoch": 3}
    torch.save({name: state, **extra}, tmp_path / f"a{suffix}")
    assert torch.equal(read(tmp_path / f"a{suffix}").tensors["norm.weight"], state["norm.weight"])


def test_the_usual_name_goes_before_others(tmp_path: Path, state: State) -> None:
    torch.save({"criterion": {"weight": torch.ones(2, 2)}, "model": state}, tmp_path / "a.pth")
    assert choices(read(tmp_path / "a.pth")) == ["the file holds criterion and model: model is used, the usual name"]
    torch.save({"model": state, "state_dict": state}, tmp_path / "b.pth")
    with pytest.raises(WeightsError, match="several sets of weights: model and state_dict"):
        read(tmp_path / "b.pth")


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model.", "backbone.", "net.encoder.", "a.b.c.d."]
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_prefixes_are_taken_off_with_a_remark(tmp_path: Path, state: State, prefix: str, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    wrapped = prefixed(state, prefix)
    save_file(wrapped, path) if suffix == ".safetensors" else torch.save(wrapped, path)
    taken = read(path)
    assert all(torch.equal(taken.tensors[name], state[name]) for name in ("norm.weight", "norm.bias"))
    assert taken.remarks == (f"all names of the file begin with {prefix}, which was removed",)
    assert read_checkpoint(path, format_name="timm", hints=Hints(heads=4), allow_pickle=True).config == taken.config


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_wrappers_of_single_blocks_are_taken_off(tmp_path: Path, state: State, wrapper: str, prefix: str) -> None:
    wrapped = {prefix + re.sub(r"(blocks\.[12]\.|mlp\.)", rf"\1{wrapper}.", key): each for key, each in state.items()}
    torch.save(wrapped, tmp_path / "a.pth")
    taken = read(tmp_path / "a.pth")
    assert taken.remarks[0] == "the names of wrappers around single blocks were removed"
    name = "blocks.1.norm1.weight"
    assert torch.equal(taken.tensors[name], state[name])


def test_chunks_of_blocks_are_one_list(tmp_path: Path, state: State) -> None:
    """As DINOv2 trains them: the number of the chunk stands before that of the block."""
    chunked = {
        re.sub(r"blocks\.(\d+)", lambda m: f"blocks.{int(m[1]) // 2}.{m[1]}", name): state[name] for name in state
    }
    torch.save(chunked, tmp_path / "a.pth")
    taken = read(tmp_path / "a.pth")
    assert taken.remarks == ("the chunks of blocks were joined to one list of blocks",)
    assert torch.equal(taken.tensors["blocks.2.norm1.weight"], state["blocks.2.norm1.weight"])
    ambiguous = {name.replace("blocks.", "blocks.0."): each for name, each in state.items()}
    ambiguous |= {name.replace("blocks.", "blocks.1."): each for name, each in state.items() if "blocks." in name}
    torch.save(ambiguous, tmp_path / "b.pth")
    with pytest.raises(WeightsError, match="are those of no ViT that we know"):
        read(tmp_path / "b.pth")


FAMILIES = {
    "a CoCa": ("visual.conv1.weight", "visual.attn_pool.query", "visual.transformer.resblocks.0.attn.in_proj_weight"),
    "a masked autoencoder": ("mask_token", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "decoder.0.a"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_are_refused_by_name(tmp_path: Path, family: str) -> None:
    torch.save({name: torch.zeros(1, 2, 3, 4) for name in FAMILIES[family]}, tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=rf"a.pth looks like {family}.*; vitrail reads plain ViTs only"):
        read(tmp_path / "a.pth")


def test_shapes_without_numbers_are_refused(tmp_path: Path, state: State) -> None:
    torch.save({**state, "norm.weight": state["norm.weight"].to("meta")}, tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=r"has no numbers for norm.weight: only shapes were saved"):
        read(tmp_path / "a.pth")


def test_one_shard_leads_to_the_folder(tmp_path: Path, state: State) -> None:
    save_file(state, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(WeightsError, match=f"one of several files of a checkpoint; name the folder .*{tmp_path}$"):
        read(tmp_path / "model-00001-of-00002.safetensors")


def test_a_model_beside_other_tensors_is_refused_with_the_way_out(tmp_path: Path, state: State) -> None:
    torch.save({**prefixed(state, "backbone."), "head.mlp.weight": torch.ones(2, 2)}, tmp_path / "a.pth")
    with pytest.raises(WeightsError) as error:
        read(tmp_path / "a.pth")
    message = str(error.value)
    assert "a model is under backbone., and beside it there are head.mlp.weight; save the model by itself" in message
    whole = torch.load(tmp_path / "a.pth", weights_only=True)
    advice = message[message.index("{name") : message.rindex("}") + 1]
    torch.save(eval(advice, {"state": whole}), tmp_path / "b.pth")  # what the message says works
    assert torch.equal(read(tmp_path / "b.pth").tensors["norm.weight"], state["norm.weight"])


def test_refusals_never_advise_to_run_a_file(tmp_path: Path) -> None:
    _write_tar(tmp_path / "a.pt")
    with pytest.raises(WeightsError) as error:
        read(tmp_path / "a.pt")
    assert "weights_only" not in str(error.value)
    assert "we never load" in str(error.value)
    assert "state_dict" in str(error.value)


def _write_tar(path: Path) -> None:
    """torch's first format, of 2016."""
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            member = tarfile.TarInfo(name)
            archive.addfile(member, io.BytesIO(b""))


NAMES = ["model", "model_ema", "state_dict", "teacher", "student", "net", "epoch", "a.b", ""]
VALUES = st.recursive(
    st.sampled_from([None, 3, "x", torch.zeros(2, 2), torch.ones(3), torch.tensor(1)]),
    lambda inner: st.dictionaries(st.sampled_from([*NAMES, "w", 5]), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=12,
)


@given(entries=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5), ema=st.sampled_from([None, True, False]))
def test_any_contents_are_a_model_or_a_clear_error(
    tmp_path: Path, state: State, entries: dict[str, Any], ema: bool | None
) -> None:
    for inside in ({}, {"model": state}, {"model_ema": state}):
        torch.save({**entries, **inside}, tmp_path / "any.pth")
        try:
            checkpoint = read(tmp_path / "any.pth", ema=ema)
        except VitrailError:
            continue
        assert torch.equal(checkpoint.tensors["norm.weight"], state["norm.weight"])
