"""Decode metadata of packed sequences, after ``tilelang_ops.asc.prepare_v4_decode_metadata``."""

from __future__ import annotations

from typing import Any

import torch

from ._ring import block_of, offset_in_block
from ._segments import count_at_or_before

_PLACEHOLDER_QUERY = 998244353


def copy_block_tables_tl(max_seqlen_q: int, max_num_blocks: int) -> Any:
    """Factory of the expansion of compact block tables to one row a token."""
    assert max_seqlen_q > 0 and max_num_blocks > 0, f"{max_seqlen_q=} {max_num_blocks=}"

    def copy_block_tables(
        seqlens_q: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        block_tables_in: torch.Tensor,
        block_tables_offsets: torch.Tensor,
        block_tables_out: torch.Tensor,
    ) -> None:
        """``seqlens_q``, ``cu_seqlens_q`` (inclusive): [n]; ``block_tables_in``: [blocks]; ``block_tables_offsets``: [n + 1]; int32.

        Written: ``block_tables_out`` [total_q, max_num_blocks] int32, each row's columns up to its number of blocks.
        """
        total_q = block_tables_out.shape[0]
        n = seqlens_q.shape[0]
        assert (
            block_tables_out.shape[1] == max_num_blocks
        ), f"expected {max_num_blocks} columns, got {block_tables_out.shape[1]}"
        assert block_tables_offsets.shape[0] == n + 1, f"expected {n + 1} offsets, got {block_tables_offsets.shape[0]}"
        owner = count_at_or_before(cu_seqlens_q, total_q).clamp_(max=n - 1)
        first = block_tables_offsets[:-1]
        column = torch.arange(max_num_blocks, dtype=torch.int32, device=block_tables_in.device)
        place = (first.unsqueeze(1) + column).clamp_(max=block_tables_in.shape[0] - 1)
        table = block_tables_in.index_select(0, place.view(-1)).view(n, max_num_blocks).index_select(0, owner)
        mine = column < (block_tables_offsets[1:] - first).index_select(0, owner).unsqueeze(1)
        torch.where(mine, table, block_tables_out, out=block_tables_out)

    return copy_block_tables


def prepare_v4_decode_metadata_tl(
    max_seqlen_q: int,
    max_num_blocks: int,
    window_size: int,
    swa_block_size: int,
    block_size: int,
    force_load_balance: bool,
    ca_ratios: tuple[int, ...],
    dense_ratios: tuple[int, ...],
    sparse_ratios: tuple[int, ...],
) -> Any:
    """Factory of every per-token tensor that a decode step needs; each ratio fills one row of the stacked outputs."""
    assert (
        max_seqlen_q > 0 and window_size > 0 and swa_block_size > 0
    ), f"{max_seqlen_q=} {window_size=} {swa_block_size=}"
    for ratio in (*ca_ratios, *dense_ratios, *sparse_ratios):
        assert ratio > 0 and block_size % ratio == 0, f"ratio {ratio} does not divide the block size {block_size}"

    def prepare_v4_decode_metadata(
        seqlens_q: torch.Tensor,
        seqlens_k: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        block_tables_in: torch.Tensor,
        block_tables_offsets: torch.Tensor,
        state_block_idx_in: torch.Tensor,
        is_placeholder: torch.Tensor,
        positions: torch.Tensor,
        valid_token_mask: torch.Tensor,
        gate_force_random: torch.Tensor,
        fix_routing_mask: torch.Tensor,
        context_lens: torch.Tensor,
        klen: torch.Tensor,
        kv_ca_index_offset_len: torch.Tensor,
        kv_swa_index_offset_len: torch.Tensor,
        slot_mapping_store_swa: torch.Tensor,
        query_indices: torch.Tensor,
        state_block_idx_out: torch.Tensor,
        positions_c: torch.Tensor,
        slot_mapping_store_ca: torch.Tensor,
    ) -> None:
        """Inputs up to ``is_placeholder`` are per sequence ([n] int32 and bool; ``cu_seqlens_q`` inclusive, compact block tables).

        Written, per token ([total_q], or [ratios, >= total_q] for ``klen``, ``kv_ca_index_offset_len`` (and 2),
        ``positions_c`` and ``slot_mapping_store_ca``): all others. Their rows cover ``sum(seqlens_q)`` tokens.
        """
        total_q = positions.shape[0]
        n = seqlens_q.shape[0]
        token = torch.arange(total_q, dtype=torch.int32, device=positions.device)
        owner = count_at_or_before(cu_seqlens_q, total_q).clamp_(max=n - 1)
        # A token's position is its row, shifted by its sequence: past (k - q) minus first row (cu - q).
        per_sequence = torch.stack([seqlens_k - cu_seqlens_q, state_block_idx_in, block_tables_offsets[:-1]])
        shift, state, table = per_sequence.index_select(1, owner).unbind(0)
        position = token + shift
        length = position + 1
        placeholder = is_placeholder.index_select(0, owner)

        positions.copy_(position)
        valid_token_mask.copy_(~placeholder)
        gate_force_random.fill_(force_load_balance)
        fix_routing_mask.zero_()
        context_lens.copy_(length)
        query_indices.copy_(owner.masked_fill(placeholder, _PLACEHOLDER_QUERY))
        state_block_idx_out.copy_(state)

        ring = state * swa_block_size
        window = length.clamp(max=window_size)
        kv_swa_index_offset_len.copy_(
            torch.stack([offset_in_block(length - window, swa_block_size).add_(ring), window], 1)
        )
        slot_mapping_store_swa.copy_(offset_in_block(position, swa_block_size).add_(ring))

        for row, ratio in enumerate(sparse_ratios):
            klen[row, :total_q].copy_(block_of(length, ratio))
        for row, ratio in enumerate(dense_ratios):
            first = token * (max_num_blocks * (block_size // ratio))
            kv_ca_index_offset_len[row, :total_q].copy_(torch.stack([first, block_of(length, ratio)], 1))
        for row, ratio in enumerate(ca_ratios):
            per_block = block_size // ratio
            compressed = block_of(position, ratio)
            unfinished = offset_in_block(length, ratio) != 0
            place = (table + block_of(compressed, per_block)).clamp_(0, block_tables_in.shape[0] - 1)
            slot = block_tables_in.index_select(0, place).mul_(per_block).add_(offset_in_block(compressed, per_block))
            positions_c[row, :total_q].copy_((compressed * ratio).masked_fill_(unfinished, 0))
            slot_mapping_store_ca[row, :total_q].copy_(slot.masked_fill_(unfinished, -1))

    return prepare_v4_decode_metadata
