"""`explain` from the outside: every kind of model, and errors where there is nothing to see."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.data.conftest import picture
from tests.explanation.conftest import SHAPES

from vitrail.errors import ConfigError, ExplanationError
from vitrail.explanation import METHODS, choose, explain_by, measure, open_subject
from vitrail.explanation.faithfulness import CANDIDATES
from vitrail.explanation.saliency import check_map, target_index


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_explains_every_model(method: str, shape: str, make_loaded) -> None:
    loaded = make_loaded(**SHAPES[shape])
    found = explain_by(loaded, picture(3, (70, 45)), method, target="c")
    assert found.grid == loaded.model.config.grid
    assert found.method == method
    assert (found.target, found.label) == (2, "c")
    whole = found.over_picture()
    assert whole.shape == (45, 70)
    assert torch.isfinite(whole).all()  # squashed: all of it was seen
    subject = open_subject(picture(3, (70, 45)), loaded.preprocess)
    shares = loaded.model(subject.image[None]).softmax(dim=1)[0]
    assert found.probability == pytest.approx(shares[2].item(), abs=1e-5)
    assert found.confidence == pytest.approx(shares.max().item(), abs=1e-5)
    assert found.predicted == "abcdefg"[int(shares.argmax())]


def test_what_was_cut_off_is_not_a_number(make_loaded) -> None:
    loaded = make_loaded()
    loaded = dataclasses.replace(loaded, preprocess=dataclasses.replace(loaded.preprocess, resize="shortest"))
    whole = explain_by(loaded, picture(3, (90, 45)), "rollout").over_picture("blocks")
    assert torch.isnan(whole[:, :22]).all()
    assert torch.isnan(whole[:, 68:]).all()
    assert torch.isfinite(whole[:, 23:67]).all()


def test_layers_and_heads_are_averaged(make_loaded) -> None:
    loaded = make_loaded()
    single = [explain_by(loaded, picture(1), "attention", layers=(layer,), heads=(2,)).map for layer in (0, 1)]
    both = explain_by(loaded, picture(1), "attention", layers=(0, 1), heads=(2,)).map
    assert torch.allclose(both, (single[0] + single[1]) / 2)
    assert torch.equal(
        explain_by(loaded, picture(1), "attention").map, explain_by(loaded, picture(1), "attention", layers=(-1,)).map
    )


def test_damaged_weights_are_an_error(make_loaded) -> None:
    loaded = make_loaded()
    with torch.no_grad():
        loaded.model.blocks[1].mlp.fc1.bias[0] = float("nan")
    for method in METHODS:
        with pytest.raises(ExplanationError, match="own output is not a number.*vitrail inspect"):
            explain_by(loaded, picture(1), method)
    with pytest.raises(ExplanationError, match="no method can explain.*not a number"):
        choose(loaded, [open_subject(picture(1), loaded.preprocess)])


def test_a_head_of_zeros_is_an_error(make_loaded) -> None:
    loaded = make_loaded()
    with torch.no_grad():
        loaded.model.head.weight.zero_()
    for method in ("relevance", "gradient-rollout", "occlusion"):
        with pytest.raises(ExplanationError, match="same value, 0: no patch counts for class"):
            explain_by(loaded, picture(1), method)
    choice = choose(loaded, [open_subject(picture(1), loaded.preprocess)])
    assert set(choice.failures) == {"relevance", "gradient-rollout"}
    assert choice.method in ("rollout", "attention")
    assert "trust none" in choice.reason  # every map scores the same: the answer never changes


def test_attention_that_is_the_same_everywhere_is_an_error(make_loaded) -> None:
    loaded = make_loaded()
    with torch.no_grad():
        for block in loaded.model.blocks:
            block.attention.qkv.weight.zero_()
    for method in ("attention", "rollout"):
        with pytest.raises(ExplanationError, match="attends to all patches alike"):
            explain_by(loaded, picture(1), method)


def test_auto_needs_no_rollout(make_loaded) -> None:
    loaded = make_loaded()
    with torch.no_grad():
        for block in loaded.model.blocks:
            width = loaded.model.config.width
            block.attention.qkv.weight[: 2 * width] = 0  # all tokens look everywhere alike
            block.attention.qkv.bias[: 2 * width] = 0
    choice = choose(loaded, [open_subject(picture(1), loaded.preprocess)])
    assert set(choice.failures) == {"rollout", "attention"}
    assert choice.method in ("relevance", "gradient-rollout")


def test_auto_judges_what_is_drawn(make_loaded) -> None:
    loaded = make_loaded()
    subject = open_subject(picture(1), loaded.preprocess)
    found = explain_by(loaded, subject, "attention", layers=(0,), heads=(1,))
    choice = choose(loaded, [subject], layers=(0,), heads=(1,), candidates=("attention",))
    assert choice.scores["attention"] == measure(loaded.model, subject.image, found.target, found.map)


def test_one_patch_is_an_error(make_loaded) -> None:
    with pytest.raises(ExplanationError, match="a single patch"):
        explain_by(make_loaded(image_size=(32, 32), patch_size=(32, 32)), picture(1), "rollout")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (torch.full((2, 2), torch.nan), "is not a number"),
        (torch.tensor([[1.0, torch.inf]]), "is not a number"),
        (torch.zeros(2, 2), "no patch counts for it"),
        (torch.full((2, 2), 0.25), "every patch counts the same for it"),
        (0.25 + 1e-8 * torch.rand(2, 2), "every patch counts the same for it"),
        (torch.ones(1, 1), "single patch"),
    ],
)
def test_maps_that_say_nothing(cells: torch.Tensor, message: str) -> None:
    with pytest.raises(ExplanationError, match=f"cat.jpg: .*{message}"):
        check_map(cells, "cat.jpg", "relevance", "it")


def test_a_small_map_is_still_a_map() -> None:
    check_map(torch.tensor([[1e-12, 2e-12]]), "cat.jpg", "relevance", "it")


def test_targets_by_name_and_number(make_loaded) -> None:
    loaded = make_loaded()
    assert [target_index(loaded, target) for target in (None, 3, "3", "d")] == [None, 3, 3, 3]
    nameless = dataclasses.replace(loaded, classes=None)
    assert explain_by(nameless, picture(1), "rollout", target=4).label == "4"
    for bad, message in (("z", "unknown class 'z'"), (7, "from 0 to 6"), (-1, "from 0 to 6"), ("9", "from 0 to 6")):
        with pytest.raises(ConfigError, match=message):
            explain_by(loaded, picture(1), "rollout", target=bad)
    with pytest.raises(ConfigError, match="has no names; pass a number below 7"):
        target_index(nameless, "cat")
    numbers = dataclasses.replace(loaded, classes=tuple("6543210"))
    assert target_index(numbers, "6") == 0  # a name goes before a number


def test_a_model_without_classes_has_attention_and_rollout(make_loaded) -> None:
    loaded = make_loaded(num_classes=0)
    subject = open_subject(picture(1), loaded.preprocess)
    found = explain_by(loaded, subject, choose(loaded, [subject]).method)
    assert (found.method, found.target, found.label) == ("rollout", None, "")
    assert np.isnan(found.probability)
    with pytest.raises(ConfigError, match="no head"):
        explain_by(loaded, picture(1), "relevance")
    with pytest.raises(ConfigError, match="omit target="):
        explain_by(loaded, picture(1), "rollout", target=1)


def test_an_unknown_method_is_an_error(make_loaded) -> None:
    with pytest.raises(ConfigError, match="unknown method 'rolout'; did you mean rollout"):
        explain_by(make_loaded(), picture(1), "rolout")


def test_auto_tells_its_progress(make_loaded) -> None:
    steps = []
    loaded = make_loaded()
    choose(loaded, [open_subject(picture(1), loaded.preprocess)], progress=steps.append)
    assert sum(steps) == len(CANDIDATES) + 1
