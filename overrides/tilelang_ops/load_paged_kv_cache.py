"""Gather of paged KV cache ranges, dequantised where the layout says so, after ``tilelang_ops.asc.load_paged_kv_cache``."""

from __future__ import annotations

from typing import Any

import torch

from neuron_numerics import e2m1
from neuron_numerics.scales import ue8m0_decode

from ._cache_rows import CacheLayout, words

_ZERO_FILL = -1
_UNCOVERED = -2


def load_paged_kv_cache_tl(
    layout: CacheLayout,
    block_size: int,
    fp4_value_block_stride: int = 0,
    fp4_value_stride: int = 0,
    fp4_scale_stride: int = 0,
    index_batch_size: int = 1,
) -> Any:
    """Factory of a load of segments of ``layout``'s rows.

    The three strides are given for fp4 rows that are cast, and only then; here they are read from the tensors.
    ``index_batch_size`` (4 for quantised rows in blocks of 32 or 64, else 1) tunes Ascend only.
    """
    assert block_size > 0, f"expected a positive block size, got {block_size}"
    cast_fp4 = layout.do_cast and layout.quantized_dtype == "e2m1"
    strides = fp4_value_block_stride, fp4_value_stride, fp4_scale_stride
    if cast_fp4:
        assert min(strides) > 0 and fp4_value_block_stride % 2 == fp4_value_stride % 2 == 0, f"fp4 strides {strides}"
        assert layout.sf_format == "e4m3" and layout.elements_per_sf == 16, f"{layout=}"
    else:
        assert strides == (0, 0, 0), f"fp4 strides {strides} without a cast of fp4 values"
    quantised = layout.quantized_dtype is not None
    assert not (quantised and layout.bf16_elements), "mixed layouts are not supported"
    assert layout.token_interleaved or not layout.do_cast, "rows that are cast are interleaved"
    raw = quantised and not layout.do_cast
    assert index_batch_size == 1 or (index_batch_size == 4 and raw and block_size in (32, 64)), f"{index_batch_size=}"
    if layout.do_cast and not cast_fp4:
        assert layout.sf_format == "ue8m0" and layout.elements_per_sf == 32, f"{layout=}"

    def load_paged_kv_cache(
        load_segments: torch.Tensor,
        kv: torch.Tensor,
        kv_sf: torch.Tensor,
        kv_cache_value: torch.Tensor,
        kv_cache_sf: torch.Tensor,
    ) -> None:
        """``load_segments``: int32 [segments, 4], rows (block or -1, begin, end, first output row); disjoint outputs.

        Written, rows of no segment apart: ``kv`` bf16 [total_k, num_elements], or as stored [total_k, quantized_bytes] where
        the layout is not cast; then also ``kv_sf`` [total_k], one int32 (or fp32) of scales a row, else ``kv_sf`` is ``kv``.
        ``kv_cache_value``: [blocks, block_size, width], ``kv_cache_sf``: [blocks, block_size, scales], views of one cache.
        """
        total, num_blocks = kv.shape[0], kv_cache_value.shape[0]
        if total == 0 or load_segments.shape[0] == 0:
            return
        source = _source_rows(load_segments, total, block_size)
        row = source.clamp(0, num_blocks * block_size - 1)
        place = row // block_size, row % block_size
        source = source.unsqueeze(1)
        loaded, empty = source >= 0, source == _ZERO_FILL
        if raw:
            _fill(words(kv), words(kv_cache_value)[place], loaded, empty)
            _fill(
                kv_sf.view(torch.int32).view(total, -1),
                kv_cache_sf.view(torch.int32)[place].view(total, -1),
                loaded,
                empty,
            )
        elif not quantised:
            _fill(words(kv), words(kv_cache_value)[place], loaded, empty)
        else:
            packed, scale = words(kv_cache_value)[place].view(torch.uint8), words(kv_cache_sf)[place].view(torch.uint8)
            _fill(kv, _cast_fp4(packed, scale) if cast_fp4 else _cast_fp8(packed, scale), loaded, empty)

    return load_paged_kv_cache


def _source_rows(load_segments: torch.Tensor, total: int, block_size: int) -> torch.Tensor:
    """Cache row of each output row, int32 [total]: ``_ZERO_FILL`` for a segment without a block, ``_UNCOVERED`` for none."""
    block, begin, end, first = load_segments.unsqueeze(2).unbind(1)
    offset = torch.arange(block_size, dtype=torch.int32, device=load_segments.device)
    row = (begin + block * block_size + offset).masked_fill_(block < 0, _ZERO_FILL)
    # One entry more than there are outputs takes what lies past the end of a segment.
    target = (first + offset).masked_fill_(offset >= end - begin, total).clamp_max_(total)
    source = torch.full((total + 1,), _UNCOVERED, dtype=torch.int32, device=load_segments.device)
    return source.index_put_((target.view(-1),), row.view(-1))[:total]


def _fill(out: torch.Tensor, values: torch.Tensor, loaded: torch.Tensor, empty: torch.Tensor) -> None:
    """Write ``values`` [total, width] to the ``loaded`` rows of ``out``, zeros to the ``empty`` ones, nothing to others."""
    out.copy_(torch.where(loaded, values, out.masked_fill(empty, 0)))


def _cast_fp8(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """bf16 rows of e4m3 values [n, d] times ue8m0 scales for 32 of them each, both as bytes."""
    values = packed.view(torch.float8_e4m3fn).to(torch.float32).unflatten(1, (-1, 32))
    return values.mul_(ue8m0_decode(scale).unsqueeze(2)).flatten(1).to(torch.bfloat16)


def _cast_fp4(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """bf16 rows of e2m1 values [n, d / 2] times e4m3 scales for 16 of them each, both as bytes; exact."""
    values = e2m1.unpack_fp16(packed).to(torch.float32).unflatten(1, (-1, 16))
    factor = scale.view(torch.float8_e4m3fn).to(torch.float32).mul_(e2m1.FP16_FACTOR)
    return values.mul_(factor.unsqueeze(2)).flatten(1).to(torch.bfloat16)
