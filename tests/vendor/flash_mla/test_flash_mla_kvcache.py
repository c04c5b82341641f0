"""Cache rows: every code decodes to its definition, and what the engine's own cache kernels write is what attention reads."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import flash_mla_oracle as oracle
import pytest
import torch

from neuron_numerics.kvcache import as_words, cache_rows, decode_fp4_rows, decode_fp8_rows, element_rows, take_rows
from overrides.tilelang_ops.load_paged_kv_cache import load_paged_kv_cache_tl
from overrides.tilelang_ops.store_kv_cache import store_kv_cache_tl
from overrides.vendor.flash_mla.flash_mla_interface import FlashMLASchedMeta, flash_mla_with_kvcache


def test_every_fp8_code_and_scale() -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(2).expand(32, 512)
    scales = torch.arange(512).remainder(255).view(32, 16).to(torch.uint8)
    # Scale 0 stands for 2**-127, which fp32 holds as a denormal and this format's decoder as zero; no cast writes it.
    scales[scales == 0] = 1
    rows = torch.cat((codes, scales), 1)
    want = torch.tensor([oracle.decoded(row) for row in rows.tolist()], dtype=torch.float64)
    got = decode_fp8_rows(rows).double()
    inside = want.abs() <= torch.finfo(torch.float32).max
    assert torch.equal(torch.isnan(got), torch.isnan(want))
    # Below the least normal number a product may go to zero.
    normal = inside & (want.abs() >= torch.finfo(torch.float32).tiny)
    assert torch.equal(got[normal], want[normal]) and int(normal.sum()) > 15000


def test_every_fp4_code_and_scale() -> None:
    codes = torch.arange(256, dtype=torch.uint8).expand(8, 256)
    scales = torch.arange(256, dtype=torch.uint8).view(8, 32)
    rows = torch.cat((codes, scales), 1)
    want = torch.tensor([oracle.decoded(row) for row in rows.tolist()], dtype=torch.float64)
    assert torch.equal(torch.nan_to_num(decode_fp4_rows(rows).double(), 1e9), torch.nan_to_num(want, 1e9))


@pytest.mark.parametrize("width", [528, 288])
@pytest.mark.parametrize("spare", [0, 16, 3])
def test_taken_rows(width: int, spare: int) -> None:
    cache = oracle.random_cache(4, 7, width, spare)
    index = torch.tensor([[0, 27, -1, 28], [13, 13, 2**30, -(2**31)]], dtype=torch.int32)
    rows = cache_rows(cache.stored, index, torch.tensor([4, 1], dtype=torch.int32))
    assert rows.dropped.tolist() == [[False, False, True, True], [False, True, True, True]]
    got = take_rows(rows, 0, 2)
    assert got.dtype == torch.float32
    for query, column, row in ((0, 0, 0), (0, 1, 27), (1, 0, 13)):
        assert torch.equal(got[query, column].double(), cache.values[row])
    assert not got[0, 2:].any() and not got[1, 1:].any()
    assert (rows.table.dtype == torch.int32) == (spare != 3) and (rows.table.ndim == 2) == (spare == 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_taken_elements(dtype: torch.dtype) -> None:
    wide = torch.randn(9, 21).to(dtype)
    wide[0] = torch.nan
    for table in (wide[:, :20], wide[:, 1:], wide.T[:9].T):
        index = torch.tensor([[8, 9, 3, -1], [-1, 0, -7, 9]], dtype=torch.int32)
        rows = element_rows(table, index, torch.tensor([4, 1], dtype=torch.int32))
        assert rows.dropped.tolist() == [[False, True, False, True], [True, True, True, True]]
        got = take_rows(rows, 0, 1)[0]
        # Dropped rows are others that count.
        assert torch.equal(got, table[[8, 8, 3, 8]].float())


def test_words_only_where_aligned() -> None:
    data = torch.zeros(4, 12, dtype=torch.uint8)
    assert as_words(data).dtype == torch.int32
    for other in (data[:, 1:9], data[:, :6], data.view(-1)[:45].view(5, 9), data.T):
        assert as_words(other) is other


@pytest.fixture
def formats(source_root: Callable[[str], Path]) -> dict[str, SimpleNamespace]:
    """The engine's cache formats by name, read from its source: to import it takes the whole engine."""
    text = (source_root("deepinfer") / "deepinfer/model_executor/layers/tilelang_ops/cache_common.py").read_text()
    found = {}
    for node in ast.parse(text).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "KVCacheFormat"
        ):
            made = SimpleNamespace(
                **{word.arg: ast.literal_eval(word.value) for word in node.value.keywords if word.arg}
            )
            made.num_elements = made.quantized_elements + made.bf16_elements
            made.quantized_bytes = made.quantized_elements // (2 if made.quantized_dtype == "e2m1" else 1)
            made.num_scales = made.sf_bytes = made.quantized_elements // max(made.elements_per_sf, 1)
            made.bytes_per_token = made.quantized_bytes + made.sf_bytes
            found[ast.unparse(node.targets[0])] = made
    return found


@pytest.mark.parametrize("which", ["V41_FORMAT", "V41_FP4_FORMAT"])
def test_the_engines_kernels_write_what_attention_reads(formats: dict[str, SimpleNamespace], which: str) -> None:
    layout, block_size = formats[which], 8
    assert layout.token_interleaved and layout.bytes_per_token in (528, 288)
    stored = torch.full((5, block_size, layout.bytes_per_token), 0xFF, dtype=torch.uint8)
    kv, slots = torch.randn(17, 512).to(torch.bfloat16), torch.randperm(40, dtype=torch.int32)[:17]
    store_kv_cache_tl(layout, block_size)(kv, stored, slots)
    rows = cache_rows(stored.unsqueeze(2), slots.view(1, 17), None)
    got = take_rows(rows, 0, 1)[0]
    want = torch.tensor(
        [oracle.decoded(stored.view(40, -1)[slot].tolist()) for slot in slots.tolist()], dtype=torch.float64
    )
    assert torch.equal(got.double(), want)
    assert (got - kv.float()).abs().max() <= kv.float().abs().max() * (0.04 if layout.bytes_per_token == 528 else 0.2)
    if layout.bytes_per_token == 528:
        loaded = torch.zeros(block_size, 512, dtype=torch.bfloat16)
        segment = torch.tensor([[int(slots[0]) // block_size, 0, block_size, 0]], dtype=torch.int32)
        load_paged_kv_cache_tl(layout, block_size)(segment, loaded, loaded, stored[..., :512], stored[..., 512:])
        assert torch.equal(loaded[int(slots[0]) % block_size], got[0].to(torch.bfloat16))
        q = torch.randn(1, 1, 64, 512).to(torch.bfloat16)
        index = slots.view(1, 1, 17)
        out, lse = flash_mla_with_kvcache(q, stored.unsqueeze(2), None, None, 512, FlashMLASchedMeta(), indices=index)
        want_out, _, want_lse = oracle.attention(
            q[0], want.unsqueeze(0), torch.ones(1, 17, dtype=torch.bool), 512**-0.5, 512, None
        )
        assert (out[0].double() - want_out).abs().max() < 8e-3 and torch.allclose(
            lse[..., 0].double(), want_lse, atol=1e-5
        )
