"""SplitMix64 in 32-bit words against plain integers."""

from __future__ import annotations

import random

import pytest
import splitmix_oracle as oracle
import torch
from harness import wide_ops
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops import _splitmix as words

WORD = st.integers(0, oracle.MASK)
EDGES = [0, 1, oracle.MASK, oracle.MASK - 1, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1, 1 << 31, 0xFFFF0000FFFF]


def to_words(values: list[int]) -> torch.Tensor:
    return words.words_of(torch.tensor(values, dtype=torch.uint64))


def to_ints(pairs: torch.Tensor) -> list[int]:
    assert pairs.dtype == torch.int32 and pairs.shape[1:] == (2,)
    return [((high & 0xFFFFFFFF) << 32) | (low & 0xFFFFFFFF) for low, high in pairs.tolist()]


def test_the_oracle_gives_the_published_values() -> None:
    state, values = 1234567, []
    for _ in range(2):
        values.append(oracle.splitmix64(state))
        state = (state + oracle.GOLDEN) & oracle.MASK
    assert values == [6457827717110365317, 3203168211198807973]


def test_hash() -> None:
    values = EDGES + [random.Random(7).getrandbits(64) for _ in range(500)]
    moved = [(v + oracle.GOLDEN) & oracle.MASK for v in values]
    assert to_ints(words.mix(to_words(moved))) == [oracle.splitmix64(v) for v in values]
    assert words.mix(to_words([])).shape == (0, 2)


@given(st.lists(WORD, min_size=1, max_size=8), WORD, WORD, st.sampled_from([30, 27, 31]))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_arithmetic(values: list[int], other: int, constant: int, bits: int) -> None:
    words_of = to_words(values)
    assert to_ints(words_of) == values
    assert to_ints(words.add_constant(words_of, constant)) == [(v + constant) & oracle.MASK for v in values]
    assert to_ints(words.xor_shift_right(words_of, bits)) == [v ^ (v >> bits) for v in values]
    total = words.add(words_of, to_words([other] * len(values)), constant)
    assert to_ints(total) == [(v + other + constant) & oracle.MASK for v in values]


@pytest.mark.parametrize("left", EDGES)
@pytest.mark.parametrize("right", EDGES)
def test_sums_carry(left: int, right: int) -> None:
    for constant in EDGES:
        total = words.add(to_words([left]), to_words([right]), constant)
        assert to_ints(total) == [(left + right + constant) & oracle.MASK]


@given(st.lists(WORD, min_size=1, max_size=8), st.lists(st.tuples(WORD, WORD), min_size=1, max_size=3))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_products(values: list[int], terms: list[tuple[int, int]]) -> None:
    found = to_ints(words.Products(terms, 8).of(to_words(values)))
    assert found == [(v * factor + offset) & oracle.MASK for v in values for factor, offset in terms]


def test_sums_of_a_product_are_exact_in_fp32() -> None:
    factor = oracle.MASK
    values = [oracle.MASK, oracle.MASK - 1, 0]
    assert to_ints(words.Products([(factor, factor)], 8).of(to_words(values))) == [
        (v * factor + factor) & oracle.MASK for v in values
    ]
    assert 8 * 255 * 255 + 255 < 1 << 20


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=8), st.integers(0, 2), st.sampled_from([0, 13]))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_streams(positions: list[int], case: int, shift: int) -> None:
    position = words.flipped(torch.tensor(positions, dtype=torch.int32))
    found = to_ints(words.streams((case, shift)).of(position))
    assert found == [(oracle.sequence(p, case) << shift) & oracle.MASK for p in positions]


def test_no_tensor_is_wide() -> None:
    def hashed(seeds: torch.Tensor, position: torch.Tensor) -> None:
        stream = words.streams((2, 13)).of(words.flipped(position))
        words.mix(words.add(words.words_of(seeds), stream, words.GOLDEN))

    assert wide_ops(hashed, torch.tensor(EDGES, dtype=torch.uint64), torch.arange(len(EDGES), dtype=torch.int32)) == []
