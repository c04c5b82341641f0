"""The host casts and comparisons against upstream's own modules, bit for bit."""

from __future__ import annotations

import inspect
import itertools
from types import ModuleType
from typing import Any

import pytest
import torch

from overrides.vendor.deep_gemm.testing import numeric
from overrides.vendor.deep_gemm.utils import math


def same(a: Any, b: Any) -> None:
    if isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
        return
    assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
    assert torch.equal(a.reshape(-1, 1).view(torch.uint8), b.reshape(-1, 1).view(torch.uint8))


def inputs(rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Normal numbers of many scales, rows of zeros, tiny rows, and numbers on the midpoints of both formats."""
    x = torch.randn(rows, columns) * torch.exp2(torch.randint(-12, 12, (rows, 1)).float())
    x[rows // 2] = 0
    x[-1] *= 1e-30
    midpoints = torch.tensor([0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -5.0, 464.0, -0.0])
    grid = midpoints[torch.randint(0, len(midpoints), (rows, columns))]
    return [x.to(dtype), grid.to(dtype)]


@pytest.fixture
def theirs(upstream: Any) -> ModuleType:
    return upstream[1].utils.math


SHAPES = [(1, 32), (7, 64), (32, 96), (6, 70), (130, 256)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("name", ["per_token_cast_to_fp8", "per_token_cast_to_fp4"])
def test_per_token(theirs: ModuleType, name: str, rows: int, columns: int, dtype: torch.dtype) -> None:
    for x, gran, (ue8m0, packed) in itertools.product(
        inputs(rows, columns, dtype), (32, 128), ((False, False), (True, False), (True, True))
    ):
        mine, wanted = (getattr(module, name)(x, ue8m0, gran, packed) for module in (math, theirs))
        same(mine, wanted)
        back = f"cast_back_from_{name[-3:]}"
        same(getattr(math, back)(*mine, gran, packed), getattr(theirs, back)(*wanted, gran, packed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ue8m0", [False, True])
def test_per_channel_block_and_custom(theirs: ModuleType, ue8m0: bool, dtype: torch.dtype) -> None:
    for rows, columns in SHAPES:
        for x in inputs(rows, columns, dtype):
            for gran in (32, 128):
                same(math.per_block_cast_to_fp8(x, ue8m0, gran), theirs.per_block_cast_to_fp8(x, ue8m0, gran))
                if rows % gran == 0:
                    same(math.per_channel_cast_to_fp8(x, ue8m0, gran), theirs.per_channel_cast_to_fp8(x, ue8m0, gran))
            for dims in ((0,), (1,), (0, 1)):
                same(
                    math.per_custom_dims_cast_to_fp8(x, dims, ue8m0), theirs.per_custom_dims_cast_to_fp8(x, dims, ue8m0)
                )


def test_scales(theirs: ModuleType) -> None:
    bits = torch.cat(
        [
            torch.arange(0, 2**31, 104729, dtype=torch.int64),
            torch.tensor([0x7F7FFFFF, 0x7F800000, 0x00800000, 0x007FFFFF]),
        ]
    )
    x = bits.to(torch.int32).view(torch.float32)
    same(math.ceil_to_ue8m0(x), theirs.ceil_to_ue8m0(x))
    same(math.ceil_to_ue8m0(-x), theirs.ceil_to_ue8m0(-x))
    powers = torch.exp2(torch.randint(-126, 128, (5, 8)).float())
    same(math.pack_ue8m0_to_int(powers), theirs.pack_ue8m0_to_int(powers))
    same(math.unpack_ue8m0_from_int(math.pack_ue8m0_to_int(powers)), powers)
    for module in (math, theirs):
        for wrong in (powers * 1.5, -powers, powers[:, :3], powers.double()):
            with pytest.raises(AssertionError):
                module.pack_ue8m0_to_int(wrong)


def test_transposed_fp4(theirs: ModuleType) -> None:
    for shape in ((2, 1), (8, 6), (64, 32)):
        packed = torch.randint(-128, 128, shape, dtype=torch.int8)
        same(math.transpose_packed_fp4(packed), theirs.transpose_packed_fp4(packed))
        same(math.transpose_packed_fp4(math.transpose_packed_fp4(packed)), packed)


def test_integers_and_signatures(theirs: ModuleType) -> None:
    for x, y in itertools.product(range(0, 40, 3), (1, 4, 7, 32)):
        assert (math.ceil_div(x, y), math.align(x, y)) == (theirs.ceil_div(x, y), theirs.align(x, y))
    public = [name for name, value in vars(theirs).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert len(public) == 13
    for name in public:
        mine, wanted = (inspect.signature(getattr(module, name)).parameters.values() for module in (math, theirs))
        assert [(p.name, p.kind, p.default) for p in mine] == [(p.name, p.kind, p.default) for p in wanted]


def test_comparisons(upstream: Any) -> None:
    theirs = upstream[1].testing
    x = torch.randn(5, 7)
    for y in (x, -x, x + 1e-3, torch.zeros_like(x)):
        assert float(numeric.calc_diff(x, y)) == float(theirs.calc_diff(x, y))
    assert numeric.calc_diff(torch.zeros(3), torch.zeros(3)) == 0.0
    nested = (x, [x.bfloat16(), None], (x[:1],))
    assert numeric.count_bytes(*nested, None) == theirs.count_bytes(*nested, None) == 140 + 70 + 28
    numeric.assert_bitwise_equal(x, x.clone())
    nan = torch.full((2,), float("nan"))
    numeric.assert_bitwise_equal(nan, nan.clone())
    for a, b, message in (
        (x, x.index_fill(0, torch.tensor([2]), 3.0), "first 14"),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "first 0"),
        (x, x[:2], "shapes"),
        (x, x.double(), "dtypes"),
    ):
        with pytest.raises(AssertionError, match=message):
            numeric.assert_bitwise_equal(a, b)
        with pytest.raises(AssertionError):
            theirs.assert_bitwise_equal(a, b)
