"""apply_token_bitmask: forbidden tokens to -inf in the chosen rows, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, count_ops, guard, new_bytes, wide_ops

from overrides.tilelang_ops.structure_output import apply_token_bitmask_by_step_inplace_tl


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def expected(logits: torch.Tensor, bitmask: torch.Tensor, rows: list[tuple[int, int]], vocab: int) -> torch.Tensor:
    want = logits.clone()
    for request, row in rows:
        for token in range(vocab):
            if not (int(bitmask[request, token // 32]) >> (token % 32)) & 1:
                want[row, token] = -torch.inf
    return want


def bits(requests: int, words: int) -> torch.Tensor:
    mask = torch.randint(-(2**31), 2**31, (requests, words)).int()
    mask[0] = ints([-1, 0, -(2**31), 1, 2**31 - 1, 5, 6, 7][:words])
    return mask


@pytest.mark.parametrize("vocab, width", [(64, 64), (128, 131)])
@pytest.mark.parametrize("indices", [[], [0], [2, 0, 2]])
def test_rows_of_requests(vocab: int, width: int, indices: list[int]) -> None:
    logits = torch.randn(3, width)
    logits[0, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    mask = bits(3, vocab // 32)
    args = (guard(logits, (width + 5, 1)), guard(mask, (9, 1)), guard(ints(indices)), None, 0)
    kernel = apply_token_bitmask_by_step_inplace_tl(vocab, False)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("logits",), optional=() if indices else ("logits",))
    want = expected(logits, mask, [(i, i) for i in indices], vocab)
    assert torch.equal(args[0].nan_to_num(9.0, 8.0, 7.0), want.nan_to_num(9.0, 8.0, 7.0))


@pytest.mark.parametrize("step", [0, 1, 2, 5])
@pytest.mark.parametrize("indices", [[2], [0, 1, 2], [1, 2]])
def test_rows_of_a_step(step: int, indices: list[int]) -> None:
    first, rows, vocab = [0, 3, 4], 6, 64
    ends = [3, 4, 6]
    logits, mask = torch.randn(rows, vocab), bits(3, 2)
    args = (guard(logits), guard(mask), guard(ints(indices)), guard(ints(first)), step)
    kernel = apply_token_bitmask_by_step_inplace_tl(vocab, True)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("logits",))
    chosen = [(i, first[i] + step) for i in indices if first[i] + step < ends[i]]
    assert torch.equal(args[0], expected(logits, mask, chosen, vocab))


def test_cost_is_that_of_the_chosen_rows() -> None:
    def cost(rows: int) -> int:
        args = (
            torch.randn(rows, 64),
            torch.zeros(rows, 2, dtype=torch.int32),
            ints([0, 1]),
            ints(list(range(rows))),
            0,
        )
        return new_bytes(apply_token_bitmask_by_step_inplace_tl(64, True), *args)

    assert cost(256) - cost(16) <= 16 * 256
    args = (torch.randn(4, 64), torch.zeros(4, 2, dtype=torch.int32), ints([0, 1]), None, 0)
    assert len(count_ops(apply_token_bitmask_by_step_inplace_tl(64, False), *args)) <= 10


def test_against_the_reference(upstream: Callable[[str], Any]) -> None:
    module = upstream("structure_output")
    for first, step in ((None, 0), (ints([0, 2, 3, 7]), 1)):
        logits, mask = torch.randn(9, 192), bits(4, 6)
        want = logits.clone()
        module.apply_token_bitmask_by_step_inplace_ref(want, mask, ints([3, 0, 1]), first, step)
        module.apply_token_bitmask_by_step_inplace(logits, mask, ints([3, 0, 1]), first, step)
        assert torch.equal(logits, want)


def test_refuses_an_unaligned_vocabulary() -> None:
    with pytest.raises(AssertionError, match="multiple of 64"):
        apply_token_bitmask_by_step_inplace_tl(96, False)
