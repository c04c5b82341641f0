"""Scales of quantised groups: largest magnitude -> stored scale and quantising factor, and back."""

from __future__ import annotations

from typing import NamedTuple

import torch

from neuron_numerics.formats import QuantFormat

_EXPONENT = 0x7F800000
_EXPONENT_SHIFT = 23


class GroupScale(NamedTuple):
    """``encoded``: the scale before it is stored: int32 exponent byte for ue8m0, e4m3 for e4m3, else fp32.

    ``inverse``: fp32 factor that brings a value into the value format's range. Both have the shape of the maxima.
    """

    encoded: torch.Tensor
    inverse: torch.Tensor


def group_scale(amax: torch.Tensor, fmt: QuantFormat) -> GroupScale:
    """Scale for groups whose largest magnitudes are ``amax`` (fp32, any shape, finite).

    Powers of two are found by bit operations and are exact: the least one not below ``amax / maximum``. Unrounded scales are
    true quotients, with ``maximum / amax`` as factor. An e4m3 scale is rounded first, and its reciprocal is the factor.
    """
    value, scale = fmt.value, fmt.scale
    amax = amax.clamp_min(fmt.floor)
    if scale.power_of_two:
        bits = amax.view(torch.int32) + (value.carry - (value.exponent << _EXPONENT_SHIFT))
        power = bits & _EXPONENT
        # 2**(127 - e) has the exponent field 254 - e, so the factor needs no division.
        inverse = ((254 << _EXPONENT_SHIFT) - power).view(torch.float32)
        return GroupScale(bits >> _EXPONENT_SHIFT if scale.name == "ue8m0" else power.view(torch.float32), inverse)
    if scale.name == "e4m3":
        # A product with the rounded reciprocal gives the same scale for every bf16 magnitude, not for every fp32 one.
        encoded = (amax / value.maximum).clamp_max_(448.0).to(torch.float8_e4m3fn)
        return GroupScale(encoded, encoded.to(torch.float32).reciprocal_())
    # A scalar divisor may be turned into a multiplication, which rounds differently.
    maximum = torch.full_like(amax, value.maximum)
    return GroupScale(amax / maximum, maximum / amax)


def ue8m0_encode(scale: torch.Tensor) -> torch.Tensor:
    """Exponent bytes (int32) of positive normal fp32 scales, rounded up to powers of two."""
    return (scale.view(torch.int32) + 0x007FFFFF) >> _EXPONENT_SHIFT


def ue8m0_decode(exponent: torch.Tensor) -> torch.Tensor:
    """fp32 ``2**(b - 127)`` of exponent bytes ``b`` (uint8 or int32); 0 decodes to 0, 255 to infinity."""
    return (exponent.to(torch.int32) << _EXPONENT_SHIFT).view(torch.float32)


def decode_scale(scale: torch.Tensor) -> torch.Tensor:
    """Stored scales of any format (fp32, e4m3, or ue8m0 bytes as uint8) as fp32."""
    return ue8m0_decode(scale) if scale.dtype == torch.uint8 else scale.to(torch.float32)
