"""Candidate blocks: scores, compact lengths, and the way back to token indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.candidate_blocks import (
    candidate_block_max_tl,
    get_candidate_compact_lens_tl,
    restore_candidate_indices_inplace_tl,
)

BF16_MAX = torch.finfo(torch.bfloat16).max


@pytest.mark.parametrize("width", [8, 16, 5, 37, 48])
@pytest.mark.parametrize("block_size", [8, 16])
def test_scores(width: int, block_size: int) -> None:
    lens = sorted({0, 1, block_size - 1, block_size, block_size + 1, width - 1, width} & set(range(width + 1)))
    rows, blocks = len(lens), -(-width // block_size)
    logits = torch.randn(rows, width).bfloat16()
    logits[:, 0] = torch.inf
    logits[:, 1:3] = -torch.inf
    args = (
        guard(logits, (width + 3, 1)),
        guard(torch.tensor(lens, dtype=torch.int32)),
        guard(torch.full((rows, blocks), 7.0).bfloat16(), (64, 1)),
        guard(torch.full((rows + 3,), 77, dtype=torch.int32)),
    )
    kernel = candidate_block_max_tl(width, block_size)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("block_scores", "valid_blocks"), gates=block_size == 8)
    counts = [-(-length // block_size) for length in lens]
    assert args[3].tolist() == counts + [77] * 3
    for row, count in enumerate(counts):
        parts = logits[row].split(block_size)
        want = [min(float(part.max()), BF16_MAX) for part in parts[: count - 1]] + [torch.inf] * (count > 0)
        assert args[2][row, :count].tolist() == want[:count]


@pytest.mark.parametrize("rows", [0, 1])
def test_scores_of_few_rows(rows: int) -> None:
    args = (
        torch.ones(rows, 24).bfloat16(),
        torch.full((rows,), 24, dtype=torch.int32),
        torch.zeros(rows, 3).bfloat16(),
    )
    count = torch.zeros(4, dtype=torch.int32)
    check_kernel(candidate_block_max_tl(24, 8), *args, count, written=("block_scores", "valid_blocks"))
    assert args[2].tolist() == [[1.0, 1.0, torch.inf]] * rows and count.tolist() == [3] * rows + [0] * (4 - rows)


def compact_length(blocks: list[int], length: int, size: int) -> int:
    return sum(min(max(length - b * size, 0), size) for b in blocks if b >= 0)


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_compact_lengths(size: int, rows: int) -> None:
    blocks = torch.randint(-2, 9, (rows, 7), dtype=torch.int32)
    if rows > 1:
        blocks[1] = torch.tensor([2**31 - 1, -(2**31), -1, 2**28, 2**27, 0, 3], dtype=torch.int32)
        blocks[2] = -1
    lens = torch.randint(0, 9 * size, (rows,), dtype=torch.int32)
    args = (guard(blocks, (16, 1)), guard(lens), guard(torch.full((rows,), 77, dtype=torch.int32)))
    kernel = get_candidate_compact_lens_tl(7, size)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("compact_lens",))
    assert args[2].tolist() == [compact_length(b, n, size) for b, n in zip(blocks.tolist(), lens.tolist(), strict=True)]


@given(st.lists(st.integers(-3, 30), min_size=1, max_size=12), st.integers(0, 300), st.sampled_from([8, 16]))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_compact_length(blocks: list[int], length: int, size: int) -> None:
    out = torch.empty(1, dtype=torch.int32)
    get_candidate_compact_lens_tl(len(blocks), size)(
        torch.tensor([blocks], dtype=torch.int32), torch.tensor([length], dtype=torch.int32), out
    )
    assert out.tolist() == [compact_length(blocks, length, size)]


def restored(index: int, blocks: list[int], size: int, offset: int) -> int:
    if not 0 <= index < len(blocks) * size or blocks[index // size] < 0:
        return -1
    return blocks[index // size] * size + index % size + offset


@pytest.mark.parametrize("has_offset", [False, True])
@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_restore(has_offset: bool, size: int, rows: int) -> None:
    blocks = torch.randint(-1, 50, (rows, 6), dtype=torch.int32)
    index = torch.randint(-2, 7 * size, (rows, 11), dtype=torch.int32)
    if rows:
        index[0, :4] = torch.tensor([2**31 - 1, -(2**31), 6 * size, 6 * size - 1], dtype=torch.int32)
    offsets = torch.randint(0, 9, (rows,), dtype=torch.int32)
    want = [
        [restored(i, b, size, o if has_offset else 0) for i in row]
        for row, b, o in zip(index.tolist(), blocks.tolist(), offsets.tolist(), strict=True)
    ]
    args = (guard(index, (16, 1)), guard(blocks, (8, 1)), guard(offsets))
    kernel = restore_candidate_indices_inplace_tl(11, 6, size, has_offset)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("compact_indices",))
    assert args[0].tolist() == want


def test_restore_near_the_top_of_int32() -> None:
    index = torch.tensor([[7, 8]], dtype=torch.int32)
    blocks = torch.tensor([[2**28 - 2, 0]], dtype=torch.int32)
    restore_candidate_indices_inplace_tl(2, 2, 8, True)(index, blocks, torch.tensor([8], dtype=torch.int32))
    assert index.tolist() == [[2**31 - 1, 8]]


def test_against_the_references(upstream: Callable[[str], Any]) -> None:
    module = upstream("candidate_blocks")
    logits, lens = torch.randn(9, 133).bfloat16(), torch.randint(0, 134, (9,), dtype=torch.int32)
    scores, counts = module.candidate_block_max(logits, lens, 16)
    want_scores, want_counts = module.candidate_block_max_ref(logits, lens, 16)
    assert torch.equal(counts, want_counts)
    valid = torch.arange(want_scores.shape[1]) < want_counts.unsqueeze(1)
    assert torch.equal(scores[:, : want_scores.shape[1]][valid].view(torch.int16), want_scores[valid].view(torch.int16))
    blocks = torch.randint(-1, 9, (9, 8), dtype=torch.int32)
    assert torch.equal(
        module.get_candidate_compact_lens(blocks, lens, 16), module.get_candidate_compact_lens_ref(blocks, lens, 16)
    )
    index = torch.randint(-1, 140, (9, 16), dtype=torch.int32)
    want = index.clone()
    module.restore_candidate_indices_inplace_ref(want, blocks, 16, lens)
    module.restore_candidate_indices_inplace(index, blocks, 16, lens)
    assert torch.equal(index, want)


@pytest.mark.parametrize(
    "factory", [get_candidate_compact_lens_tl, lambda k, b: restore_candidate_indices_inplace_tl(8, k, b, False)]
)
@pytest.mark.parametrize("topk, size", [(0, 8), (4097, 8), (8, 4)])
def test_refuses_what_upstream_refuses(factory: Callable[[int, int], Any], topk: int, size: int) -> None:
    with pytest.raises(AssertionError, match="expected"):
        factory(topk, size)
