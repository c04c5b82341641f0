"""Plain rotary embedding of ``tile_kernels.torch.rope``."""

from __future__ import annotations

import torch


def rotary_embedding_ref(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    seqlen_offsets: int = 0,
    interleaved: bool = False,
    conjugate: bool = False,
) -> torch.Tensor:
    """The first ``2 * r`` values of each head of ``x`` [.., tokens, heads, d] rotated by rows of ``cos`` and ``sin`` [n, r].

    Rows are ``positions`` [.., tokens] plus ``seqlen_offsets``, or consecutive ones from there; see
    ``tile_kernels.transform.apply_rotary``. A new tensor of ``x``'s dtype.
    """
    width = cos.shape[-1] * 2
    place = slice(seqlen_offsets, seqlen_offsets + x.shape[-3]) if positions is None else positions + seqlen_offsets
    cosine, sine = cos[place].unsqueeze(-2), sin[place].unsqueeze(-2)
    if conjugate:
        sine = -sine
    turning, rest = x.split((width, x.shape[-1] - width), -1)
    first, second = turning.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else turning.chunk(2, -1)
    turned = (first * cosine - second * sine, first * sine + second * cosine)
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat((joined.to(x.dtype), rest), -1)
