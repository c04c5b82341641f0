"""Scale layouts of weights from ``tile_kernels.quant.batched_transpose_weight_sf_kernel``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_numerics import stored_casts
from neuron_numerics.layouts import ASCEND_PACK

from ..utils import ceil_div

_EXPONENT_SHIFT = 23


def batched_transpose_weight_sf(
    sf: Sequence[torch.Tensor],
    block_size: int,
    transpose_sf1s: Sequence[bool],
    outs: Sequence[tuple[torch.Tensor, torch.Tensor] | None],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Power-of-two weight scales in the two layouts that GEMMs read, for each weight.

    ``sf``: contiguous fp32 [n / block, k / block] or [groups, n / block, k / block]; n and k are multiples of 128, ``block_size``
    is 32 or 128. A pair of int16 tensors comes of each, two exponent bytes an element: [.., n, ceil(k / block / 2)], stored
    transposed, with every scale repeated over its rows; and [.., k, ceil(n / block / 2)] of the transposed weight, stored
    transposed too, or handed out as [.., ceil(n / block / 2), k] where ``transpose_sf1s`` says so. ``outs``: pairs of an earlier
    call that are written again and returned, or None for new ones.
    """
    assert block_size in (32, 128), f"expected a block of 32 or 128, got {block_size}"
    assert len(sf) == len(transpose_sf1s) == len(outs), "expected as many flags and outputs as weights"
    return [_transpose(one, block_size, flag, out) for one, flag, out in zip(sf, transpose_sf1s, outs, strict=True)]


def _transpose(
    sf: torch.Tensor, block: int, transpose_sf1: bool, out: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    assert sf.dtype == torch.float32 and sf.is_contiguous() and sf.ndim in (2, 3), "scales are contiguous fp32 matrices"
    rows, columns = sf.shape[-2:]
    n, k = rows * block, columns * block
    assert n % 128 == 0 and k % 128 == 0, f"expected a weight of multiples of 128, got {(n, k)}"
    exponent = (sf.view(torch.int32) >> _EXPONENT_SHIFT) & 0xFF
    pack = ASCEND_PACK.itemsize
    groups = tuple(sf.shape[:-2])
    shape0, shape1 = (*groups, ceil_div(columns, pack), n), (*groups, ceil_div(rows, pack), k)
    if out is None:
        stored0 = torch.empty(shape0, dtype=ASCEND_PACK, device=sf.device)
        stored1 = torch.empty(shape1, dtype=ASCEND_PACK, device=sf.device)
        out = (stored0.mT, stored1 if transpose_sf1 else stored1.mT)
    else:
        stored0, stored1 = out[0].mT, out[1] if transpose_sf1 else out[1].mT
        for given, shape in ((stored0, shape0), (stored1, shape1)):
            assert given.dtype == ASCEND_PACK, f"scales are packed in int16, got {given.dtype}"
            assert (
                given.shape == shape and given.is_contiguous()
            ), f"expected contiguous {shape}, got {tuple(given.shape)} {given.stride()}"
    by_columns = stored_casts.pack_columns(exponent, ASCEND_PACK).mT
    by_rows = stored_casts.pack_columns(exponent.mT, ASCEND_PACK).mT
    # Every scale covers ``block`` neighbours.
    stored0.unflatten(-1, (rows, block)).copy_(by_columns.unsqueeze(-1))
    stored1.unflatten(-1, (columns, block)).copy_(by_rows.unsqueeze(-1))
    return out
