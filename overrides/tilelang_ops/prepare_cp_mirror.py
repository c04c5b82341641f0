"""Mirrored (zigzag) context-parallel layouts, after ``tilelang_ops.asc.prepare_cp_mirror``.

A sequence of q tokens is cut into ``2 * cp_size`` blocks of ``ceil(q / (2 * cp_size))`` rows; rank r holds blocks r and
``2 * cp_size - 1 - r``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from ._segments import count_at_or_before


def _ends(lengths: torch.Tensor) -> torch.Tensor:
    """Inclusive running sums along the last axis."""
    return lengths.cumsum(-1, dtype=torch.int32)


def _owner(ends: torch.Tensor, total: int) -> torch.Tensor:
    """Segment of each of ``total`` rows, kept in range."""
    return count_at_or_before(ends, total).clamp_(max=ends.shape[0] - 1)


def _block_rows(lengths: torch.Tensor, blocks: int) -> torch.Tensor:
    return torch.div(lengths + (blocks - 1), blocks, rounding_mode="floor")


def _overlap(block: torch.Tensor | int, rows: torch.Tensor, length: torch.Tensor, clip: torch.Tensor) -> torch.Tensor:
    """Tokens of a block that are inside the sequence and not clipped off its front."""
    begin = rows * block
    first = torch.where(begin > clip, begin, clip)
    end = begin + rows
    return torch.where(end < length, end, length).sub_(first).clamp_(min=0)


def _prefixes(ends: torch.Tensor) -> torch.Tensor:
    """Exclusive running sums and, behind them, the totals, of the inclusive ones."""
    return torch.cat((torch.zeros_like(ends[..., :1]), ends), -1)


def prepare_cp_mirror_tl(cp_size: int, compress_ratios: tuple[int, ...]) -> Any:
    """Factory of one rank's token indices, their inverse over all ranks, and compressed key ranges for each ratio."""
    assert cp_size >= 1, f"expected cp_size of at least 1, got {cp_size}"
    assert len(compress_ratios) > 0, "expected at least one compression ratio"
    assert all(r >= 1 and r & (r - 1) == 0 for r in compress_ratios), f"expected powers of two, got {compress_ratios}"
    assert all(a < b for a, b in pairwise(compress_ratios)), f"expected increasing ratios, got {compress_ratios}"
    shifts = [ratio.bit_length() - 1 for ratio in compress_ratios]
    blocks = 2 * cp_size

    def prepare_cp_mirror(
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        cu_lens: torch.Tensor,
        mirror_cp_reverse_index: torch.Tensor,
        mirror_cp_index: torch.Tensor,
        ks_out: torch.Tensor,
        ke_out: torch.Tensor,
        cp_rank: int,
    ) -> None:
        """``cu_seqlens_q``, ``cu_seqlens_k``: [batch + 1] int32.

        Written, int32: ``cu_lens`` [1 + ratios, batch + 1], prefixes of rows a rank and of compressed keys;
        ``mirror_cp_reverse_index`` [total_q]; ``mirror_cp_index`` [output_len], -1 for padding; ``ks_out``, ``ke_out``
        [ratios, output_len].
        """
        batch = cu_seqlens_q.shape[0] - 1
        total_q, output_len = mirror_cp_reverse_index.shape[0], mirror_cp_index.shape[0]
        assert cu_lens.shape == (
            len(shifts) + 1,
            batch + 1,
        ), f"expected {(len(shifts) + 1, batch + 1)}, got {cu_lens.shape}"
        assert 0 <= cp_rank < cp_size, f"expected a rank below {cp_size}, got {cp_rank}"
        device = cu_seqlens_q.device
        starts_q = cu_seqlens_q[:-1]
        length_q = cu_seqlens_q[1:] - starts_q
        length_k = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        rows = _block_rows(length_q, blocks)
        ends = _ends(rows * 2)
        starts = ends - rows * 2
        cu_lens[0].copy_(_prefixes(ends))
        key_starts = []
        for i, shift in enumerate(shifts):
            compressed = (length_k >> shift).clamp_(min=1)
            key_ends = _ends(compressed)
            cu_lens[i + 1].copy_(_prefixes(key_ends))
            key_starts.append(key_ends.sub_(compressed))

        owner = _owner(cu_seqlens_q[1:], total_q)
        start, size, base = torch.stack([starts_q, rows, starts]).index_select(1, owner).unbind(0)
        local = torch.arange(total_q, dtype=torch.int32, device=device).sub_(start)
        block = torch.div(local, size, rounding_mode="floor")
        mirrored = block >= cp_size
        rank = torch.where(mirrored, blocks - 1 - block, block)
        place = (local - block * size).add_(base).add_(rank * ends[-1:])
        mirror_cp_reverse_index.copy_(place.add_(mirrored * size))

        owner = _owner(ends, output_len)
        columns = (
            torch.stack([starts, rows, starts_q, length_q, length_k - length_q, *key_starts])
            .index_select(1, owner)
            .unbind(0)
        )
        base, size, start, length, context = columns[:5]
        offset = torch.arange(output_len, dtype=torch.int32, device=device).sub_(base)
        mirrored = (offset >= size).to(torch.int32)
        # In the second block the offset already counts one block of rows.
        local = offset + size * torch.add(mirrored * (blocks - 2 - 2 * cp_rank), cp_rank)
        padding = local >= length
        mirror_cp_index.copy_((start + local).masked_fill_(padding, -1))
        keys = context.add_(local).add_(1).masked_fill_(padding, 0)
        for i, shift in enumerate(shifts):
            ks_out[i].copy_(columns[5 + i])
            torch.add(columns[5 + i], keys >> shift, out=ke_out[i])

    return prepare_cp_mirror


def yoco_cp_boundary_fused_tl(cp_size: int) -> Any:
    """Factory of the redistribution from full sequences to those cut at the front, both in the mirrored layout."""
    assert cp_size >= 1, f"expected cp_size of at least 1, got {cp_size}"
    blocks = 2 * cp_size

    def yoco_cp_boundary_fused(
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_q_c: torch.Tensor,
        cu_lens: torch.Tensor,
        yoco_contrib_index: torch.Tensor,
        yoco_gathered_reverse_index: torch.Tensor,
        cp_rank: int,
    ) -> None:
        """``cu_seqlens_q``, ``cu_seqlens_q_c``: [batch + 1] int32, full and compact.

        Written, int32: ``cu_lens`` [cp_size + 1, batch + 1], prefixes of each rank's kept tokens and of rows a rank;
        ``yoco_contrib_index`` [contrib_pad_len], this rank's kept rows, -1 behind them;
        ``yoco_gathered_reverse_index`` [total_q_c], place of each compact token in the ranks' gathered contributions.
        """
        batch = cu_seqlens_q.shape[0] - 1
        pad_len, total_c = yoco_contrib_index.shape[0], yoco_gathered_reverse_index.shape[0]
        assert cu_lens.shape == (cp_size + 1, batch + 1), f"expected {(cp_size + 1, batch + 1)}, got {cu_lens.shape}"
        assert 0 <= cp_rank < cp_size, f"expected a rank below {cp_size}, got {cp_rank}"
        device = cu_seqlens_q.device
        starts_c = cu_seqlens_q_c[:-1]
        length = cu_seqlens_q[1:] - cu_seqlens_q[:-1]
        clip = length - (cu_seqlens_q_c[1:] - starts_c)
        rows = _block_rows(length, blocks)
        ranks = torch.arange(cp_size, dtype=torch.int32, device=device).unsqueeze(1)
        front = _overlap(ranks, rows, length, clip)
        kept = front + _overlap(blocks - 1 - ranks, rows, length, clip)
        kept_ends = _ends(kept)
        kept_starts = kept_ends - kept
        ends = _ends(rows * 2)
        starts = ends - rows * 2
        cu_lens[:cp_size].copy_(_prefixes(kept_ends))
        cu_lens[cp_size].copy_(_prefixes(ends))

        owner = _owner(cu_seqlens_q_c[1:], total_c)
        start, cut, size = torch.stack([starts_c, clip, rows]).index_select(1, owner).unbind(0)
        local = torch.arange(total_c, dtype=torch.int32, device=device).sub_(start).add_(cut)
        block = torch.div(local, size, rounding_mode="floor")
        mirrored = block >= cp_size
        rank = torch.where(mirrored, blocks - 1 - block, block)
        begin = block * size
        place = torch.add(owner, rank, alpha=batch)
        ordinal = local.sub_(torch.where(begin > cut, begin, cut)).add_(kept_starts.view(-1).index_select(0, place))
        ordinal.add_(front.view(-1).index_select(0, place).mul_(mirrored))
        torch.add(ordinal, rank, alpha=pad_len, out=yoco_gathered_reverse_index)

        owner = _owner(kept_ends[cp_rank], pad_len)
        table = torch.stack([kept_starts[cp_rank], front[cp_rank], rows, clip, starts])
        first, count, size, cut, base = table.index_select(1, owner).unbind(0)
        place = torch.arange(pad_len, dtype=torch.int32, device=device)
        offset = place - first
        mirrored = (offset >= count).to(torch.int32)
        begin = size * torch.add(mirrored * (blocks - 1 - 2 * cp_rank), cp_rank)
        # Where in its block the first kept token is, then the token, then the block's place in the rank's rows.
        row = (cut - begin).clamp_(min=0).add_(offset).add_(base).add_((size - count).mul_(mirrored))
        yoco_contrib_index.copy_(row.masked_fill_(place >= kept_ends[cp_rank, -1:], -1))

    return yoco_cp_boundary_fused
