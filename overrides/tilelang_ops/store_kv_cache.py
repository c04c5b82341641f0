"""Store of BF16 tokens in a paged KV cache, after ``tilelang_ops.asc.store_kv_cache``."""

from __future__ import annotations

from typing import Any

import torch

from ._cache_rows import CacheLayout, encode_rows, scatter_bytes, scatter_rows


def store_kv_cache_tl(
    layout: CacheLayout,
    block_size: int,
    *,
    tokens_per_tile: int = 4,
    num_stages: int = 3,
    contiguous_slots: bool = True,
    skip_invalid_tiles: bool = True,
    use_reciprocal_lut: bool = True,
    input_l2_cache_ctrl: str = "NOTALLOC_KEEP",
    rows_per_step: int = 1,
) -> Any:
    """Factory of a store of tokens of ``layout`` into blocks of ``block_size``. The keyword arguments tune Ascend only.

    Raises:
        NotImplementedError: the layout mixes bf16 and quantised elements or has fp32 scales, which Ascend lacks too.
    """
    assert block_size > 0, f"expected a positive block size, got {block_size}"
    if layout.quantized_dtype is None:
        assert layout.bf16_elements == layout.num_elements > 0, f"{layout.bf16_elements=} {layout.num_elements=}"

        def store_bf16_cache(kv: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
            """``kv``: bf16 [n, num_elements]. ``cache``: bf16 [blocks, block_size, num_elements], written. ``slots``: int32 [n]."""
            assert (
                kv.shape[1] == cache.shape[2] == layout.num_elements and cache.shape[1] == block_size
            ), f"{kv.shape} {cache.shape}"
            scatter_rows((cache,), kv, slots)

        return store_bf16_cache

    if layout.bf16_elements or layout.sf_format == "fp32":
        raise NotImplementedError("a KV cache of mixed elements or with fp32 scales is not supported")
    fp4, group = layout.quantized_dtype == "e2m1", layout.elements_per_sf
    assert layout.quantized_dtype in ("e2m1", "e4m3") and layout.sf_format in ("ue8m0", "e4m3"), f"{layout=}"
    assert group == 32 or (group == 16 and fp4), f"{layout.quantized_dtype} with a scale for {group} elements"
    assert layout.sf_format != "e4m3" or (fp4 and group == 16), "e4m3 scales are for groups of 16 fp4 values"
    assert layout.num_elements % 128 == 0 and 0 < layout.num_scales <= 64, f"{layout.num_elements=}"

    def store_kv_cache(kv: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """``kv``: bf16 [n, num_elements]. ``slot_mapping``: int32 [n], -1 skips. Valid slots are distinct.

        ``kv_cache``: uint8 [blocks, block_size, bytes_per_token], written.
        """
        assert kv.dtype == torch.bfloat16 and kv.shape[1] == layout.num_elements, f"{kv.dtype=} {kv.shape=}"
        assert kv_cache.shape[1:] == (block_size, layout.bytes_per_token), f"{kv_cache.shape=}"
        scatter_bytes(kv_cache, layout, encode_rows(kv.to(torch.float32), layout), slot_mapping)

    return store_kv_cache
