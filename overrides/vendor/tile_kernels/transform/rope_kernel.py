"""Rotary embedding of ``tile_kernels.transform.rope_kernel``."""

from __future__ import annotations

import torch


def apply_rotary(
    query: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    key: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    interleaved: bool = False,
    conjugate: bool = False,
    seqlen_offset: int = 0,
) -> None:
    """Rotate ``query`` and ``key`` in place.

    ``query``, ``key``: bf16 or fp32 [tokens, heads, width] or [batch, tokens, heads, width], any strides but a contiguous last
    axis; width is 64 or 128. ``cos_sin_cache``: fp32 [positions, width], cosines in the first half of a row, sines in the
    second. ``positions``: int32 or int64 rows of it, [tokens] or [batch, tokens], to which ``seqlen_offset`` is added; without
    them row ``seqlen_offset + token``. Pairs are neighbours when ``interleaved``, else the two halves; ``conjugate`` rotates back.
    """
    width = cos_sin_cache.shape[1]
    assert query.ndim in (3, 4), f"expected three or four axes, got {query.ndim}"
    assert width in (64, 128) and cos_sin_cache.dtype == torch.float32, "the table is fp32 [positions, 64 or 128]"
    assert query.dtype in (torch.bfloat16, torch.float32), f"expected bf16 or fp32, got {query.dtype}"
    assert query.shape[-1] == width and query.stride(-1) == 1, f"expected a contiguous last axis of {width}"
    if positions is None:
        rows = cos_sin_cache[seqlen_offset : seqlen_offset + query.shape[-3]]
    else:
        assert (
            positions.shape == query.shape[:-2]
        ), f"expected positions of {tuple(query.shape[:-2])}, got {tuple(positions.shape)}"
        place = positions.reshape(-1)
        rows = cos_sin_cache.index_select(0, place + seqlen_offset if seqlen_offset else place).unflatten(
            0, positions.shape
        )
    cosine, sine = rows.unsqueeze(-2).chunk(2, -1)
    if conjugate:
        sine = -sine
    query.copy_(_rotated(query, cosine, sine, interleaved))
    if key is not None:
        assert key.ndim == query.ndim and key.dtype == query.dtype, "query and key are alike"
        assert key.shape[-1] == width and key.stride(-1) == 1, f"expected a contiguous last axis of {width}"
        key.copy_(_rotated(key, cosine, sine, interleaved))


def _rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """``x`` [.., heads, width] rotated, in fp32; ``cosine`` and ``sine`` [.., 1, width / 2]."""
    if not interleaved:
        first, second = x.chunk(2, -1)
        return torch.cat(((first * cosine).sub_(second * sine), (first * sine).add_(second * cosine)), -1)
    # Whole rows and their swapped neighbours, rather than every second value.
    wide = x.to(torch.float32)
    swapped = wide.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    swapped.mul_(torch.stack((-sine, sine), -1).flatten(-2))
    return (wide * torch.stack((cosine, cosine), -1).flatten(-2)).add_(swapped)
