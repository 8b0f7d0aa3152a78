"""LoRA beside PEFT on the same weights: the same outputs and gradients, and adapters that PEFT loads.

1e-5 is relative to the largest number.
"""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import timm, transformers
from peft import EvaConfig, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import Tensor, nn

from conftest import randomize
from vitrail.errors import WeightsError
from vitrail.model import ViT
from vitrail.tasks.one import OneTrust
from vitrail.training.lora import adapted_layers, add_adapters, merged, write_adapter
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints
from vitrail.weights.peft import add_adapter, libraries
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint

THEIRS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "proj": "o_proj", "mlp": ("fc1", "fc2")}
TIMM_SIZES: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 32,
    "depth": 3,
    "num_heads": 4,
    "mlp_ratio": 2,
    "num_classes": 7,
}
CASES = {
    "query,value": ("query", "value"),
    "key": ("key",),
    "query,key,value": ("query", "key", "value"),
    "all": ("query", "key", "value", "proj", "mlp"),
}


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    scale = theirs.abs().max()
    assert scale > 1e-3
    assert (ours - theirs).abs().max() <= 1e-5 * scale


@pytest.fixture
def images() -> Tensor:
    return torch.randn(3, 3, 32, 32)


@pytest.fixture
def written(make_model: Callable[..., ViT], tmp_path: Path) -> Callable[..., Path]:
    """A model with random weights in another library's format."""

    def write(format_name: Any, name: str = "base", **changes: Any) -> Path:
        from vitrail.data.preprocess import preset

        model = make_model(**changes)
        spec = preset("hf" if format_name == "hf" else "timm", model.config.image_size)
        write_checkpoint(
            Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=spec), tmp_path / name, format_name
        )
        return tmp_path / name

    return write


def adapted(base: Path, targets: tuple[str, ...]) -> ViT:
    """The model of a folder with random pairs; also B, which would be zeros."""
    model = read_checkpoint(base, hints=Hints(heads=4)).build()
    add_adapters(model, rank=4, alpha=6, targets=targets)
    for _, layer in adapted_layers(model):
        randomize(layer.adapters)
    return model


def their_pairs(model: ViT) -> dict[str, Tensor]:
    """Our A and B under the names that they have in transformers' model with PEFT."""
    pairs: dict[str, Tensor] = {}
    for name, layer in adapted_layers(model):
        block, _, own = name.removeprefix("blocks.").partition(".")
        for part, pair in layer.adapters.items():
            if part == "whole":
                theirs = "attention.o_proj" if own == "attention.proj" else own
            else:
                theirs = f"attention.{THEIRS[part]}"
            for side, matrix in (("A", pair.get_submodule("down")), ("B", pair.get_submodule("up"))):
                pairs[f"base_model.model.vit.layers.{block}.{theirs}.lora_{side}.default.weight"] = (
                    matrix.get_parameter("weight")
                )
    return pairs


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_pefts(case: str, written: Callable[..., Path], images: Tensor) -> None:
    base = written("hf")
    ours = adapted(base, CASES[case])
    names: list[str] = []
    for target in CASES[case]:
        names += [THEIRS[target]] if isinstance(THEIRS[target], str) else THEIRS[target]
    plain = transformers.ViTForImageClassification.from_pretrained(base)
    theirs = get_peft_model(plain, LoraConfig(r=4, lora_alpha=6, target_modules=names)).eval()
    pairs = their_pairs(ours)
    own = dict(theirs.named_parameters())
    assert {name for name in own if "lora_" in name} == pairs.keys()
    with torch.no_grad():
        for name, weight in pairs.items():
            own[name].copy_(weight)
    weights = torch.randn(3, 7)
    logits, expected = ours(images), theirs(images).logits
    assert_same(logits, expected)
    (logits * weights).sum().backward()
    (expected * weights).sum().backward()
    for name, weight in pairs.items():
        assert weight.grad is not None
        assert own[name].grad is not None
        assert_same(weight.grad, own[name].grad)


@pytest.mark.parametrize("case", CASES)
def test_transformers_with_peft_loads_what_we_write(
    case: str, written: Callable[..., Path], images: Tensor, tmp_path: Path
) -> None:
    base = written("hf")
    ours = adapted(base, CASES[case])
    randomize(ours.head)
    library = next(each for each in libraries(ours.config) if each.name == "transformers")
    write_adapter(tmp_path / "adapter", library, ours, ours.state_dict(), str(base))
    plain = transformers.ViTForImageClassification.from_pretrained(base)
    theirs = PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    with torch.no_grad():
        assert_same(ours(images), theirs(images).logits)


@pytest.mark.parametrize("case", CASES)
def test_timm_with_peft_loads_what_we_write(
    case: str, written: Callable[..., Path], images: Tensor, tmp_path: Path
) -> None:
    base = written("timm", "base.safetensors")
    ours = adapted(base, CASES[case])
    library = next(each for each in libraries(ours.config) if each.name == "timm")
    write_adapter(tmp_path / "adapter", library, ours, ours.state_dict(), str(base))
    plain = timm.models.vision_transformer.VisionTransformer(**TIMM_SIZES)
    timm.models.load_checkpoint(plain, str(base))
    theirs = PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    with torch.no_grad():
        assert_same(ours(images), theirs(images))


@pytest.mark.parametrize("mlp", ["plain", "swiglu"])
def test_dinov2_without_its_head_loads_in_transformers(
    written: Callable[..., Path], mlp: Any, images: Tensor, tmp_path: Path
) -> None:
    from vitrail.model import BlockConfig
    from vitrail.weights.adapt import adapt

    width = 88 if mlp == "swiglu" else 64
    base = written("hf", num_classes=0, mlp_width=width, block=BlockConfig(layer_scale=0.1, mlp=mlp))
    ours = adapt(read_checkpoint(base), num_classes=5).build()
    add_adapters(ours, rank=2, alpha=4, targets=CASES["all"])
    for _, layer in adapted_layers(ours):
        randomize(layer.adapters)
    names = {library.name: library.head for library in libraries(ours.config)}
    assert names == ({"transformers": "", "timm": "head"} if mlp == "plain" else {"transformers": ""})
    library = libraries(ours.config)[0]
    write_adapter(tmp_path / "adapter", library, ours, ours.state_dict(), str(base))
    theirs = PeftModel.from_pretrained(transformers.Dinov2Model.from_pretrained(base), tmp_path / "adapter").eval()
    with torch.no_grad():
        assert_same(ours.features(images), theirs(images).pooler_output)


@pytest.mark.parametrize("case", CASES)
def test_merged_weights_compute_the_same(case: str, written: Callable[..., Path], images: Tensor) -> None:
    base = written("hf")
    ours = adapted(base, CASES[case])
    plain: nn.Module = ViT(ours.config)
    before = plain.state_dict()
    plain.load_state_dict(merged(ours, ours.state_dict()))
    assert before.keys() == plain.state_dict().keys()
    with torch.no_grad():
        assert_same(plain.eval()(images), ours(images))
        assert (read_checkpoint(base).build()(images) - ours(images)).abs().max() > 0.01


# How A and B are initialised; the first two change the base's weights as well.
INITS = ("pissa", "olora", "gaussian", "orthogonal", "mica", "eva", False)
SAVED = [(library, init) for library in ("transformers", "timm") for init in INITS]


@pytest.mark.parametrize(
    ("case", "init"), [*SAVED, *((case, True) for case in ("transformers", "timm", "rslora", "patches", "all-linear"))]
)
@pytest.mark.filterwarnings("ignore:lora with eva")
def test_adapters_that_peft_saves_are_merged(
    case: str, init: Any, written: Callable[..., Path], images: Tensor, tmp_path: Path
) -> None:
    if case in ("timm", "patches"):
        base = written("timm", "base.safetensors")
        plain = timm.models.vision_transformer.VisionTransformer(**TIMM_SIZES)
        timm.models.load_checkpoint(plain, str(base))
        names, head = ["qkv", "fc1"] if case == "timm" else ["proj"], "head"  # the patch convolution is a proj too
    else:
        base = written("hf")
        plain = transformers.ViTForImageClassification.from_pretrained(base)
        names, head = ["q_proj", "o_proj", "fc2"], "classifier"
    settings: dict[str, Any] = {"rank_pattern": {names[-1]: 2}, "use_rslora": case == "rslora"}
    settings |= {"target_modules": names, "modules_to_save": [head], "init_lora_weights": init}
    if init == "eva":
        settings["eva_config"] = EvaConfig()
    if case == "all-linear":  # the head among them
        settings |= {"target_modules": case, "modules_to_save": None}
    theirs = get_peft_model(plain, LoraConfig(r=4, lora_alpha=6, **settings)).eval()
    for name, weight in theirs.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            weight.data += 0.2 * torch.randn_like(weight)
    theirs.save_pretrained(tmp_path / "adapter")
    merge = add_adapter(read_checkpoint(base, hints=Hints(heads=4)), tmp_path / "adapter").build()
    with torch.no_grad():
        expected = theirs(images)
        assert_same(merge(images), expected if isinstance(expected, Tensor) else expected.logits)


def test_a_new_head_has_neither_the_names_nor_the_calibration_of_the_old(
    written: Callable[..., Path], tmp_path: Path
) -> None:
    trust = OneTrust(data="val", pictures=9, temperature=2.0)
    base = replace(read_checkpoint(written("hf")), classes=tuple("abcdefg"), trust=trust)
    plain = transformers.ViTForImageClassification.from_pretrained(tmp_path / "base")
    for head, classes in ((None, base.classes), (["classifier"], None)):
        config = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=head)
        get_peft_model(copy.deepcopy(plain), config).save_pretrained(tmp_path / "adapter")
        merge = add_adapter(base, tmp_path / "adapter")
        assert (merge.classes, merge.trust) == (classes, None)
        assert any("class names of the base were dropped" in remark for remark in merge.remarks) == (classes is None)
        assert any("an adapter was merged, so what the calibration" in remark for remark in merge.remarks)


def test_the_older_names_of_transformers_are_known_too(written: Callable[..., Path], tmp_path: Path) -> None:
    base = read_checkpoint(written("hf"))
    (tmp_path / "adapter").mkdir()
    query = "base_model.model.vit.encoder.layer.1.attention.attention.query"
    down, up = torch.randn(2, 32), torch.randn(32, 2)
    save_file(
        {f"{query}.lora_A.weight": down, f"{query}.lora_B.weight": up}, tmp_path / "adapter/adapter_model.safetensors"
    )
    (tmp_path / "adapter/adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    merge = add_adapter(base, tmp_path / "adapter")
    name = "blocks.1.attention.qkv.weight"
    torch.testing.assert_close(merge.tensors[name][:32], base.tensors[name][:32] + 2 * up @ down)
    assert torch.equal(merge.tensors[name][32:], base.tensors[name][32:])


@pytest.mark.parametrize(
    ("facts", "keys", "message"),
    [
        ({"peft_type": "IA3"}, (), "must be the config of a LoRA adapter"),
        ({"use_dora": True}, (), "cannot merge an adapter that uses use_dora"),
        ({"something_new": 3}, (), "uses something_new"),
        ({"init_lora_weights": "pissa_niter_4"}, (), "initialised with 'pissa_niter_4', which changed the base"),
        ({"init_lora_weights": "corda"}, (), "model.save_pretrained(folder, path_initial_model_for_weight_conversion"),
        ({"init_lora_weights": ["x"]}, (), "initialised with ['x']"),
        ({"rank_pattern": {"(a|a)*": 3}}, (), "must be names of modules"),
        ({"r": 0}, (), "a rank and an alpha above 0"),
        ({}, ("classifier.weight",), "its classifier is not complete"),
        ({}, ("vit.layernorm.weight",), "holds more than LoRA and a head: vit.layernorm.weight"),
        ({}, ("vit.layers.9.attention.q_proj.lora_A.weight",), "not have: vit.layers.9.attention.q_proj."),
        ({}, ("vit.layers.1.attention.q_proj.lora_A.weight",), "A and B of vit.layers.1.attention.q_proj do not fit"),
    ],
)
def test_other_adapters_are_refused(
    facts: dict[str, Any], keys: tuple[str, ...], message: str, written: Callable[..., Path], tmp_path: Path
) -> None:
    base = read_checkpoint(written("hf"))
    folder = tmp_path / "adapter"
    with pytest.raises(WeightsError, match="has no adapter_config.json"):
        add_adapter(base, folder)
    folder.mkdir()
    query = "vit.layers.0.attention.q_proj"
    tensors = {f"{query}.lora_A.weight": torch.zeros(2, 32), f"{query}.lora_B.weight": torch.zeros(32, 2)}
    tensors |= {name: torch.zeros(2, 32) for name in keys}
    save_file(
        {f"base_model.model.{name}": each for name, each in tensors.items()}, folder / "adapter_model.safetensors"
    )
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, **facts}))
    with pytest.raises(WeightsError, match=re.escape(message)):
        add_adapter(base, folder)
