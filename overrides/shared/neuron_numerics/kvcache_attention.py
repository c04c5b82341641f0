"""Attention of each query over rows of its own, one key head, values the leading part of the keys.

Products and sums are in fp32. Queries go in slices, so that what is gathered at a time stays within ``GATHERED_ELEMENTS``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_numerics.kvcache import KeyRows, take_rows

# fp32 elements of gathered keys held at a time.
GATHERED_ELEMENTS = 1 << 25
# Finite, and far below any product of keys and queries: the device does not handle infinities reliably.
_MASKED = -1e30


def attend(
    q: torch.Tensor,
    sources: Sequence[KeyRows],
    scale: float,
    d_v: int,
    sink: torch.Tensor | None = None,
    factor: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Softmax attention of ``q`` over the rows of all ``sources`` together.

    ``q``: bf16 or fp32 [n, h, d]. ``sink``: fp32 [h], a logit without a value: it takes its share of the probability, and is
    left out of the two other results. ``factor``: fp32 [n, h], multiplies a query's logits. ``dtype``: of ``out``, ``q``'s own
    by default.

    Returns ``out`` [n, h, d_v], the largest logits and the natural log of the sum of their exponentials, fp32 [n, h]. A query
    without a row gets zeros, -inf and +inf.
    """
    n, heads, d = q.shape
    width = sum(rows.index.shape[1] for rows in sources)
    slices = -(-n * width * d // GATHERED_ELEMENTS)
    if slices == 1:
        out, largest, lse = _attend_slice(q, sources, 0, n, scale, d_v, sink, factor)
        return out.to(dtype or q.dtype), largest, lse
    out = torch.empty((n, heads, d_v), dtype=dtype or q.dtype, device=q.device)
    largest = torch.empty((n, heads), dtype=torch.float32, device=q.device)
    lse = torch.empty_like(largest)
    if not slices:
        return out.zero_(), largest.fill_(-torch.inf), lse.fill_(torch.inf)
    step = -(-n // slices)
    for start in range(0, n, step):
        stop = min(start + step, n)
        part = _attend_slice(q[start:stop], sources, start, stop, scale, d_v, sink, factor)
        for result, value in zip((out, largest, lse), part, strict=True):
            result[start:stop].copy_(value)
    return out, largest, lse


def _attend_slice(
    q: torch.Tensor,
    sources: Sequence[KeyRows],
    start: int,
    stop: int,
    scale: float,
    d_v: int,
    sink: torch.Tensor | None,
    factor: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query = q.to(torch.float32)
    keys = [take_rows(rows, start, stop) for rows in sources]
    parts = [torch.bmm(query, key.transpose(1, 2)) for key in keys]
    logits = (torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]).mul_(scale)
    if factor is not None:
        logits.mul_(factor[start:stop].unsqueeze(2))
    dropped = [rows.dropped[start:stop] for rows in sources]
    logits.masked_fill_((torch.cat(dropped, dim=1) if len(dropped) > 1 else dropped[0]).unsqueeze(1), _MASKED)
    top = logits.amax(2)
    dead = top == _MASKED
    weight = logits.sub_(top.unsqueeze(2)).exp_()
    total = weight.sum(2)
    share = total if sink is None else total + (sink - top).exp_()
    weight.mul_(share.reciprocal().masked_fill_(dead, 0).unsqueeze(2))
    first, result = 0, None
    for key in keys:
        last = first + key.shape[1]
        value = torch.bmm(weight[:, :, first:last], key[:, :, :d_v])
        result = value if result is None else result.add_(value)
        first = last
    assert result is not None
    if any(rows.mask is None for rows in sources):
        # The rows of a query without any were not attended to, and may be NaN.
        result.masked_fill_(dead.unsqueeze(2), 0)
    return result, top.masked_fill(dead, -torch.inf), (top + total.log()).masked_fill_(dead, torch.inf)
