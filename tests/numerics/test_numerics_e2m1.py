"""FP4 codes: rounding to even, saturation, packing; every code back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_numerics import e2m1

MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def nearest_code(x: float) -> int:
    """Code of the nearest magnitude, the even one of two equally near, by definition."""
    magnitude = min(abs(x), 6.0)
    best = min(range(8), key=lambda code: (abs(MAGNITUDES[code] - magnitude), code % 2))
    return best + (8 if str(x).startswith("-") else 0)


def codes(x: torch.Tensor) -> list[int]:
    packed = e2m1.encode_bytes(x.clone())
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten().tolist()


def neighbours(values: list[float], reach: int = 3) -> torch.Tensor:
    bits = torch.tensor(values).view(torch.int32)
    near = torch.cat([(bits + step).view(torch.float32) for step in range(-reach, reach + 1)])
    return torch.cat((near, -near))


def test_ties_and_their_neighbours() -> None:
    ties = [(a + b) / 2 for a, b in pairwise(MAGNITUDES)]
    x = neighbours([*ties, *MAGNITUDES[1:], 1e-30, 7.0, 1e30])
    assert codes(x) == [nearest_code(value) for value in x.tolist()]


def test_ties_go_to_the_even_code() -> None:
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.0])
    assert codes(x) == [0, 2, 2, 4, 4, 6, 6, 8]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=2))
def test_any_pair(values: list[float]) -> None:
    assert codes(torch.tensor(values)) == [nearest_code(value) for value in values]


def test_agrees_with_the_reference(tk: Any) -> None:
    x = torch.randn(1000, 64) * torch.exp2(torch.randint(-6, 6, (1000, 64)).float())
    expected = tk.cast.__globals__["convert_to_e2m1_bits"](x).view(1000, 32, 2).int()
    assert torch.equal(e2m1.encode_bytes(x.clone()), expected[..., 0] + 16 * expected[..., 1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_every_byte_back(dtype: torch.dtype) -> None:
    byte = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    expected = [[(-1 if code & 8 else 1) * MAGNITUDES[code & 7] for code in (n & 15, n >> 4)] for n in range(256)]
    assert e2m1.decode(byte.view(16, 16)).view(256, 2).tolist() == expected
    assert torch.equal(e2m1.unpack_fp16(byte).float() * e2m1.FP16_FACTOR, e2m1.decode(byte))
    # The sign of zero survives both ways.
    assert torch.equal(e2m1.encode(e2m1.decode(byte)).view(torch.uint8), byte.view(torch.uint8))


def test_shapes() -> None:
    assert e2m1.encode(torch.zeros(2, 0, 4)).shape == (2, 0, 2)
    assert e2m1.decode(torch.zeros(3, 5, dtype=torch.int8)).shape == (3, 10)
    assert e2m1.encode(torch.zeros(3, 4)).dtype == torch.int8
