"""random_sampling: which column a draw chooses, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops
from hypothesis import given, settings
from hypothesis import strategies as st
from splitmix_oracle import draw_bits

from overrides.tilelang_ops import _inverse_cdf
from overrides.tilelang_ops.random_sampling import random_sampling_tl


def seeds_of(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint64)


def expected(row: list[float], seed: int, position: int, case: int) -> int:
    """Inversion of the exact cumulative sums, in rational numbers."""
    sums = list(accumulate(Fraction(p) for p in row))
    target = Fraction(draw_bits(seed, position, case), 1 << 53) * sums[-1]
    return next((j for j, s in enumerate(sums) if s > target), 0)


def draw(probs: torch.Tensor, seeds: list[int], positions: list[int], residual: bool, gates: bool = False) -> list[int]:
    n, width = probs.shape
    out = guard(torch.full((n,), -7, dtype=torch.int32))
    args = (
        guard(probs, (width + 3, 1)),
        guard(seeds_of(seeds)),
        guard(torch.tensor(positions, dtype=torch.int32)),
        out,
    )
    kernel = random_sampling_tl(width, residual)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("out",), gates=gates)
    return out.tolist()


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_few_rows(residual: bool, n: int) -> None:
    probs = torch.randn(n, 64).softmax(1)
    seeds, positions = [0, 2**64 - 1, 7, 2**63, 12345][:n], [0, 2**31 - 1, -(2**31), -1, 10**8][:n]
    rows = probs.tolist()
    want = [expected(r, s, p, int(residual)) for r, s, p in zip(rows, seeds, positions, strict=True)]
    assert draw(probs, seeds, positions, residual, gates=True) == want


@pytest.mark.parametrize("width", [1, 2, 100, 510, 511, 521, 1021, 4096])
@pytest.mark.parametrize("kind", ["flat", "sharp", "sparse", "small"])
def test_columns_are_those_of_exact_sums(width: int, kind: str) -> None:
    n = 12
    logits = torch.randn(n, width)
    probs = {
        "flat": torch.full((n, width), 1.0 / width),
        "sharp": (logits * 8).softmax(1),
        "sparse": logits.softmax(1) * (torch.rand(n, width) < 0.2),
        "small": logits.softmax(1) * 1e-4,
    }[kind]
    seeds = torch.randint(0, 2**62, (n,)).tolist()
    want = [expected(row, s, 3, 0) for row, s in zip(probs.tolist(), seeds, strict=True)]
    assert draw(probs, seeds, [3] * n, False) == want


def test_degenerate_rows() -> None:
    probs = torch.zeros(5, 1024)
    probs[0, 3], probs[1, 7], probs[2, 2], probs[3, 1023] = 1.0, 0.5, 1e-9, 2.0**-50
    for seed in range(20):
        assert draw(probs, [seed] * 5, [seed] * 5, False) == [3, 7, 2, 1023, 0]


@given(
    st.integers(0, 2**64 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_any_row(seed: int, position: int, weights: list[float]) -> None:
    probs = torch.tensor([weights]) / max(1.0, sum(weights))
    probs = torch.where(probs < 2.0**-26, 0.0, probs)
    out = torch.empty(1, dtype=torch.int32)
    random_sampling_tl(len(weights), True)(probs, seeds_of([seed]), torch.tensor([position], dtype=torch.int32), out)
    assert out.item() == expected(probs[0].tolist(), seed, position, 1)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**51 - 1), st.integers(0, 509))
@settings(deadline=None, derandomize=True, max_examples=120)
def test_targets_are_exact_products(bits: int, total: int, held: int) -> None:
    low, high = bits & 0xFFFFFFFF, bits >> 32
    draw = torch.tensor([[low - (low >> 31 << 32), high - (high >> 31 << 32)]], dtype=torch.int32)
    # The lower word of a total may hold some of what belongs to the higher one.
    held = min(held, total >> 20)
    words = torch.tensor([[(total >> 20) - held], [(total & 0xFFFFF) + (held << 20)]], dtype=torch.int32)
    found_high, found_low = _inverse_cdf.scaled_target(draw, words).flatten().tolist()
    assert (found_high << 20) + found_low == (bits >> 11) * total >> 53
    assert 0 <= found_low < 1 << 20


def test_rows_do_not_depend_on_their_batch() -> None:
    probs, seeds = torch.randn(9, 640).softmax(1), list(range(9))
    together = draw(probs, seeds, [5] * 9, False)
    order = torch.randperm(9).tolist()
    assert draw(probs[order], [seeds[i] for i in order], [5] * 9, False) == [together[i] for i in order]
    assert [draw(probs[i : i + 1], [i], [5], False)[0] for i in range(9)] == together


@pytest.mark.parametrize("width", [1024, 129280])
def test_against_the_reference(upstream: Callable[[str], Any], width: int) -> None:
    module = upstream("random_sampling")
    probs = torch.randn(16, width).softmax(1)
    for residual in (False, True):
        seeds = torch.randint(-(2**63), 2**63 - 1, (16,))
        positions = torch.randint(-(2**31), 2**31 - 1, (16,)).int()
        got = module.random_sampling(probs, seeds.view(torch.uint64), positions, residual)
        assert torch.equal(got, module.random_sampling_ref(probs, seeds, positions, residual))


def test_refuses_a_width_beyond_two_levels() -> None:
    with pytest.raises(AssertionError, match="at most 260100 columns"):
        _inverse_cdf.sample(torch.zeros(1, 260101), torch.zeros(1, 2, dtype=torch.int32))
