"""sum_smaller_probs: mass up to the chosen token in ascending order, equals by column."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.sum_smaller_probs import sum_smaller_probs_tl


def expected(row: list[float], chosen: int) -> float:
    if chosen < 0:
        return 0.0
    counted = (v for j, v in enumerate(row) if v < row[chosen] or (v == row[chosen] and j <= chosen))
    return math.fsum(math.exp(v) for v in counted)


@pytest.mark.parametrize("rows", [0, 1, 6])
def test_ranks(rows: int) -> None:
    logits = torch.randint(0, 4, (rows, 128)).float()
    logits[:, 5:9] = -torch.inf
    logprobs = logits.log_softmax(1)
    chosen = [-1, 0, 127, 5, 64, 6][:rows]
    args = (guard(logprobs, (136, 1)), guard(torch.tensor(chosen, dtype=torch.int32)), guard(torch.full((rows,), 7.0)))
    kernel = sum_smaller_probs_tl(128)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("output",))
    for got, row, token in zip(args[2].tolist(), logprobs.tolist(), chosen, strict=True):
        assert got == pytest.approx(expected(row, token), abs=1e-6)


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5, -3.0, -math.inf]), min_size=64, max_size=64), st.integers(0, 63))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_row(logits: list[float], chosen: int) -> None:
    logprobs = torch.tensor([[0.0, *logits[1:]]]).log_softmax(1)
    out = torch.empty(1)
    sum_smaller_probs_tl(64)(logprobs, torch.tensor([chosen], dtype=torch.int32), out)
    assert out.item() == pytest.approx(expected(logprobs[0].tolist(), chosen), abs=1e-6)


def test_against_the_reference(upstream: Callable[[str], Any]) -> None:
    module = upstream("sum_smaller_probs")
    logprobs, chosen = torch.randn(7, 192).log_softmax(1), torch.randint(-1, 192, (7,))
    got = module.get_sum_smaller_probs(logprobs, chosen.int())
    assert torch.allclose(got, module.sum_smaller_probs_ref(logprobs, chosen), atol=1e-6)


def test_refuses_an_unaligned_vocabulary() -> None:
    with pytest.raises(AssertionError, match="multiple of 64"):
        sum_smaller_probs_tl(100)
