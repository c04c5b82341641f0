"""Key lengths of the next step under zero-overhead scheduling, after ``tilelang_ops.asc.compute_seqlens_k_zos``."""

from __future__ import annotations

from typing import Any

import torch


def compute_seqlens_k_zos_tl(nextn: int) -> Any:
    """Factory of the in-place growth of key lengths by the query lengths, less the drafts that were rejected."""
    assert nextn >= 0, f"expected nextn of at least 0, got {nextn}"

    def compute_seqlens_k_zos(
        seqlens_k: torch.Tensor, seqlens_q: torch.Tensor, remap: torch.Tensor, prev_num_accepted_tokens: torch.Tensor
    ) -> None:
        """``seqlens_k`` (written), ``seqlens_q``, ``remap`` (-1: new): [n]; ``prev_num_accepted_tokens``: [prev], int32."""
        seqlens_k.add_(seqlens_q)
        if prev_num_accepted_tokens.shape[0]:
            kept = prev_num_accepted_tokens.index_select(0, remap.clamp(min=0)).sub_(nextn)
            seqlens_k.add_(kept.masked_fill_(remap == -1, 0))

    return compute_seqlens_k_zos
