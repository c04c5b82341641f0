"""Logits of the sparse-attention indexer: ``sum over heads of weight * relu(query . key)``, in fp32.

Keys are gathered by row: whole pages for dense decode, the tokens of the chosen blocks for the sparse forms, never a whole cache.
Shapes are static; rows are worked off in pieces of bounded size. Columns outside a row's keys hold any finite number of other keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_numerics.gemm_operands import dequantise_mx
from neuron_numerics.gemm_scales import align

# Elements of the largest intermediate of a piece: scores [rows, heads, keys], or gathered keys [rows, keys, d].
PIECE = 2**25
ROW_BYTES = 1024


def no_logits(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros [rows, columns] whose rows lie 1024-byte units apart."""
    stride = align(columns, ROW_BYTES // dtype.itemsize)
    return torch.zeros((rows, stride), dtype=dtype, device=device)[:, :columns]


def weighted_scores(scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[rows, keys] of ``scores`` fp32 [rows, heads, keys] (clobbered) and ``weights`` fp32 [rows, heads]."""
    return torch.bmm(weights.unsqueeze(1), scores.relu_()).squeeze(1)


def dense_logits(
    q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor, start: torch.Tensor, columns: int
) -> list[torch.Tensor]:
    """Pieces of the compressed logits [rows, min(columns, keys)]: column j of row i belongs to key ``start[i] + j``.

    ``q``: fp32 [rows, heads, d]. ``k``: fp32 [keys, d]. ``weights``: fp32 [rows, heads]. ``start``: int32 [rows].
    """
    rows, heads, _ = q.shape
    keys = k.shape[0]
    # No row has more keys than there are.
    columns = min(columns, keys)
    step = max(1, PIECE // (heads * keys))
    column = torch.arange(columns, dtype=torch.int32, device=q.device)
    pieces = []
    for first in range(0, rows, step):
        part = q[first : first + step]
        scores = (part.flatten(0, 1) @ k.mT).unflatten(0, (-1, heads))
        logits = weighted_scores(scores, weights[first : first + step])
        key = (start[first : first + step].unsqueeze(1) + column).clamp_(0, keys - 1)
        row = torch.arange(part.shape[0], dtype=torch.int32, device=q.device).mul_(keys)
        pieces.append(logits.flatten().index_select(0, key.add_(row.unsqueeze(1)).flatten()).view(-1, columns))
    return pieces


def page_rows(cache: torch.Tensor, head_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values uint8 [pages, tokens, head_bytes] and scale bytes uint8 [pages, tokens, 4] of a fused cache, as views.

    ``cache``: uint8 [pages, tokens, 1, head_bytes + 4]; a page holds all tokens' values, then all their scales.
    """
    pages, tokens = cache.shape[:2]
    flat = cache.view(pages, -1)
    split = tokens * head_bytes
    return flat[:, :split].unflatten(1, (tokens, head_bytes)), flat[:, split:].unflatten(1, (tokens, 4))


def scale_of_bytes(scale: torch.Tensor, mx: bool) -> torch.Tensor:
    """Scales [...] of uint8 [..., 4]: packed exponents (int32) for MX, else fp32."""
    return scale.contiguous().view(torch.int32 if mx else torch.float32).squeeze(-1)


def paged_logits(
    q: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    block_table: torch.Tensor,
    columns: int,
    fp4: bool,
    mx: bool,
) -> list[torch.Tensor]:
    """Pieces, to be joined along the columns, of the logits [batch * next_n, >= columns] over each query's pages.

    ``q``: fp32 [batch, next_n, heads, d]. ``cache``: see ``page_rows``. ``block_table``: int32 [batch, >= ceil(columns / tokens)];
    entries outside the cache are read as its nearest page.
    """
    batch, next_n, heads, dim = q.shape
    pages, tokens = cache.shape[:2]
    flat = cache.view(pages, -1)
    split = flat.shape[1] - 4 * tokens
    queries = q.flatten(1, 2)
    used = min(-(-columns // tokens), block_table.shape[1])
    step = max(1, PIECE // (batch * tokens * max(dim, next_n * heads)))
    pieces = []
    for first in range(0, used, step):
        table = block_table[:, first : min(first + step, used)].clamp(0, pages - 1)
        page = flat.index_select(0, table.flatten())
        value = page[:, :split].unflatten(1, (tokens, -1))
        value = value.contiguous() if fp4 else value.contiguous().view(torch.float8_e4m3fn)
        scale = scale_of_bytes(page[:, split:].unflatten(1, (tokens, 4)), mx)
        key = dequantise_mx(value, scale).view(batch, -1, dim)
        scores = torch.bmm(queries, key.mT).view(batch * next_n, heads, -1)
        pieces.append(weighted_scores(scores, weights))
    return pieces


def gathered_logits(q: torch.Tensor, key: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[rows, keys] of ``q`` fp32 [rows, heads, d] and its own keys ``key`` fp32 [rows, keys, d]."""
    return weighted_scores(torch.bmm(q, key.mT), weights)


def row_step(heads: int, dim: int, keys: int) -> int:
    """How many rows a piece may have, with ``keys`` gathered keys a row."""
    return max(1, PIECE // (keys * max(dim, heads)))


def stored_logits(pieces: Sequence[torch.Tensor], axis: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """The pieces, joined along ``axis``, as ``dtype`` [rows, columns], cut or filled with zeros; rows 1024-byte units apart."""
    whole = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), axis)
    missing = align(columns, ROW_BYTES // dtype.itemsize) - whole.shape[1]
    return torch.nn.functional.pad(whole.to(dtype), (0, missing))[:, :columns]
