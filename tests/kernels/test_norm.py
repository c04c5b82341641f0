"""norm: Ascend's rounding order, FP8 casts in every scale layout, residual, strides, precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cache_support import ascend_references, ulps
from harness import check_kernel, count_ops, guard

from overrides.tilelang_ops.norm import norm_tl

EPS = 1e-6
DTYPES = {"bfloat16": torch.bfloat16, "float": torch.float32}
# column-major, rounded, packed
SCALES = {
    "fp32": (False, False, False),
    "pow2": (False, True, False),
    "packed": (False, True, True),
    "fp32-columns": (True, False, False),
    "pow2-columns": (True, True, False),
    "packed-columns": (True, True, True),
}


@pytest.fixture
def refs(upstream: Callable[[str], Any], pytestconfig: pytest.Config) -> Iterator[Any]:
    with ascend_references(upstream, pytestconfig) as found:
        yield found


def make_kernel(
    hidden: int,
    dtype: str = "bfloat16",
    residual: bool = False,
    eps: float = EPS,
    out_scale: float = 1.0,
    scales: str = "",
    origin: bool = False,
    **changes: Any,
) -> Any:
    columns, rounded, packed = SCALES[scales] if scales else (False, False, False)
    arguments: dict[str, Any] = dict(
        hidden_size=hidden,
        dtype=dtype,
        return_dtype="float8_e4m3fn" if scales else dtype,
        reduce_dtype="float",
        has_residual=residual,
        eps=eps,
        out_scale=out_scale,
        do_fp8_cast=bool(scales),
        num_per_channels=32 if scales else 0,
        use_tma_aligned_col_major_sf=columns,
        round_sf=rounded,
        use_packed_ue8m0=packed,
        return_origin_out=origin,
        xdim=3,
        shared_sf_block_m=0,
        **{f"{name}_stride_s": hidden for name in ("x", "y", "residual", "residual_out", "y_origin", "sf")},
    )
    return norm_tl(**(arguments | changes))


def make_sf(batch: int, seqlen: int, groups: int, scales: str) -> torch.Tensor:
    """The scale argument that upstream's interface makes: a view with the kernel's shape and strides, inside guard bytes."""
    columns, _, packed = SCALES[scales]
    if packed and columns:
        shape = (batch, seqlen, groups // 2, 2)
        return guard(torch.zeros(shape, dtype=torch.uint8), (groups * seqlen, 2, seqlen * 2, 1))
    if packed:
        return guard(torch.zeros(batch, seqlen, groups, dtype=torch.uint8))
    strides = (groups * seqlen, 1, seqlen) if columns else (groups * seqlen, groups, 1)
    return guard(torch.zeros(batch, seqlen, groups), strides)


def exact_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS, out_scale: float = 1.0) -> torch.Tensor:
    x64 = x.double()
    return x64 / (x64.square().mean(-1, keepdim=True) + eps).sqrt() * (weight.double() * out_scale)


@pytest.mark.parametrize("shape", [(1, 1, 128), (1, 7, 512), (3, 5, 384), (2, 4, 7168), (1, 0, 256)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("out_scale", [1.0, 1.5])
def test_close_to_the_exact_norm(shape: tuple[int, int, int], dtype: str, residual: bool, out_scale: float) -> None:
    torch_dtype, hidden = DTYPES[dtype], shape[2]
    # Rows lie further apart than they are long, in every tensor by another distance.
    x, other = (
        guard(torch.randn(shape).to(torch_dtype), (shape[1] * (hidden + gap), hidden + gap, 1)) for gap in (64, 16)
    )
    y, total = (
        guard(torch.zeros(shape, dtype=torch_dtype), (shape[1] * (hidden + gap), hidden + gap, 1)) for gap in (32, 48)
    )
    weight = guard(torch.randn(hidden).to(torch_dtype))
    args = (x, y, weight, other if residual else x, total if residual else x, x, x, x)
    kernel = make_kernel(hidden, dtype, residual, out_scale=out_scale)
    check_kernel(kernel, *args, written=("y", "residual_out") if residual else ("y",), gates=shape == (3, 5, 384))
    source = (x + other).to(torch_dtype) if residual else x
    if residual:
        assert torch.equal(total, source)
    error = ulps(y, exact_norm(source, weight, out_scale=out_scale))
    # An fp32 result differs by its own roundings; a bf16 one is the exact value rounded, save next to a tie.
    assert error.numel() == 0 or error.max() <= (2.0 if dtype == "float" else 0.51)


@pytest.mark.parametrize("hidden", [128, 512, 5120, 7168])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_fp32_is_within_two_units_of_the_exact_norm(hidden: int, scale: float) -> None:
    x, weight = torch.randn(1, 500, hidden) * scale, torch.randn(hidden)
    y = torch.zeros_like(x)
    make_kernel(hidden, "float", out_scale=1.1)(x, y, weight, x, x, x, x, x)
    assert ulps(y, exact_norm(x, weight, out_scale=1.1)).max() <= 2


@pytest.mark.parametrize("out_scale", [1.0, 1.5])
def test_rounds_once_after_the_weight(refs: Any, out_scale: float) -> None:
    x, weight = torch.randn(1, 200, 512).bfloat16(), torch.randn(512).bfloat16()
    y = torch.zeros_like(x)
    make_kernel(512, out_scale=out_scale)(x, y, weight, x, x, x, x, x)
    exact = exact_norm(x, weight, out_scale=out_scale)
    once = exact.float().bfloat16()
    twice = refs.norm.norm_ref(x, weight, EPS) * out_scale
    assert (y != once).double().mean() < 1e-3
    # Rounding before the weight too, as the reference does, is another result for many elements.
    assert (y != twice).double().mean() > 0.05


def test_residual_is_rounded_before_the_statistics() -> None:
    x = torch.full((1, 1, 128), 256.0).bfloat16()
    other = torch.full((1, 1, 128), 0.75).bfloat16()
    y, total = torch.zeros_like(x), torch.zeros_like(x)
    make_kernel(128, residual=True, eps=65536.0)(x, y, torch.ones(128).bfloat16(), other, total, x, x, x)
    assert (total == 256).all()
    assert torch.equal(y, torch.full_like(x, 0.5**0.5))


@pytest.mark.parametrize("scales", list(SCALES))
@pytest.mark.parametrize("dtype", ["bfloat16", "float"])
@pytest.mark.parametrize("hidden", [128, 384, 512])
@pytest.mark.parametrize("residual", [False, True])
def test_fp8_is_the_cast_of_the_unquantised_result(
    refs: Any, scales: str, dtype: str, hidden: int, residual: bool
) -> None:
    torch_dtype, groups = DTYPES[dtype], hidden // 32
    shape = (2, 5, hidden)
    x, other = guard(torch.randn(shape).to(torch_dtype)), guard(torch.randn(shape).to(torch_dtype))
    x[0, 2].zero_()
    weight = guard(
        torch.randn(hidden).to(torch_dtype) * torch.exp2(torch.randint(-9, 9, (hidden,)).float()).to(torch_dtype)
    )
    y = guard(torch.zeros(shape).to(torch.float8_e4m3fn), (7 * hidden, hidden + 16, 1))
    origin, total = guard(torch.zeros_like(x)), guard(torch.zeros_like(x))
    sf = make_sf(2, 5, groups, scales)
    args = (x, y, weight, other if residual else x, total if residual else x, sf, x, origin)
    kernel = make_kernel(hidden, dtype, residual, scales=scales, origin=True, out_scale=0.7)
    written = {"y", "sf", "y_origin"} | ({"residual_out"} if residual else set())
    check_kernel(kernel, *args, written=written, gates=(hidden, dtype, residual) == (384, "bfloat16", True))

    plain = torch.zeros_like(x)
    make_kernel(hidden, dtype, residual, out_scale=0.7)(x, plain, weight, other, torch.zeros_like(x), x, x, x)
    assert torch.equal(origin, plain)
    _, rounded, packed = SCALES[scales]
    values, scale = refs.tk.cast(origin.reshape(-1, hidden), "e4m3", (1, 32), round_sf=rounded, use_packed_ue8m0=packed)
    assert torch.equal(y.reshape(-1, hidden).view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(sf.reshape(-1, groups), scale.view(torch.uint8) if packed else scale)


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fp8", [False, True])
def test_through_the_interface(refs: Any, ndim: int, dtype: torch.dtype, fp8: bool) -> None:
    shape = (3, 4, 256)[3 - ndim :]
    x, residual, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randn(256).to(dtype)
    fp8_options = {
        "fmt": "e4m3",
        "num_per_channels": 32,
        "round_sf": True,
        "use_packed_ue8m0": True,
        "use_tma_aligned_col_major_sf": True,
        "return_bf16": True,
    }
    result, total = refs.norm.norm(x, weight, residual, **(fp8_options if fp8 else {}))
    expected, expected_total = refs.norm.norm_ref(x, weight, EPS, residual)
    assert torch.equal(total, expected_total) and total.shape == shape
    if fp8:
        (values, scale), result = result
        assert values.shape == shape and scale.dtype == torch.int16 and scale.shape == (*shape[:-1], 4)
        result = result.view(shape)
        decoded = refs.tk.cast_back((values.reshape(-1, 256), scale.reshape(-1, 4)), "fp32", (1, 32)).view(shape)
        assert torch.allclose(decoded, result.float(), rtol=1 / 16, atol=1e-4)
    assert torch.allclose(result.float(), expected.float(), rtol=1e-2, atol=1e-2)


def test_zero_rows_and_tiny_eps() -> None:
    x, weight = torch.zeros(1, 2, 128).bfloat16(), torch.ones(128).bfloat16()
    x[0, 1] = 1e-18
    y = torch.full_like(x, torch.nan)
    make_kernel(128, eps=1e-20)(x, y, weight, x, x, x, x, x)
    assert (y[0, 0] == 0).all()
    assert torch.allclose(y[0, 1].float(), torch.tensor(1e-8), rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 100},
        {"dtype": "float16"},
        {"reduce_dtype": "bfloat16"},
        {"xdim": 4},
        {"shared_sf_block_m": 16},
        {"num_per_channels": 32},
        {"do_fp8_cast": True, "num_per_channels": 128},
        {"do_fp8_cast": True, "num_per_channels": 0},
        {"eps": 0.0},
        {"eps": 1e-39},
    ],
)
def test_refuses_what_ascend_refuses(changes: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        make_kernel(128, **changes)


def test_op_counts() -> None:
    x, y, weight = torch.randn(1, 3, 128).bfloat16(), torch.zeros(1, 3, 128).bfloat16(), torch.randn(128).bfloat16()
    # torch's norm is one op on a device that has it fused; here it is dispatched in eight.
    names = count_ops(make_kernel(128), x, y, weight, x, x, x, x, x)
    assert len(names) <= 8 + 1 and names.count("aten._to_copy.default") == 2
    assert len(count_ops(make_kernel(128, out_scale=1.5), x, y, weight, x, x, x, x, x)) <= 10
    sf = make_sf(1, 3, 4, "packed")
    args = (x, y.to(torch.float8_e4m3fn), weight, x, torch.zeros_like(x), sf, x, torch.zeros_like(x))
    assert len(count_ops(make_kernel(128, residual=True, scales="packed", origin=True), *args)) <= 22
