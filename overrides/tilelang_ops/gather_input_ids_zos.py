"""Input tokens of the next step under zero-overhead scheduling, after ``tilelang_ops.asc.gather_input_ids_zos``."""

from __future__ import annotations

from typing import Any

import torch

from ._packed_tokens import previous_tokens, token_places


def gather_input_ids_zos_tl(max_seqlen_q: int) -> Any:
    """Factory of packed input tokens: of the step before where the sequence was in it, else fresh ones."""
    assert max_seqlen_q > 0, f"expected max_seqlen_q of at least 1, got {max_seqlen_q}"

    def gather_input_ids_zos(
        fresh_tokens: torch.Tensor,
        prev_sampled_token_ids: torch.Tensor,
        prev_predict_token_ids: torch.Tensor,
        remap: torch.Tensor,
        seqlens_q: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        out_input_ids: torch.Tensor,
    ) -> None:
        """``fresh_tokens``: [n, max_seqlen_q]; ``prev_*``: [prev] and [prev, max_seqlen_q - 1]; ``remap`` (negative: fresh).

        ``seqlens_q``, ``cu_seqlens_q`` (inclusive): [n]; all int32. Written: ``out_input_ids`` [total_q] int32.
        """
        n = fresh_tokens.shape[0]
        assert fresh_tokens.shape[1] == max_seqlen_q and remap.shape == seqlens_q.shape == (
            n,
        ), f"{fresh_tokens.shape=} {remap.shape=}"
        tokens = fresh_tokens
        if prev_sampled_token_ids.shape[0]:
            previous = previous_tokens(prev_sampled_token_ids, prev_predict_token_ids, remap.clamp(min=0))
            tokens = torch.where(remap.unsqueeze(1) >= 0, previous, fresh_tokens)
        owner, place = token_places(cu_seqlens_q, seqlens_q, out_input_ids.shape[0], max_seqlen_q)
        torch.index_select(tokens.reshape(-1), 0, torch.add(place, owner, alpha=max_seqlen_q), out=out_input_ids)

    return gather_input_ids_zos
