"""Token bitmasks on packed logits, after ``tilelang_ops.asc.structure_output``."""

from __future__ import annotations

from typing import Any

import torch

from ._masks import negative

_BITS = 32
_NEGATIVE_INFINITY = -0x00800000  # the bits of -inf, as an int32


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
        assert (
            logits.shape[1] >= vocab_size and bitmask.shape[1] * _BITS >= vocab_size
        ), f"{logits.shape=} {bitmask.shape=}"
        count = indices.shape[0]
        if count == 0:
            return
        request = indices
        device = logits.device
        if has_ftp:
            assert ftp is not None
            requests = ftp.shape[0]
            following = request + 1
            end = ftp.index_select(0, following.clamp(max=requests - 1)).masked_fill_(
                following >= requests, logits.shape[0]
            )
            row = ftp.index_select(0, request) + step
            # A request with too few rows repeats what the first other one writes; with no other, row 0 as it is.
            place = torch.arange(count, dtype=torch.int32, device=device)
            fits = negative(row - end)
            first = ((place & fits) | (~fits & count)).amin(0, keepdim=True)
            source = torch.where(fits != 0, place, first).clamp_(max=count - 1)
            request = request.index_select(0, source)
            nothing = negative((count - 1) - first)
            row = row.index_select(0, source) & ~nothing
        else:
            row = request
        words = bitmask[:, : vocab_size // _BITS].index_select(0, request).unsqueeze(2)
        lane = torch.arange(_BITS, dtype=torch.int32, device=device)
        forbidden = (words >> lane).bitwise_and_(1).sub_(1)
        if has_ftp:
            forbidden.bitwise_and_(~nothing)
        # Bits of -inf where forbidden, of the score elsewhere: score ^ ((score ^ -inf) & forbidden).
        bits = logits.index_select(0, row).view(torch.int32)
        forbidden = forbidden.view(count, vocab_size)
        if logits.shape[1] > vocab_size:
            # Whole rows are written, as a part of a row is no row of the buffer.
            forbidden = torch.cat((forbidden, forbidden.new_zeros(count, logits.shape[1] - vocab_size)), 1)
        bits.bitwise_xor_((bits ^ _NEGATIVE_INFINITY).bitwise_and_(forbidden))
        logits.index_put_((row,), bits.view(torch.float32))

    return apply_token_bitmask_by_step_inplace
