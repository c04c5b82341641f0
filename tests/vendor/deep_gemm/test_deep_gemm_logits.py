"""Indexer logits in the engine's Ascend form against upstream's inline references, at the edges, and under the static gate."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_upstream import load_test, on_host
from harness import check_fake, check_kernel, guard, new_bytes, wide_ops

GROUP = 32


def ascend_rows(x: torch.Tensor, fp4: bool, package: ModuleType) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, exponent bytes packed two in an int16, and the exact fp32 values, by upstream's own casts."""
    cast = package.utils.per_token_cast_to_fp4 if fp4 else package.utils.per_token_cast_to_fp8
    back = package.utils.math.cast_back_from_fp4 if fp4 else package.utils.math.cast_back_from_fp8
    flat = x.reshape(-1, x.shape[-1])
    values, sf = cast(flat, use_ue8m0=True, gran_k=GROUP)
    exact = back(values, sf, gran_k=GROUP).view(x.shape)
    packed = (sf.view(torch.int32) >> 23).to(torch.uint8).view(torch.int16)
    return values.view(*x.shape[:-1], -1), packed.view(*x.shape[:-1], -1), exact


def fused_cache(k: torch.Tensor, fp4: bool, package: ModuleType, pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The paged cache uint8 [pages, tokens, 1, bytes + 4] of ``k`` [pages, tokens, d], pages ``pad`` bytes apart, and its values."""
    pages, tokens, _ = k.shape
    values, sf, exact = ascend_rows(k, fp4, package)
    body, scale = values.view(torch.uint8).reshape(pages, -1), sf.contiguous().view(torch.uint8).reshape(pages, -1)
    assert scale.shape[1] == tokens * 4
    width = body.shape[1] + scale.shape[1]
    storage = torch.full((pages, width + pad), 0xA5, dtype=torch.uint8)
    storage[:, :width] = torch.cat([body, scale], 1)
    row = width // tokens
    return storage.as_strided((pages, tokens, 1, row), (width + pad, row, row, 1)), exact


@pytest.mark.parametrize("fp4", [True, False])
@pytest.mark.parametrize("heads", [4, 32])
def test_dense_in_ascend_form(upstream: Any, gemm: ModuleType, fp4: bool, heads: int) -> None:
    root, package = upstream
    reference = load_test(root, "test_attention").ref_mqa_logits
    rows, keys, width = 9, 70, 40
    q, q_sf, q_exact = ascend_rows(torch.randn(rows, heads, 128), fp4, package)
    k, k_sf, k_exact = ascend_rows(torch.randn(keys, 128), fp4, package)
    assert q_sf.shape == (rows, heads, 2) and k_sf.shape == (keys, 2)
    weights = torch.randn(rows, heads + 4).bfloat16()[:, :heads]
    start = torch.tensor([0, 0, 5, 30, 69, 70, 12, 0, 31], dtype=torch.int32)
    end = torch.tensor([40, 1, 5, 70, 70, 70, 52, 0, 64], dtype=torch.int32)
    got = gemm.fp8_fp4_mqa_logits((q, q_sf), (k, k_sf), weights, start, end, max_seqlen_k=width)
    assert got.dtype == torch.bfloat16 and got.shape == (rows, width) and got.stride(0) * 2 % 1024 == 0
    with on_host(10):
        wanted, _ = reference(q_exact, k_exact, weights.float(), start, end)
    for row in range(rows):
        span = int(end[row] - start[row])
        want = wanted[row, start[row] : end[row]]
        assert torch.allclose(got[row, :span].float(), want, rtol=2**-7, atol=1e-3)
    assert torch.isfinite(got).all()


def test_fp32_logits_without_query_scales(upstream: Any, gemm: ModuleType) -> None:
    root, package = upstream
    reference = load_test(root, "test_attention").ref_mqa_logits
    q = torch.randn(6, 32, 64).to(torch.float8_e4m3fn)
    k, k_sf = package.utils.per_custom_dims_cast_to_fp8(torch.randn(50, 64), (0,), False)
    weights = torch.randn(6, 32)
    start, end = torch.zeros(6, dtype=torch.int32), torch.arange(45, 51, dtype=torch.int32)
    got = gemm.fp8_fp4_mqa_logits((q, None), (k, k_sf), weights, start, end, 50)
    with on_host(9):
        wanted, _ = reference(q, k.float() * k_sf[:, None], weights, start, end)
    inside = torch.arange(50)[None] < end[:, None]
    assert got.dtype == torch.float32
    assert package.testing.calc_diff(got.masked_fill(~inside, 0), wanted.masked_fill(~inside, 0)) < 1e-10


@pytest.mark.parametrize("fp4", [True, False])
@pytest.mark.parametrize(("tokens", "pad"), [(32, 0), (64, 64)])
def test_paged_in_ascend_form(upstream: Any, gemm: ModuleType, fp4: bool, tokens: int, pad: int) -> None:
    root, package = upstream
    reference = load_test(root, "test_attention").ref_paged_mqa_logits
    batch, heads, pages, blocks = 5, 8, 11, 4
    q, q_sf, q_exact = ascend_rows(torch.randn(batch, 1, heads, 128), fp4, package)
    cache, k_exact = fused_cache(torch.randn(pages, tokens, 128), fp4, package, pad)
    weights = torch.randn(batch, heads).bfloat16()
    lens = torch.tensor([[0], [1], [tokens], [2 * tokens + 3], [blocks * tokens - 1]], dtype=torch.int32)
    table = torch.randint(0, pages, (batch, blocks), dtype=torch.int32)
    # What lies after a row's last block is never looked at.
    dirty = table.clone()
    for row in range(batch):
        dirty[row, -(-int(lens[row]) // tokens) :] = torch.tensor([-1, 2**31 - 1, -5, 10**6], dtype=torch.int32)[
            : blocks - -(-int(lens[row]) // tokens)
        ]
    meta = gemm.get_paged_mqa_logits_metadata(lens, tokens, 8, indices=torch.arange(batch, dtype=torch.int32))
    width = blocks * tokens - 1
    got = gemm.fp8_fp4_paged_mqa_logits(
        (q, q_sf),
        cache,
        weights,
        lens,
        dirty,
        meta,
        width,
        indices=torch.arange(batch, dtype=torch.int32),
    )
    assert got.dtype == torch.bfloat16 and got.shape == (batch, width) and got.stride(0) * 2 % 1024 == 0
    wanted = reference(q_exact, k_exact.view(pages, tokens, 1, 128), weights.float(), lens, table, blocks * tokens)
    for row in range(batch):
        span = int(lens[row])
        assert torch.allclose(got[row, :span].float(), wanted[row, :span], rtol=2**-7, atol=1e-3)


def test_paged_queries_of_several_tokens(upstream: Any, gemm: ModuleType) -> None:
    root, package = upstream
    reference = load_test(root, "test_attention").ref_paged_mqa_logits
    q, q_sf, q_exact = ascend_rows(torch.randn(3, 2, 16, 128), True, package)
    cache, k_exact = fused_cache(torch.randn(7, 64, 128), True, package)
    weights, table = torch.randn(6, 16).bfloat16(), torch.randint(0, 7, (3, 3), dtype=torch.int32)
    lens = torch.tensor([[100, 101], [64, 65], [1, 192]], dtype=torch.int32)
    got = gemm.fp8_fp4_paged_mqa_logits(
        (q, q_sf), cache, weights, lens, table, gemm.get_paged_mqa_logits_metadata(lens, 64, 8), 192
    )
    wanted = reference(q_exact, k_exact.view(7, 64, 1, 128), weights.float(), lens, table, 192)
    for row, span in enumerate(lens.flatten().tolist()):
        assert torch.allclose(got[row, :span].float(), wanted[row, :span], rtol=2**-7, atol=1e-3)


def test_metadata_is_called_by_its_published_signature(gemm: ModuleType) -> None:
    lens, row = torch.ones(4, 1, dtype=torch.int32), torch.arange(4, dtype=torch.int32)
    assert gemm.get_paged_mqa_logits_metadata(lens, 64, 9, row).shape == (10, 2)
    meta = gemm.get_paged_mqa_logits_metadata(context_lens=lens, block_kv=64, num_sms=9, indices=row)
    assert meta.dtype == torch.int32
    with pytest.raises(TypeError):
        gemm.get_paged_mqa_logits_metadata(lens, 64, indices=row)
    assert gemm.get_mqa_logits_metadata(row, row, 5, 8).dtype == torch.int32


@pytest.mark.parametrize("fp4", [True, False])
@pytest.mark.parametrize("block", [8, 16])
def test_sparse_columns_are_the_candidates_tokens(upstream: Any, gemm: ModuleType, fp4: bool, block: int) -> None:
    """Columns equal the dense logits of the same keys; starts need no alignment; -1 and other strays do no harm."""
    _, package = upstream
    rows, heads, keys, blocks = 6, 8, 150, 4
    q, q_sf, _ = ascend_rows(torch.randn(rows, heads, 128), fp4, package)
    k, k_sf, _ = ascend_rows(torch.randn(keys, 128), fp4, package)
    weights = torch.randn(rows, heads).bfloat16()
    start = torch.tensor([0, 3, 17, 64, 150, 9], dtype=torch.int32)
    end = torch.tensor([150, 100, 17, 70, 150, 140], dtype=torch.int32)
    own = torch.tensor(
        [[0, 1, 5, 8], [0, 2, 3, 4], [-1] * 4, [0, -1, -1, -1], [-1] * 4, [1, 3, 2**20, -1]], dtype=torch.int32
    )
    absolute = own + (start // block)[:, None]
    meta = gemm.get_sparse_mqa_logits_metadata(start, end, keys, absolute, q.dtype, block)
    got = gemm.fp8_fp4_sparse_mqa_logits((q, q_sf), (k, k_sf), weights, meta, blocks, block)
    assert got.shape == (rows, blocks * block) and got.dtype == torch.bfloat16 and got.stride(0) * 2 % 1024 == 0
    dense = gemm.fp8_fp4_mqa_logits((q, q_sf), (k, k_sf), weights, start, end, keys)
    checked = 0
    for row in range(rows):
        for slot, index in enumerate(own[row].tolist()):
            for within in range(block):
                token = index * block + within
                if index >= 0 and token < int(end[row] - start[row]):
                    assert torch.equal(got[row, slot * block + within], dense[row, token])
                    checked += 1
    assert checked > 8 * block and torch.isfinite(got).all()


@pytest.mark.parametrize("fp4", [True, False])
def test_paged_sparse_columns_are_the_candidates_tokens(upstream: Any, gemm: ModuleType, fp4: bool) -> None:
    _, package = upstream
    rows, heads, pages, tokens, block, blocks = 5, 8, 9, 64, 8, 4
    q, q_sf, _ = ascend_rows(torch.randn(rows, 1, heads, 128), fp4, package)
    cache, _ = fused_cache(torch.randn(pages, tokens, 128), fp4, package, pad=128)
    weights = torch.randn(rows, heads).bfloat16()
    lens = torch.tensor([0, 5, 64, 130, 192], dtype=torch.int32)
    table = torch.randint(0, pages, (rows, 3), dtype=torch.int32)
    table[1, 1:] = -1
    own = torch.tensor([[-1] * 4, [0, -1, -1, -1], [0, 3, 7, -1], [1, 8, 15, 16], [0, 9, 22, 23]], dtype=torch.int32)
    meta = gemm.get_paged_sparse_mqa_logits_metadata(
        lens, table, torch.arange(rows, dtype=torch.int32), tokens, own, q.dtype, block
    )
    assert meta.dtype == torch.int32
    got = gemm.fp8_fp4_paged_sparse_mqa_logits((q, q_sf), cache, weights, meta, blocks, block)
    dense = gemm.fp8_fp4_paged_mqa_logits((q, q_sf), cache, weights, lens[:, None], table, meta, 192)
    checked = 0
    for row in range(rows):
        for slot, index in enumerate(own[row].tolist()):
            for within in range(block):
                if index >= 0 and index * block + within < int(lens[row]):
                    assert torch.equal(got[row, slot * block + within], dense[row, index * block + within])
                    checked += 1
    assert checked == 5 + 24 + 26 + 32 and torch.isfinite(got).all()


def test_no_rows_and_no_keys(gemm: ModuleType) -> None:
    none, empty = torch.zeros(0, dtype=torch.int32), torch.zeros(0, 64, dtype=torch.int8)
    q = torch.zeros(0, 4, 64, dtype=torch.int8), torch.zeros(0, 4, 2, dtype=torch.int16)
    kv = torch.zeros(5, 64, dtype=torch.int8), torch.zeros(5, 2, dtype=torch.int16)
    assert gemm.fp8_fp4_mqa_logits(q, kv, torch.zeros(0, 4).bfloat16(), none, none, 7).shape == (0, 7)
    one = torch.zeros(1, dtype=torch.int32)
    q = torch.zeros(1, 4, 64, dtype=torch.int8), torch.zeros(1, 4, 2, dtype=torch.int16)
    kv = empty, torch.zeros(0, 2, dtype=torch.int16)
    assert gemm.fp8_fp4_mqa_logits(q, kv, torch.zeros(1, 4).bfloat16(), one, one, 7).shape == (1, 7)


def test_rows_worked_off_in_pieces_give_the_same(
    gemm: ModuleType, upstream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import neuron_numerics.gemm_logits as logits

    _, package = upstream
    q, q_sf, _ = ascend_rows(torch.randn(7, 8, 128), True, package)
    k, k_sf, _ = ascend_rows(torch.randn(90, 128), True, package)
    cache, _ = fused_cache(torch.randn(6, 64, 128), True, package)
    weights, start = torch.randn(7, 8).bfloat16(), torch.arange(7, dtype=torch.int32)
    lens, table = torch.full((7, 1), 190, dtype=torch.int32), torch.randint(0, 6, (7, 3), dtype=torch.int32)
    blocks = torch.randint(0, 10, (7, 4), dtype=torch.int32)

    def run() -> list[torch.Tensor]:
        meta = gemm.get_sparse_mqa_logits_metadata(start, start, 90, blocks, q.dtype, 8)
        paged = gemm.get_paged_sparse_mqa_logits_metadata(lens[:, 0], table, start, 64, blocks, q.dtype, 8)
        query = q.unsqueeze(1), q_sf.unsqueeze(1)
        return [
            gemm.fp8_fp4_mqa_logits((q, q_sf), (k, k_sf), weights, start, start, 80),
            gemm.fp8_fp4_paged_mqa_logits(query, cache, weights, lens, table, start, 190),
            gemm.fp8_fp4_sparse_mqa_logits((q, q_sf), (k, k_sf), weights, meta, 4, 8),
            gemm.fp8_fp4_paged_sparse_mqa_logits(query, cache, weights, paged, 4, 8),
        ]

    whole = run()
    monkeypatch.setattr(logits, "PIECE", 1)
    for a, b in zip(whole, run(), strict=True):
        assert torch.allclose(a.float(), b.float(), rtol=2**-7, atol=1e-4)


def kernels(gemm: ModuleType) -> dict[str, Callable[..., None]]:
    """The engine's calls as kernels of the harness: the logits go to ``out``."""

    def dense(q: Any, q_sf: Any, k: Any, k_sf: Any, weights: Any, start: Any, end: Any, out: torch.Tensor) -> None:
        out.copy_(gemm.fp8_fp4_mqa_logits((q, q_sf), (k, k_sf), weights, start, end, max_seqlen_k=out.shape[1]))

    def sparse(q: Any, q_sf: Any, k: Any, k_sf: Any, weights: Any, start: Any, blocks: Any, out: torch.Tensor) -> None:
        meta = gemm.get_sparse_mqa_logits_metadata(start, start, k.shape[0], blocks, torch.int8, 8)
        out.copy_(gemm.fp8_fp4_sparse_mqa_logits((q, q_sf), (k, k_sf), weights, meta, blocks.shape[1], 8))

    def paged(q: Any, q_sf: Any, cache: Any, weights: Any, lens: Any, table: Any, out: torch.Tensor) -> None:
        meta = gemm.get_paged_mqa_logits_metadata(lens, cache.shape[1], 8, indices=lens[:, 0])
        out.copy_(
            gemm.fp8_fp4_paged_mqa_logits(
                (q, q_sf),
                cache,
                weights,
                lens,
                table,
                meta,
                out.shape[1],
                indices=lens[:, 0],
            )
        )

    def paged_sparse(
        q: Any, q_sf: Any, cache: Any, weights: Any, lens: Any, table: Any, blocks: Any, out: torch.Tensor
    ) -> None:
        meta = gemm.get_paged_sparse_mqa_logits_metadata(lens, table, lens, cache.shape[1], blocks, torch.int8, 8)
        out.copy_(gemm.fp8_fp4_paged_sparse_mqa_logits((q, q_sf), cache, weights, meta, blocks.shape[1], 8))

    return {"dense": dense, "sparse": sparse, "paged": paged, "paged_sparse": paged_sparse}


def step_arguments(name: str, rows: int, keys: int, pages: int) -> list[torch.Tensor]:
    q = torch.randint(-128, 128, (rows, 4, 64), dtype=torch.int8)
    q_sf = torch.full((rows, 4, 2), 0x7F7F, dtype=torch.int16)
    weights, column = torch.randn(rows, 4).bfloat16(), torch.arange(rows, dtype=torch.int32)
    if name in ("dense", "sparse"):
        k, k_sf = torch.randint(-128, 128, (keys, 64), dtype=torch.int8), torch.full(
            (keys, 2), 0x7F7F, dtype=torch.int16
        )
        if name == "dense":
            return [q, q_sf, k, k_sf, weights, column, column + 9, torch.empty(rows, 16).bfloat16()]
        return [
            q,
            q_sf,
            k,
            k_sf,
            weights,
            column,
            torch.zeros(rows, 4, dtype=torch.int32),
            torch.empty(rows, 32).bfloat16(),
        ]
    cache = torch.zeros(pages, 64, 1, 68, dtype=torch.uint8)
    query, table = [q.unsqueeze(1), q_sf.unsqueeze(1)], torch.zeros(rows, 3, dtype=torch.int32)
    if name == "paged":
        return [*query, cache, weights, column.unsqueeze(1), table, torch.empty(rows, 190).bfloat16()]
    return [
        *query,
        cache,
        weights,
        column,
        table,
        torch.zeros(rows, 4, dtype=torch.int32),
        torch.empty(rows, 32).bfloat16(),
    ]


@pytest.mark.parametrize("name", ["dense", "sparse", "paged", "paged_sparse"])
def test_calls_are_static(gemm: ModuleType, name: str) -> None:
    kernel = kernels(gemm)[name]
    arguments = [guard(x) for x in step_arguments(name, 3, 40, 5)]
    check_fake(kernel, *arguments)
    check_kernel(kernel, *arguments, written=("out",))
    assert wide_ops(kernel, *arguments) == []


@pytest.mark.parametrize("name", ["sparse", "paged", "paged_sparse"])
def test_cost_does_not_grow_with_the_cache(gemm: ModuleType, name: str) -> None:
    kernel = kernels(gemm)[name]
    small, large = (new_bytes(kernel, *step_arguments(name, 3, keys, pages)) for keys, pages in ((100, 8), (4000, 400)))
    assert small == large
