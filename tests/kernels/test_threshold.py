"""Top-p and top-k selection on rows whose sums are exact, so that the boundary is too."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops._threshold import keep_mask


def expected(row: list[float], top_p: float, top_k: int) -> list[bool]:
    width = len(row)
    by_p, by_k = top_p < 1.0, 0 <= top_k < width
    if not by_p and not by_k:
        return [True] * width
    goal, count = (max(top_p, 2.0**-32) if by_p else 2.0), (max(top_k, 1) if by_k else width + 1)
    kept, mass = [False] * width, 0.0
    for column in sorted(range(width), key=lambda j: -row[j]):
        if mass >= goal or sum(kept) >= count or row[column] < 2.0**-32:
            break
        kept[column], mass = True, mass + row[column]
    return kept


def keep(rows: list[list[float]], top_p: list[float], top_k: list[int]) -> list[list[bool]]:
    return keep_mask(torch.tensor(rows), torch.tensor(top_p), torch.tensor(top_k, dtype=torch.int32)).bool().tolist()


@st.composite
def dyadic_row(draw: st.DrawFn) -> list[float]:
    """Probabilities that are multiples of 2**-12 and add up to 1, equals among them."""
    cuts = sorted(draw(st.lists(st.integers(0, 4096), min_size=3, max_size=20)))
    return [(b - a) / 4096 for a, b in zip([0, *cuts], [*cuts, 4096], strict=True)]


@given(dyadic_row(), st.integers(0, 4200), st.integers(-1, 24))
@settings(deadline=None, derandomize=True, max_examples=120)
def test_any_row(row: list[float], mass: int, top_k: int) -> None:
    assert keep([row], [mass / 4096], [top_k]) == [expected(row, mass / 4096, top_k)]


QUARTERS = [0.25, 0.125, 0.25, 0.125, 0.25]


@pytest.mark.parametrize(
    "row, top_p, top_k, kept",
    [
        pytest.param(QUARTERS, 1.0, -1, [0, 1, 2, 3, 4], id="off"),
        pytest.param(QUARTERS, 2.0, 5, [0, 1, 2, 3, 4], id="off at the width"),
        pytest.param(QUARTERS, 1.0, 2, [0, 2], id="equals in order"),
        pytest.param(QUARTERS, 1.0, 4, [0, 1, 2, 4], id="equals below"),
        pytest.param(QUARTERS, 0.5, -1, [0, 2], id="mass reached exactly"),
        pytest.param(QUARTERS, 0.5001, -1, [0, 2, 4], id="mass just above"),
        pytest.param(QUARTERS, 0.9, 1, [0], id="the shorter one"),
        pytest.param(QUARTERS, 1.0, 0, [0], id="none counts as one"),
        pytest.param(QUARTERS, 0.0, -1, [0], id="no mass counts as one"),
        pytest.param([0.0, 1.0, 0.0], 0.9, -1, [1], id="certain"),
        pytest.param([2.0**-33, 1.0, 2.0**-32], 0.9999999, 2, [1], id="certain enough"),
        pytest.param([2.0**-33, 1.0, 2.0**-32], 1.0, 2, [1, 2], id="smallest that is kept"),
        pytest.param([1.0 - 2.0**-24, 2.0**-24], 1.0, 1, [0], id="just below one"),
    ],
)
def test_edges(row: list[float], top_p: float, top_k: int, kept: list[int]) -> None:
    assert keep([row], [top_p], [top_k]) == [[j in kept for j in range(len(row))]]


def test_rows_are_independent() -> None:
    rows, top_p, top_k = [QUARTERS] * 4, [1.0, 0.5, 0.6, 0.2], [-1, -1, 2, 9]
    assert keep(rows, top_p, top_k) == [expected(r, p, k) for r, p, k in zip(rows, top_p, top_k, strict=True)]
