"""Candidate blocks of the indexer, after ``tilelang_ops.asc.candidate_blocks``."""

from __future__ import annotations

from typing import Any

import torch

from ._masks import negative
from ._ring import block_of

_INT32_MAX = 2**31 - 1
_MAX_TOPK_BLOCKS = 4096


def candidate_block_max_tl(max_model_len: int, block_size: int) -> Any:
    """Factory of block scores: the maximum of each ``block_size`` columns, the last valid block at +inf."""
    assert block_size in (8, 16), f"expected block_size 8 or 16, got {block_size}"
    num_blocks = (max_model_len + block_size - 1) // block_size
    whole = max_model_len // block_size * block_size

    def candidate_block_max(
        logits: torch.Tensor, valid_lens: torch.Tensor, block_scores: torch.Tensor, valid_blocks: torch.Tensor
    ) -> None:
        """``logits``: [rows, max_model_len] bf16, strided rows. ``valid_lens``: [rows] int32 in [0, max_model_len].

        Written: ``block_scores`` [rows, num_blocks] bf16, strided rows, unspecified from the row's valid count on;
        ``valid_blocks`` [>= rows] int32, its first ``rows`` entries.
        """
        rows = logits.shape[0]
        assert logits.shape[1] == max_model_len and block_scores.shape == (
            rows,
            num_blocks,
        ), f"{logits.shape=} {block_scores.shape=}"
        assert (
            valid_lens.shape == (rows,) and valid_blocks.shape[0] >= rows
        ), f"{valid_lens.shape=} {valid_blocks.shape=}"
        count = valid_blocks[:rows].copy_(block_of(valid_lens + (block_size - 1), block_size))
        # Columns past valid_len share a block with valid ones only in the last valid block, whose score is replaced.
        scores = logits[:, :whole].view(rows, whole // block_size, block_size).amax(2)
        if whole < max_model_len:
            scores = torch.cat([scores, logits[:, whole:].amax(1, keepdim=True)], dim=1)
        last = torch.arange(1, num_blocks + 1, dtype=torch.int32, device=logits.device) == count.unsqueeze(1)
        block_scores.copy_(scores.clamp_(max=torch.finfo(torch.bfloat16).max).masked_fill_(last, torch.inf))

    return candidate_block_max


def get_candidate_compact_lens_tl(topk_blocks: int, block_size: int) -> Any:
    """Factory of the number of valid tokens in each row's ``topk_blocks`` candidate blocks."""
    assert block_size in (8, 16), f"expected block_size 8 or 16, got {block_size}"
    assert 0 < topk_blocks <= _MAX_TOPK_BLOCKS, f"expected topk_blocks in [1, {_MAX_TOPK_BLOCKS}], got {topk_blocks}"
    beyond = _INT32_MAX // block_size

    def get_candidate_compact_lens(
        candidate_blocks: torch.Tensor, valid_lens: torch.Tensor, compact_lens: torch.Tensor
    ) -> None:
        """``candidate_blocks``: [rows, topk_blocks] int32, strided rows, negative ids ignored. ``valid_lens``: [rows] int32.

        Written: ``compact_lens`` [rows] int32.
        """
        assert candidate_blocks.shape == (
            valid_lens.shape[0],
            topk_blocks,
        ), f"{candidate_blocks.shape=} {valid_lens.shape=}"
        # Blocks are capped where no sequence reaches, so that their first token is an int32.
        block = candidate_blocks.clamp(max=beyond)
        tokens = torch.add(valid_lens.unsqueeze(1), block, alpha=-block_size).clamp_(0, block_size)
        torch.sum(tokens.bitwise_and_(~negative(candidate_blocks)), 1, dtype=torch.int32, out=compact_lens)

    return get_candidate_compact_lens


def restore_candidate_indices_inplace_tl(topk_tokens: int, topk_blocks: int, block_size: int, has_offset: bool) -> Any:
    """Factory of the way back from compact token indices to sequence (or, with an offset, gathered) indices."""
    assert block_size in (8, 16), f"expected block_size 8 or 16, got {block_size}"
    assert 0 < topk_blocks <= _MAX_TOPK_BLOCKS, f"expected topk_blocks in [1, {_MAX_TOPK_BLOCKS}], got {topk_blocks}"

    def restore_candidate_indices_inplace(
        compact_indices: torch.Tensor, candidate_blocks: torch.Tensor, output_idx_offset: torch.Tensor
    ) -> None:
        """Rewrite ``compact_indices`` [rows, topk_tokens] int32 in place; -1 where the index or its block is invalid.

        ``candidate_blocks``: [rows, topk_blocks] int32; both have strided rows. ``output_idx_offset``: [rows] int32,
        read only with ``has_offset``.
        """
        rows = compact_indices.shape[0]
        assert compact_indices.shape[1] == topk_tokens and candidate_blocks.shape == (
            rows,
            topk_blocks,
        ), f"{candidate_blocks.shape=}"
        row = torch.arange(
            0, rows * topk_blocks, topk_blocks, dtype=torch.int32, device=compact_indices.device
        ).unsqueeze(1)
        slot = block_of(compact_indices, block_size).clamp_(0, topk_blocks - 1).add_(row)
        block = candidate_blocks.reshape(-1).index_select(0, slot.view(-1)).view(rows, topk_tokens)
        # The sign bit of any of these tells an index or a block out of range.
        invalid = negative(
            (topk_blocks * block_size - 1 - compact_indices).bitwise_or_(compact_indices).bitwise_or_(block)
        )
        compact_indices.bitwise_and_(block_size - 1).add_(block, alpha=block_size)
        if has_offset:
            compact_indices.add_(output_idx_offset.unsqueeze(1))
        compact_indices.bitwise_or_(invalid)

    return restore_candidate_indices_inplace
