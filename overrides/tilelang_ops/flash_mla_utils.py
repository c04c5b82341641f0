"""Logical to physical KV slots, after ``tilelang_ops.asc.flash_mla_utils``."""

from __future__ import annotations

from typing import Any

import torch

from ._masks import at_or_past
from ._ring import block_of, offset_in_block


def convert_kv_index_tl(s: int, k: int, n: int, block_size: int) -> Any:
    """Factory of the block-table lookup of ``k`` chosen tokens for ``s`` queries of each sequence, ``n`` blocks a table row."""
    assert k > 0 and k & (k - 1) == 0, f"expected k to be a power of two, got {k}"
    assert k <= 4096, f"expected k of at most 4096, got {k}"

    def convert_kv_index(topk_idxs: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor) -> None:
        """Rewrite ``topk_idxs`` [b, s, k] int32 in place: column j becomes a slot where ``j < context_lens[b, s]``, else -1.

        ``block_tables``: [b, n] int32. Columns past a context may hold anything.
        """
        b = block_tables.shape[0]
        assert topk_idxs.shape == (b, s, k) and context_lens.shape == (
            b,
            s,
        ), f"{topk_idxs.shape=} {context_lens.shape=} {(b, s, k)=}"
        assert block_tables.shape[1] == n, f"expected {n} blocks a row, got {block_tables.shape[1]}"
        device = topk_idxs.device
        past = at_or_past(torch.arange(k, dtype=torch.int32, device=device), context_lens.unsqueeze(2))
        row = torch.arange(0, b * n, n, dtype=torch.int32, device=device).view(b, 1, 1)
        place = block_of(topk_idxs, block_size).clamp_(0, n - 1).add_(row)
        block = block_tables.reshape(-1).index_select(0, place.view(-1)).view(b, s, k)
        torch.add(offset_in_block(topk_idxs, block_size), block, alpha=block_size, out=topk_idxs)
        topk_idxs.bitwise_or_(past)

    return convert_kv_index
