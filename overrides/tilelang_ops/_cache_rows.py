"""Token rows of paged KV caches: their layout, their encoding, and writing them by slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from neuron_numerics import e2m1
from neuron_numerics.casts import quantise_groups
from neuron_numerics.formats import quant_format


class CacheLayout(Protocol):
    """What the kernels read of upstream's ``cache_common.KVCacheFormat``."""

    @property
    def quantized_dtype(self) -> str | None: ...
    @property
    def quantized_elements(self) -> int: ...
    @property
    def elements_per_sf(self) -> int: ...
    @property
    def bf16_elements(self) -> int: ...
    @property
    def do_cast(self) -> bool: ...
    @property
    def sf_format(self) -> str | None: ...
    @property
    def token_interleaved(self) -> bool: ...
    @property
    def num_elements(self) -> int: ...
    @property
    def num_scales(self) -> int: ...
    @property
    def quantized_bytes(self) -> int: ...
    @property
    def sf_bytes(self) -> int: ...
    @property
    def bytes_per_token(self) -> int: ...


def words(x: torch.Tensor) -> torch.Tensor:
    """``x``, of elements of 1, 2 or 4 bytes and aligned to 4 bytes, seen as int32 where its width and strides allow it."""
    per_word = 4 // x.itemsize
    fits = x.shape[-1] % per_word == 0 and all(step % per_word == 0 for step in x.stride()[:-1])
    return x.view(torch.int32) if fits else x


def cache_sections(kv_cache: torch.Tensor, layout: CacheLayout) -> tuple[torch.Tensor, ...]:
    """Byte views [num_blocks, block_size, width] of a quantised cache, which together hold a token's values and scales.

    ``kv_cache``: uint8 [num_blocks, block_size, bytes_per_token], blocks strided. An interleaved cache is one section; else a
    block holds the values of all its tokens and then their scales, whatever the token stride of the view says.
    """
    num_blocks, block_size, width = kv_cache.shape
    if layout.token_interleaved:
        return (kv_cache,)
    page = kv_cache.view(num_blocks, block_size * width)
    split = block_size * layout.quantized_bytes
    values, scales = page[:, :split], page[:, split:]
    return values.view(num_blocks, block_size, layout.quantized_bytes), scales.view(
        num_blocks, block_size, layout.sf_bytes
    )


def encode_rows(x: torch.Tensor, layout: CacheLayout) -> torch.Tensor:
    """Quantise fp32 rows [n, num_elements] (clobbered) to uint8 [n, bytes_per_token]: values, then scales."""
    assert layout.quantized_dtype is not None and layout.sf_format is not None
    fmt = quant_format(layout.quantized_dtype, layout.sf_format, round_sf=True)
    scaled, scale = quantise_groups(x, fmt, layout.elements_per_sf)
    if layout.quantized_dtype == "e2m1":
        values = e2m1.encode(scaled)
    else:
        values = scaled.to(torch.float8_e4m3fn)
    return join_rows(values, scale.encoded)


def join_rows(values: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
    """uint8 rows [n, bytes] of stored values [n, width] and encoded scales [n, groups] (int32 ue8m0 bytes, e4m3 or fp32)."""
    scales = encoded.to(torch.uint8) if encoded.dtype == torch.int32 else encoded.view(torch.uint8)
    return torch.cat((values.view(torch.uint8), scales), dim=1)


def scatter_rows(sections: Sequence[torch.Tensor], rows: torch.Tensor, slots: torch.Tensor) -> None:
    """Write ``rows[i]`` to slot ``slots[i]``; a slot of -1, or past the cache, is skipped. Cost does not depend on the cache.

    ``sections``: views [num_blocks, block_size, width] of the cache, their widths add up to that of ``rows`` [n, width], same
    dtype. ``slots``: int32 [n]; valid ones are distinct.
    """
    num_blocks, block_size = sections[0].shape[:2]
    count, capacity = rows.shape[0], num_blocks * block_size
    if count == 0 or capacity == 0:
        return
    # A write per token, so a skipped one repeats that of the first valid token; without any, all write slot 0's own row to it.
    inside = slots.clamp(0, capacity - 1)
    skipped = inside != slots
    token = torch.arange(count, dtype=torch.int32, device=slots.device)
    source = torch.where(skipped, token.masked_fill(skipped, count).amin(), token)
    kept = torch.cat([section[0, :1] for section in sections], dim=1) if len(sections) > 1 else sections[0][0, :1]
    rows = torch.cat((rows, kept)).index_select(0, source)
    slot = torch.nn.functional.pad(inside, (0, 1)).index_select(0, source)
    place = slot // block_size, slot % block_size
    start = 0
    for section in sections:
        section.index_put_(place, rows[:, start : start + section.shape[2]])
        start += section.shape[2]


def scatter_bytes(kv_cache: torch.Tensor, layout: CacheLayout, rows: torch.Tensor, slots: torch.Tensor) -> None:
    """``scatter_rows`` of uint8 ``rows`` [n, bytes_per_token] into a quantised cache, a word at a time where it is aligned."""
    sections = cache_sections(kv_cache, layout)
    whole = [words(section) for section in sections]
    if all(section.dtype == torch.int32 for section in whole):
        scatter_rows(whole, rows.view(torch.int32), slots)
    else:
        scatter_rows(sections, rows, slots)
