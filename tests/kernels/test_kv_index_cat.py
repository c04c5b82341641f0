"""kv_index_cat: window columns copied, compressed columns shifted, -1 kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops

from overrides.tilelang_ops.kv_index_cat import kv_index_cat_tl


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_halves_of_one_padded_row(rows: int) -> None:
    window, topk, stride = 8, 5, 16
    left = guard(torch.randint(-1, 99, (rows, window), dtype=torch.int32))
    right = guard(torch.randint(-1, 99, (rows, topk), dtype=torch.int32))
    whole = guard(torch.full((rows, stride), 77, dtype=torch.int32))
    kernel = kv_index_cat_tl("int32", window, topk, stride)
    args = (left, right, whole[:, :window], whole[:, window : window + topk], 1000, 24)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("kv_index_out", "kv_ca_index_out"))
    shifted = [[-1 if v == -1 else v + 1024 for v in row] for row in right.tolist()]
    assert whole[:, :window].tolist() == left.tolist()
    assert whole[:, window : window + topk].tolist() == shifted


def test_only_minus_one_is_kept_and_sums_reach_the_top() -> None:
    index = torch.tensor([[-1, -2, 0, 2**31 - 1 - 2**30]], dtype=torch.int32)
    out = torch.empty(1, 4, dtype=torch.int32)
    kv_index_cat_tl("int32", 4, 4, 8)(index, index, torch.empty(1, 4, dtype=torch.int32), out, 2**29, 2**29)
    assert out.tolist() == [[-1, 2**30 - 2, 2**30, 2**31 - 1]]


def test_against_the_reference(upstream: Callable[[str], Any]) -> None:
    module = upstream("kv_index_cat")
    args = (
        torch.randint(0, 10, (67, 12), dtype=torch.int32),
        torch.randint(-1, 5, (67, 9), dtype=torch.int32),
        666,
        23333,
    )
    assert torch.equal(module.kv_index_cat(*args), module.kv_index_cat_ref(*args))
