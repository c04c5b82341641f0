"""Quantise and dequantise with one scale a group of values.

Blocks are ``(rows, columns)``: ``(1, n)`` is per token, ``(n, 1)`` per channel. Values keep upstream's rounding: e4m3 to nearest
even after a clamp to +-448, e2m1 to nearest even after a clamp to +-6. Inputs are taken to be finite.
"""

from __future__ import annotations

import torch

from neuron_numerics import e2m1
from neuron_numerics.formats import QuantFormat, ValueFormat
from neuron_numerics.scales import GroupScale, group_scale


def store_values(x: torch.Tensor, value: ValueFormat, clamp: bool = True) -> torch.Tensor:
    """Round fp32 ``x`` [..., d] (clobbered) to ``value``: e4m3 [..., d], or e2m1 as int8 [..., d / 2].

    ``clamp=False`` spares a pass where no value can pass e4m3's maximum by more than a rounding error.
    """
    if value.name == "e2m1":
        return e2m1.encode(x)
    return (x.clamp_(-value.maximum, value.maximum) if clamp else x).to(value.storage)


def load_values(x: torch.Tensor) -> torch.Tensor:
    """fp32 values [..., d] of stored ones: e4m3 [..., d], or e2m1 as int8 or uint8 [..., d / 2]."""
    return x.to(torch.float32) if x.dtype == torch.float8_e4m3fn else e2m1.decode(x)


def quantise_groups(x: torch.Tensor, fmt: QuantFormat, group: int) -> tuple[torch.Tensor, GroupScale]:
    """Bring each ``group`` of the last axis into the value format's range, short of the rounding.

    ``x``: [..., d] fp32 (clobbered), last axis contiguous, ``d`` a multiple of ``group``.
    Returns ``x`` times the factors [..., d] and the scales [..., d / group].
    """
    groups = x.unflatten(-1, (-1, group))
    scale = group_scale(groups.abs().amax(-1), fmt)
    return groups.mul_(scale.inverse.unsqueeze(-1)).flatten(-2), scale


def cast_per_token(x: torch.Tensor, fmt: QuantFormat, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise ``x`` (bf16 or fp32 [..., d], left alone) with one scale for each ``group`` of the last axis.

    Returns the stored values (e4m3 [..., d], or e2m1 as int8 [..., d / 2]) and the scales [..., d / group]: int32 exponent
    bytes for ue8m0, e4m3 for e4m3, else fp32. See ``layouts`` for how scales are stored.
    """
    scaled, scale = quantise_groups(x.to(torch.float32, copy=True), fmt, group)
    return store_values(scaled, fmt.value, clamp=False), scale.encoded


def cast_blocks(x: torch.Tensor, fmt: QuantFormat, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise ``x`` (bf16 or fp32 [m, k], left alone) with one scale for each ``block``; edge blocks may be partial.

    Returns the stored values [m, k] (e2m1: int8 [m, k / 2]) and the scales [ceil(m / bm), ceil(k / bk)] as in ``cast_per_token``.
    """
    rows, columns = x.shape
    bm, bk = block
    if bm == 1 and columns % bk == 0:
        return cast_per_token(x, fmt, bk)
    x32 = x.to(torch.float32)
    tiles = torch.nn.functional.pad(x32.abs(), (0, -columns % bk, 0, -rows % bm))
    amax = tiles.unflatten(1, (-1, bk)).unflatten(0, (-1, bm)).amax((1, 3))
    scale = group_scale(amax, fmt)
    return store_values(x32 * expand_blocks(scale.inverse, block, (rows, columns)), fmt.value), scale.encoded


def cast_per_channel(x: torch.Tensor, fmt: QuantFormat, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``cast_blocks`` with one scale for ``group`` rows of each column: scales [ceil(m / group), k]."""
    return cast_blocks(x, fmt, (group, 1))


def cast_with_scale(x: torch.Tensor, value: ValueFormat, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Quantise ``x`` (bf16 or fp32 [m, k]) by given fp32 scales [ceil(m / bm), ceil(k / bk)]: times their reciprocals."""
    inverse = scale.to(torch.float32).reciprocal()
    return store_values(x.to(torch.float32) * expand_blocks(inverse, block, (x.shape[0], x.shape[1])), value)


def cast_back_blocks(
    values: torch.Tensor, scale: torch.Tensor, block: tuple[int, int], dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Values times fp32 scales, as ``dtype``.

    ``values``: e4m3 [m, k] or e2m1 as int8 [m, k / 2]. ``scale``: fp32 [>= ceil(m / bm), >= ceil(k / bk)].
    """
    x = load_values(values)
    return x.mul_(expand_blocks(scale, block, (x.shape[0], x.shape[1]))).to(dtype)


def cast_back_per_token(
    values: torch.Tensor, scale: torch.Tensor, group: int, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Values [..., d] (e2m1: [..., d / 2]) times fp32 scales [..., d / group], as ``dtype`` [..., d]."""
    x = load_values(values)
    x.unflatten(-1, (-1, group)).mul_(scale.unsqueeze(-1))
    return x.to(dtype)


def expand_blocks(scale: torch.Tensor, block: tuple[int, int], shape: tuple[int, int]) -> torch.Tensor:
    """Repeat each entry of ``scale`` [>= ceil(m / bm), >= ceil(k / bk)] over its block, cut to ``shape`` (m, k)."""
    (rows, columns), (bm, bk) = shape, block
    scale = scale[: -(-rows // bm), : -(-columns // bk)]
    tiles = scale[:, None, :, None].expand(scale.shape[0], bm, scale.shape[1], bk)
    return tiles.reshape(scale.shape[0] * bm, scale.shape[1] * bk)[:rows, :columns]
