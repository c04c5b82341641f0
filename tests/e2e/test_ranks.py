"""Data-parallel and expert-parallel engines, a process a rank over gloo, give the tokens that one engine gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from porter.demo.errors import EngineError
from porter.demo.workspace import Workspace
from porter.e2e import oneshot, ranks
from porter.e2e.ranks import Layout, RanksResult

PromptOf = Callable[..., Sequence[int]]

# Drawn at top_k 1, which is greedy with log probabilities that mean something.
SAMPLING = {"temperature": 1.0, "top_k": 1, "top_logprobs": 2, "max_tokens": 8, "ignore_eos": True, "seq_seed": 0}
# Shorter and longer than the window, than what the index selects, and than a block; more prompts than ranks and fewer.
LENGTHS = (5, 63, 130, 257, 40, 600)
LAYOUTS = [Layout(2, 1, 1), Layout(2, 2, 2), Layout(4, 2, 4), Layout(4, 4, 4)]


@pytest.fixture(scope="module")
def prompts(prompt_of: PromptOf) -> Sequence[Sequence[int]]:
    return [prompt_of(length, 37 * index) for index, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def alone(workspace: Workspace, model: Path, prompts: Sequence[Sequence[int]]) -> RanksResult:
    """One engine that does it all."""
    return ranks.run(workspace, model, Layout(1, 1, 1), prompts, SAMPLING, timeout=900)


@pytest.mark.engine
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_give_the_tokens_of_one(
    layout: Layout, workspace: Workspace, model: Path, prompts: Sequence[Sequence[int]], alone: RanksResult
) -> None:
    """Where experts lie on more ranks, a token's expert outputs are rounded in other places (they are summed on each rank, and
    the sums rounded, as upstream does), so logits move by rounding; the checkpoint's margins are far wider."""
    result = ranks.run(workspace, model, layout, prompts, SAMPLING, timeout=1800)
    assert len(set(result.steps)) == 1, "ranks step together"
    assert [*map(list, result.tokens)] == [*map(list, alone.tokens)]


@pytest.mark.engine
def test_a_rank_that_dies_ends_the_others_with_its_words(workspace: Workspace, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, pathlib, sys, time\n"
        "if json.loads(pathlib.Path(sys.argv[1]).read_text())['rank'] == 1:\n"
        "    raise SystemExit('no such expert')\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(EngineError, match=r"(?s)rank 1 of 2 ended with 1.*no such expert"):
        oneshot.run_ranks(workspace, program, [{"rank": 0}, {"rank": 1}], timeout=60)
