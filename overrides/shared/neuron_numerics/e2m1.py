"""FP4 (e2m1): sign, two exponent bits, one mantissa bit; codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6. Two codes a byte."""

from __future__ import annotations

import torch

_ONE = 0x3F800000
_SIX = 0x40C00000
_EXPONENT = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF
# Adding 2**22 * 2**e to a magnitude in [2**e, 2**(e + 1)) leaves it in steps of 2**(e - 1), e2m1's own.
_ALIGN = 2.0**22
_ALIGN_BITS = (22 << 23) + 254

# e2m1's bits in the place of fp16's stand for the value times 2**-14.
FP16_FACTOR = 2.0**14


def encode_bytes(x: torch.Tensor) -> torch.Tensor:
    """Round fp32 ``x`` [..., d] to e2m1, ties to even, saturating at +-6; two codes a byte, the even one low.

    Returns int32 [..., d / 2] in [0, 255]. The sign of zero is kept. ``d`` must be even.
    """
    bits = x.view(torch.int32)
    magnitude = (bits & _MAGNITUDE).clamp_max_(_SIX)
    power = (magnitude & _EXPONENT).clamp_min_(_ONE)
    code = torch.add(magnitude.view(torch.float32), power.view(torch.float32), alpha=_ALIGN).view(torch.int32)
    code.sub_(power).add_(power >> 22).sub_(_ALIGN_BITS)
    code.sub_(bits >> 31, alpha=8)
    return torch.add(code[..., 0::2], code[..., 1::2], alpha=16)


def encode(x: torch.Tensor) -> torch.Tensor:
    """``encode_bytes`` as the stored int8 tensor [..., d / 2]."""
    return encode_bytes(x).to(torch.uint8).view(torch.int8)


def unpack_fp16(packed: torch.Tensor) -> torch.Tensor:
    """Values of ``packed`` (int8 or uint8 [..., d / 2]) divided by ``FP16_FACTOR``, exact, as fp16 [..., d]."""
    byte = packed.view(torch.uint8).to(torch.int32)
    # One nibble in each half of the word.
    spread = byte | (byte << 12)
    return (((spread & 0x00070007) << 9) | ((spread & 0x00080008) << 12)).view(torch.float16)


def decode(packed: torch.Tensor) -> torch.Tensor:
    """Values of ``packed`` (int8 or uint8 [..., d / 2]) as fp32 [..., d]."""
    return unpack_fp16(packed).to(torch.float32).mul_(FP16_FACTOR)
