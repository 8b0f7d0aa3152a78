"""The linear layer, W x + b, with the faster of the two libraries that torch has for matrix products on a CPU.

torch multiplies float32 matrices with MKL, which uses half of what an AMD processor with AVX-512 can do; oneDNN, which
torch has for convolutions and for bf16, uses all of it. Elsewhere, for small products, and wherever the operations of a
model are recorded (compiled, exported, traced, counted), this is torch's own linear.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.machine import is_amd_with_avx512

WORTH = 2**20  # multiplications: of fewer, oneDNN's preparations take longer than they save


class Linear(nn.Linear):
    """torch's layer, through `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name is torch's)
        return linear(input, self.weight, self.bias)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What `F.linear` computes, up to rounding."""
    if torch.compiler.is_compiling() or (multiply := onednn()) is None or not _suits(inputs, weight):
        return F.linear(inputs, weight, bias)
    if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (inputs, weight, bias)):
        rows = cast("Tensor", Product.apply(inputs.flatten(0, -2), weight, bias))
        return rows.unflatten(0, inputs.shape[:-1])
    return multiply(inputs, weight, bias, "none", [], "")


class Product(torch.autograd.Function):
    """oneDNN's product of rows (M, D) with weights, whose gradients are products too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        multiply = onednn()
        assert multiply is not None
        ctx.save_for_backward(rows, weight)
        return multiply(rows, weight, bias, "none", [], "")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (rows, weight), grad = cast("tuple[Tensor, Tensor]", ctx.saved_tensors), grads[0]
        rows_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            rows_grad = linear(grad, weight.t(), None)
        if ctx.needs_input_grad[1]:  # oneDNN copies the first matrix of these, so that is the smaller one
            few = weight.shape[0] <= weight.shape[1]
            weight_grad = linear(grad.t(), rows.t(), None) if few else linear(rows.t(), grad.t(), None).t()
            weight_grad = weight_grad.contiguous()  # fused optimisers take it as it lies in memory
        if ctx.needs_input_grad[2]:
            bias_grad = grad.sum(0)
        return rows_grad, weight_grad, bias_grad


@cache
def onednn() -> Callable[..., Tensor] | None:
    """oneDNN's linear layer where it is faster than torch's own, which depends on the processor only."""
    if not (is_amd_with_avx512() and torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        return None
    return getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)


def _suits(inputs: Tensor, weight: Tensor) -> bool:
    """Whether these are plain float32 numbers of a CPU, enough of them, of which nobody records what is computed."""
    return (
        not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        and type(inputs) is Tensor
        and type(weight) in (nn.Parameter, Tensor)
        and inputs.ndim > 1
        and inputs.device.type == "cpu"
        and inputs.dtype == weight.dtype == torch.float32
        and inputs.numel() * weight.shape[0] >= WORTH
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()  # pyright: ignore
        and not torch._C._are_functorch_transforms_active()  # pyright: ignore
    )
