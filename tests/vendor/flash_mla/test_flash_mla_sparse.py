"""Sparse prefill and decode against their definitions, and how the engine itself calls them."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import flash_mla_oracle as oracle
import pytest
import torch
from harness import check_fake, check_fullgraph, count_ops, new_bytes, wide_ops

from neuron_numerics import kvcache_attention
from overrides.vendor.flash_mla.flash_mla_interface import (
    FlashMLASchedMeta,
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
)

SCALE = 512**-0.5


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = x.double(), y.double()
    whole = (x * x + y * y).sum()
    return 0.0 if not whole else float(1 - 2 * (x * y).sum() / whole)


def check(got: tuple[torch.Tensor, ...], want: tuple[torch.Tensor, ...], exact: bool) -> None:
    """out within 2e-3 (bf16) or 1e-6 (fp32) of values below 1; logits and their sums are fp32 either way."""
    out, reference = got[0].double(), want[0]
    assert out.shape == reference.shape and torch.isfinite(out).all() and reference.abs().max() < 1
    assert (out - reference).abs().max() <= (1e-6 if exact else 2e-3), (out - reference).abs().max()
    assert calc_diff(out, reference) <= (1e-11 if exact else 1e-5)
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        assert mine.dtype == torch.float32 and torch.equal(torch.isinf(mine), torch.isinf(theirs))
        assert torch.equal(mine[torch.isinf(mine)].double(), theirs[torch.isinf(theirs)])
        finite = torch.isfinite(theirs)
        assert torch.allclose(mine.double()[finite], theirs[finite], rtol=1e-6, atol=1e-6)


def sinks(heads: int) -> torch.Tensor:
    sink = torch.randn(heads)
    sink[0], sink[1], sink[2], sink[3] = math.inf, -math.inf, 80.0, -80.0
    return sink


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("with_sink", "with_length"), [(False, False), (True, False), (False, True), (True, True)])
def test_prefill(dtype: torch.dtype, with_sink: bool, with_length: bool) -> None:
    s_q, heads, s_kv, topk = 11, 8, 40, 24
    q = torch.randn(s_q, heads, 512).to(dtype)
    kv = (torch.randn(s_kv, 1, 512) / 4).to(dtype)
    indices = torch.randint(-4, s_kv + 6, (s_q, 1, topk), dtype=torch.int32)
    indices[2] = -1
    indices[3] = s_kv
    indices[4, 0, 1:] = indices[4, 0, 0] = 5
    indices[5, 0, :3] = torch.tensor([2**31 - 1, -(2**31), s_kv - 1], dtype=torch.int32)
    sink = sinks(heads) if with_sink else None
    length = torch.randint(1, topk, (s_q,), dtype=torch.int32) if with_length else None
    if length is not None:
        length[6], length[7] = 0, topk + 3
    chosen = indices.squeeze(1).long()
    valid = (chosen >= 0) & (chosen < s_kv)
    if length is not None:
        valid &= torch.arange(topk) < length[:, None]
    want = oracle.attention(q, kv[:, 0][chosen.clamp(0, s_kv - 1)], valid, SCALE, 512, sink)
    got = flash_mla_sparse_fwd(q, kv, indices, SCALE, attn_sink=sink, topk_length=length)
    assert got[0].dtype == dtype and got[0].is_contiguous()
    check(got, want, exact=dtype == torch.float32)


def test_prefill_of_narrow_values_and_strided_inputs() -> None:
    q = torch.randn(5, 2, 4, 512).to(torch.bfloat16)[:, 1]
    kv = (torch.randn(30, 2, 513) / 4).to(torch.bfloat16)[:, 1:, 1:]
    indices = torch.randint(0, 30, (5, 1, 40), dtype=torch.int32)[..., 3:19]
    assert not (q.is_contiguous() or kv.is_contiguous() or indices.is_contiguous())
    got = flash_mla_sparse_fwd(q, kv, indices, SCALE, d_v=448)
    want = flash_mla_sparse_fwd(q.contiguous(), kv.contiguous(), indices.contiguous(), SCALE)
    assert torch.equal(got[0], want[0][..., :448]) and torch.equal(got[1], want[1]) and torch.equal(got[2], want[2])


@pytest.mark.parametrize(("s_q", "s_kv", "topk"), [(0, 5, 4), (3, 0, 4), (3, 5, 0)])
def test_prefill_of_nothing(s_q: int, s_kv: int, topk: int) -> None:
    q, kv = torch.randn(s_q, 4, 512).to(torch.bfloat16), torch.randn(s_kv, 1, 512).to(torch.bfloat16)
    out, top, lse = flash_mla_sparse_fwd(
        q, kv, torch.zeros((s_q, 1, topk), dtype=torch.int32), SCALE, attn_sink=torch.zeros(4)
    )
    assert out.shape == (s_q, 4, 512) and not out.any()
    assert (top == -math.inf).all() and (lse == math.inf).all() and top.shape == lse.shape == (s_q, 4)


def test_rows_that_do_not_count_may_hold_anything() -> None:
    q, kv = torch.randn(3, 4, 512).to(torch.bfloat16), torch.randn(8, 1, 512).to(torch.bfloat16)
    indices = torch.tensor([[[1, 2, -1, 0]], [[3, 9, 4, 0]], [[-1, -5, 8, 0]]], dtype=torch.int32)
    length = torch.tensor([3, 3, 3], dtype=torch.int32)
    want = flash_mla_sparse_fwd(q, kv, indices, SCALE, topk_length=length)
    kv[0], kv[7] = torch.nan, torch.inf
    got = flash_mla_sparse_fwd(q, kv, indices, SCALE, topk_length=length)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_slices_agree_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    q, kv = torch.randn(13, 4, 512).to(torch.bfloat16), torch.randn(50, 1, 512).to(torch.bfloat16)
    indices = torch.randint(-1, 50, (13, 1, 16), dtype=torch.int32)
    whole = flash_mla_sparse_fwd(q, kv, indices, SCALE)
    for rows in (1, 3, 12):
        monkeypatch.setattr(kvcache_attention, "GATHERED_ELEMENTS", rows * 16 * 512)
        assert all(torch.equal(a, b) for a, b in zip(flash_mla_sparse_fwd(q, kv, indices, SCALE), whole, strict=True))


LAYOUTS = {"fp8": (528,), "fp8+fp8": (528, 528), "fp8+fp4": (528, 288)}


class Decode:
    """Arguments of one decode call, and what it should give."""

    def __init__(
        self,
        layout: str,
        b: int = 3,
        s_q: int = 2,
        heads: int = 8,
        spare: int = 0,
        lengths: bool = False,
        sink: bool = False,
    ):
        self.q = torch.randn(b, s_q, heads, 512).to(torch.bfloat16)
        blocks, sizes, topks = (7, 6), (5, 9), (12, 20)
        self.caches = [
            oracle.random_cache(blocks[i], sizes[i], width, spare) for i, width in enumerate(LAYOUTS[layout])
        ]
        self.indices, self.lengths, rows, valid = [], [], [], []
        for i, cache in enumerate(self.caches):
            count = blocks[i] * sizes[i]
            index = torch.randint(0, count, (b, s_q, topks[i]), dtype=torch.int32)
            index[torch.rand(index.shape) < 0.2] = -1
            index[0, 0] = -1
            length = torch.randint(0, topks[i] + 1, (b,), dtype=torch.int32)
            self.indices.append(index)
            self.lengths.append(length if lengths else None)
            counts = index != -1
            if lengths:
                counts &= torch.arange(topks[i]) < length[:, None, None]
            rows.append(cache.values[index.clamp_min(0).long()])
            valid.append(counts)
        self.sink = sinks(heads) if sink else None
        out, _, lse = oracle.attention(
            self.q.flatten(0, 1),
            torch.cat(rows, 2).flatten(0, 1),
            torch.cat(valid, 2).flatten(0, 1),
            SCALE,
            512,
            self.sink,
        )
        self.want = out.view(b, s_q, heads, 512), lse.view(b, s_q, heads).transpose(1, 2)

    def extra(self) -> dict[str, Any]:
        if len(self.caches) == 1:
            return {}
        return {
            "extra_k_cache": self.caches[1].stored, "extra_indices_in_kvcache": self.indices[1], "extra_topk_length": self.lengths[1],
        }  # fmt: skip

    def run(self, **changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
        arguments: dict[str, Any] = {
            "q": self.q, "k_cache": self.caches[0].stored, "block_table": None, "cache_seqlens": None, "head_dim_v": 512,
            "tile_scheduler_metadata": FlashMLASchedMeta(), "indices": self.indices[0], "attn_sink": self.sink,
            "topk_length": self.lengths[0], **self.extra(),
        }  # fmt: skip
        return flash_mla_with_kvcache(**{**arguments, **changes})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("lengths", "sink", "spare"), [(False, False, 0), (True, True, 0), (True, False, 176), (False, True, 7)]
)
def test_decode(layout: str, lengths: bool, sink: bool, spare: int) -> None:
    case = Decode(layout, spare=spare, lengths=lengths, sink=sink)
    out, lse = case.run()
    assert out.dtype == torch.bfloat16 and out.is_contiguous() and lse.stride() == (2 * 8, 1, 8)
    check((out, lse), case.want, exact=False)
    exact, _ = case.run(q=case.q.float())
    check((exact, lse), case.want, exact=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_decode_of_caches_of_other_byte_dtypes(dtype: torch.dtype) -> None:
    case = Decode("fp8+fp4")
    want = case.run()
    got = case.run(k_cache=case.caches[0].stored.view(dtype), extra_k_cache=case.caches[1].stored.view(dtype))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_decode_ignores_rows_that_do_not_count() -> None:
    case = Decode("fp8+fp4", lengths=True)
    want = case.run()
    named = [set(index[index >= 0].tolist()) for index in case.indices]
    for cache, index, length, rows in zip(case.caches, case.indices, case.lengths, named, strict=True):
        count = cache.values.shape[0]
        past = torch.arange(index.shape[2]) >= length[:, None, None]
        # Past the lengths anything may stand, rows outside of the cache among it; rows that nobody names hold NaN.
        index[past.expand_as(index)] = torch.tensor(2**30, dtype=torch.int32)
        for row in set(range(count)) - rows:
            cache.stored[row // cache.stored.shape[1], row % cache.stored.shape[1]] = 0xFF
    got = case.run()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_query_does_not_depend_on_its_batch() -> None:
    case = Decode("fp8+fp4", b=6, lengths=True, sink=True)
    for flag in (True, False):
        whole = case.run(enable_batch_invariant=flag)
        for i in range(6):
            alone = case.run(
                q=case.q[i : i + 1], indices=case.indices[0][i : i + 1], topk_length=case.lengths[0][i : i + 1],
                extra_indices_in_kvcache=case.indices[1][i : i + 1], extra_topk_length=case.lengths[1][i : i + 1],
                enable_batch_invariant=flag,
            )  # fmt: skip
            assert all(torch.equal(a[0], b[i]) for a, b in zip(alone, whole, strict=True))


def test_metadata_binds_the_calls_that_share_it() -> None:
    case = Decode("fp8+fp4")
    meta, nothing = get_mla_metadata(1, 2, anything=3)
    assert nothing is None and not meta.have_initialized and meta.config is None
    first = case.run(tile_scheduler_metadata=meta)
    assert meta.have_initialized and meta.config == FlashMLASchedMeta.Config(
        3, 2, 8, 5, 1, False, True, 12, 9, 20, False
    )
    assert meta.tile_scheduler_metadata is None and meta.num_splits is None
    again = case.run(tile_scheduler_metadata=meta)
    assert torch.equal(first[0], again[0])
    changes = {
        "q": case.q[:, :1], "indices": case.indices[0][..., :7], "extra_indices_in_kvcache": case.indices[1][..., :7],
        "enable_batch_invariant": True, "k_cache": oracle.random_cache(2, 40, 528).stored,
    }  # fmt: skip
    for name, value in changes.items():
        with pytest.raises(AssertionError):
            case.run(**{name: value}, tile_scheduler_metadata=meta)


@pytest.mark.parametrize(
    "change",
    [
        {"indices": None}, {"causal": True}, {"is_fp8_kvcache": False}, {"num_splits": 1}, {"tile_scheduler_metadata": None}, {"head_dim_v": 256},
        {"extra_k_cache": torch.zeros(1, 1, 1, 528, dtype=torch.uint8)}, {"extra_topk_length": torch.zeros(3, dtype=torch.int32)},
        {"k_cache": torch.zeros(1, 1, 1, 288, dtype=torch.uint8)}, {"k_cache": torch.zeros(1, 1, 1, 584, dtype=torch.uint8)},
        {"k_cache": torch.zeros(1, 1, 2, 528, dtype=torch.uint8)}, {"indices": torch.zeros(3, 2, 4, dtype=torch.int64)},
    ],
    ids=lambda change: "+".join(change),
)  # fmt: skip
def test_decode_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        Decode("fp8").run(**change)


def decode_step(
    q: torch.Tensor, k: torch.Tensor, index: torch.Tensor, sink: torch.Tensor, extra: torch.Tensor, extra_index: torch.Tensor,
    length: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
) -> None:  # fmt: skip
    result = flash_mla_with_kvcache(
        q,
        k,
        None,
        None,
        512,
        FlashMLASchedMeta(),
        None,
        SCALE,
        False,
        True,
        index,
        sink,
        extra,
        extra_index,
        length,
        length,
        True,
    )
    out.copy_(result[0])
    lse.copy_(result[1])


def step_arguments(blocks: int = 7) -> tuple[torch.Tensor, ...]:
    b, heads = 4, 8
    caches = torch.zeros(blocks, 5, 1, 528, dtype=torch.uint8), torch.zeros(blocks, 9, 1, 288, dtype=torch.uint8)
    index = torch.randint(-1, 35, (b, 1, 12), dtype=torch.int32)
    length = torch.randint(1, 12, (b,), dtype=torch.int32)
    q = torch.randn(b, 1, heads, 512).to(torch.bfloat16)
    return (
        q,
        caches[0],
        index,
        torch.zeros(heads),
        caches[1],
        index.clone(),
        length,
        torch.empty_like(q),
        torch.empty(b, heads, 1),
    )


def prefill_step(q: torch.Tensor, kv: torch.Tensor, index: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
    result = flash_mla_sparse_fwd(q, kv, index, SCALE)
    out.copy_(result[0])
    lse.copy_(result[2])


def test_static_gate() -> None:
    arguments = step_arguments()
    check_fake(decode_step, *arguments)
    check_fullgraph(decode_step, *arguments)
    assert wide_ops(decode_step, *arguments) == []
    q = torch.randn(6, 4, 512).to(torch.bfloat16)
    prompt = (
        q,
        torch.randn(20, 1, 512).to(torch.bfloat16),
        torch.randint(-1, 22, (6, 1, 8), dtype=torch.int32),
        torch.empty_like(q),
    )
    check_fake(prefill_step, *prompt, torch.empty(6, 4))
    check_fullgraph(prefill_step, *prompt, torch.empty(6, 4))


def test_cost_does_not_grow_with_the_cache() -> None:
    small, large = step_arguments(7), step_arguments(700)
    assert new_bytes(decode_step, *small) == new_bytes(decode_step, *large) > 0
    assert len(count_ops(decode_step, *small)) <= 63


def test_memory_of_a_prompt_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered rows are held for a slice of the queries at a time: of what lives at once, no part grows with the prompt."""
    monkeypatch.setattr(kvcache_attention, "GATHERED_ELEMENTS", 8 * 64 * 512)
    sizes: list[int] = []
    right = kvcache_attention.take_rows

    def watched(*args: Any) -> torch.Tensor:
        rows = right(*args)
        sizes.append(rows.numel())
        return rows

    monkeypatch.setattr(kvcache_attention, "take_rows", watched)
    q, kv = torch.randn(100, 2, 512).to(torch.bfloat16), torch.randn(90, 1, 512).to(torch.bfloat16)
    flash_mla_sparse_fwd(q, kv, torch.randint(0, 90, (100, 1, 64), dtype=torch.int32), SCALE)
    assert len(sizes) == 13 and max(sizes) <= 8 * 64 * 512


def test_the_engine_calls_it(load: Callable[..., Any], flash_mla: types.ModuleType) -> None:
    """``attention_backend`` as it is in the engine: heads padded to 64, extra caches, a sink, lengths."""
    backend = load("deepinfer", "deepinfer/model_executor/layers/attention_backend.py")
    case = Decode("fp8+fp4", b=6, s_q=1, heads=10, lengths=True, sink=True)
    out, lse = backend.decode_mla_mqa_sparse(
        case.q.squeeze(1), case.caches[0].stored, 512, case.indices[0].squeeze(1), FlashMLASchedMeta(), SCALE, case.sink, True,
        case.lengths[0], case.caches[1].stored, case.indices[1].squeeze(1), case.lengths[1],
    )  # fmt: skip
    check((out, lse), (case.want[0].squeeze(1), case.want[1].squeeze(2)), exact=False)
    q, kv = torch.randn(5, 10, 512).to(torch.bfloat16), (torch.randn(20, 1, 512) / 4).to(torch.bfloat16)
    index, length = torch.randint(-1, 20, (5, 9), dtype=torch.int32), torch.randint(0, 9, (5,), dtype=torch.int32)
    valid = (index >= 0) & (torch.arange(9) < length[:, None])
    want = oracle.attention(q, kv[:, 0][index.clamp_min(0).long()], valid, SCALE, 512, case.sink)
    check(backend.prefill_attn_varlen_sparse(q, kv, index, SCALE, case.sink, length), (want[0], want[2]), exact=False)
