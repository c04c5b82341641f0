"""Norms, SwiGLU, rope, hyper-connections and n-gram embeddings of the emitted tile_kernels against the real torch references."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SCALES: dict[str, dict[str, bool]] = {
    "fp32": {},
    "pow2": {"round_sf": True},
    "ue8m0": {"round_sf": True, "use_packed_ue8m0": True},
    "ue8m0-col": {"round_sf": True, "use_packed_ue8m0": True, "use_tma_aligned_col_major_sf": True},
    "fp32-col": {"use_tma_aligned_col_major_sf": True},
}


def same(actual: torch.Tensor, expected: torch.Tensor, strides: bool = True) -> bool:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    if strides and expected.numel() and actual.stride() != expected.stride():
        return False
    first, second = (
        one.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8) for one in (actual, expected)
    )
    return torch.equal(first, second)


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = x.double(), y.double()
    return float((x - y).square().sum() / (x.square() + y.square()).sum().clamp_min(1e-300))


def one_ulp(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """bf16 tensors that differ by a rounding at most, and rarely."""
    rank = [
        torch.where(b < 0, -(b & 0x7FFF), b & 0x7FFF)
        for b in (t.contiguous().view(torch.int16).int() for t in (actual, expected))
    ]
    apart = (rank[0] - rank[1]).abs()
    return bool(apart.max() <= 1) and float((apart > 0).float().mean()) < 0.02


# --- norms ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("out_scale", [1.0, 0.3])
@pytest.mark.parametrize("shape", [(17, 640), (2, 5, 96), (0, 64)], ids=str)
def test_norm(
    tk: Any, real: Any, dtype: torch.dtype, weighted: bool, residual: bool, out_scale: float, shape: tuple[int, ...]
) -> None:
    wide = torch.randn(*shape[:-1], shape[-1] + 16).to(dtype)
    x = wide[..., : shape[-1]]
    weight = torch.randn(shape[-1]).to(dtype) if weighted else None
    other = torch.randn(shape).to(dtype) if residual else None
    expected, rstd, total = real.torch.norm_forward_ref(x, weight, 1e-6, other, out_scale)
    plain = tk.torch.norm_forward_ref(x, weight, 1e-6, other, out_scale)
    out = torch.empty_strided(x.shape, x.stride(), dtype=dtype)
    sums = torch.empty(shape, dtype=dtype) if residual else None
    before = wide.clone()
    actual = tk.quant.norm_forward(x, weight, 1e-6, other, out_scale, out=out, residual_out=sums, with_rstd=True)
    assert torch.equal(wide, before)
    assert actual[0] is out and actual[2] is (sums if residual else x)
    assert same(out, expected, strides=False) and same(actual[1], rstd) and same(actual[2], total, strides=False)
    for one, want in zip(plain, (expected, rstd, total), strict=True):
        assert same(one, want, strides=False)
    fresh, no_rstd, _ = tk.quant.norm_forward(x, weight, 1e-6, other, out_scale)
    assert same(fresh, expected, strides=False) and no_rstd is None


@pytest.mark.parametrize("form", SCALES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(17, 640), (3, 5, 96), (2, 0, 64), (0, 96)], ids=str)
def test_norm_and_cast(tk: Any, real: Any, form: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight, residual = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype), torch.randn(shape).to(dtype)
    expected, rstd, total = real.torch.norm_forward_ref(x, weight, 1e-6, residual, 0.7)
    (values, scales), wide, got_rstd, got_total = tk.quant.norm_forward_and_per_token_cast(
        x, weight, 1e-6, "e4m3", 32, residual, 0.7, with_out_bf16=True, with_rstd=True, **SCALES[form]
    )
    assert same(wide, expected.to(torch.bfloat16)) and same(got_rstd, rstd) and same(got_total, total)
    rows = [(expected, values, scales)] if len(shape) == 2 else list(zip(expected, values, scales, strict=True))
    for want, one, sf in rows:
        want_values, want_sf = real.torch.cast(want, "e4m3", (1, 32), **SCALES[form])
        assert same(one, want_values) and same(sf, want_sf)
    if len(shape) == 3 and shape[1] and form.endswith("-col"):
        assert scales.stride() == (scales.shape[1] * scales.shape[2], 1, scales.shape[1])


@pytest.mark.parametrize("form", ["fp32", "ue8m0"])
@pytest.mark.parametrize("shape", [(9, 96), (2, 5, 96)], ids=str)
def test_norm_and_cast_writes_the_buffers_it_is_given(tk: Any, form: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).bfloat16()
    (values, scales), wide, _, _ = tk.quant.norm_forward_and_per_token_cast(
        x, None, 1e-6, "e4m3", 32, with_out_bf16=True, **SCALES[form]
    )
    out_x, out_bf16 = torch.zeros(values.shape, dtype=values.dtype), torch.zeros_like(wide)
    # Batches of scales with a gap between them.
    gap = torch.zeros(*scales.shape[:-2], scales.shape[-2] + 1, scales.shape[-1], dtype=scales.dtype)
    out_sf = gap[..., :-1, :]
    result = tk.quant.norm_forward_and_per_token_cast(
        x, None, 1e-6, "e4m3", 32, with_out_bf16=True, out=(out_x, out_sf), out_bf16=out_bf16, **SCALES[form]
    )
    assert (
        result[0][0] is out_x
        and result[0][1].data_ptr() == out_sf.data_ptr()
        and result[1] is out_bf16
        and result[3] is x
    )
    assert same(out_x, values) and same(out_sf, scales, strides=False) and same(out_bf16, wide)
    assert int(gap[..., -1, :].float().abs().sum()) == 0
    alone = tk.quant.norm_forward_and_per_token_cast(
        x,
        None,
        1e-6,
        "e4m3",
        32,
        out=(out_x.zero_(), None),
        round_sf=True,
        use_packed_ue8m0=True,
        use_tma_aligned_col_major_sf=True,
    )
    assert alone[0][0] is out_x and int(out_x.float().abs().sum()) > 0


# --- SwiGLU ---


def expanded(counts: list[int], alignment: int) -> tuple[torch.Tensor, int, torch.Tensor]:
    """Ends of the experts' rows, the number of rows, and which of them are real."""
    ends, start, mask = [], 0, []
    for count in counts:
        ends.append(start + count)
        padded = -(-count // alignment) * alignment
        mask += [True] * count + [False] * (padded - count)
        start += padded
    return torch.tensor(ends, dtype=torch.int32), start, torch.tensor(mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("clamp", [None, 0.8])
@pytest.mark.parametrize(("weighted", "factor"), [(False, None), (True, None), (True, 2.5)])
@pytest.mark.parametrize("counts", [None, [3, 0, 40, 1], [0, 0, 0, 0]])
def test_swiglu(
    tk: Any,
    real: Any,
    dtype: torch.dtype,
    clamp: float | None,
    weighted: bool,
    factor: float | None,
    counts: list[int] | None,
) -> None:
    for package in (tk, real):
        package.config.set_token_alignment(32)
    psum, rows, mask = (None, 29, torch.ones(29, dtype=torch.bool)) if counts is None else expanded(counts, 32)
    rows = max(rows, 1)
    mask = mask if mask.numel() else torch.zeros(1, dtype=torch.bool)
    x = torch.randn(rows, 512).to(dtype)
    weights = torch.rand(rows) if weighted else None
    theirs, ours, plain = (torch.tensor([5, 6, 7, 8]) for _ in range(3))
    expected = real.torch.swiglu_forward(x, psum, weights, factor, clamp, theirs if clamp else None)
    actual = tk.quant.swiglu_forward(x, "fp32", psum, weights, factor, clamp, ours if clamp else None)
    assert same(actual[mask], expected[mask])
    assert torch.equal(ours, theirs) and ours.dtype == torch.int64
    assert same(
        tk.torch.swiglu_forward(x, psum, weights, factor, clamp, plain if clamp else None)[mask], expected[mask]
    )
    assert torch.equal(plain, theirs)
    assert same(tk.quant.swiglu_forward(x, "bf16", psum, weights, factor, clamp)[mask], expected.bfloat16()[mask])
    if psum is not None:
        assert torch.equal(tk.torch.get_mapping_from_psum(x, psum), real.torch.get_mapping_from_psum(x, psum))
    for form, options in SCALES.items():
        for group in (32, 128):
            want = real.torch.cast(expected, "e4m3", (1, group), **options)
            got = tk.quant.swiglu_forward_and_per_token_cast(
                x, "e4m3", group, psum, weights, factor, clamp_value=clamp, **options
            )
            assert same(got[0][mask], want[0][mask]), form
            assert got[1].stride() == want[1].stride() and same(got[1][mask], want[1][mask]), form
    for package in (tk, real):
        package.config.reset_runtime_config()


def test_swiglu_of_nothing(tk: Any) -> None:
    x = torch.empty(0, 256, dtype=torch.bfloat16)
    values, scales = tk.quant.swiglu_forward_and_per_token_cast(
        x, "e4m3", 32, torch.zeros(4, dtype=torch.int32), **SCALES["ue8m0-col"]
    )
    assert values.shape == (0, 128) and scales.shape == (0, 2) and scales.dtype == torch.int16
    assert tk.quant.swiglu_forward(x, "bf16").shape == (0, 128)
    assert tk.quant.swiglu_forward_and_per_token_cast(x, "fp32", None).dtype == torch.float32
    with pytest.raises(AssertionError):
        tk.quant.swiglu_forward(x, "bf16", routed_scaling_factor=2.0)


# --- rope ---


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("conjugate", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("positions", [None, torch.int32, torch.int64])
def test_rope(
    tk: Any,
    real: Any,
    interleaved: bool,
    conjugate: bool,
    dtype: torch.dtype,
    width: int,
    batch: int | None,
    positions: torch.dtype | None,
) -> None:
    lead = (11,) if batch is None else (batch, 11)
    whole = torch.randn(*lead, 5, width + 48).to(dtype)
    before = whole.clone()
    query, key = whole[..., -width:], torch.randn(*lead, 1, width).to(dtype)
    table = torch.randn(40, width + 8)[:, :width]
    place = None if positions is None else torch.randint(0, 30, lead, dtype=positions)
    cos, sin = table.chunk(2, -1)
    expected = [real.torch.rotary_embedding_ref(x, cos, sin, place, 7, interleaved, conjugate) for x in (query, key)]
    plain = tk.torch.rotary_embedding_ref(before, cos, sin, place, 7, interleaved, conjugate)
    assert same(plain, real.torch.rotary_embedding_ref(before, cos, sin, place, 7, interleaved, conjugate))
    assert tk.transform.apply_rotary(query, table, key, place, interleaved, conjugate, 7) is None
    assert same(query, expected[0], strides=False) and same(key, expected[1], strides=False)
    assert torch.equal(whole[..., :48], before[..., :48])


def test_rope_of_nothing(tk: Any) -> None:
    tk.transform.apply_rotary(torch.empty(0, 2, 64), torch.randn(4, 64), positions=torch.empty(0, dtype=torch.int32))
    with pytest.raises(AssertionError):
        tk.transform.apply_rotary(torch.zeros(2, 2, 32), torch.randn(4, 32))


# --- hyper-connections ---

TOKENS = [1, 37]


@pytest.mark.parametrize("tokens", [0, *TOKENS])
def test_streams(tk: Any, real: Any, tokens: int) -> None:
    x = torch.randn(1, tokens, 256).bfloat16()
    out = torch.zeros(tokens, 4, 256, dtype=torch.bfloat16)
    assert tk.mhc.expand_to_mhc_fwd(x[0], out) is None
    assert same(out, real.torch.expand_to_mhc_ref(x[0], 4)) and same(
        tk.torch.expand_to_mhc_ref(x, 4), real.torch.expand_to_mhc_ref(x, 4)
    )


@pytest.mark.parametrize("tokens", TOKENS)
def test_mixing_weights(tk: Any, real: Any, tokens: int) -> None:
    mixes, scale, base = torch.randn(1, tokens, 24), torch.rand(3), torch.randn(24)
    expected = real.torch.mhc_pre_split_mixes_ref(mixes, scale, base, 4, 2.0, 1e-6)
    for one, want in zip(tk.torch.mhc_pre_split_mixes_ref(mixes, scale, base, 4, 2.0, 1e-6), expected, strict=True):
        assert same(one, want, strides=False)
    pre, post, comb = torch.zeros(tokens, 4), torch.zeros(tokens, 4), torch.zeros(tokens, 16)
    assert tk.mhc.mhc_pre_split_mixes_fwd(mixes[0], scale, base, pre, post, comb, 2.0, 1e-6) is None
    for one, want in zip((pre, post, comb), expected, strict=True):
        assert torch.equal(one, want[0].reshape(one.shape))
    out = torch.zeros(tokens, 4)
    assert tk.mhc.mhc_head_compute_mix_fwd(mixes[0, :, :4], scale[:1], base[:4], out, 1e-6) is None
    assert torch.equal(out, real.torch.mhc_head_compute_mix_ref(mixes[0, :, :4], scale[:1], base[:4], 1e-6))
    assert torch.equal(out, tk.torch.mhc_head_compute_mix_ref(mixes[0, :, :4], scale[:1], base[:4], 1e-6))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("repeat", [1, 2, 20])
def test_sinkhorn(tk: Any, real: Any, tokens: int, repeat: int) -> None:
    x = torch.randn(tokens, 4, 4) * 3
    before, out = x.clone(), torch.zeros_like(x)
    expected = real.torch.sinkhorn_normalize_ref(x, repeat, 1e-6)
    assert tk.mhc.mhc_sinkhorn_fwd(x, out, repeat, 1e-6) is None
    assert (
        torch.equal(x, before)
        and torch.equal(out, expected)
        and torch.equal(tk.torch.sinkhorn_normalize_ref(x, repeat, 1e-6), expected)
    )
    assert torch.equal(tk.torch.sinkhorn_normalize_ref(x), real.torch.sinkhorn_normalize_ref(x))


@pytest.mark.parametrize("tokens", TOKENS)
def test_streams_in_and_out(tk: Any, real: Any, tokens: int) -> None:
    residual, x = torch.randn(1, tokens, 4, 256).bfloat16(), torch.randn(1, tokens, 256).bfloat16()
    mix, comb = torch.rand(1, tokens, 4, 1), torch.rand(1, tokens, 4, 4)
    out = torch.zeros(tokens, 256, dtype=torch.bfloat16)
    assert tk.mhc.mhc_pre_apply_mix_fwd(residual[0], mix[0, :, :, 0], out) is None
    expected = real.torch.mhc_pre_apply_mix_ref(residual, mix)
    assert one_ulp(out, expected[0]) and one_ulp(tk.torch.mhc_pre_apply_mix_ref(residual, mix), expected)
    expected = real.torch.mhc_post_ref(x, residual, mix, comb)
    actual = tk.mhc.mhc_post_fwd(x, residual, mix, comb)
    assert (
        actual.shape == expected.shape
        and one_ulp(actual, expected)
        and one_ulp(tk.torch.mhc_post_ref(x, residual, mix, comb), expected)
    )
    buffer = torch.zeros_like(residual)
    assert tk.mhc.mhc_post_fwd(x, residual, mix, comb, out=buffer) is buffer and same(buffer, actual)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("splits", [1, 16])
def test_norm_of_projections(tk: Any, real: Any, tokens: int, splits: int) -> None:
    residual, fn, weight = torch.randn(1, tokens, 4, 256).bfloat16(), torch.randn(24, 1024) * 0.05, torch.randn(1024)
    merged = torch.zeros_like(fn)
    assert tk.mhc.mhc_fn_normw_merge_fwd(fn, weight, merged) is None and torch.equal(merged, fn * weight)
    partials = real.torch.mhc_pre_norm_fn_partials_ref(residual, merged, splits)
    for one, want in zip(tk.torch.mhc_pre_norm_fn_partials_ref(residual, merged, splits), partials, strict=True):
        assert one.shape == want.shape and calc_diff(one, want) < 1e-12
    out_mul, sqrsum, out = torch.zeros(tokens, 1, 24), torch.zeros(tokens, 1), torch.zeros(tokens, 24)
    assert tk.mhc.mhc_reduce_partials_and_rmsnorm_fwd(*partials, out_mul, sqrsum, out, 1024, 1e-6, splits) is None
    expected = real.torch.mhc_pre_norm_fn_ref(residual, fn, weight, 1e-6)
    assert calc_diff(out, expected[0]) < 1e-12
    assert calc_diff(out_mul, partials[0].sum(0)) < 1e-13 and calc_diff(sqrsum, partials[1].sum(0)) < 1e-13
    for norm_weight in (weight, None):
        ours, theirs = (package.torch.mhc_pre_norm_fn_ref(residual, fn, norm_weight, 1e-6) for package in (tk, real))
        assert ours.shape == theirs.shape and calc_diff(ours, theirs) < 1e-12


@pytest.mark.parametrize("tokens", [0, *TOKENS])
@pytest.mark.parametrize("repeat", [1, 20])
def test_big_fuse_is_its_parts(tk: Any, real: Any, tokens: int, repeat: int) -> None:
    residual, fn = torch.randn(1, tokens, 4, 256).bfloat16(), torch.randn(24, 1024) * 0.05
    scale, base = torch.rand(3), torch.randn(24)
    product, squares = real.torch.mhc_pre_norm_fn_partials_ref(residual, fn, 1)
    post, comb = torch.zeros(tokens, 4), torch.zeros(tokens, 16)
    layer = torch.zeros(tokens, 256, dtype=torch.bfloat16)
    assert (
        tk.mhc.mhc_pre_big_fuse_fwd(
            product[:, :, 0],
            squares[:, :, 0],
            scale,
            base,
            residual[0],
            post,
            comb,
            layer,
            1e-6,
            1e-6,
            1e-6,
            2.0,
            repeat,
        )
        is None
    )
    if not tokens:
        return
    mixes = real.torch.mhc_pre_norm_fn_ref(residual, fn, None, 1e-6)
    pre, want_post, want_comb = real.torch.mhc_pre_split_mixes_ref(mixes, scale, base, 4, 2.0, 1e-6)
    assert calc_diff(post, want_post[0, :, :, 0]) < 1e-12
    assert calc_diff(comb, real.torch.sinkhorn_normalize_ref(want_comb, repeat, 1e-6)[0].flatten(1)) < 1e-11
    assert one_ulp(layer, real.torch.mhc_pre_apply_mix_ref(residual, pre)[0])
    with pytest.raises(AssertionError):
        tk.mhc.mhc_pre_big_fuse_fwd(
            product.expand(2, -1, -1, -1)[:, :, 0],
            squares[:, :, 0],
            scale,
            base,
            residual[0],
            post,
            comb,
            layer,
            1e-6,
            1e-6,
            1e-6,
            2.0,
            1,
        )


# --- n-gram embeddings ---


@pytest.mark.parametrize("tokens", [0, 1, 67])
@pytest.mark.parametrize(("size", "factor"), [(1 << 17, 1 << 17), (3_000_017, 1 << 46), (2**31 - 1, 2**62)])
@pytest.mark.parametrize("masked", [True, False])
def test_hash(tk: Any, real: Any, tokens: int, size: int, factor: int, masked: bool) -> None:
    layers, orders, tables = 3, 3, 8
    ids = torch.randint(0, 129280, (tokens, orders), dtype=torch.int32)
    multipliers = torch.randint(0, factor, (layers, orders)) * 2 + 1
    sizes = torch.randint(max(size // 2, 1), size, (layers, orders - 1, tables), dtype=torch.int32)
    offsets = real.torch.make_offsets(torch.randint(1, 1000, sizes.shape, dtype=torch.int32))
    mask = torch.rand(tokens) < 0.3 if masked else None
    expected = real.torch.engram_hash_ref(ids, multipliers, sizes, offsets, mask)
    assert same(tk.engram.engram_hash(ids, multipliers, sizes, offsets, mask), expected)
    assert same(tk.torch.engram_hash_ref(ids, multipliers, sizes, offsets, mask), expected)


def test_hash_of_any_words(tk: Any, real: Any) -> None:
    ids = torch.tensor([[-(2**31), 2**31 - 1], [-1, 0], [1, -7], [2**31 - 1, -(2**31)]], dtype=torch.int32)
    multipliers = torch.tensor([[-(2**63), 2**63 - 1], [-1, 1], [0x123456789ABCDEF, -0x7EDCBA987654321]])
    sizes = torch.tensor([[[1, 2, 65535, 65536, 2**31 - 1]]], dtype=torch.int32).expand(3, 1, 5).contiguous()
    offsets = torch.zeros(3, 5, dtype=torch.int32)
    assert same(
        tk.engram.engram_hash(ids, multipliers, sizes, offsets),
        real.torch.engram_hash_ref(ids, multipliers, sizes, offsets),
    )


def test_offsets(tk: Any, real: Any) -> None:
    sizes = torch.randint(1, 1 << 20, (3, 2, 8), dtype=torch.int32)
    assert same(tk.torch.make_offsets(sizes), real.torch.make_offsets(sizes))


@pytest.mark.parametrize("tokens", [0, 1, 33])
@pytest.mark.parametrize("masked", [True, False])
def test_gate_of_embeddings(tk: Any, real: Any, tokens: int, masked: bool) -> None:
    x, kv = torch.randn(tokens, 4, 256).bfloat16(), torch.randn(tokens, 5, 256).bfloat16()
    wh, we = torch.randn(4, 256).bfloat16(), torch.randn(4, 256).bfloat16()
    mask = torch.rand(tokens) < 0.4 if masked else None
    weight = tk.engram.fused_weight(wh, we)
    assert torch.equal(weight, wh.float() * we.float())
    expected = real.torch.engram_gate_ref(x, kv, wh, we, 1e-6, 1e-5, True, mask)
    before = x.clone()
    actual = tk.engram.engram_gate_fwd(x, kv, weight, 1e-5, 1e-6, True, mask)
    plain = tk.torch.engram_gate_ref(x, kv, wh, we, 1e-6, 1e-5, True, mask)
    assert torch.equal(x, before)
    for got in (actual, plain):
        assert got[0].shape == expected[0].shape and (not tokens or one_ulp(got[0], expected[0]))
        for one, want in zip(got[1:], expected[1:], strict=True):
            assert one.shape == want.shape and one.dtype == torch.float32 and calc_diff(one, want) < 1e-11
    assert same(tk.torch.engram_gate_ref(x, kv, wh, we, 1e-6, 1e-5, image_token_mask=mask), plain[0])
    result = tk.engram.engram_gate_fwd(x, kv, weight, 1e-5, 1e-6, False, mask, inplace=True)
    assert result[0] is x and result[1:] == (None,) * 4 and same(x, actual[0])
    if mask is not None:
        assert torch.equal(x[mask], before[mask])
    with pytest.raises(AssertionError):
        tk.engram.engram_gate_fwd(x, kv, weight, 1e-5, 1e-6, True, mask, inplace=True)


def test_a_product_of_zero_opens_the_gate_a_little_more_than_half(tk: Any) -> None:
    # As Ascend's kernel has it; upstream's torch reference gives one half.
    zero, kv = torch.zeros(1, 4, 128, dtype=torch.bfloat16), torch.ones(1, 5, 128, dtype=torch.bfloat16)
    gate = tk.engram.engram_gate_fwd(zero, kv, torch.ones(4, 128), 1e-5, 1e-6)[2]
    assert torch.allclose(gate, torch.sigmoid(torch.tensor(1e-3)).expand(1, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("nesterov", [True, False])
def test_optimiser_arithmetic(tk: Any, real: Any, dtype: torch.dtype, nesterov: bool) -> None:
    grad, buffers = torch.randn(128).to(dtype), [torch.randn(128).to(dtype)] * 2
    buffers = [one.clone() for one in buffers]
    results = [
        package.torch.engram_sinkhorn_momentum_update_ref(grad, one, 0.9, nesterov)
        for package, one in zip((tk, real), buffers, strict=True)
    ]
    assert torch.equal(*buffers) and torch.equal(*results)
    matrix, rows, columns = torch.randn(20, 16), torch.rand(20), torch.rand(16)
    states = [(rows.clone(), torch.zeros(16)) for _ in range(2)]
    norms = [
        package.torch.engram_sinkhorn_step_ref(matrix, row, columns, squares, 1e-8)
        for package, (row, squares) in zip((tk, real), states, strict=True)
    ]
    assert calc_diff(*norms) < 1e-13 and all(calc_diff(a, b) < 1e-13 for a, b in zip(*states, strict=True))
    finals = [package.torch.engram_sinkhorn_finalize_ref(matrix, rows, columns, 1e-8, 0.5) for package in (tk, real)]
    assert calc_diff(*finals) < 1e-13
    out = torch.zeros(20, 16)
    assert tk.torch.engram_sinkhorn_finalize_ref(matrix, rows, columns, 1e-8, 0.5, out) is out and torch.equal(
        out, finals[0]
    )


# --- sums of the experts' rows ---


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("fmt", ["", "e4m3"])
def test_reduce(tk: Any, real: Any, weighted: bool, scaled: bool, fmt: str) -> None:
    x = torch.randn(50, 64).bfloat16()
    place = torch.randint(-1, 50, (13, 6))
    place[3] = -1
    weights = torch.rand(13, 6) if weighted else None
    given = (x, torch.rand(50)) if scaled else x
    factor = torch.tensor([0.25]) if scaled else None
    assert same(
        tk.torch.reduce_fused(given, weights, place, fmt, factor),
        real.torch.reduce_fused(given, weights, place, fmt, factor),
    )
    assert tk.torch.reduce_fused(x, None, place[:0]).shape == (0, 64)
