"""Tokens of sequences whose inputs were drafted on the device in the step before."""

from __future__ import annotations

import torch

from ._segments import count_at_or_before


def token_places(
    cu_seqlens_q: torch.Tensor, seqlens_q: torch.Tensor, total_q: int, max_seqlen_q: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequence and place within it of each of ``total_q`` packed tokens (``cu_seqlens_q`` inclusive), int32, kept in range."""
    owner = count_at_or_before(cu_seqlens_q, total_q).clamp_(max=seqlens_q.shape[0] - 1)
    token = torch.arange(total_q, dtype=torch.int32, device=seqlens_q.device)
    return owner, token.sub_((cu_seqlens_q - seqlens_q).index_select(0, owner)).clamp_(0, max_seqlen_q - 1)


def previous_tokens(
    prev_sampled_token_ids: torch.Tensor, prev_predict_token_ids: torch.Tensor, source: torch.Tensor
) -> torch.Tensor:
    """The sampled and then the drafted tokens of each sequence's forerunner ``source`` [n]: [n, 1 + nextn]."""
    tokens = torch.cat([prev_sampled_token_ids.unsqueeze(1), prev_predict_token_ids], 1)
    return tokens.index_select(0, source)
