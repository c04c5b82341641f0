"""KV index rows and draft-token inputs, after ``tilelang_ops.asc.get_kv_index``."""

from __future__ import annotations

from typing import Any

import torch

from ._masks import at_or_past, negative
from ._ring import block_of, offset_in_block


def load_kv_index_tl(index_length: int, block_size: int, has_block_tables: bool) -> Any:
    """Factory of index rows of ``index_length`` columns from (offset, length) pairs, -1 past the length.

    Column j of a row holds, by the arguments:

    - ``has_block_tables``: the paged slot of token ``offset + j``; ``block_size`` is a power of two.
    - ``block_size`` of 0: ``offset + j``.
    - otherwise: the slot of ``offset + j`` in the ring of ``block_size`` slots that holds ``offset``.
    """
    assert index_length > 0 and block_size >= 0, f"{index_length=} {block_size=}"
    assert not has_block_tables or (
        block_size > 0 and block_size & (block_size - 1) == 0
    ), f"expected a power of two, got {block_size=}"

    def load_kv_index(
        kv_index_offset_len: torch.Tensor, kv_index: torch.Tensor, flatten_block_tables: torch.Tensor | None
    ) -> None:
        """``kv_index_offset_len``: [n, 2] int32. ``kv_index``: [n, index_length] int32, written. ``flatten_block_tables``: [num_blocks]."""
        assert kv_index_offset_len.shape == (kv_index.shape[0], 2), f"{kv_index_offset_len.shape=} {kv_index.shape=}"
        assert kv_index.shape[1] == index_length, f"expected {index_length} columns, got {kv_index.shape[1]}"
        offset, length = kv_index_offset_len.unsqueeze(2).unbind(1)
        column = torch.arange(index_length, dtype=torch.int32, device=kv_index.device)
        if has_block_tables:
            assert flatten_block_tables is not None
            position = offset + column
            place = block_of(position, block_size).clamp_(0, flatten_block_tables.shape[0] - 1)
            block = flatten_block_tables.index_select(0, place.view(-1)).view(place.shape)
            torch.add(offset_in_block(position, block_size), block, alpha=block_size, out=kv_index)
        elif block_size == 0:
            torch.add(offset, column, out=kv_index)
        else:
            # From the offset's place in its ring, so that no sum leaves the ring's own slots (offsets may be near 2**31).
            start = offset_in_block(offset, block_size)
            torch.add(offset_in_block(start + column, block_size), offset - start, out=kv_index)
        kv_index.bitwise_or_(at_or_past(column, length))

    return load_kv_index


def get_fused_dflash_get_input_tl(
    swa_block_size: int,
    padded_kv_len: int,
    has_valid_token_mask: bool,
    has_gate_force_random: bool,
) -> Any:
    """Factory of the inputs of ``dflash_block_size`` draft tokens after each request's last accepted one.

    A request with ``ftp < 0`` is padding: positions 0, slots and indices -1, mask False.
    """
    assert swa_block_size > 0 and padded_kv_len > 0, f"{swa_block_size=} {padded_kv_len=}"

    def get_fused_dflash_get_input(
        slot_mapping_swa: torch.Tensor,
        positions: torch.Tensor,
        ftp: torch.Tensor,
        last_valid_offset: torch.Tensor,
        newx_slot_mapping_out: torch.Tensor,
        positions_out: torch.Tensor,
        input_ids_out: torch.Tensor,
        valid_token_mask_out: torch.Tensor | None,
        gate_force_random_out: torch.Tensor | None,
        kv_index_out: torch.Tensor,
        kv_len: int,
        window_size: int,
    ) -> None:
        """``slot_mapping_swa``, ``positions``: [total_q]; ``ftp``, ``last_valid_offset``: [real_cnt], all int32.

        Written: the ``*_out`` tensors [real_cnt, dflash_block_size] (int32 and bool) and ``kv_index_out``
        [real_cnt * dflash_block_size, padded_kv_len] int32, whose columns from ``kv_len`` on are -1.
        """
        real_cnt, dflash_block_size = positions_out.shape
        assert (
            ftp.shape == last_valid_offset.shape == (real_cnt,)
        ), f"{ftp.shape=} {last_valid_offset.shape=} {real_cnt=}"
        assert kv_index_out.shape == (real_cnt * dflash_block_size, padded_kv_len), f"{kv_index_out.shape=}"
        device = ftp.device
        first = ftp.clamp(min=0)
        position = positions.index_select(0, first)
        ring = slot_mapping_swa.index_select(0, first).sub_(offset_in_block(position, swa_block_size)).unsqueeze(1)
        accepted = (position + last_valid_offset).unsqueeze(1)
        padding = negative(ftp).unsqueeze(1)

        draft = accepted + torch.arange(1, dflash_block_size + 1, dtype=torch.int32, device=device)
        torch.add(offset_in_block(draft, swa_block_size), ring, out=newx_slot_mapping_out)
        newx_slot_mapping_out.bitwise_or_(padding)
        torch.bitwise_and(draft, ~padding, out=positions_out)
        input_ids_out.zero_()
        if has_valid_token_mask:
            assert valid_token_mask_out is not None
            valid_token_mask_out.copy_(padding == 0)
        if has_gate_force_random:
            assert gate_force_random_out is not None
            gate_force_random_out.zero_()

        column = torch.arange(padded_kv_len, dtype=torch.int32, device=device)
        key = accepted - (window_size - 1) + column
        unused = negative(key).bitwise_or_(negative((kv_len - 1) - column)).bitwise_or_(padding)
        index = offset_in_block(key, swa_block_size).add_(ring).bitwise_or_(unused)
        kv_index_out.view(real_cnt, dflash_block_size, padded_kv_len).copy_(index.unsqueeze(1))

    return get_fused_dflash_get_input
