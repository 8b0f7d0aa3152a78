"""oneDNN's products: F.linear in float64 is the oracle; what records a model's operations must see torch's own."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.model import linear as module
from vitrail.model.linear import Linear, linear


class Spy:
    """oneDNN, whatever the processor, and how often it was called."""

    calls = 0

    def __call__(self, *args: Any) -> Tensor:
        self.calls += 1
        return torch.ops.mkldnn._linear_pointwise.default(*args)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    spy = Spy()
    monkeypatch.setattr(module, "onednn", lambda: spy)
    monkeypatch.setattr(module, "WORTH", 100)
    return spy


@pytest.mark.parametrize(("width", "out"), [(12, 48), (48, 12)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_gives_the_values_and_gradients_of_the_formula(spy: Spy, width: int, out: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(3, 5, width, requires_grad=True), torch.randn(out, width).div(8).requires_grad_()
    bias = torch.randn(out, requires_grad=True) if has_bias else None
    given = [tensor for tensor in (inputs, weight, bias) if tensor is not None]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]

    expected = F.linear(exact[0], exact[1], exact[2] if has_bias else None)
    computed = linear(inputs, weight, bias)
    torch.testing.assert_close(computed.double(), expected, rtol=1e-5, atol=1e-5)
    # Through a nonlinear function, once and again: the second derivatives need those of the products.
    firsts = torch.autograd.grad(computed.square().sum(), given, create_graph=True)
    exact_firsts = torch.autograd.grad(expected.square().sum(), exact, create_graph=True)
    seconds = torch.autograd.grad(sum(first.square().sum() for first in firsts), given)
    exact_seconds = torch.autograd.grad(sum(first.square().sum() for first in exact_firsts), exact)
    for one, other in zip((*firsts, *seconds), (*exact_firsts, *exact_seconds), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-3)
    assert all(first.is_contiguous() for first in firsts)  # fused optimisers rely on it
    assert spy.calls >= 3


def test_a_frozen_weight_gets_no_gradient(spy: Spy) -> None:
    layer, inputs = Linear(8, 8).requires_grad_(False), torch.randn(4, 8, requires_grad=True)
    layer(inputs).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is None
    torch.testing.assert_close(inputs.grad, layer.weight.sum(0).expand(4, -1))
    assert spy.calls == 2  # the output, and the gradient of the inputs


def test_a_bias_can_be_all_that_is_trained(spy: Spy) -> None:
    layer, inputs = Linear(8, 8), torch.randn(4, 8)
    layer.weight.requires_grad_(False)
    layer(inputs).sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((8,), 4.0))
    assert spy.calls == 1


def test_outputs_may_be_changed_in_place(spy: Spy) -> None:
    layer, inputs = Linear(8, 8), torch.randn(2, 4, 8)
    output = layer(inputs)
    output.narrow(-1, 0, 4).add_(1.0)  # as LoRA does
    output.square().sum().backward()
    expected = F.linear(inputs, layer.weight, layer.bias) + torch.tensor([1.0] * 4 + [0.0] * 4)
    torch.testing.assert_close(layer.bias.grad, 2 * expected.sum((0, 1)))
    assert spy.calls == 2


def test_what_records_operations_sees_the_ones_of_torch(spy: Spy) -> None:
    layer, inputs = nn.Sequential(Linear(8, 8)).eval(), torch.randn(4, 8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.trace", DeprecationWarning)
        traced: Any = torch.jit.trace(layer, inputs, check_trace=False)  # which would run it once more
    assert "aten::linear" in str(traced.inlined_graph)
    assert "aten.linear" in str(torch.export.export(layer, (inputs,)).graph)
    with FlopCounterMode(display=False) as counter:
        layer(inputs)
    assert counter.get_total_flops() == 2 * 4 * 8 * 8
    torch.func.vmap(torch.func.grad(lambda x: layer(x).sum()))(torch.randn(3, 4, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(inputs).dtype == torch.bfloat16
    assert layer.double()(inputs.double()).dtype == torch.float64
    assert spy.calls == 0


def test_small_products_stay_with_torch(spy: Spy) -> None:
    Linear(8, 8)(torch.randn(1, 8))
    assert spy.calls == 0
