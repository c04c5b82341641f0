"""Token bitmasks on packed logits, after ``tilelang_ops.asc.structure_output``."""

from __future__ import annotations

from typing import Any

import torch

_BITS = 32


def apply_token_bitmask_by_step_inplace_tl(vocab_size: int, has_ftp: bool) -> Any:
    """Factory of the masking of forbidden tokens to -inf in one logits row of each chosen request.

    The row is the request's own, or with ``has_ftp`` row ``step`` of the request's packed rows, skipped when it has
    fewer.
    """
    assert vocab_size > 0 and vocab_size % 64 == 0, f"expected a positive multiple of 64, got {vocab_size}"

    def apply_token_bitmask_by_step_inplace(
        logits: torch.Tensor, bitmask: torch.Tensor, indices: torch.Tensor, ftp: torch.Tensor | None, step: int
    ) -> None:
        """``logits``: [rows, >= vocab_size] fp32, written. ``bitmask``: [requests, >= vocab_size / 32] int32, low bit first.

        ``indices``: [n] int32, the chosen requests. ``ftp``: [requests] int32, first packed row of each request.
        """
        assert logits.shape[1] >= vocab_size and bitmask.shape[1] * _BITS >= vocab_size, f"{logits.shape=} {bitmask.shape=}"
        count = indices.shape[0]
        if count == 0:
            return
        scores = logits[:, :vocab_size]
        request = indices
        device = logits.device
        if has_ftp:
            assert ftp is not None
            requests = ftp.shape[0]
            row = ftp[request] + step
            following = request + 1
            end = ftp[following.clamp(max=requests - 1)].masked_fill_(following >= requests, logits.shape[0])
            # A request with too few rows repeats what the first other one writes; with no other, row 0 as it is.
            place = torch.arange(count, dtype=torch.int32, device=device)
            first = torch.where(row < end, place, count).amin()
            source = torch.where(row < end, place, first).clamp_(max=count - 1)
            request = request[source]
            nothing = first == count
            row = row[source].masked_fill_(nothing, 0)
        else:
            row = request
        words = bitmask[:, : vocab_size // _BITS][request].unsqueeze(2)
        lane = torch.arange(_BITS, dtype=torch.int32, device=device)
        forbidden = ((words >> lane) & 1).view(count, vocab_size) == 0
        if has_ftp:
            forbidden = forbidden & ~nothing
        scores.index_put_((row,), scores[row].masked_fill_(forbidden, -torch.inf))

    return apply_token_bitmask_by_step_inplace
