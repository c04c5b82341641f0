"""Products ``d = alpha * a @ b.mT + c`` written in place: plain, batched, grouped by rows, grouped along K.

Sums are fp32 and are rounded once to ``d``'s dtype. Where the result is wider than the operands, the operands are widened piece by
piece, so that no copy of a whole weight is made. Everything has static shapes and reads nothing on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from neuron_numerics.gemm_scales import ceil_div

# Elements of a widened or dequantised piece of a weight.
PIECE = 2**25
# Bytes that a row of a grouped operand must be a multiple of.
GROUPED_ROW_BYTES = 16


def write_product(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None, alpha: float | None = None
) -> None:
    """``d`` [..., m, n] (bf16 or fp32, any strides) of ``a`` [..., m, k] and ``b`` [..., n, k] (both bf16 or both fp32).

    ``c``: as ``d``, added; it may be ``d`` itself.
    """
    if d.numel() == 0:
        return
    if a.shape[-1] == 0:
        if c is None:
            d.zero_()
        else:
            d.copy_(c)
    elif a.dtype == d.dtype and alpha is None and c is None:
        if d.is_contiguous():
            torch.matmul(a, b.mT, out=d)
        else:
            # A compiler takes no output with gaps.
            d.copy_(a @ b.mT)
    elif a.dtype == d.dtype and alpha is None and c is not None and a.ndim == 2:
        d.copy_(torch.addmm(c, a, b.mT))
    else:
        d.copy_(_finished(_wide_product(a, b), c, alpha))


def _finished(total: torch.Tensor, c: torch.Tensor | None, alpha: float | None) -> torch.Tensor:
    if alpha is not None:
        total = total.mul_(alpha)
    return total if c is None else total.add_(c)


def _wide_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """fp32 ``a @ b.mT``, ``b`` widened some rows at a time."""
    wide = a.to(torch.float32)
    if b.dtype == torch.float32:
        return wide @ b.mT
    rows = b.shape[-2]
    step = max(1, PIECE * rows // b.numel())
    pieces = [wide @ b[..., start : start + step, :].to(torch.float32).mT for start in range(0, rows, step)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


def write_pieced_product(
    a: torch.Tensor,
    weight: Callable[[int, int], torch.Tensor],
    unit: int,
    d: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float | None,
) -> None:
    """``write_product`` for ``weight(start, stop)``, the rows [start, stop) of ``b``, made piece by piece; ``start`` is a multiple
    of ``unit``."""
    n = d.shape[1]
    step = max(1, PIECE // (a.shape[1] * unit)) * unit
    if step >= n:
        write_product(a, weight(0, n), d, c, alpha)
        return
    parts = []
    for start in range(0, n, step):
        stop = min(start + step, n)
        part = torch.empty((d.shape[0], stop - start), dtype=d.dtype, device=d.device)
        write_product(a, weight(start, stop), part, None if c is None else c[:, start:stop], alpha)
        parts.append(part)
    d.copy_(torch.cat(parts, 1))


class RowGroups(NamedTuple):
    """Which rows belong to which group, padding left out.

    ``count``, ``ends``: int32 [groups], real rows of each group, and up to and with it. ``source``: int32 [m], the real rows in
    order, then any. ``place``: int32 [m], where each real row is in ``source``. ``gap``: bool [m, 1], True on padding.
    """

    count: torch.Tensor
    ends: torch.Tensor
    source: torch.Tensor
    place: torch.Tensor
    gap: torch.Tensor


def _sources(row: torch.Tensor, place: torch.Tensor, gap: torch.Tensor) -> torch.Tensor:
    rows = row.shape[0]
    source = torch.zeros(rows + 1, dtype=torch.int32, device=row.device)
    # All padding rows go to the last one, which is dropped.
    source[place.masked_fill(gap, rows)] = row
    return source[:rows]


def groups_of_psum(psum: torch.Tensor, alignment: int, rows: int) -> RowGroups:
    """Groups of the psum layout: ``psum`` int32 [groups] holds each group's aligned start plus its count of rows."""
    aligned = ((psum + (alignment - 1)) // alignment).mul_(alignment)
    start = torch.nn.functional.pad(aligned[:-1], (1, 0))
    # A group without rows may also hold the unaligned end of the one before.
    count = (psum - start).clamp_min_(0)
    ends = count.cumsum(0, dtype=torch.int32)
    row = _blocks(rows, alignment, psum.device)
    group = (aligned <= row[:, :1]).sum(1, dtype=torch.int32).clamp_max_(psum.shape[0] - 1)
    # Padding before a group is what its rows move down by.
    before = (start - ends).add_(count).index_select(0, group)
    gap = (row >= psum.index_select(0, group).unsqueeze(1)).flatten()[:rows]
    place = (row - before.unsqueeze(1)).flatten()[:rows]
    return RowGroups(count, ends, _sources(row.flatten()[:rows], place, gap), place, gap.unsqueeze(1))


def _blocks(rows: int, alignment: int, device: torch.device) -> torch.Tensor:
    """Row numbers int32 [blocks, alignment]; the last block may reach past ``rows``."""
    blocks = ceil_div(rows, alignment)
    return torch.arange(blocks * alignment, dtype=torch.int32, device=device).view(blocks, alignment)


def psum_gaps(psum: torch.Tensor, alignment: int, rows: int) -> torch.Tensor:
    """bool [rows, 1], True on the padding of the psum layout."""
    aligned = ((psum + (alignment - 1)) // alignment).mul_(alignment)
    row = _blocks(rows, alignment, psum.device)
    group = (aligned <= row[:, :1]).sum(1, dtype=torch.int32).clamp_max_(psum.shape[0] - 1)
    return (row >= psum.index_select(0, group).unsqueeze(1)).flatten()[:rows].unsqueeze(1)


def groups_of_rows(layout: torch.Tensor, alignment: int, groups: int) -> RowGroups:
    """Groups of the plain layout: ``layout`` int32 [m] holds each row's group, ascending, -1 on padding.

    Every group starts at a multiple of ``alignment``.
    """
    rows, gap = layout.shape[0], layout < 0
    first = layout[::alignment]
    first = first.masked_fill(first < 0, groups)
    each = torch.arange(groups, dtype=torch.int32, device=layout.device)
    aligned = (first <= each.unsqueeze(1)).sum(1, dtype=torch.int32).mul_(alignment).clamp_max_(rows)
    real = (~gap).cumsum(0, dtype=torch.int32)
    ends = torch.nn.functional.pad(real, (1, 0)).index_select(0, aligned)
    count = ends - torch.nn.functional.pad(ends[:-1], (1, 0))
    place = (real - 1).clamp_min_(0)
    row = torch.arange(rows, dtype=torch.int32, device=layout.device)
    return RowGroups(count, ends, _sources(row, place, gap), place, gap.unsqueeze(1))


class GroupSlots(NamedTuple):
    """The groups that have rows, gathered: ``group`` int32 [slots] (the last one again where slots are left), ``ends`` theirs."""

    group: torch.Tensor
    ends: torch.Tensor


def occupied_groups(rows: RowGroups, slots: int) -> GroupSlots:
    """The groups with rows, in order, in ``slots`` slots: at least as many as groups can have rows."""
    before = (rows.count > 0).cumsum(0, dtype=torch.int32)
    slot = torch.arange(slots, dtype=torch.int32, device=before.device)
    group = (before <= slot.unsqueeze(1)).sum(1, dtype=torch.int32).clamp_max_(before.shape[0] - 1)
    return GroupSlots(group, rows.ends.index_select(0, group))


class RowBlocks(NamedTuple):
    """The layouts' rows in blocks of one alignment, each of one group: ``group`` int32 [blocks] (any where a block holds no rows);
    ``gap`` bool [m, 1], True on padding."""

    group: torch.Tensor
    gap: torch.Tensor


def blocks_of_psum(psum: torch.Tensor, alignment: int, rows: int) -> RowBlocks:
    """Blocks of the psum layout, as ``groups_of_psum`` has it; ``rows`` is a multiple of ``alignment``."""
    ends = (psum + (alignment - 1)) // alignment
    block = torch.arange(rows // alignment, dtype=torch.int32, device=psum.device)
    group = (ends <= block.unsqueeze(1)).sum(1, dtype=torch.int32).clamp_max_(psum.shape[0] - 1)
    gap = _blocks(rows, alignment, psum.device) >= psum.index_select(0, group).unsqueeze(1)
    return RowBlocks(group, gap.view(rows, 1))


def blocks_of_rows(layout: torch.Tensor, alignment: int) -> RowBlocks:
    """Blocks of the plain layout, as ``groups_of_rows`` has it; its rows are a multiple of ``alignment``."""
    return RowBlocks(layout[::alignment].clamp_min(0), (layout < 0).unsqueeze(1))


def write_blocks(
    a: torch.Tensor,
    weight: Callable[[int, int], torch.Tensor],
    d: torch.Tensor,
    rows: RowBlocks,
) -> None:
    """``d`` [m, n] of ``a`` [m, k]: each block's rows times ``weight(start, stop)`` [blocks, rows of n, k] of it, made piece by piece;
    zeros on padding rows."""
    blocks, n, k = rows.group.shape[0], d.shape[1], a.shape[1]
    left = a.unflatten(0, (blocks, -1))
    step = max(1, 2 * PIECE // (blocks * k))
    if step >= n and a.dtype == d.dtype and d.is_contiguous():
        torch.bmm(left, weight(0, n).mT, out=d.unflatten(0, (blocks, -1)))
        d.masked_fill_(rows.gap, 0)
        return
    pieces = [left @ weight(start, min(start + step, n)).mT for start in range(0, n, step)]
    product = pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)
    d.copy_(product.flatten(0, 1).masked_fill_(rows.gap, 0))


def take_rows(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """One-byte ``values`` [rows, k] or [groups, n, k] at ``index`` of the first axis, with the same axis contiguous."""
    stored = values.view(torch.uint8)
    if values.ndim == 2 or values.stride(-1) == 1:
        return stored.index_select(0, index).view(values.dtype)
    return stored.mT.index_select(0, index).mT.view(values.dtype)


def _aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` with rows of whole 16-byte units along the last axis, zeros added."""
    missing = -x.shape[-1] % (GROUPED_ROW_BYTES // x.itemsize)
    if missing:
        return torch.nn.functional.pad(x, (0, missing))
    return x if x.stride(-1) == 1 and x.stride(0) * x.itemsize % GROUPED_ROW_BYTES == 0 else x.contiguous()


def grouped_product(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """[m, n] of ``a`` [m, k] times ``b[g].mT`` [k, n] for the rows of each group; rows after the last group hold anything."""
    if b.stride(-1) == 1 or b.shape[-1] * b.itemsize % GROUPED_ROW_BYTES:
        return torch._grouped_mm(_aligned_rows(a), _aligned_rows(b).mT, ends)
    if b.shape[-2] * b.itemsize % GROUPED_ROW_BYTES:
        return torch._grouped_mm(_aligned_rows(a), b.contiguous().mT, ends)
    return torch._grouped_mm(_aligned_rows(a), b.mT, ends)


def write_rows(d: torch.Tensor, product: torch.Tensor, rows: RowGroups) -> None:
    """Rows of ``product`` [m, n], in the order of ``rows.source``, to their places in ``d`` (any strides); zeros on padding rows."""
    d.copy_(product.index_select(0, rows.place).masked_fill_(rows.gap, 0))


def pieced_grouped_product(
    a: torch.Tensor, weight: Callable[[int, int], torch.Tensor], n: int, elements_per_row: int, ends: torch.Tensor
) -> torch.Tensor:
    """``grouped_product`` with ``weight(start, stop)``, the rows [start, stop) of every group's matrix, made piece by piece."""
    step = max(1, 2 * PIECE // elements_per_row)
    pieces = [grouped_product(a, weight(start, min(start + step, n)), ends) for start in range(0, n, step)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


def write_k_grouped(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None, ends: torch.Tensor
) -> None:
    """``d`` [groups, m, n] of ``a`` [sum_k, m] and ``b`` [sum_k, n]: group g sums over rows [ends[g - 1], ends[g])."""
    if d.numel() == 0:
        return
    if a.shape[0] == 0:
        write_product(a.mT, b.mT, d, c)
        return
    wide = d.dtype == torch.float32 or c is not None
    left, right = (a.to(torch.float32), b.to(torch.float32)) if wide and a.dtype != torch.float32 else (a, b)
    start = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    total = torch._grouped_mm(_aligned_rows(left).mT, _aligned_rows(right), ends)[:, : a.shape[1], : b.shape[1]]
    total = total.masked_fill((ends == start).view(-1, 1, 1), 0)
    d.copy_(total if c is None else total.add_(c))
