"""fused transform: every stage against upstream's reference and the exact formula, every output, every cache layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cache_support import QUANTISED, ascend_references, layouts, make_cache, ulps
from harness import check_kernel, guard, work

from overrides.tilelang_ops.fused_transform import fused_norm_rope_hadamard_cast_store_kvcache_tl, hadamard, rotate
from overrides.tilelang_ops.norm import norm_tl
from overrides.tilelang_ops.store_kv_cache import store_kv_cache_tl

EPS = 1e-20


@pytest.fixture
def refs(upstream: Callable[[str], Any], pytestconfig: pytest.Config) -> Iterator[Any]:
    with ascend_references(upstream, pytestconfig) as found:
        yield found


def make_kernel(num_heads: int, head_dim: int, **options: Any) -> Any:
    rotary_dim = options.pop("rotary_dim", 64)
    defaults: dict[str, Any] = {
        "do_norm": False,
        "norm_eps": EPS,
        "do_rope": False,
        "rotary_dim": rotary_dim,
        "rope_offset": head_dim - rotary_dim,
        "positions_dtype": "int32",
        "is_neox": False,
        "conjugate": False,
        "return_bf16": False,
        "bf16_stage": "transform",
    }
    return fused_norm_rope_hadamard_cast_store_kvcache_tl(num_heads, head_dim, **(defaults | options))


def plain(x: torch.Tensor, **options: Any) -> torch.Tensor:
    """The bf16 result of the kernel without a cast."""
    tensors = {name: options.pop(name, None) for name in ("weight", "positions", "cossin")}
    out = torch.zeros(x.shape, dtype=torch.bfloat16)
    kernel = make_kernel(x.shape[1], x.shape[2], return_bf16=True, **options)
    kernel(x, tensors["weight"], tensors["positions"], tensors["cossin"], None, out, None, None, None, None)
    return out


def rope_tables(
    n: int, rotary_dim: int, dtype: torch.dtype = torch.int32, limit: int = 50
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, limit, (n,), dtype=dtype), torch.randn(limit, rotary_dim + 8)[:, :rotary_dim]


def exact_rope(
    x: torch.Tensor, positions: torch.Tensor, cossin: torch.Tensor, neox: bool, conjugate: bool
) -> torch.Tensor:
    rotary_dim = cossin.shape[1]
    half = rotary_dim // 2
    angle = cossin.double()[positions.long()].unsqueeze(1)
    cos, sin = angle[..., :half], angle[..., half:] * (-1 if conjugate else 1)
    out = x.double().clone()
    tail = out[..., -rotary_dim:]
    one, two = (tail[..., :half], tail[..., half:]) if neox else (tail[..., 0::2], tail[..., 1::2])
    first, second = one * cos - two * sin, one * sin + two * cos
    one.copy_(first)
    two.copy_(second)
    return out


@pytest.mark.parametrize("head_dim, rotary_dim", [(128, 64), (128, 128), (512, 64), (512, 128)])
@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
def test_rope(refs: Any, head_dim: int, rotary_dim: int, neox: bool, conjugate: bool) -> None:
    for dtype, n, heads in ((torch.int32, 5, 3), (torch.int64, 1, 1), (torch.int32, 0, 2)):
        x = guard(torch.randn(n, heads, head_dim).bfloat16(), (heads * head_dim + 256, head_dim + 16, 1))
        positions, cossin = rope_tables(n, rotary_dim, dtype)
        out = guard(torch.zeros(n, heads, head_dim).bfloat16())
        kernel = make_kernel(
            heads,
            head_dim,
            do_rope=True,
            rotary_dim=rotary_dim,
            is_neox=neox,
            conjugate=conjugate,
            return_bf16=True,
            positions_dtype=str(dtype).removeprefix("torch."),
        )
        args = (x, None, guard(positions), cossin, None, out, None, None, None, None)
        check_kernel(kernel, *args, written=("out_bf16",), gates=n == 5 and not conjugate and head_dim == rotary_dim)
        if n == 0:
            continue
        rope = refs.fused_transform.RopeArgs(positions, cossin, rotary_dim, neox, conjugate=conjugate)
        expected = refs.fused_transform.fused_norm_rope_hadamard_cast_store_kvcache_ref(x, None, rope)
        assert torch.equal(out, expected)
        exact = exact_rope(x, positions, cossin, neox, conjugate)
        assert torch.equal(out[..., :-rotary_dim], x[..., :-rotary_dim])
        # Cancellation leaves the rounding of the products, which is in units of the operands.
        size = x[..., -rotary_dim:].double().abs().amax() * cossin.double().abs().amax()
        assert ((out - exact).abs() <= exact.abs() * 2**-8 + size * 2**-22).all()


@pytest.mark.parametrize("head_dim", [128, 512])
@pytest.mark.parametrize("scale", [1.0, 0.0883883, 3.0])
def test_hadamard(refs: Any, head_dim: int, scale: float) -> None:
    x = torch.randn(6, 3, head_dim).bfloat16() * torch.exp2(torch.randint(-12, 12, (6, 3, head_dim)).float()).bfloat16()
    out = plain(x, do_hadamard=True, hadamard_scale=scale)
    assert torch.equal(out, refs.fused_transform.hadamard_transform_ref(x, scale))
    signs = torch.tensor(
        [[(-1.0) ** (i & j).bit_count() for j in range(head_dim)] for i in range(head_dim)], dtype=torch.float64
    )
    exact = x.double() @ signs * scale
    assert ((out - exact).abs() <= exact.abs() * 2**-8 + x.double().abs().sum(-1, keepdim=True) * scale * 2**-22).all()


def fp32_step(size: torch.Tensor) -> torch.Tensor:
    """One unit in the last place of fp32 numbers of the magnitude ``size`` (fp64)."""
    return torch.exp2(torch.frexp(size)[1].double() - 24)


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
def test_rope_is_within_two_units_in_fp32(neox: bool, conjugate: bool) -> None:
    """Of the operands' size, as differences cancel, and of the exact result where they do not."""
    x, positions = torch.randn(400, 2, 64).bfloat16(), torch.arange(400, dtype=torch.int32)
    angle = torch.rand(400, 32) * 6.3
    cossin = torch.cat((angle.cos(), angle.sin()), 1)
    error = (rotate(x, cossin, neox, conjugate) - exact_rope(x, positions, cossin, neox, conjugate)).abs()
    size = exact_rope(x.abs(), positions, cossin.abs(), neox, True).abs()
    other = exact_rope(x.abs(), positions, cossin.abs(), neox, False).abs()
    assert (error <= 2 * fp32_step(torch.where(size > other, size, other))).all()
    assert (error <= fp32_step(torch.where(size > other, size, other))).double().mean() > 0.99


@pytest.mark.parametrize("head_dim", [128, 512])
def test_hadamard_is_within_two_units_in_fp32(head_dim: int) -> None:
    """Of the size of the sum without its signs, the largest that the butterflies meet."""
    x = torch.randn(300, head_dim).bfloat16() * torch.exp2(torch.randint(-9, 9, (300, head_dim)).float()).bfloat16()
    signs = torch.tensor(
        [[(-1.0) ** (i & j).bit_count() for j in range(head_dim)] for i in range(head_dim)], dtype=torch.float64
    )
    error = (hadamard(x, 0.0883883) - x.double() @ signs * 0.0883883).abs()
    assert (error <= 2 * fp32_step(x.double().abs().sum(1, keepdim=True) * 0.0883883)).all()


@pytest.mark.parametrize("head_dim", [128, 512])
def test_norm_is_the_norm_kernel(head_dim: int) -> None:
    x, weight = torch.randn(9, 4, head_dim).bfloat16(), torch.randn(head_dim).bfloat16()
    out = plain(x, do_norm=True, weight=weight)
    expected, unused = torch.zeros_like(x), [head_dim] * 6
    kernel = norm_tl(
        head_dim, "bfloat16", "bfloat16", "float", False, EPS, 1.0, False, 0, False, False, False, False, 3, 0, *unused
    )
    kernel(x, expected, weight, x, x, x, x, x)
    assert torch.equal(out, expected)


CASTS = {
    "e4m3-32": ("e4m3", 32, True, "ue8m0"),
    "e4m3-64": ("e4m3", 64, True, "ue8m0"),
    "e4m3-128": ("e4m3", 128, True, "ue8m0"),
    "e4m3-32-pow2": ("e4m3", 32, True, "fp32"),
    "e4m3-128-pow2": ("e4m3", 128, True, "fp32"),
    "e4m3-32-fp32": ("e4m3", 32, False, "fp32"),
    "e4m3-64-fp32": ("e4m3", 64, False, "fp32"),
    "e4m3-128-fp32": ("e4m3", 128, False, "fp32"),
    "e2m1-32": ("e2m1", 32, True, "ue8m0"),
    "e2m1-16": ("e2m1", 16, False, "e4m3"),
}


# e4m3 scales are for rows of 512.
@pytest.mark.parametrize(
    "name, head_dim", [(name, dim) for name in CASTS for dim in (128, 512) if (name, dim) != ("e2m1-16", 128)]
)
@pytest.mark.parametrize("heads", [1, 3])
def test_each_cast(refs: Any, name: str, head_dim: int, heads: int) -> None:
    fmt, group, rounded, sf_format = CASTS[name]
    n, groups = 7, head_dim // group
    scale = torch.exp2(torch.randint(-30, 30, (n, heads, groups)).float()).repeat_interleave(group, 2)
    x = (torch.randn(n, heads, head_dim) * scale).bfloat16()
    x[3, 0, :group].zero_()
    kernel = make_kernel(
        heads, head_dim, cast_fmt=fmt, num_per_channels=group, round_sf=rounded, sf_format=sf_format, return_quant=True
    )
    per_byte = 2 if fmt == "e2m1" else 1
    quant = guard(torch.zeros(n, heads, head_dim // per_byte).to(torch.int8 if fmt == "e2m1" else torch.float8_e4m3fn))
    sf_dtype = {"ue8m0": torch.uint8, "e4m3": torch.float8_e4m3fn, "fp32": torch.float32}[sf_format]
    sf = guard(torch.zeros(n, heads, groups).to(sf_dtype))
    args = (x, None, None, None, None, None, quant, sf, None, None)
    check_kernel(kernel, *args, written=("out_quant", "out_sf"), gates=(head_dim, heads) == (512, 3))
    options = {"round_sf": rounded, "use_packed_ue8m0": sf_format == "ue8m0", "use_e4m3_sf": sf_format == "e4m3"}
    values, scales = refs.tk.cast(x.reshape(-1, head_dim), fmt, (1, group), **options)
    assert torch.equal(quant.view(torch.uint8).flatten(), values.view(torch.uint8).flatten())
    stored = scales.contiguous().view(torch.uint8)
    assert torch.equal(sf.view(torch.uint8).reshape(n * heads, -1), stored[:, : groups * sf_dtype.itemsize])


@pytest.mark.parametrize("name", [name for name in CASTS if name.startswith("e4m3")])
@pytest.mark.parametrize("keep_last", [False, True])
def test_cast_back(refs: Any, name: str, keep_last: bool) -> None:
    fmt, group, rounded, sf_format = CASTS[name]
    x = torch.randn(5, 1, 512).bfloat16()
    options = {"cast_fmt": fmt, "num_per_channels": group, "round_sf": rounded, "sf_format": sf_format}
    out = plain(x, bf16_stage="cast_back", preserve_last_group=keep_last, **options)
    flat = x.view(-1, 512)
    values, scale = refs.tk.cast(flat, fmt, (1, group), round_sf=rounded)
    # Ascend divides by the factor it quantised with, which for unrounded scales is not exactly the stored scale.
    factor = (
        scale
        if rounded
        else 1 / (448 / flat.float().unflatten(1, (-1, group)).abs().amax(2).clamp_min(1e-4).double()).float()
    )
    expected = (values.float() * factor.repeat_interleave(group, 1)).bfloat16()
    if keep_last:
        expected[:, -group:] = flat[:, -group:]
    assert torch.equal(out.view(-1, 512), expected)


def test_all_stages_in_order(refs: Any) -> None:
    n, heads = 6, 2
    x, weight = torch.randn(n, heads, 128).bfloat16(), torch.randn(128).bfloat16()
    positions, cossin = rope_tables(n, 64)
    fused = refs.fused_transform
    args = (
        fused.NormArgs(weight, EPS),
        fused.RopeArgs(positions, cossin, 64, False),
        fused.HadamardArgs(128**-0.5),
        fused.CastArgs("e2m1", 32),
    )
    actual = fused.fused_norm_rope_hadamard_cast_store_kvcache(x, *args)
    expected = fused.fused_norm_rope_hadamard_cast_store_kvcache_ref(x, *args)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])
    steps = plain(x, do_norm=True, weight=weight)
    steps = plain(steps, do_rope=True, positions=positions, cossin=cossin)
    steps = plain(steps, do_hadamard=True, hadamard_scale=128**-0.5)
    values, _ = refs.tk.cast(steps.view(-1, 128), "e2m1", (1, 32), round_sf=True)
    assert torch.equal(actual[0].view(-1, 64), values)


@pytest.mark.parametrize("stage", ["norm", "transform"])
@pytest.mark.parametrize("hadamard", [False, True])
def test_bf16_of_each_stage(stage: str, hadamard: bool) -> None:
    x, weight = torch.randn(4, 2, 128).bfloat16(), torch.randn(128).bfloat16()
    positions, cossin = rope_tables(4, 64)
    options: dict[str, Any] = {
        "do_norm": True,
        "weight": weight,
        "do_rope": True,
        "positions": positions,
        "cossin": cossin,
    }
    out = plain(x, bf16_stage=stage, do_hadamard=hadamard, hadamard_scale=0.5, **options)
    expected = plain(x, do_norm=True, weight=weight)
    if stage == "transform":
        expected = plain(expected, do_rope=True, positions=positions, cossin=cossin)
        expected = plain(expected, do_hadamard=True, hadamard_scale=0.5) if hadamard else expected
    assert torch.equal(out, expected)


def test_rows_of_heads_in_two_dimensions() -> None:
    n, heads = 5, 4
    x, weight = torch.randn(n, heads, 128).bfloat16(), torch.randn(128).bfloat16()
    positions, cossin = rope_tables(n, 64)
    options: dict[str, Any] = {
        "do_norm": True,
        "weight": weight,
        "do_rope": True,
        "positions": positions,
        "cossin": cossin,
    }
    expected = plain(x, **options)
    kernel = make_kernel(heads, 128, do_norm=True, do_rope=True, return_bf16=True)
    out = guard(torch.zeros(n * heads, 128).bfloat16())
    rows = guard(x.view(-1, 128), (160, 1))
    check_kernel(kernel, rows, weight, positions, cossin, None, out, None, None, None, None, written=("out_bf16",))
    assert torch.equal(out.view(n, heads, 128), expected)


def cache_kernel(layout: Any, block_size: int, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "do_norm": True,
        "do_rope": True,
        "cast_fmt": layout.quantized_dtype,
        "num_per_channels": layout.elements_per_sf,
        "round_sf": layout.sf_format != "e4m3",
        "sf_format": layout.sf_format,
        "cache_layout": layout,
        "block_size": block_size,
    }
    return make_kernel(1, layout.num_elements, **(defaults | options))


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize(
    "slots",
    [[5, -1, 0, 23, 11, -1, 12, 24, -5], [-1] * 9, [0, 1, 2, 3, 4, 5, 6, 7, 8], [2**31 - 1, -(2**31)] + [7] + [-1] * 6],
)
def test_cache_store_is_transform_then_store(refs: Any, name: str, slots: list[int]) -> None:
    layout, block_size = layouts(refs)[name], 4
    d, n = layout.num_elements, len(slots)
    x, weight = torch.randn(n, 1, d).bfloat16(), torch.randn(d).bfloat16()
    positions, cossin = rope_tables(n, 64)
    cache = make_cache(layout, 6, block_size)
    slot_mapping = guard(torch.tensor(slots, dtype=torch.int32))
    out = guard(torch.zeros(n, 1, d).bfloat16())
    kernel = cache_kernel(layout, block_size, return_bf16=True, bf16_stage="norm")
    expected_cache = cache.clone()
    args = (x, weight, positions, cossin, None, out, None, None, cache, slot_mapping)
    check_kernel(kernel, *args, written=("out_bf16", "kv_cache"), gates=slots[0] == 5)
    normed = plain(x, do_norm=True, weight=weight)
    assert torch.equal(out, normed)
    turned = plain(normed, do_rope=True, positions=positions, cossin=cossin)
    store_kv_cache_tl(layout, block_size)(turned.view(n, d), expected_cache, slot_mapping)
    assert torch.equal(cache, expected_cache)


def test_preserves_nothing_of_a_skipped_token_and_all_of_a_cache(refs: Any) -> None:
    layout = layouts(refs)["fp8"]
    x, cache = torch.full((3, 1, 512), torch.finfo(torch.bfloat16).max).bfloat16(), make_cache(layout, 2, 8)
    before = cache.clone()
    kernel = cache_kernel(layout, 8, do_norm=False, do_rope=False)
    kernel(x, None, None, None, None, None, None, None, cache, torch.full((3,), -1, dtype=torch.int32))
    assert torch.equal(cache, before)
    kernel(x[:0], None, None, None, None, None, None, None, cache, torch.zeros(0, dtype=torch.int32))
    assert torch.equal(cache, before)


def test_cost_does_not_grow_with_the_cache(refs: Any) -> None:
    layout = layouts(refs)["fp4"]
    x, slots = torch.randn(3, 1, 512).bfloat16(), torch.tensor([1, -1, 9], dtype=torch.int32)
    kernel = cache_kernel(layout, 8, do_norm=False, do_rope=False)
    small, large = (
        (x, None, None, None, None, None, None, None, make_cache(layout, blocks, 8), slots) for blocks in (4, 64)
    )
    assert work(kernel, *small) == work(kernel, *large)


def test_refuses_a_split_rope_table_and_other_shapes(refs: Any) -> None:
    x, (positions, cossin) = torch.randn(2, 1, 128).bfloat16(), rope_tables(2, 64)
    out = torch.zeros_like(x)
    kernel = make_kernel(1, 128, do_rope=True, return_bf16=True)
    for table, sin in ((cossin[:, :32], cossin[:, 32:]), (cossin[:, :32], None), (cossin.double(), None)):
        with pytest.raises(AssertionError):
            kernel(x, None, positions, table, sin, out, None, None, None, None)
    with pytest.raises(AssertionError):
        kernel(x.float(), None, positions, cossin, None, out, None, None, None, None)
    layout = layouts(refs)["fp8"]
    with pytest.raises(AssertionError):
        cache_kernel(layout, 8, do_rope=False, do_norm=False)(
            x.expand(2, 1, 128), None, None, None, None, None, None, None, make_cache(layout, 2, 4), positions
        )


@pytest.mark.parametrize(
    "heads, head_dim, options",
    [
        (0, 128, {}),
        (1, 64, {}),
        (1, 256, {}),
        (1, 128, {"positions_dtype": "int16"}),
        (1, 128, {"do_norm": True, "norm_eps": 0.0}),
        (1, 128, {"do_rope": True, "rotary_dim": 32}),
        (1, 128, {"do_rope": True, "rope_offset": 0}),
        (1, 128, {"bf16_stage": "cast_back"}),
        (1, 128, {"return_quant": True}),
        (1, 128, {"cast_fmt": "e5m2", "num_per_channels": 32, "sf_format": "ue8m0", "round_sf": True}),
        (1, 128, {"cast_fmt": "e4m3", "num_per_channels": 16, "sf_format": "ue8m0", "round_sf": True}),
        (1, 128, {"cast_fmt": "e4m3", "num_per_channels": 32, "sf_format": "ue8m0", "round_sf": False}),
        (1, 128, {"cast_fmt": "e4m3", "num_per_channels": 32, "sf_format": "e4m3", "round_sf": False}),
        (1, 128, {"cast_fmt": "e2m1", "num_per_channels": 16, "sf_format": "ue8m0", "round_sf": True}),
        (1, 128, {"cast_fmt": "e2m1", "num_per_channels": 16, "sf_format": "e4m3", "round_sf": False}),
        (
            1,
            512,
            {
                "cast_fmt": "e2m1",
                "num_per_channels": 32,
                "sf_format": "ue8m0",
                "round_sf": True,
                "bf16_stage": "cast_back",
            },
        ),
    ],
)
def test_refuses_what_ascend_refuses(heads: int, head_dim: int, options: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        make_kernel(heads, head_dim, **options)


def test_refuses_a_cache_that_does_not_fit_the_cast(refs: Any) -> None:
    layout = layouts(refs)["fp8"]
    cast = {"cast_fmt": "e4m3", "num_per_channels": 32, "round_sf": True, "sf_format": "ue8m0", "cache_layout": layout}
    make_kernel(1, 512, **cast)
    for heads, head_dim, change in (
        (2, 512, {}),
        (1, 128, {}),
        (1, 512, {"num_per_channels": 64}),
        (1, 512, {"cache_layout": SimpleNamespace(**(vars(layout) | {"sf_format": "fp32"}))}),
        (1, 512, {"cast_fmt": ""}),
    ):
        with pytest.raises(AssertionError):
            make_kernel(heads, head_dim, **(cast | change))


def test_two_units_from_exact_before_the_final_rounding() -> None:
    # Weights of one and a row whose norm is exact leave only the statistics' rounding, far below bf16's.
    x = torch.randn(64, 1, 512).bfloat16()
    out = plain(x, do_norm=True, weight=torch.ones(512).bfloat16())
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt()
    assert ulps(out, exact).max() <= 0.51
