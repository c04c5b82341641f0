"""What the cache kernels' tests share: upstream's formats and references with Ascend's scale packing, and cache storages."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

_ASCEND_NODE = "/dev/davinci_manager"


@contextmanager
def ascend_references(upstream: Callable[[str], Any], config: pytest.Config) -> Iterator[SimpleNamespace]:
    """Upstream's interface modules, their references running ``tile_kernels.torch`` of the real distribution.

    tile_kernels packs two ue8m0 bytes in an int16 when it believes it is on Ascend; it is made to, until the end. Gives the
    modules ``norm``, ``fused_transform``, ``store_kv_cache``, ``load_paged_kv_cache``, ``compress``, ``cache_common`` and ``tk``,
    which is ``tile_kernels.torch``.
    """
    # Upstream's modules hold its tests too; strict markers refuse a mark that pyproject does not name.
    config.addinivalue_line("markers", "benchmark: upstream's benchmarks")
    exists = os.path.exists
    with patch("os.path.exists", lambda path: path == _ASCEND_NODE or exists(path)):
        platform: Any = importlib.import_module("tile_kernels.config")
        platform.is_ascend.cache_clear()
        assert platform.is_ascend()
        reference: Any = importlib.import_module("tile_kernels.torch")
        quant: Any = importlib.import_module("tile_kernels.quant")
        names = ("norm", "fused_transform", "store_kv_cache", "load_paged_kv_cache", "compress", "cache_common")
        modules = {name: upstream(name) for name in names}

        def cast(x: Any, fmt: str, group: int, **options: Any) -> Any:
            return reference.cast(x, fmt, (1, group), **options)

        def cast_round_trip(x: torch.Tensor, fmt: str, group: int, round_sf: bool = False) -> None:
            x.copy_(reference.cast_back(reference.cast(x, fmt, (1, group), round_sf=round_sf), "bf16", (1, group)))

        def rotate(
            x: torch.Tensor, cos_sin_cache: torch.Tensor, positions: torch.Tensor, interleaved: bool, conjugate: bool
        ) -> None:
            cos, sin = cos_sin_cache.chunk(2, dim=-1)
            x.copy_(reference.rotary_embedding_ref(x, cos, sin, positions, 0, interleaved, conjugate))

        with (
            patch.object(quant, "per_token_cast", cast),
            patch.object(quant, "per_token_cast_and_cast_back", cast_round_trip),
            patch.object(modules["fused_transform"], "apply_rotary", rotate),
        ):
            try:
                yield SimpleNamespace(tk=reference, **modules)
            finally:
                platform.is_ascend.cache_clear()


def layouts(refs: Any) -> dict[str, Any]:
    """Every format that the kernels take, by a short name."""
    common = refs.cache_common
    bf16 = common.KVCacheFormat(None, 0, 0, 512, do_cast=False, sf_format=None, note="bf16")
    return {
        "fp8": common.V41_FORMAT,
        "fp4": common.V41_FP4_FORMAT,
        "index-fp4": common.FP4_INDEX_KV_FORMAT,
        "index-fp8": common.MXFP8_INDEX_KV_FORMAT,
        "bf16": bf16,
    }


QUANTISED = ("fp8", "fp4", "index-fp4", "index-fp8")


def make_cache(layout: Any, num_blocks: int, block_size: int, token_gap: int = 0, block_gap: int = 64) -> torch.Tensor:
    """A cache [num_blocks, block_size, width] of random finite contents inside a storage of a pattern, with gaps (in bytes)
    after each token and each block. bf16 for a plain layout, else uint8."""
    plain = layout.quantized_dtype is None
    size = 2 if plain else 1
    width = layout.bytes_per_token // size
    token = width + token_gap // size
    block = block_size * token + block_gap // size
    raw = torch.full(((num_blocks * block) * size + 512,), 0xA5, dtype=torch.uint8)
    inner = raw[256 : 256 + num_blocks * block * size].view(torch.bfloat16 if plain else torch.uint8)
    cache = inner.as_strided((num_blocks, block_size, width), (block, token, 1))
    if plain:
        cache.copy_(torch.randn(cache.shape))
    else:
        cache.copy_(torch.randint(0, 0x70, cache.shape))
    return cache


def sections(cache: torch.Tensor, layout: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Typed views of a quantised cache's values and scales, as upstream's interfaces pass them to the load kernel."""
    num_blocks, block_size, width = cache.shape
    if layout.token_interleaved:
        values, scales = cache[..., : layout.quantized_bytes], cache[..., layout.quantized_bytes :]
    else:
        page = cache.view(num_blocks, block_size * width)
        split = block_size * layout.quantized_bytes
        values, scales = page[:, :split].view(num_blocks, block_size, -1), page[:, split:].view(
            num_blocks, block_size, -1
        )
    if not layout.do_cast:
        scales = scales.view(torch.int32)
    elif layout.sf_format == "e4m3":
        scales = scales.view(torch.float8_e4m3fn)
    return values.view(torch.int8 if layout.quantized_dtype == "e2m1" else torch.float8_e4m3fn), scales


def finite_bf16() -> torch.Tensor:
    """Every finite bf16 number, twice zero where a code is not finite: [65536]."""
    bits = torch.arange(65536, dtype=torch.int32)
    bits.masked_fill_((bits & 0x7FFF) >= 0x7F80, 0)
    return bits.to(torch.uint16).view(torch.bfloat16)


def ulps(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance of fp32 or bf16 ``actual`` from fp64 ``exact`` in units of the last place of ``exact`` in actual's dtype."""
    info = torch.finfo(actual.dtype)
    exponent = torch.frexp(exact)[1].double() - 1
    step = torch.exp2(exponent) * info.eps
    return (actual.double() - exact).abs() / step.clamp_min(info.tiny * info.eps)
