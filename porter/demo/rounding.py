"""The checkpoint's number formats, rounded exactly and alike on every machine.

Values are float64; codes are uint8 or uint16. Rounding is to nearest, ties to the even code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Codes = NDArray[np.uint8]

E4M3 = np.array(
    [(m / 8) * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127]
)
"""Finite magnitudes of float8_e4m3fn by code; the sign is bit 7."""

E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Magnitudes of float4_e2m1fn by code; the sign is bit 3."""


@dataclass(frozen=True)
class Scaled:
    """A matrix in blocks of ``block`` (rows, columns), each with a power of two of its own.

    ``codes`` are e4m3 bytes, or e2m1 codes one a byte. ``exponents`` are ue8m0 bytes: b means 2**(b-127).
    """

    codes: Codes
    exponents: Codes
    block: tuple[int, int]
    magnitudes: Values

    @property
    def values(self) -> Values:
        """What the codes mean; exact in bfloat16, and so in float32."""
        sign_bit = 7 if len(self.magnitudes) > 8 else 3
        magnitude = self.magnitudes[self.codes & ((1 << sign_bit) - 1)]
        signed = np.where(self.codes >> sign_bit, -magnitude, magnitude)
        rows, columns = self.codes.shape
        scales = np.ldexp(1.0, self.exponents.astype(np.int64) - 127)
        whole: Values = signed * scales.repeat(self.block[0], 0)[:rows].repeat(self.block[1], 1)[:, :columns]
        return whole


def quantised(values: Values, block: tuple[int, int], magnitudes: Values) -> Scaled:
    """``values`` [rows, columns], both divisible by ``block``, in ``magnitudes`` (``E4M3`` or ``E2M1``)."""
    rows, columns = values.shape
    height, width = block
    cells = np.abs(values).reshape(rows // height, height, columns // width, width)
    mantissa, exponent = np.frexp(cells.max((1, 3)) / magnitudes[-1])
    # The smallest power of two that is not below: frexp's mantissa is in [0.5, 1).
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent).astype(np.int64)
    scales = np.ldexp(1.0, exponent).repeat(height, 0).repeat(width, 1)
    codes = _nearest(np.abs(values) / scales, magnitudes)
    sign_bit = 7 if len(magnitudes) > 8 else 3
    codes |= np.signbit(values).astype(np.uint8) << sign_bit
    return Scaled(codes, (exponent + 127).astype(np.uint8), block, magnitudes)


def _nearest(magnitude: Values, magnitudes: Values) -> Codes:
    above = np.minimum(np.searchsorted(magnitudes, magnitude), len(magnitudes) - 1)
    below = np.maximum(above - 1, 0)
    to_above, to_below = np.abs(magnitudes[above] - magnitude), np.abs(magnitude - magnitudes[below])
    take_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    return np.where(take_above, above, below).astype(np.uint8)


def packed(codes: Codes) -> Codes:
    """Two e2m1 codes a byte along the last axis, the first in the low half."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def bfloat16(values: Values) -> NDArray[np.uint16]:
    """Bits of ``values`` as bfloat16."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> Values:
    """What bfloat16 bits mean."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
