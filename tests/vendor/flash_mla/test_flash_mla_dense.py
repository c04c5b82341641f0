"""Dense attention through upstream's own test of it, and at its edges."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import flash_mla_oracle as oracle
import pytest
import torch
from flash_mla_support import package

from overrides.vendor.flash_mla import flash_mla_interface
from overrides.vendor.flash_mla.flash_mla_interface import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)


def is_allclose(
    name: str, ans: torch.Tensor, ref: torch.Tensor, abs_tol: float, rel_tol: float, cos_diff_tol: float = math.inf
) -> bool:
    """What upstream's comparison asks for: each element within one of both tolerances, and the whole in direction."""
    ans, ref = ans.detach().double(), ref.detach().double()
    error = (ans - ref).abs()
    difference = 1 - 2 * (ans * ref).sum() / (ans.square() + ref.square()).sum()
    return bool(((error <= abs_tol) | (error <= rel_tol * ref.abs())).all()) and float(difference) <= cos_diff_tol


@pytest.fixture
def upstream_test(load: Callable[..., Any], flash_mla: types.ModuleType) -> Iterator[Any]:
    timing = package("triton", testing=types.SimpleNamespace(do_bench=lambda run, warmup, rep: [run(), 1.0][1]))
    loaded = load(
        "flash_mla",
        "tests/test_fmha_sm100.py",
        triton=timing,
        kernelkit=package("kernelkit", check_is_allclose=is_allclose),
    )
    torch.set_default_dtype(torch.bfloat16)
    yield loaded
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("varlen", [False, True])
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2)])
@pytest.mark.parametrize("d", [128, 192])
@pytest.mark.parametrize("causal", [False, True])
def test_upstreams_own(upstream_test: Any, varlen: bool, heads: int, key_heads: int, d: int, causal: bool) -> None:
    # Its reference reads the head counts from the module, where its command line puts them.
    upstream_test.h, upstream_test.h_k = heads, key_heads
    upstream_test.test_flash_attention(2, 40, 56, varlen, heads, key_heads, d, 128, causal, 0, False)


def sequences(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("logits", [1 << 25, 100])
def test_empty_sequences_and_more_queries_than_keys(causal: bool, logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_mla_interface, "_DENSE_LOGITS", logits)
    counts, key_counts = [3, 0, 9, 4], [5, 4, 6, 0]
    q, k, v = torch.randn(16, 4, 64), torch.randn(15, 2, 64), torch.randn(15, 2, 32) / 4
    starts, key_starts = sequences(counts), sequences(key_counts)
    out, lse = flash_attn_varlen_func(q, k, v, starts, key_starts, 9, 6, causal=causal)
    assert lse.stride() == (1, 16) and out.shape == (16, 4, 32)
    for i, (count, keys) in enumerate(zip(counts, key_counts, strict=True)):
        mine, theirs = slice(int(starts[i]), int(starts[i]) + count), slice(
            int(key_starts[i]), int(key_starts[i]) + keys
        )
        seen = (
            torch.arange(keys) <= torch.arange(count)[:, None] + (keys - count)
            if causal
            else torch.ones(count, keys, dtype=torch.bool)
        )
        for head in range(4):
            key, value = k[theirs, head // 2].double(), v[theirs, head // 2].double()
            logits_here = (q[mine, head].double() @ key.T / 8).masked_fill(~seen, -math.inf)
            total = logits_here.logsumexp(1)
            want = (logits_here - total.masked_fill(total == -math.inf, 0)[:, None]).exp() @ value
            assert torch.allclose(out[mine, head].double(), want, atol=1e-6)
            assert torch.allclose(lse[mine, head].double(), total, atol=1e-6)


def test_packed_forms() -> None:
    q, k, v = (torch.randn(12, 2, size).to(torch.bfloat16) for size in (64, 64, 32))
    starts = sequences([5, 7])
    want = flash_attn_varlen_func(q, k, v, starts, starts, 7, 7, causal=True, softmax_scale=0.2)
    packed = flash_attn_varlen_qkvpacked_func(torch.cat((q, k, v), 2), starts, 7, 64, causal=True, softmax_scale=0.2)
    pair = flash_attn_varlen_kvpacked_func(
        q, torch.cat((k, v), 2), starts, starts, 7, 7, 64, causal=True, softmax_scale=0.2
    )
    for got in (packed, pair):
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("wrong", [{"dropout_p": 0.1}, {"deterministic": True}])
def test_refusals(wrong: dict[str, Any]) -> None:
    q, starts = torch.randn(2, 1, 8), sequences([2])
    with pytest.raises(AssertionError):
        flash_attn_varlen_func(q, q, q, starts, starts, 2, 2, **wrong)


def test_agrees_with_the_sparse_form() -> None:
    """Every query that names all keys is dense attention with one key head whose values are its keys."""
    q, kv = torch.randn(6, 4, 512), torch.randn(9, 1, 512) / 4
    index = torch.arange(9, dtype=torch.int32).expand(6, 1, 9)
    sparse = flash_mla_interface.flash_mla_sparse_fwd(q, kv, index, 0.1)
    dense = flash_attn_varlen_func(q, kv, kv, sequences([6]), sequences([9]), 6, 9, softmax_scale=0.1)
    want = oracle.attention(q, kv.transpose(0, 1).expand(6, 9, 512), torch.ones(6, 9, dtype=torch.bool), 0.1, 512, None)
    for out, lse in ((sparse[0], sparse[2]), dense):
        assert (out - want[0]).abs().max() < 1e-6 and torch.allclose(lse.double(), want[2], atol=1e-6)
