"""gather: rows copied bytewise, zeros where the index is out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, count_ops, guard, work
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.gather import gather_tl


def expected_rows(x: torch.Tensor, index: list[int]) -> list[list[float]]:
    width = x.shape[1]
    return [x[i].tolist() if 0 <= i < x.shape[0] else [0] * width for i in index]


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("row_gap", [0, 5])
def test_each_dtype(dtype: torch.dtype, index_dtype: torch.dtype, row_gap: int) -> None:
    n, width = 7, 12
    index = [0, 6, -1, 7, 3, 3, 2**31 - 1, -(2**31)]
    x = guard(torch.randint(-100, 100, (n, width)).to(dtype), (width + row_gap, 1))
    index_tensor = guard(torch.tensor(index, dtype=index_dtype))
    y = guard(torch.full((len(index), width), 77).to(dtype))
    check_kernel(gather_tl(width, dtype, index_dtype, x.stride(0)), x, index_tensor, y, written=("Y",))
    assert y.tolist() == expected_rows(x, index)


@pytest.mark.parametrize("n, m", [(0, 3), (1, 1), (1, 0), (5, 1)])
def test_few_rows(n: int, m: int) -> None:
    x, index, y = guard(torch.randn(n, 3)), guard(torch.zeros(m, dtype=torch.int32)), guard(torch.full((m, 3), 7.0))
    check_kernel(gather_tl(3, torch.float32, torch.int32, 3), x, index, y, written=("Y",))
    assert torch.equal(y, x[:1].expand(m, 3) if n else torch.zeros(m, 3))


def test_zero_rows_are_zero_where_the_source_is_not_finite() -> None:
    x, index = torch.full((2, 4), float("nan")), torch.tensor([-1, 5], dtype=torch.int32)
    y = torch.ones(2, 4)
    gather_tl(4, torch.float32, torch.int32, 4)(x, index, y)
    assert torch.equal(y, torch.zeros(2, 4))


@given(st.integers(1, 9), st.lists(st.integers(-3, 12), min_size=1, max_size=20), st.integers(1, 9))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_any_index(n: int, index: list[int], width: int) -> None:
    x = torch.arange(1.0, n * width + 1).view(n, width)
    y = torch.full((len(index), width), -1.0)
    gather_tl(width, torch.float32, torch.int32, width)(x, torch.tensor(index, dtype=torch.int32), y)
    assert y.tolist() == expected_rows(x, index)


def test_through_the_interface(upstream: Callable[[str], Any]) -> None:
    gather = upstream("gather").gather
    x, index = torch.randn(9, 3, 5, dtype=torch.bfloat16), torch.tensor([8, -1, 0, 9], dtype=torch.int32)
    y = gather(x, index)
    assert torch.equal(y[[0, 2]], x[[8, 0]]) and not y[[1, 3]].any()


def test_cost_does_not_grow_with_the_source() -> None:
    kernel = gather_tl(8, torch.float32, torch.int32, 8)
    index, y = torch.zeros(4, dtype=torch.int32), torch.empty(4, 8)
    small, large = (kernel, torch.randn(16, 8), index, y), (kernel, torch.randn(256, 8), index, y)
    assert work(*small) == work(*large)
    assert len(count_ops(*small)) <= 5


def test_refuses_another_row_length() -> None:
    with pytest.raises(AssertionError, match="rows of 4"):
        gather_tl(4, torch.float32, torch.int32, 5)(
            torch.ones(2, 5), torch.zeros(1, dtype=torch.int32), torch.ones(1, 5)
        )
