"""convert_kv_index: logical token to physical slot by the block table, -1 past the context, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import Work, check_kernel, guard, wide_ops, work
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.flash_mla_utils import convert_kv_index_tl


def expected(index: torch.Tensor, lens: torch.Tensor, tables: torch.Tensor, block_size: int) -> list[list[list[int]]]:
    rows, table = index.tolist(), tables.tolist()
    return [
        [
            [table[b][t // block_size] * block_size + t % block_size if j < length else -1 for j, t in enumerate(row)]
            for row, length in zip(rows[b], lens[b].tolist(), strict=True)
        ]
        for b in range(len(rows))
    ]


@pytest.mark.parametrize("b, s", [(0, 1), (1, 1), (3, 2)])
@pytest.mark.parametrize("block_size", [16, 12])
def test_lookup(b: int, s: int, block_size: int) -> None:
    k, n = 8, 5
    index = torch.randint(0, n * block_size, (b, s, k), dtype=torch.int32)
    lens = torch.randint(0, k + 3, (b, s), dtype=torch.int32)
    tables = torch.randint(0, 1000, (b, n), dtype=torch.int32)
    want = expected(index, lens, tables, block_size)
    # What lies past a context is never looked up.
    past = torch.arange(k) >= lens.unsqueeze(2)
    index[past] = torch.tensor([-1, 2**31 - 1, -(2**31)], dtype=torch.int32)[torch.arange(int(past.sum())) % 3]
    args = (guard(index), guard(lens), guard(tables))
    kernel = convert_kv_index_tl(s, k, n, block_size)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("topk_idxs",))
    assert args[0].tolist() == want


def test_empty_and_full_contexts() -> None:
    index = torch.arange(8, dtype=torch.int32).view(2, 1, 4)
    convert_kv_index_tl(1, 4, 1, 8)(
        index, torch.tensor([[0], [4]], dtype=torch.int32), torch.tensor([[3], [5]], dtype=torch.int32)
    )
    assert index.tolist() == [[[-1] * 4], [[44, 45, 46, 47]]]


def test_slots_near_the_top_of_int32() -> None:
    index = torch.tensor([[[15, 0]]], dtype=torch.int32)
    convert_kv_index_tl(1, 2, 1, 16)(
        index, torch.tensor([[2]], dtype=torch.int32), torch.tensor([[2**27 - 1]], dtype=torch.int32)
    )
    assert index.tolist() == [[[2**31 - 1, 2**31 - 16]]]


@given(st.integers(1, 4), st.integers(0, 3), st.integers(1, 6), st.integers(1, 40), st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_any_shape(b: int, log_k: int, n: int, block_size: int, random: Any) -> None:
    k = 1 << log_k
    index = torch.tensor([[[random.randrange(n * block_size) for _ in range(k)]] for _ in range(b)], dtype=torch.int32)
    lens = torch.tensor([[random.randrange(k + 2)] for _ in range(b)], dtype=torch.int32)
    tables = torch.tensor([[random.randrange(999) for _ in range(n)] for _ in range(b)], dtype=torch.int32)
    want = expected(index, lens, tables, block_size)
    convert_kv_index_tl(1, k, n, block_size)(index, lens, tables)
    assert index.tolist() == want


def test_cost_does_not_grow_with_the_table() -> None:
    def cost(n: int) -> Work:
        args = (
            torch.zeros(2, 1, 8, dtype=torch.int32),
            torch.ones(2, 1, dtype=torch.int32),
            torch.zeros(2, n, dtype=torch.int32),
        )
        return work(convert_kv_index_tl(1, 8, n, 16), *args)

    assert cost(64) == cost(1024)


def test_against_the_reference(upstream: Callable[[str], Any]) -> None:
    module = upstream("flash_mla_utils")
    index, lens, tables = module._make_convert_kv_index_inputs(5, 2, 64, 40, 16)
    want = module.convert_kv_index_ref(index, 16, lens, tables)
    module.convert_kv_index(index, 16, lens, tables)
    assert torch.equal(index, want)


@pytest.mark.parametrize("k", [0, 3, 8192])
def test_refuses_other_widths(k: int) -> None:
    with pytest.raises(AssertionError, match="expected k"):
        convert_kv_index_tl(1, k, 4, 16)
