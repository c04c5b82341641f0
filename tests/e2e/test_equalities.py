"""Decoded = prefilled again = prefilled in chunks = batched, and a repeat is equal: the same tokens on both targets.

Prompts end before, at and after the window (128 tokens, also the size of a cache block), where the index starts to
select (64 of the compressed entries) and where candidate blocks start to (512 entries).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from porter.demo.engine import Engine
from porter.demo.workspace import Target, Workspace
from tests.e2e.conftest import ARGUMENTS, CHUNKED, started

pytestmark = pytest.mark.engine

LENGTHS = (2, 63, 65, 127, 128, 129, 257, 600)
STEPS = 12
GREEDY: Mapping[str, Any] = {"temperature": 0, "max_tokens": STEPS, "ignore_eos": True}
PromptOf = Callable[[int], Sequence[int]]


@pytest.fixture(scope="module", params=[*Target])
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


@pytest.fixture(scope="module")
def here(target: Target, workspace: Workspace, model: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine that prefills every prompt at once, on this target."""
    if target is Target.HOST:
        yield request.getfixturevalue("engine")
    else:
        yield from started(workspace, model, ARGUMENTS, target)


@pytest.fixture(scope="module")
def batched(here: Engine, prompt_of: PromptOf) -> dict[int, Sequence[int]]:
    """Tokens of every prompt, all in one call."""
    answer = here.generate([prompt_of(length) for length in LENGTHS], GREEDY)
    return {length: completion.tokens for length, completion in zip(LENGTHS, answer.completions, strict=True)}


def test_texts_are_not_degenerate(batched: dict[int, Sequence[int]]) -> None:
    assert all(len(tokens) == STEPS for tokens in batched.values())
    assert len({tuple(tokens) for tokens in batched.values()}) == len(LENGTHS)
    assert len({token for tokens in batched.values() for token in tokens}) > 2 * STEPS


def test_a_repeat_is_equal(here: Engine, prompt_of: PromptOf, batched: dict[int, Sequence[int]]) -> None:
    again = here.generate([prompt_of(length) for length in LENGTHS], GREEDY)
    assert [completion.tokens for completion in again.completions] == [*batched.values()]


@pytest.mark.parametrize("length", LENGTHS)
def test_alone_equals_batched(
    here: Engine, prompt_of: PromptOf, batched: dict[int, Sequence[int]], length: int
) -> None:
    assert here.generate([prompt_of(length)], GREEDY).completions[0].tokens == batched[length]


@pytest.mark.parametrize("length", LENGTHS)
def test_decoded_equals_prefilled_again(
    target: Target, here: Engine, prompt_of: PromptOf, batched: dict[int, Sequence[int]], length: int
) -> None:
    """Tokens again, each as the first one after a prompt that holds all tokens before it; the simulated device,
    which is slow, takes some of them."""
    steps = range(STEPS) if target is Target.HOST else (0, 1, STEPS - 1)
    grown = [[*prompt_of(length), *batched[length][:step]] for step in steps]
    answer = here.generate(grown, {**GREEDY, "max_tokens": 1})
    assert [completion.tokens[0] for completion in answer.completions] == [batched[length][step] for step in steps]


def test_chunked_prefill_equals_prefill_at_once(
    target: Target, workspace: Workspace, model: Path, prompt_of: PromptOf, batched: dict[int, Sequence[int]]
) -> None:
    for chunking in started(workspace, model, CHUNKED, target):
        answer = chunking.generate([prompt_of(length) for length in LENGTHS], GREEDY)
        assert {length: c.tokens for length, c in zip(LENGTHS, answer.completions, strict=True)} == batched


def test_both_targets_give_the_same_tokens(
    target: Target, engine: Engine, prompt_of: PromptOf, batched: dict[int, Sequence[int]]
) -> None:
    if target is Target.HOST:
        pytest.skip("the host is what the other target is compared with")
    host = engine.generate([prompt_of(length) for length in LENGTHS], GREEDY)
    assert [completion.tokens for completion in host.completions] == [*batched.values()]


def test_a_preempted_request_goes_on_with_the_same_tokens(
    engine: Engine, workspace: Workspace, model: Path, prompt_of: PromptOf
) -> None:
    """Six requests of up to two blocks each, with room for eight or so: some are put back and computed again."""
    prompts = [prompt_of(length) for length in (120, 121, 122, 123, 124, 125)]
    long = {**GREEDY, "max_tokens": 24}
    expected = [completion.tokens for completion in engine.generate(prompts, long).completions]
    arguments = {**ARGUMENTS, "gpu_memory_utilization": 0.00994, "stop_preempted_request": False}
    for scarce in started(workspace, model, arguments, Target.HOST):
        found = scarce.generate(prompts, long)
        assert [completion.tokens for completion in found.completions] == expected
        blocks = re.search(r"# GPU blocks: (\d+)", scarce.log())
        assert blocks and 6 <= int(blocks.group(1)) < 12, "room for every prompt, not for all that follows"
        assert "is preempted and will be recomputed" in scarce.log()
