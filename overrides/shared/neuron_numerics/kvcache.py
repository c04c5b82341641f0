"""Rows of key-value tables, paged caches among them: gathered by index and decoded, never the table as a whole.

Formats of one token's row, after the cache formats of ``flash_mla`` (values, then their scales):

- bf16 or fp32 elements, taken as they are;
- 528 bytes: 512 e4m3 values, then 16 ue8m0 bytes, one for 32 of them;
- 288 bytes: 512 e2m1 values, two a byte, then 32 e4m3 scales, one for 16 of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from neuron_numerics import e2m1
from neuron_numerics.scales import ue8m0_decode

ROW_VALUES = 512
FP8_ROW_BYTES = 528
FP4_ROW_BYTES = 288
_BYTE_DTYPES = (torch.uint8, torch.int8, torch.float8_e4m3fn)


@dataclass(frozen=True)
class KeyRows:
    """Rows that each of ``n`` queries attends to.

    ``table``: [rows, width] or [blocks, block_size, width], in a format of this module, words where a coded row is aligned.
    ``index``: int32 [n, t] rows, each inside the table. ``dropped``: bool [n, t], the row does not count.
    ``row_bytes``: bytes of a coded row, 0 for bf16 and fp32 elements.
    ``mask``: int32 [n, t], of a coded row's bits, 0 where dropped, else -1. Without one a dropped row is another row of its query
    that counts, and any row of the table where none does.
    """

    table: torch.Tensor
    index: torch.Tensor
    dropped: torch.Tensor
    row_bytes: int = 0
    mask: torch.Tensor | None = None


def element_rows(table: torch.Tensor, index: torch.Tensor, length: torch.Tensor | None) -> KeyRows:
    """Rows of ``table`` [rows, d], bf16 or fp32, any strides.

    ``index``: int32 [n, t]; what is negative or past the table does not count, nor what lies at or past ``length`` [n] of a row.
    """
    place, dropped = _inside(index, length, table.shape[0])
    if place.shape[1]:
        # What does not count may hold NaN, which no weight undoes: take a row instead that is attended to anyway.
        other = place.masked_fill(dropped, 0).amax(1, keepdim=True)
        place = torch.where(dropped, other, place)
    if place.numel() > table.shape[0]:
        # Rows are taken several times each: widened once, before that.
        table = table.to(torch.float32)
    return KeyRows(table, place, dropped)


def cache_rows(cache: torch.Tensor, index: torch.Tensor, length: torch.Tensor | None) -> KeyRows:
    """Rows of a paged cache [blocks, block_size, 1, bytes], uint8, int8 or e4m3, whose blocks may be apart.

    ``index``: int32 [n, t], block * block_size + offset, with the same meaning as in ``element_rows``.
    """
    assert cache.ndim == 4 and cache.shape[2] == 1, f"expected a cache of one key head, got {tuple(cache.shape)}"
    assert cache.dtype in _BYTE_DTYPES, f"expected a cache of bytes, got {cache.dtype}"
    blocks, block_size, _, width = cache.shape
    assert width in (
        FP8_ROW_BYTES,
        FP4_ROW_BYTES,
    ), f"expected {FP8_ROW_BYTES} or {FP4_ROW_BYTES} bytes a token, got {width}"
    contiguous = (block_size == 1 or cache.stride(1) == width) and cache.stride(3) == 1
    assert contiguous, f"expected contiguous blocks, got strides {cache.stride()}"
    table = as_words(cache.view(torch.uint8).squeeze(2))
    if table.stride(0) == block_size * table.stride(1):
        table = table.flatten(0, 1)
    place, dropped = _inside(index, length, blocks * block_size)
    return KeyRows(table, place, dropped, width, dropped.to(torch.int32) - 1)


def take_rows(rows: KeyRows, start: int, stop: int) -> torch.Tensor:
    """fp32 [stop - start, t, d]: the rows of queries ``start`` to ``stop``; zeros for those dropped, if there is a mask."""
    index = rows.index[start:stop]
    if rows.table.ndim == 2:
        taken = rows.table.index_select(0, index.reshape(-1)).unflatten(0, index.shape)
    else:
        block_size = rows.table.shape[1]
        taken = rows.table[index // block_size, index % block_size]
    if rows.mask is None:
        return taken.to(torch.float32)
    # As bits, so that a dropped row is zero whatever it holds: in all formats no bits are 0.
    taken = taken.bitwise_and_(rows.mask[start:stop].unsqueeze(-1).to(taken.dtype))
    data = taken.view(torch.uint8)
    return decode_fp8_rows(data) if rows.row_bytes == FP8_ROW_BYTES else decode_fp4_rows(data)


def decode_fp8_rows(data: torch.Tensor) -> torch.Tensor:
    """fp32 [..., 512] of uint8 rows [..., 528]; exact."""
    values = data[..., :ROW_VALUES].view(torch.float8_e4m3fn).to(torch.float32)
    values.unflatten(-1, (-1, 32)).mul_(ue8m0_decode(data[..., ROW_VALUES:]).unsqueeze(-1))
    return values


def decode_fp4_rows(data: torch.Tensor) -> torch.Tensor:
    """fp32 [..., 512] of uint8 rows [..., 288]; exact."""
    values = e2m1.unpack_fp16(data[..., : ROW_VALUES // 2]).to(torch.float32)
    scale = data[..., ROW_VALUES // 2 :].view(torch.float8_e4m3fn).to(torch.float32).mul_(e2m1.FP16_FACTOR)
    values.unflatten(-1, (-1, 16)).mul_(scale.unsqueeze(-1))
    return values


def as_words(x: torch.Tensor) -> torch.Tensor:
    """``x`` seen as int32 where its last axis, strides and offset allow it, else ``x``."""
    per_word = 4 // x.itemsize
    # An offset cannot be traced; what is compiled starts where its storage is aligned.
    offset = 0 if torch.compiler.is_compiling() else x.storage_offset()
    aligned = all(step % per_word == 0 for step in (x.shape[-1], offset, *x.stride()[:-1]))
    return x.view(torch.int32) if aligned and x.stride(-1) == 1 else x


def _inside(index: torch.Tensor, length: torch.Tensor | None, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The index within a table of ``count`` rows, and where that is another one or lies at or past the length."""
    if not count:
        index = index[:, :0]
    place = index.clamp(0, max(count - 1, 0))
    dropped = place != index
    if length is not None:
        past = torch.arange(index.shape[1], dtype=torch.int32, device=index.device) >= length.unsqueeze(1)
        dropped.logical_or_(past)
    return place, dropped
