"""N-gram tokens of the next step under zero-overhead scheduling, after ``tilelang_ops.asc.gather_engram_tokens_zos``."""

from __future__ import annotations

from typing import Any

import torch

from ._packed_tokens import previous_tokens, token_places


def gather_engram_tokens_zos_tl(
    max_seqlen_q: int, max_ngram_size: int, engram_compressed_pad_token: int, image_sentinel: int
) -> Any:
    """Factory of each packed token's compressed look-back; from an image on, further back, it is padding."""
    assert max_seqlen_q > 0 and max_ngram_size > 0, f"{max_seqlen_q=} {max_ngram_size=}"
    nextn = max_seqlen_q - 1
    history = max_ngram_size - 1

    def gather_engram_tokens_zos(
        win_compressed: torch.Tensor,
        curr_fresh: torch.Tensor,
        prev_sampled_token_ids: torch.Tensor,
        prev_predict_token_ids: torch.Tensor,
        prev_num_accepted_tokens: torch.Tensor,
        remap: torch.Tensor,
        lookup_table: torch.Tensor,
        seqlens_q: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        out_ngram_token_ids: torch.Tensor,
    ) -> None:
        """``win_compressed``: [n, nextn + max_ngram_size - 1] history; ``curr_fresh``: [n, max_seqlen_q], compressed.

        ``prev_*``: [prev], [prev, nextn], [prev]; ``remap`` (negative: fresh), ``seqlens_q``, ``cu_seqlens_q``
        (inclusive): [n]; ``lookup_table``: [vocab] compression; all int32. Written: ``out_ngram_token_ids``
        [total_q, max_ngram_size] int32, column r the token r places back.
        """
        n = curr_fresh.shape[0]
        assert (
            win_compressed.shape == (n, nextn + history) and curr_fresh.shape[1] == max_seqlen_q
        ), f"{win_compressed.shape=} {n=}"
        device = remap.device
        current = curr_fresh
        # Rejected drafts leave the history: it ends where the accepted ones do, and fresh sequences have none of them.
        start = None
        if prev_sampled_token_ids.shape[0]:
            fresh = remap < 0
            source = remap.clamp(min=0)
            previous = lookup_table[previous_tokens(prev_sampled_token_ids, prev_predict_token_ids, source)]
            current = torch.where(fresh.unsqueeze(1), curr_fresh, previous)
            start = prev_num_accepted_tokens.index_select(0, source).masked_fill_(fresh, 0)
        if history:
            column = torch.arange(history, dtype=torch.int32, device=device)
            width = nextn + history
            first = torch.arange(0, n * width, width, dtype=torch.int32, device=device)
            place = (first if start is None else first.add_(start)).unsqueeze(1) + column
            window = win_compressed.reshape(-1).index_select(0, place.view(-1)).view(n, history)
            current = torch.cat([window, current], 1)
        owner, place = token_places(cu_seqlens_q, seqlens_q, out_ngram_token_ids.shape[0], max_seqlen_q)
        place.add_(owner, alpha=history + max_seqlen_q)
        back = torch.arange(history, -1, -1, dtype=torch.int32, device=device)
        token = current.reshape(-1).index_select(0, (place.unsqueeze(1) + back).view(-1)).view(-1, max_ngram_size)
        hidden = (token == image_sentinel).cumsum(1, dtype=torch.int32) > 0
        out_ngram_token_ids.copy_(token.masked_fill_(hidden, engram_compressed_pad_token))

    return gather_engram_tokens_zos
