"""The bookkeeping of grouped rows against plain loops, over many random layouts."""

from __future__ import annotations

import random

import pytest
import torch

from neuron_numerics.gemm_products import groups_of_psum, groups_of_rows, occupied_groups, psum_gaps


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
