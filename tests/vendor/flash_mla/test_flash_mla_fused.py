"""The fused module against upstream's own composition of norm, RoPE and attention, and the layouts of its neighbours."""

from __future__ import annotations

import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import flash_mla_oracle as oracle
import pytest
import torch
from flash_mla_support import package
from harness import wide_ops

from overrides.vendor.flash_mla.fused_norm_rope_attn_rope_cast import decode, permute_q_b_proj, permute_wv_proj, prefill

SCALE, EPS, HEADS, GROUPS = 512**-0.5, 1e-4, 16, 2
FIXED: dict[str, Any] = {
    "rms_norm_eps": EPS, "is_rope_neox_style": False, "rope_dim": 64, "n_wv_group": GROUPS, "num_per_channels": 32,
    "use_tma_aligned_col_major_sf": True, "round_sf": True, "use_packed_ue8m0": True,
}  # fmt: skip


def reference_prefill(p: Any, t: Any, factor: torch.Tensor | None) -> tuple[Any, ...]:
    """Stands in for upstream's ``ref.ref_sparse_attn_fwd``, which its release does not hold."""
    index = t.indices.squeeze(1).long()
    valid = (index >= 0) & (index < t.kv.shape[0])
    if t.topk_length is not None:
        valid &= torch.arange(index.shape[1]) < t.topk_length[:, None]
    scale = t.sm_scale if factor is None else t.sm_scale * factor.double()[..., None]
    out, top, lse = oracle.attention(t.q, t.kv[:, 0][index.clamp(0, t.kv.shape[0] - 1)], valid, scale, 512, t.attn_sink)
    return None, out.float(), top, lse


def reference_decode(p: Any, t: Any, factor: torch.Tensor | None) -> tuple[Any, ...]:
    scale = t.sm_scale if factor is None else t.sm_scale * factor.double().flatten(0, 1)[..., None]
    out, _, lse = oracle.attention(t.q.flatten(0, 1), t.rows, t.valid, scale, 512, t.attn_sink)
    return out.view(t.q.shape), lse.view(t.q.shape[:3]).transpose(1, 2)


@pytest.fixture
def upstream(load: Callable[..., Any], flash_mla: types.ModuleType) -> Any:
    """Upstream's test of the fused kernels, for the references it composes."""
    names = {"TestParam": None, "Testcase": None, "RawTestParamForDecode": None, "TestcaseForDecode": None}
    kit = package(
        "kernelkit", get_current_platform=lambda: 1, Platform=SimpleNamespace(CUDA=1), Counter=SimpleNamespace
    )
    ref = package("ref", ref_sparse_attn_fwd=reference_prefill, ref_sparse_attn_decode=reference_decode)
    loaded = load(
        "flash_mla", "tests/test-fused-norm-rope-attn-rope-cast.py", tile_kernels=package("tile_kernels"), deep_gemm=package("deep_gemm"),
        kernelkit=kit, lib=package("lib", **names), quant=package("quant"), ref=ref,
    )  # fmt: skip
    # Its own multiply-add is a TileLang kernel.
    loaded._fma = lambda a, b, c: (a.double() * b.double() + c.double()).float()
    assert loaded.rms_norm_eps == EPS
    return loaded


def permuted(q: torch.Tensor) -> torch.Tensor:
    """Queries [s, h, 512] in the order that a permuted projection gives."""
    return q.unflatten(2, (32, 16)).transpose(1, 2).reshape(q.shape)


def plain(out: torch.Tensor, sf: torch.Tensor) -> torch.Tensor:
    """fp64 [s, h, 512] of the cast result, each value times its scale, heads in order again."""
    tokens = out.shape[0]
    byte = sf.contiguous().view(torch.uint8).double()
    values = out.double().unflatten(2, (-1, 32)) * (2.0 ** (byte - 127))[..., None]
    return values.unflatten(2, (16, HEADS // GROUPS)).transpose(2, 3).reshape(tokens, HEADS, 512)


def check_cast(out: torch.Tensor, sf: torch.Tensor, want: torch.Tensor) -> None:
    """Within e4m3's rounding of the reference, whose own cast gives the same scales and nearly all of the same values."""
    tokens = out.shape[0]
    assert (
        out.shape == (tokens, GROUPS, HEADS // GROUPS * 512)
        and out.dtype == torch.float8_e4m3fn
        and out.is_contiguous()
    )
    assert sf.shape == (tokens, GROUPS, HEADS // GROUPS * 4) and sf.dtype == torch.int32 and sf.stride(0) == 1
    assert sf.stride(2) == -(-tokens // 4) * 4
    got = plain(out, sf)
    groups = want.double().unflatten(2, (-1, 32))
    scale = 2.0 ** (groups.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448).log2().ceil()
    rounded = ((groups / scale).float().to(torch.float8_e4m3fn).double() * scale).flatten(2)
    assert ((got - want).abs() <= want.abs() / 16 + scale.expand_as(groups).flatten(2) * 2.0**-9).all()
    assert (got == rounded).double().mean() > 0.995


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("edges", [False, True])
def test_prefill(upstream: Any, norm: bool, edges: bool) -> None:
    s_q, s_kv, topk = 6, 30, 12
    q, kv = torch.randn(s_q, HEADS, 512).to(torch.bfloat16), (torch.randn(s_kv, 1, 512) / 4).to(torch.bfloat16)
    indices = torch.randint(-2, s_kv + 2, (s_q, 1, topk), dtype=torch.int32)
    sink, length = None, None
    if edges:
        sink, length = torch.randn(HEADS), torch.randint(1, topk, (s_q,), dtype=torch.int32)
        indices[1] = -1
        length[2] = 0
    positions = torch.randint(0, 4096, (s_q,), dtype=torch.int32)
    table = upstream.cos_sin_cache[:4096].contiguous()
    case = SimpleNamespace(q=q, kv=kv, indices=indices, sm_scale=SCALE, attn_sink=sink, topk_length=length)
    want = upstream.ref_fused_norm_rope_attn_rope_cast_fwd(
        SimpleNamespace(d_qk=512, d_v=512), case, norm, table, positions.long()
    )
    got = prefill(
        enable_q_norm=norm, token_positions=positions, cos_sin_cache=table, q=permuted(q), kv=kv, indices=indices, sm_scale=SCALE,
        attn_sink=sink, topk_length=length, **FIXED,
    )  # fmt: skip
    check_cast(got[0], got[1], want[0])
    for mine, theirs in zip(got[2:], want[1:], strict=True):
        assert mine.dtype == torch.float32 and torch.allclose(mine.double(), theirs, rtol=1e-6, atol=1e-5)
    if edges:
        assert not plain(*got[:2])[1:3].any()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("extra", [None, 528, 288])
def test_decode(upstream: Any, norm: bool, extra: int | None) -> None:
    b, s_q = 3, 2
    q = torch.randn(b, s_q, HEADS, 512).to(torch.bfloat16)
    caches = [oracle.random_cache(5, 6, 528), *([] if extra is None else [oracle.random_cache(4, 9, extra)])]
    index = [torch.randint(-1, 30, (b * s_q, topk), dtype=torch.int32) for topk in (8, 11)[: len(caches)]]
    length = [torch.randint(0, 8, (b * s_q,), dtype=torch.int32) for _ in caches]
    rows = [cache.values[i.clamp_min(0).long()] for cache, i in zip(caches, index, strict=True)]
    valid = [(i >= 0) & (torch.arange(i.shape[1]) < n[:, None]) for i, n in zip(index, length, strict=True)]
    sink = torch.randn(HEADS)
    positions = torch.randint(0, 512, (b * s_q,), dtype=torch.int32)
    table = upstream.cos_sin_cache[:512].contiguous()
    case = SimpleNamespace(q=q, rows=torch.cat(rows, 1), valid=torch.cat(valid, 1), sm_scale=SCALE, attn_sink=sink)
    want = upstream.ref_fused_norm_rope_attn_rope_cast_decode(
        SimpleNamespace(d_qk=512, d_v=512), case, norm, table, positions.long()
    )
    more: dict[str, Any] = {}
    if extra is not None:
        more = {"extra_k_cache": caches[1].stored, "extra_indices_in_kvcache": index[1], "extra_topk_length": length[1]}
    arguments = dict(
        enable_q_norm=norm, token_positions=positions, cos_sin_cache=table, q=permuted(q.flatten(0, 1)), k_cache=caches[0].stored,
        indices_in_kvcache=index[0], sm_scale=SCALE, attn_sink=sink, topk_length=length[0], **more, **FIXED,
    )  # fmt: skip
    out, sf, lse = decode(**arguments)
    check_rounded(plain(out, sf), want[0].double())
    assert torch.allclose(lse.double(), want[1], rtol=1e-6, atol=1e-5)
    assert wide_ops(lambda: decode(**arguments)) == []


def check_rounded(got: torch.Tensor, want: torch.Tensor) -> None:
    """The reference of the decode is rounded to bf16, so only the tolerance is checked: upstream's own, and closer."""
    assert ((got - want).abs() <= want.abs() / 14 + 2e-4).all()


def test_q_b_proj_gives_queries_in_the_kernels_order() -> None:
    weight, sf = (
        torch.randint(-8, 8, (HEADS * 512, 64)).float().to(torch.float8_e4m3fn),
        torch.randint(0, 99, (3, HEADS * 512), dtype=torch.int32).T,
    )
    permuted_weight, permuted_sf = permute_q_b_proj((weight, sf), HEADS, 512)
    x = torch.randint(-4, 4, (5, 64)).double()
    assert permuted_weight.dtype == weight.dtype and permuted_weight.shape == weight.shape
    want = permuted((x @ weight.double().T).view(5, HEADS, 512))
    assert torch.equal((x @ permuted_weight.double().T).view(5, HEADS, 512), want)
    # A row's scales go with it.
    assert permuted_sf.shape == sf.shape and permuted_sf.stride() == (1, HEADS * 512)
    row_of = (permuted(torch.arange(HEADS * 512).view(1, HEADS, 512))).flatten()
    assert torch.equal(permuted_sf, sf[row_of]) and torch.equal(
        permuted_weight.view(torch.uint8), weight.view(torch.uint8)[row_of]
    )


def test_wv_proj_takes_the_results_in_the_kernels_order() -> None:
    size, d_out = HEADS // GROUPS, 6
    weight = torch.randint(-8, 8, (GROUPS, d_out, size * 512)).float().to(torch.float8_e4m3fn)
    sf = torch.randint(0, 2**31 - 1, (GROUPS, size * 4, d_out), dtype=torch.int32).transpose(1, 2)
    permuted_weight, permuted_sf = permute_wv_proj((weight, sf), size, 512)
    assert (
        permuted_weight.shape == weight.shape and permuted_sf.shape == sf.shape and permuted_sf.stride()[1:] == (1, 8)
    )
    o = torch.randint(-4, 4, (GROUPS, size, 512)).double()
    ordered = o.unflatten(2, (16, 32)).transpose(1, 2).reshape(GROUPS, -1)
    want = torch.einsum("gk,gdk->gd", o.flatten(1), weight.double())
    assert torch.equal(torch.einsum("gk,gdk->gd", ordered, permuted_weight.double()), want)
    byte = sf.contiguous().view(torch.uint8).view(GROUPS, d_out, size, 16)
    assert torch.equal(permuted_sf.contiguous().view(torch.uint8).view(GROUPS, d_out, 16, size), byte.transpose(2, 3))


@pytest.mark.parametrize(
    "wrong",
    [{"is_rope_neox_style": True}, {"rope_dim": 32}, {"num_per_channels": 128}, {"round_sf": False}, {"use_packed_ue8m0": False}],
    ids=str,
)  # fmt: skip
def test_refusals(wrong: dict[str, Any]) -> None:
    q = torch.zeros(1, HEADS, 512, dtype=torch.bfloat16)
    with pytest.raises(AssertionError):
        prefill(
            enable_q_norm=False, token_positions=torch.zeros(1, dtype=torch.int32), cos_sin_cache=torch.zeros(1, 64), q=q, kv=q[:, :1],
            indices=torch.zeros(1, 1, 1, dtype=torch.int32), sm_scale=1.0, **{**FIXED, **wrong},
        )  # fmt: skip
