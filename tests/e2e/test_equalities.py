"""Decoded = prefilled again = prefilled in chunks = batched, and a repeat is equal: the same tokens, on the host.

Prompts end before, at and after the window (128 tokens, also the size of a cache block), where the index starts to
select (64 of the compressed entries) and where candidate blocks start to (512 entries).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from porter.demo.engine import Engine

pytestmark = pytest.mark.engine

LENGTHS = (2, 63, 65, 127, 128, 129, 257, 600)
STEPS = 12
GREEDY: Mapping[str, Any] = {"temperature": 0, "max_tokens": STEPS, "ignore_eos": True}
PromptOf = Callable[[int], Sequence[int]]


@pytest.fixture(scope="module")
def batched(engine: Engine, prompt_of: PromptOf) -> dict[int, Sequence[int]]:
    """Tokens of every prompt, all in one call."""
    answer = engine.generate([prompt_of(length) for length in LENGTHS], GREEDY)
    return {length: completion.tokens for length, completion in zip(LENGTHS, answer.completions, strict=True)}


def test_texts_are_not_degenerate(batched: dict[int, Sequence[int]]) -> None:
    assert all(len(tokens) == STEPS for tokens in batched.values())
    assert len({tuple(tokens) for tokens in batched.values()}) == len(LENGTHS)
    assert len({token for tokens in batched.values() for token in tokens}) > 2 * STEPS


def test_a_repeat_is_equal(engine: Engine, prompt_of: PromptOf, batched: dict[int, Sequence[int]]) -> None:
    again = engine.generate([prompt_of(length) for length in LENGTHS], GREEDY)
    assert [completion.tokens for completion in again.completions] == [*batched.values()]


@pytest.mark.parametrize("length", LENGTHS)
def test_alone_equals_batched(
    engine: Engine, prompt_of: PromptOf, batched: dict[int, Sequence[int]], length: int
) -> None:
    assert engine.generate([prompt_of(length)], GREEDY).completions[0].tokens == batched[length]


@pytest.mark.parametrize("length", LENGTHS)
def test_decoded_equals_prefilled_again(
    engine: Engine, prompt_of: PromptOf, batched: dict[int, Sequence[int]], length: int
) -> None:
    """Each token again, as the first one after a prompt that holds all tokens before it."""
    grown = [[*prompt_of(length), *batched[length][:step]] for step in range(STEPS)]
    answer = engine.generate(grown, {**GREEDY, "max_tokens": 1})
    assert [completion.tokens[0] for completion in answer.completions] == batched[length]


def test_chunked_prefill_equals_prefill_at_once(
    chunking_engine: Engine, prompt_of: PromptOf, batched: dict[int, Sequence[int]]
) -> None:
    answer = chunking_engine.generate([prompt_of(length) for length in LENGTHS], GREEDY)
    assert {length: c.tokens for length, c in zip(LENGTHS, answer.completions, strict=True)} == batched
