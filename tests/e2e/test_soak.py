"""Requests of random lengths, some cancelled: each gives what it gives alone, and memory, blocks and slots come back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from porter.demo.workspace import Workspace
from porter.e2e import soak
from porter.e2e.soak import SoakResult

PromptOf = Callable[..., Sequence[int]]

LONG = "PORTER_SOAK"
WARM = 100
"""Requests below which memory is shown, not judged."""
GROWTH = 24 << 20
"""Bytes that the second half may take beyond the first: the allocator's own play, about one large prefill."""


def check(result: SoakResult, count: int) -> None:
    print(
        f"{count} requests, {len(result.cancelled)} cancelled: {result.steps} steps in {result.seconds:.0f} s; resident "
        f"{', '.join(f'{size >> 20}' for size in result.memory)} MiB"
    )
    assert result.cancelled and len(result.cancelled) == sum(
        one["cancel_after"] is not None for one in soak.requests(count, range(10_000))
    )
    assert not result.different()
    assert len({tuple(tokens) for tokens in result.alone}) > count // 2, "texts differ, or equality says little"
    assert result.free_after == result.free_before
    # Twenty requests are all warm-up: what the libraries keep for each new shape still grows.
    assert count < WARM or result.growth() < GROWTH


@pytest.mark.engine
def test_a_short_soak(workspace: Workspace, model: Path, prompt_of: PromptOf) -> None:
    check(soak.soak(workspace, model, 20, prompt_of(4000), timeout=1800), 20)


@pytest.mark.engine
@pytest.mark.skipif(
    LONG not in os.environ, reason=f"200 requests and each alone take a quarter of an hour: set {LONG}=1"
)
def test_a_long_soak(workspace: Workspace, model: Path, prompt_of: PromptOf) -> None:
    check(soak.soak(workspace, model, 200, prompt_of(4000), timeout=7200), 200)


def test_requests_are_of_all_kinds() -> None:
    made = soak.requests(200, range(3000))
    lengths = [len(one["prompt"]) for one in made]
    assert min(lengths) < 20 and max(lengths) > 512 and all(one["prompt"][0] == 0 for one in made)
    assert sum(one["cancel_after"] is not None for one in made) == 50
    assert any(one["cancel_after"] == 0 for one in made), "cancelled before its first token"
    assert sum("seq_seed" in one["sampling"] for one in made) == 67
    assert made == soak.requests(200, range(3000)) != soak.requests(200, range(3000), seed=1)


def test_a_difference_is_found() -> None:
    result = SoakResult([[1, 2], [3], [4]], [[1, 2], [3, 5], [5]], [1], [1], [], [], 1, 1.0)
    assert result.different() == [2]
    assert SoakResult([[1], [3]], [[1], [3, 5]], [], [1], [], [], 1, 1.0).different() == [1]
    assert SoakResult([], [], [], [5, 7, 9, 8], [], [], 1, 1.0).growth() == 2
