"""Attention and cache rows by their definitions, in fp64 and one element at a time, sharing nothing with the drop-in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def attention(
    q: torch.Tensor,
    rows: torch.Tensor,
    valid: torch.Tensor,
    scale: float | torch.Tensor,
    d_v: int,
    sink: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, largest logits and natural log-sum-exp, fp64, of ``q`` [n, h, d] over ``rows`` [n, t, d] where ``valid`` [n, t].

    A query without a row: 0, -inf, +inf. ``sink`` [h] is one more logit for ``out`` alone, whose value is 0. ``scale``: of all
    logits, or [n, h, 1].
    """
    logits = (q.double() @ rows.double().transpose(1, 2)) * scale
    logits = logits.masked_fill(~valid[:, None], -math.inf)
    lse = logits.logsumexp(-1)
    top = logits.amax(-1) if logits.shape[-1] else torch.full_like(lse, -math.inf)
    over = lse if sink is None else torch.logaddexp(lse, sink.double().expand_as(lse))
    weights = torch.where(
        logits == -math.inf, 0.0, (logits - over.masked_fill(over == -math.inf, 0.0)[..., None]).exp()
    )
    # An infinite sink leaves nothing for the rows.
    weights = torch.where(over[..., None] == math.inf, 0.0, weights)
    values = torch.where(valid[..., None], rows.double()[..., :d_v], 0.0)
    return weights @ values, top, lse.masked_fill(lse == -math.inf, math.inf)


def decoded(row: list[int]) -> list[float]:
    """The 512 values of a token's bytes, by the formats' definitions."""
    if len(row) == 528:
        return [_e4m3(byte) * 2.0 ** (row[512 + i // 32] - 127) for i, byte in enumerate(row[:512])]
    assert len(row) == 288
    nibbles = [nibble for byte in row[:256] for nibble in (byte & 15, byte >> 4)]
    return [(-1.0 if code & 8 else 1.0) * E2M1[code & 7] * _e4m3(row[256 + i // 16]) for i, code in enumerate(nibbles)]


def _e4m3(byte: int) -> float:
    """Sign, four exponent bits of bias 7, three mantissa bits; all ones is NaN."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if byte & 128 else size


@dataclass(frozen=True)
class Cache:
    """``stored``: uint8 [blocks, block_size, 1, bytes]. ``values``: fp64 [blocks * block_size, 512]."""

    stored: torch.Tensor
    values: torch.Tensor


def random_cache(blocks: int, block_size: int, width: int, spare: int = 0) -> Cache:
    """Random bytes whose values are small and finite; ``spare`` bytes between the blocks."""
    data, scales = (512, 16) if width == 528 else (256, 32)
    count = blocks * block_size
    rows = torch.randint(0, 256, (count, width), dtype=torch.uint8)
    if width == 528:
        # No NaN, and scales that bring values around 1.
        rows[:, :data][(rows[:, :data] & 0x7F) > 0x60] &= 0xBF
        rows[:, data:] = torch.randint(114, 121, (count, scales), dtype=torch.uint8)
    else:
        rows[:, data:] = torch.randint(0x08, 0x19, (count, scales), dtype=torch.uint8)
    whole = torch.full((blocks, block_size * width + spare), 0xFF, dtype=torch.uint8)
    stored = whole[:, : block_size * width].view(blocks, block_size, 1, width)
    stored.copy_(rows.view(blocks, block_size, 1, width))
    return Cache(stored, torch.tensor([decoded(row) for row in rows.tolist()], dtype=torch.float64))
