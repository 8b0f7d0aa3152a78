"""Oracle: the definitions of SAME padding and of weight standardisation; the originals are met in tests/parity."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrail.model import ResNetStem
from vitrail.model.stem import ResNet, StdConv2d, pad_same


@pytest.mark.parametrize("size", [5, 8, 224])
@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (3, 1), (1, 1), (1, 2)])
def test_same_padding_gives_the_size_divided_by_the_stride_rounded_up(size: int, kernel: int, stride: int) -> None:
    padded = pad_same(torch.zeros(1, 1, size, size + 1), kernel, stride)
    output = F.max_pool2d(padded, kernel, stride)
    assert output.shape[2:] == (-(-size // stride), -(-(size + 1) // stride))


def test_the_root_at_224_pads_2_and_3() -> None:
    padded = pad_same(torch.ones(1, 1, 224, 224), kernel_size=7, stride=2)
    assert padded.shape == (1, 1, 229, 229)
    assert padded[0, 0, :2].sum() == padded[0, 0, -3:].sum() == 0
    assert padded[0, 0, 2, 2] == padded[0, 0, -4, -4] == 1


@pytest.mark.parametrize(("form", "eps"), [("std", 1e-1), ("variance", 1e-1)])
def test_weights_are_standardised_per_filter(form: str, eps: float) -> None:
    conv = StdConv2d(ResNetStem(ws_form=form, ws_eps=eps), 3, 4, kernel_size=3)  # pyright: ignore
    weight = conv.weight.detach().double().numpy()
    mean = weight.mean(axis=(1, 2, 3), keepdims=True)
    variance = weight.var(axis=(1, 2, 3), keepdims=True)
    deviation = np.sqrt(variance) + eps if form == "std" else np.sqrt(variance + eps)
    expected = F.conv2d(
        F.pad(torch.ones(1, 3, 8, 8), (1, 1, 1, 1)), torch.from_numpy((weight - mean) / deviation).float()
    )
    torch.testing.assert_close(conv(torch.ones(1, 3, 8, 8)), expected, rtol=1e-4, atol=1e-5)


def test_stages_reduce_by_the_stated_stride() -> None:
    for blocks in ((), (1,), (1, 1), (1, 2, 1)):
        stem = ResNetStem(blocks=blocks, width_factor=0.5)
        features = ResNet(stem, 3)(torch.zeros(1, 3, 64, 64))
        assert features.shape[2:] == (64 // stem.stride, 64 // stem.stride)
