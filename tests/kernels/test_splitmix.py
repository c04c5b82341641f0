"""SplitMix64 in 32-bit words against plain integers."""

from __future__ import annotations

import random

import splitmix_oracle as oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops import _splitmix as words

WORD = st.integers(0, oracle.MASK)
EDGES = [0, 1, oracle.MASK, oracle.MASK - 1, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1, 1 << 31, 0xFFFF0000FFFF]


def to_words(values: list[int]) -> words.Words:
    return words.split(torch.tensor(values, dtype=torch.uint64))


def to_ints(pair: words.Words) -> list[int]:
    return [
        ((h & 0xFFFFFFFF) << 32) | (low & 0xFFFFFFFF) for h, low in zip(pair[0].tolist(), pair[1].tolist(), strict=True)
    ]


def test_the_oracle_gives_the_published_values() -> None:
    state, values = 1234567, []
    for _ in range(2):
        values.append(oracle.splitmix64(state))
        state = (state + oracle.GOLDEN) & oracle.MASK
    assert values == [6457827717110365317, 3203168211198807973]


def test_hash() -> None:
    values = EDGES + [random.Random(7).getrandbits(64) for _ in range(500)]
    assert to_ints(words.mix(to_words(values))) == [oracle.splitmix64(v) for v in values]


@given(st.lists(WORD, min_size=1, max_size=8), WORD, st.integers(1, 31))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_arithmetic(values: list[int], constant: int, bits: int) -> None:
    pair = to_words(values)
    assert to_ints(pair) == values
    assert to_ints(words.add_constant(pair, constant)) == [(v + constant) & oracle.MASK for v in values]
    assert to_ints(words.multiply_constant(pair, constant)) == [(v * constant) & oracle.MASK for v in values]
    assert to_ints(words.xor_shift_right(pair, bits)) == [v ^ (v >> bits) for v in values]
    total = words.add(pair, to_words([constant] * len(values)))
    assert to_ints(total) == [(v + constant) & oracle.MASK for v in values]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=8), st.integers(0, 2))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_sequences(positions: list[int], case: int) -> None:
    pair = words.sequence(torch.tensor(positions, dtype=torch.int32), case)
    assert to_ints(pair) == [oracle.sequence(p, case) for p in positions]


def test_every_tensor_is_int32() -> None:
    for tensor in (*words.mix(to_words(EDGES)), *words.sequence(torch.tensor([5], dtype=torch.int32), 2)):
        assert tensor.dtype == torch.int32
