"""expand_swa_index: two segments a token, -1 behind them, int32 sums that wrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops, wrap_int32
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.swa_index import expand_swa_index_tl

Pivot = tuple[int, int, int, int]


def expected(pivots: list[Pivot], width: int) -> list[list[int]]:
    rows = []
    for offset1, length1, offset2, length2 in pivots:
        first = [wrap_int32(offset1 + j) for j in range(length1)]
        second = [wrap_int32(offset2 + j) for j in range(length2)]
        rows.append((first + second + [-1] * width)[:width])
    return rows


@pytest.mark.parametrize(
    "pivots",
    [
        pytest.param([(5, 3, 40, 2)], id="one token"),
        pytest.param([(0, 0, 0, 0), (7, 0, 9, 4), (7, 4, 9, 0)], id="empty segments"),
        pytest.param([(-1024, 6, 3, 9), (1, 20, 2, 20)], id="clipped"),
        pytest.param([(2**31 - 3, 8, -(2**31), 8)], id="wraps"),
        pytest.param([], id="no token"),
    ],
)
def test_segments(pivots: list[Pivot]) -> None:
    kernel, width = expand_swa_index_tl(9), 9
    args = (
        guard(torch.tensor(pivots, dtype=torch.int32).reshape(-1, 4)),
        guard(torch.full((len(pivots), width), 77, dtype=torch.int32)),
    )
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("output",))
    assert args[1].tolist() == expected(pivots, width)


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 12), st.integers(-50, 50), st.integers(0, 12)), max_size=8),
    st.integers(1, 17),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_any_segments(pivots: list[Pivot], width: int) -> None:
    output = torch.empty(len(pivots), width, dtype=torch.int32)
    expand_swa_index_tl(width)(torch.tensor(pivots, dtype=torch.int32).reshape(-1, 4), output)
    assert output.tolist() == expected(pivots, width)


@pytest.mark.parametrize("tokens, width", [(33, 128), (129, 127)])
def test_against_the_reference(upstream: Callable[[str], Any], tokens: int, width: int) -> None:
    module = upstream("swa_index")
    pivots = module._make_pivots(tokens, width)
    assert torch.equal(module.expand_swa_index(pivots, width), module.expand_swa_index_ref(pivots, width))
