"""Scales: rounding up by bits equals both of upstream's formulas, floors, decoding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from neuron_numerics.formats import E2M1, E4M3, QuantFormat, amax_floor, quant_format
from neuron_numerics.scales import decode_scale, group_scale, ue8m0_decode, ue8m0_encode


def magnitudes() -> torch.Tensor:
    """All non-negative finite bf16 numbers, and fp32 ones next to where a scale changes."""
    bf16 = torch.arange(0x7F80, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
    steps = torch.arange(-4, 5, dtype=torch.int32)
    powers = torch.exp2(torch.arange(-120, 118).float())
    edges = [((powers * maximum).view(torch.int32).unsqueeze(1) + steps).flatten() for maximum in (6.0, 448.0, 1.0)]
    return torch.cat((bf16, torch.cat(edges).view(torch.float32)))


@pytest.mark.parametrize("value", [E4M3, E2M1], ids=lambda value: value.name)
@pytest.mark.parametrize("scale", ["ue8m0", "pow2"])
def test_powers_of_two_are_the_least_that_fit(value: Any, scale: str) -> None:
    fmt = quant_format(value.name, scale)
    amax = magnitudes()
    encoded, inverse = group_scale(amax, fmt)
    factor = ue8m0_decode(encoded) if scale == "ue8m0" else encoded
    clamped = amax.clamp_min(fmt.floor)
    assert torch.equal(factor.double() * inverse.double(), torch.ones(amax.shape, dtype=torch.float64))
    assert (clamped.double() <= factor.double() * value.maximum).all()
    # Upstream's two ways: a product with 1 / maximum, and a quotient, both rounded up by their bits.
    assert torch.equal(factor, ue8m0_decode(ue8m0_encode(clamped * (1.0 / value.maximum))))
    assert torch.equal(factor, ue8m0_decode(ue8m0_encode(clamped / torch.full_like(clamped, value.maximum))))


def test_the_exponent_byte_stays_a_byte() -> None:
    for value in (E4M3, E2M1):
        fmt = quant_format(value.name, "ue8m0")
        encoded, _ = group_scale(torch.tensor([0.0, torch.finfo(torch.float32).max]), fmt)
        assert 0 < encoded[0] < encoded[1] < 255


def test_e4m3_scale_of_a_bf16_magnitude_is_the_same_by_product_and_quotient() -> None:
    fmt = quant_format("e2m1", "e4m3")
    amax = torch.arange(0x7F80, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
    encoded, inverse = group_scale(amax, fmt)
    by_product = (amax.clamp_min(6 * 2.0**-9) * (1.0 / 6.0)).clamp_max(448.0).to(torch.float8_e4m3fn)
    assert torch.equal(encoded.view(torch.uint8), by_product.view(torch.uint8))
    assert torch.equal(inverse, (1 / encoded.double()).float())
    assert encoded.float().min() == 2.0**-9 and encoded.float().max() == 448


def test_unrounded_scales_are_true_quotients() -> None:
    amax = torch.rand(20000) * 1000
    for value in (E4M3, E2M1):
        encoded, inverse = group_scale(amax, quant_format(value.name, "fp32"))
        clamped = amax.clamp_min(amax_floor(value, quant_format(value.name, "fp32").scale)).double()
        assert torch.equal(encoded, (clamped / value.maximum).float())
        assert torch.equal(inverse, (value.maximum / clamped).float())


def test_formats() -> None:
    for value in (E4M3, E2M1):
        assert value.maximum == (2 - (value.carry + 1) * 2.0**-23) * 2.0**value.exponent
    assert quant_format("e4m3", "fp32").floor == 1e-4
    assert quant_format("e4m3", "e4m3").floor == 448 * 2.0**-9
    assert quant_format("e2m1", "ue8m0").floor == 6 * 2.0**-126
    assert quant_format("e2m1", "e4m3").floor == 6 * 2.0**-9
    assert quant_format("e4m3", "fp32", round_sf=True).scale.name == "pow2"
    assert quant_format("e4m3", "ue8m0", floor=0.5) == QuantFormat(E4M3, quant_format("e4m3", "ue8m0").scale, 0.5)


def test_decoding() -> None:
    byte = torch.arange(256, dtype=torch.int32)
    expected = [0.0, *(2.0 ** (b - 127) for b in range(1, 255)), math.inf]
    assert ue8m0_decode(byte).tolist() == expected
    assert decode_scale(byte.to(torch.uint8)).tolist() == expected
    assert torch.equal(ue8m0_encode(ue8m0_decode(byte[1:255])), byte[1:255])
    assert decode_scale(torch.tensor([0.3])).item() == torch.tensor(0.3).item()
    assert decode_scale(torch.tensor([448.0]).to(torch.float8_e4m3fn)).item() == 448
