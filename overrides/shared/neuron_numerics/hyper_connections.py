"""Mixing weights of manifold-constrained hyper-connections (mHC): ``n`` residual streams around each layer."""

from __future__ import annotations

import torch


def split_mixes(
    mixes: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, streams: int, post_factor: float, pre_eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights into the layer, out of it and among the streams, of fp32 ``mixes`` [.., n + n + n * n].

    ``scale`` [3]: one factor a part; ``base`` [n + n + n * n]. Returns ``sigmoid + pre_eps`` [.., n], ``sigmoid * post_factor``
    [.., n] and the rest [.., n * n].
    """
    parts = (streams, streams, streams * streams)
    factors = torch.cat([scale[i : i + 1].expand(part) for i, part in enumerate(parts)])
    both, comb = (mixes * factors + base).split((2 * streams, streams * streams), -1)
    pre, post = both.sigmoid().chunk(2, -1)
    return pre + pre_eps, post * post_factor, comb


def sinkhorn(x: torch.Tensor, repeat: int, eps: float) -> torch.Tensor:
    """Softmax over the rows of fp32 ``x`` [.., n, n] plus ``eps``; then columns and rows divided by their sums plus ``eps``.

    Columns ``repeat`` times, rows between them.
    """
    x = x.softmax(-1).add_(eps)
    x.div_(x.sum(-2, keepdim=True).add_(eps))
    for _ in range(repeat - 1):
        x.div_(x.sum(-1, keepdim=True).add_(eps))
        x.div_(x.sum(-2, keepdim=True).add_(eps))
    return x
