"""The bookkeeping of grouped rows against plain loops, over many random layouts."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
import torch

from neuron_numerics.e2m1 import decode
from neuron_numerics.gemm_products import (
    blocks_of_psum,
    blocks_of_rows,
    groups_of_psum,
    groups_of_rows,
    occupied_groups,
    psum_gaps,
)


def layout(sizes: list[int], alignment: int) -> tuple[list[int], list[int], int]:
    """Ends with an empty group's at its aligned start, ends with it at the end before it, and the aligned end of all."""
    ends, lazy, start, previous = [], [], 0, 0
    for size in sizes:
        ends.append(start + size)
        previous = start + size if size else previous
        lazy.append(previous)
        start = -(-(start + size) // alignment) * alignment
    return ends, lazy, start


@pytest.mark.parametrize("alignment", [1, 2, 8, 128])
def test_random_layouts(alignment: int) -> None:
    draw = random.Random(alignment)
    for _ in range(150):
        sizes = [draw.choice([0, 0, 1, draw.randint(0, 3 * alignment)]) for _ in range(draw.randint(1, 12))]
        ends, lazy, total = layout(sizes, alignment)
        last = max((end for end, size in zip(ends, sizes, strict=True) if size), default=0)
        rows = max(1, draw.choice([total, last, total + draw.randint(1, 2 * alignment)]))
        owner = torch.full((rows,), -1, dtype=torch.int32)
        for group, (end, size) in enumerate(zip(ends, sizes, strict=True)):
            owner[end - size : end] = group
        real = [row for row in range(rows) if owner[row] >= 0]
        used = [group for group, size in enumerate(sizes) if size]
        psum = torch.tensor(ends, dtype=torch.int32)
        assert torch.equal(psum_gaps(psum, alignment, rows)[:, 0], owner < 0)
        for groups in (
            groups_of_psum(psum, alignment, rows),
            groups_of_psum(torch.tensor(lazy, dtype=torch.int32), alignment, rows),
            groups_of_rows(owner, alignment, len(sizes)),
        ):
            assert groups.count.tolist() == sizes
            assert groups.ends.tolist() == [sum(sizes[: group + 1]) for group in range(len(sizes))]
            assert torch.equal(groups.gap[:, 0], owner < 0)
            assert groups.source[: len(real)].tolist() == real
            assert groups.place[owner >= 0].tolist() == list(range(len(real)))
            for index in (groups.source, groups.place):
                assert index.dtype == torch.int32 and int(index.min()) >= 0 and int(index.max()) < rows
            slots = occupied_groups(groups, min(len(sizes), -(-rows // alignment)))
            assert slots.group[: len(used)].tolist() == used and int(slots.ends[-1]) == len(real)
            if rows % alignment == 0:
                for blocks in (
                    blocks_of_psum(psum, alignment, rows),
                    blocks_of_psum(torch.tensor(lazy, dtype=torch.int32), alignment, rows),
                    blocks_of_rows(owner, alignment),
                ):
                    assert torch.equal(blocks.gap[:, 0], owner < 0) and blocks.group.dtype == torch.int32
                    assert int(blocks.group.min()) >= 0 and int(blocks.group.max()) < len(sizes)
                    each = blocks.group.repeat_interleave(alignment)
                    assert torch.equal(each[owner >= 0], owner[owner >= 0])


@pytest.mark.parametrize("use_psum_layout", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("strided", [True, False])
def test_few_blocks_give_what_many_do(
    gemm: ModuleType, monkeypatch: pytest.MonkeyPatch, use_psum_layout: bool, dtype: torch.dtype, strided: bool
) -> None:
    """One block a group is a product of its own kind; padding that holds NaN comes out as zeros in both."""
    groups, alignment, k, n = 12, 16, 96, 40
    gemm.set_mk_alignment_for_contiguous_layout(alignment)
    ends, _, rows = layout([0, 3, 16, 0, 1, 20, 0, 7, 0, 0, 0, 0], alignment)
    owner = torch.full((rows,), -1, dtype=torch.int32)
    for group, (end, size) in enumerate(zip(ends, [0, 3, 16, 0, 1, 20, 0, 7, 0, 0, 0, 0], strict=True)):
        owner[end - size : end] = group
    grouped = torch.tensor(ends, dtype=torch.int32) if use_psum_layout else owner
    a, b = torch.randn(rows, k).bfloat16(), torch.randn(groups, n, k).bfloat16()
    a[owner < 0] = float("nan")
    a8, b8 = a.to(torch.float8_e4m3fn), torch.randint(-128, 128, (groups, n, k // 2), dtype=torch.int8)
    sf = torch.randint(120, 132, (rows, k // 32)).float().sub_(127).exp2_()
    sf_b = torch.randint(120, 132, (groups, n, k // 32)).float().sub_(127).exp2_()
    results = []
    for few in (True, False):
        if not few:
            monkeypatch.setattr(gemm, "_row_blocks", lambda *_: None)
        out = [torch.full((rows, n + 8 * strided), 7.0, dtype=dtype)[:, :n] for _ in range(2)]
        if dtype == torch.bfloat16:
            gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, out[0], grouped, use_psum_layout=use_psum_layout)
        gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
            (a8, sf), (b8, sf_b), out[1], grouped, recipe=(1, 1, 32), use_psum_layout=use_psum_layout
        )
        results.append(out)
    for few_blocks, many in zip(*results, strict=True):
        torch.testing.assert_close(few_blocks, many, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
        assert bool(
            (few_blocks[owner < 0] == (0 if dtype == torch.bfloat16 or few_blocks is results[0][1] else 7)).all()
        )
    plain = a8.float().unflatten(1, (-1, 32)).mul(sf.unsqueeze(-1)).flatten(1)
    weight = decode(b8).unflatten(2, (-1, 32)).mul(sf_b.unsqueeze(-1)).flatten(2)
    for row in (owner >= 0).nonzero().flatten().tolist():
        wanted = weight[int(owner[row])].double() @ plain[row].double()
        torch.testing.assert_close(results[0][1][row].double(), wanted, rtol=2**-7, atol=1e-3)
