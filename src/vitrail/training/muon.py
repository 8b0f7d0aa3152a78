"""Muon (Jordan et al., 2024): momentum whose singular values are all made 1, so that every direction learns equally.

torch's own Muon works on one matrix at a time and in bfloat16, which most CPUs emulate; here matrices of one shape go
through the iteration together, in float32.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from vitrail.model.linear import WORTH, linear

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that lifts small singular values fastest


class Muon(Optimizer):
    """For matrices only; filters count as matrices of (filters, weights of each).

    A group's `blocks`, if it has them, tell for each of its parameters into how many blocks of rows it is divided:
    each is a matrix of its own.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.02, "weight_decay": 0.0, "blocks": None})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update from the gradients as they are."""
        assert closure is None
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[Tensor]] = {}  # of the matrices
            counts = group["blocks"] or [1] * len(group["params"])
            for parameter, blocks in zip(group["params"], counts, strict=True):
                if parameter.grad is not None:
                    shape = len(parameter) // blocks, parameter.numel() // len(parameter)
                    shapes.setdefault(shape, []).append(parameter)
            for shape, parameters in shapes.items():
                self._update(parameters, shape, group["lr"], group["weight_decay"])

    def _update(self, parameters: list[Tensor], shape: tuple[int, int], lr: float, weight_decay: float) -> None:
        updates: list[Tensor] = []
        for parameter in parameters:
            memory = self.state[parameter]
            if not memory:
                memory["momentum"] = torch.zeros_like(parameter)
            grad = parameter.grad
            assert grad is not None
            memory["momentum"].lerp_(grad, 1 - MOMENTUM)
            update = grad.lerp(memory["momentum"], MOMENTUM)  # Nesterov's look-ahead
            updates.append(update.reshape(-1, *shape))  # (blocks, rows, columns)
        steps = orthogonalize(torch.cat(updates)).split([len(blocks) for blocks in updates])
        rows, columns = shape
        scale = max(1.0, rows / columns) ** 0.5
        for parameter, step in zip(parameters, steps, strict=True):
            parameter.mul_(1 - lr * weight_decay).add_(step.reshape(parameter.shape), alpha=-lr * scale)


def orthogonalize(matrices: Tensor) -> Tensor:  # (…, rows, columns)
    """The nearest matrices with (almost) equal singular values, by Newton and Schulz's iteration."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    wide = matrices.mT if tall else matrices
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    rows, columns = wide.shape[-2:]
    one_by_one = wide.ndim == 3 and wide.device.type == "cpu" and rows * rows * columns >= WORTH  # which is faster then
    wide = torch.stack([_iterate(matrix) for matrix in wide]) if one_by_one else _iterate(wide)
    return wide.mT if tall else wide


def _iterate(wide: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = _multiply(wide, wide)
        steps = torch.add(b * gram, _multiply(gram, gram), alpha=c)  # it is symmetric
        wide = torch.add(_multiply(steps, wide.mT), wide, alpha=a)
    return wide


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """Left · rightᵀ."""
    return linear(left, right, None) if left.ndim == 2 else left @ right.mT
