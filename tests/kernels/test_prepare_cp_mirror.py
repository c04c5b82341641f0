"""Mirrored context-parallel layouts: every token in its place, and back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.prepare_cp_mirror import prepare_cp_mirror_tl, yoco_cp_boundary_fused_tl


def ends(lens: list[int]) -> list[int]:
    return [0, *accumulate(lens)]


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rows_of(length: int, cp: int) -> int:
    return -(-length // (2 * cp))


def layout(lens: list[int], cp: int, rank: int) -> list[tuple[int, int]]:
    """Rows of a rank: (sequence, token within it, which may lie behind its end)."""
    return [
        (i, block * rows_of(n, cp) + j)
        for i, n in enumerate(lens)
        for block in (rank, 2 * cp - 1 - rank)
        for j in range(rows_of(n, cp))
    ]


def mirror(lens: list[int], keys: list[int], cp: int, rank: int, ratios: tuple[int, ...], gates: bool = False) -> None:
    total, length = sum(lens), sum(2 * rows_of(n, cp) for n in lens)
    outputs = [guard(torch.full((len(ratios) + 1, len(lens) + 1), 77, dtype=torch.int32))]
    outputs += [guard(torch.full((size,), 77, dtype=torch.int32)) for size in (total, length)]
    outputs += [guard(torch.full((len(ratios), length), 77, dtype=torch.int32)) for _ in range(2)]
    args = (guard(ints(ends(lens))), guard(ints(ends(keys))), *outputs, rank)
    kernel = prepare_cp_mirror_tl(cp, ratios)
    written = ("cu_lens", "mirror_cp_reverse_index", "mirror_cp_index", "ks_out", "ke_out")
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=written, gates=gates)
    prefixes, reverse, index, first, last = (t.tolist() for t in outputs)

    compressed = [[max(1, k // ratio) for k in keys] for ratio in ratios]
    assert prefixes == [ends([2 * rows_of(n, cp) for n in lens]), *(ends(c) for c in compressed)]
    rows = layout(lens, cp, rank)
    starts = ends(lens)
    assert index == [starts[i] + t if t < lens[i] else -1 for i, t in rows]
    for r, ratio in enumerate(ratios):
        base = ends(compressed[r])
        assert first[r] == [base[i] for i, _ in rows]
        assert last[r] == [base[i] + ((keys[i] - lens[i] + t + 1) // ratio if t < lens[i] else 0) for i, t in rows]
    gathered = [starts[i] + t if t < lens[i] else -1 for r in range(cp) for i, t in layout(lens, cp, r)]
    assert [gathered[p] for p in reverse] == list(range(total))


@pytest.mark.parametrize("cp", [1, 2, 4])
@pytest.mark.parametrize(
    "lens, more", [([1], [0]), ([50, 3, 40, 20, 13], [0, 27, 0, 20, 0]), ([1, 0, 7, 129, 0], [0, 0, 2, 71, 0])]
)
@pytest.mark.parametrize("ratios", [(1,), (1, 2), (4,)])
def test_mirror(cp: int, lens: list[int], more: list[int], ratios: tuple[int, ...]) -> None:
    keys = [n + m for n, m in zip(lens, more, strict=True)]
    for rank in range(cp):
        mirror(lens, keys, cp, rank, ratios, gates=rank == 0 and cp == 2 and ratios == (1, 2))


def test_many_sequences() -> None:
    mirror([2] * 700, [9] * 700, 2, 1, (2,))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=8), st.integers(1, 5), st.data()
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_mirror(rows: list[tuple[int, int]], cp: int, data: st.DataObject) -> None:
    rows = [*rows, (3, 1)]
    mirror([n for n, _ in rows], [n + m for n, m in rows], cp, data.draw(st.integers(0, cp - 1)), (1, 2))


def kept_rows(lens: list[int], kept: list[int], cp: int, rank: int) -> list[tuple[int, int, int]]:
    """Kept rows of a rank in order: (place among the rank's rows, sequence, token within the kept part)."""
    rows = enumerate(layout(lens, cp, rank))
    return [(place, i, t - (lens[i] - kept[i])) for place, (i, t) in rows if lens[i] - kept[i] <= t < lens[i]]


def boundary(lens: list[int], kept: list[int], cp: int, rank: int, gates: bool = False) -> None:
    contributions = [kept_rows(lens, kept, cp, r) for r in range(cp)]
    pad = max(len(c) for c in contributions)
    outputs = [guard(torch.full(s, 77, dtype=torch.int32)) for s in ((cp + 1, len(lens) + 1), (pad,), (sum(kept),))]
    args = (guard(ints(ends(lens))), guard(ints(ends(kept))), *outputs, rank)
    kernel = yoco_cp_boundary_fused_tl(cp)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("cu_lens", "yoco_contrib_index", "yoco_gathered_reverse_index"), gates=gates)
    prefixes, contributed, reverse = (t.tolist() for t in outputs)
    mine = [place for place, _, _ in contributions[rank]]
    assert contributed == mine + [-1] * (pad - len(mine))
    starts = ends(kept)
    gathered = {r * pad + k: starts[i] + t for r, rows in enumerate(contributions) for k, (_, i, t) in enumerate(rows)}
    assert [gathered[p] for p in reverse] == list(range(sum(kept)))
    counts = [[sum(i == s for _, i, _ in rows) for s in range(len(lens))] for rows in contributions]
    assert prefixes == [*(ends(c) for c in counts), ends([2 * rows_of(n, cp) for n in lens])]


@pytest.mark.parametrize("cp", [1, 2, 4])
@pytest.mark.parametrize(
    "lens, kept", [([1], [1]), ([40], [13]), ([50, 3, 40, 20, 13], [3, 3, 13, 1, 13]), ([128, 1], [128, 1])]
)
def test_boundary(cp: int, lens: list[int], kept: list[int]) -> None:
    for rank in range(cp):
        boundary(lens, kept, cp, rank, gates=rank == 0 and cp == 2)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 29)), min_size=1, max_size=6), st.integers(1, 5), st.data()
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_boundary(rows: list[tuple[int, int]], cp: int, data: st.DataObject) -> None:
    kept = [n - min(cut, n - 1) for n, cut in rows]
    boundary([n for n, _ in rows], kept, cp, data.draw(st.integers(0, cp - 1)))


def test_against_the_references(upstream: Callable[[str], Any]) -> None:
    module = upstream("prepare_cp_mirror")
    lens, keys, cp = [50, 3, 40, 20, 13], [50, 30, 40, 40, 13], 4
    size = sum(2 * rows_of(n, cp) for n in lens)
    got = module.prepare_cp_mirror(ints(ends(lens)), ints(ends(keys)), cp, 2, (1, 2), sum(lens), size)
    want = module.prepare_cp_mirror_ref(lens, keys, cp, 2, (1, 2))
    assert [t.tolist() for t in got] == list(want)
    kept = [3, 3, 13, 1, 13]
    contributions, reverse, pad = module.yoco_cp_boundary_fused_ref(lens, kept, cp)
    index, gathered = module.yoco_cp_boundary_fused(ints(ends(lens)), ints(ends(kept)), cp, 2, sum(kept), pad)
    assert gathered.tolist() == reverse and [v for v in index.tolist() if v != -1] == contributions[2]


@pytest.mark.parametrize("ratios", [(), (3,), (2, 1), (2, 2), (0,)])
def test_refuses_ratios_that_upstream_refuses(ratios: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="expected"):
        prepare_cp_mirror_tl(2, ratios)
