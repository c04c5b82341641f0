"""Scale factors of GEMM operands: fp32 or packed ue8m0 in, fp32 out; and the packed layouts that the GEMMs are given.

A packed element holds ``itemsize`` exponent bytes of consecutive K groups, the first in the low byte: two in an int16 (Ascend, what
the engine passes), four in an int32 (CUDA). Both are read everywhere; ``pack_ue8m0`` writes either.
"""

from __future__ import annotations

import torch

from neuron_numerics.scales import ue8m0_decode

PACKED_DTYPES = (torch.int16, torch.int32)
TMA_BYTES = 16


def ceil_div(x: int, y: int) -> int:
    """Quotient of ``x`` by ``y``, rounded up."""
    return (x + y - 1) // y


def align(x: int, y: int) -> int:
    """Least multiple of ``y`` that is not below ``x``."""
    return ceil_div(x, y) * y


def tma_aligned_size(x: int, element_size: int) -> int:
    """``x`` elements rounded up to whole 16-byte units."""
    assert TMA_BYTES % element_size == 0, f"expected an element size that divides {TMA_BYTES}, got {element_size}"
    return align(x, TMA_BYTES // element_size)


def unpack_scales(sf: torch.Tensor, groups: int) -> torch.Tensor:
    """fp32 scales [..., rows, groups] of ``sf``, fp32 [..., rows, groups] or packed [..., rows, ceil(groups / pack)] of any strides."""
    if sf.dtype not in PACKED_DTYPES:
        assert sf.dtype == torch.float32, f"expected fp32, int16 or int32 scales, got {sf.dtype}"
        assert sf.shape[-1] == groups, f"expected {groups} scales a row, got {sf.shape[-1]}"
        return sf
    assert sf.shape[-1] == ceil_div(
        groups, sf.itemsize
    ), f"expected {ceil_div(groups, sf.itemsize)} packed scales a row, got {sf.shape[-1]}"
    # One operation widens the bytes and brings them in order, whatever the strides.
    exponents = sf.unsqueeze(-1).view(torch.uint8).to(torch.int32, memory_format=torch.contiguous_format).flatten(-2)
    return ue8m0_decode(exponents[..., :groups])


def unpack_scale_rows(sf: torch.Tensor, groups: int) -> torch.Tensor:
    """fp32 scales [groups, columns] of ``sf``, fp32 [groups, columns] or packed along the rows [>= ceil(groups / pack), columns]."""
    if sf.dtype not in PACKED_DTYPES:
        assert sf.shape[0] == groups, f"expected {groups} rows of scales, got {sf.shape[0]}"
        return sf
    exponents = sf.contiguous().unsqueeze(-1).view(torch.uint8).transpose(1, 2).flatten(0, 1)
    return ue8m0_decode(exponents[:groups])


def repeat_rows(scale: torch.Tensor, granularity: int, rows: int) -> torch.Tensor:
    """Each row of ``scale`` [..., ceil(rows / granularity), n] ``granularity`` times, cut to ``rows``."""
    if granularity == 1:
        return scale
    wide = scale.unsqueeze(-2).expand(*scale.shape[:-1], granularity, scale.shape[-1])
    return wide.flatten(-3, -2)[..., :rows, :]


def repeat_columns(scale: torch.Tensor, granularity: int, columns: int) -> torch.Tensor:
    """Each column of ``scale`` [..., n, ceil(columns / granularity)] ``granularity`` times, cut to ``columns``."""
    wide = scale.unsqueeze(-1).expand(*scale.shape, granularity)
    return wide.flatten(-2)[..., :columns]


def pack_ue8m0(scale: torch.Tensor, dtype: torch.dtype, row_stride: int) -> torch.Tensor:
    """Exponent bytes of powers of two ``scale`` (fp32 [..., mn, groups]), packed in ``dtype`` along the last axis, MN-major.

    Returns [..., mn, ceil(groups / pack)] with the strides (.., 1, ``row_stride``); missing bytes are zero. Mantissas are dropped.
    """
    pack = dtype.itemsize
    exponents = (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8)
    padded = torch.nn.functional.pad(exponents, (0, -exponents.shape[-1] % pack)).unflatten(-1, (-1, pack))
    packed = padded.contiguous().view(dtype).squeeze(-1)
    return mn_major(packed, row_stride)


def mn_major(x: torch.Tensor, row_stride: int) -> torch.Tensor:
    """Copy of ``x`` [..., mn, n] with the strides (n * row_stride, 1, row_stride)."""
    batches, (rows, columns) = x.shape[:-2], x.shape[-2:]
    strides, step = [1, row_stride], columns * row_stride
    for size in reversed(batches):
        strides.insert(0, step)
        step *= size
    out = torch.empty_strided((*batches, rows, columns), strides, dtype=x.dtype, device=x.device)
    out.copy_(x)
    return out
