"""The exact FP4 to FP8 cast of ``tile_kernels.quant.per_block_cast_lossless_kernel``."""

from __future__ import annotations

import torch

from neuron_numerics import casts, e2m1
from neuron_numerics.formats import POW2, UE8M0
from neuron_numerics.layouts import ScaleLayout, empty_scales, layout_of, read_scales, write_scales

from .types import QuantTensor

# An e4m3 holds an e2m1 times 2**-5 to 2**6 exactly: the largest scale of a block becomes 2**6.
_HEADROOM = 6
_EXPONENT_SHIFT = 23


def per_block_cast_lossless(
    x: QuantTensor,
    fmt: str,
    x_block_size: tuple[int, int],
    out_block_size: tuple[int, int],
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
) -> QuantTensor:
    """The same values with fewer scales: e2m1 as int8 [m, k / 2] with power-of-two scales becomes e4m3 [m, k].

    m and k are multiples of 128, ``out_block_size`` of ``x_block_size``. An output block's scale is the largest of its input
    scales times 2**-6; input scales of one block may differ by up to 2**11, beyond that values are lost.
    """
    values, stored = x
    rows, columns = values.shape[0], values.shape[1] * 2
    assert fmt == "e4m3" and values.dtype == torch.int8, "only e2m1 to e4m3 is exact"
    assert values.ndim == 2 and values.is_contiguous(), "expected a contiguous matrix"
    assert rows % 128 == 0 and columns % 128 == 0, f"expected multiples of 128, got {(rows, columns)}"
    bm, bk = out_block_size[0] // x_block_size[0], out_block_size[1] // x_block_size[1]
    assert (
        bm * x_block_size[0],
        bk * x_block_size[1],
    ) == out_block_size, "an output block is made of whole input blocks"
    layout = ScaleLayout(use_tma_aligned_col_major_sf, use_packed_ue8m0)
    scale_format = UE8M0 if use_packed_ue8m0 else POW2
    shape = (-(-rows // out_block_size[0]), -(-columns // out_block_size[1]))
    out_sf = empty_scales(*shape, scale_format, layout, values.device)
    if rows == 0:
        return torch.empty((0, columns), dtype=torch.float8_e4m3fn, device=values.device), out_sf
    scale = read_scales(stored, layout_of(stored))[: -(-rows // x_block_size[0]), : -(-columns // x_block_size[1])]
    exponent = scale.contiguous().view(torch.int32) >> _EXPONENT_SHIFT
    tiles = torch.nn.functional.pad(exponent, (0, -exponent.shape[1] % bk, 0, -exponent.shape[0] % bm))
    largest = tiles.unflatten(1, (-1, bk)).unflatten(0, (-1, bm)).amax((1, 3))
    lowered = (largest - _HEADROOM).clamp_min_(0)
    factor = (
        exponent - casts.expand_blocks(lowered, (bm, bk), (exponent.shape[0], exponent.shape[1])) + 127
    ) << _EXPONENT_SHIFT
    scaled = e2m1.decode(values).mul_(casts.expand_blocks(factor.view(torch.float32), x_block_size, (rows, columns)))
    write_scales(out_sf, lowered if use_packed_ue8m0 else (lowered << _EXPONENT_SHIFT).view(torch.float32), layout)
    return scaled.to(torch.float8_e4m3fn), out_sf
