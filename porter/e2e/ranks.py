"""Several ranks: the same prompts spread over data-parallel engines whose experts and n-gram tables are spread as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from porter.demo.workspace import Workspace
from porter.e2e import oneshot

CHILD = Path(__file__).with_name("ranks_child.py")
ARGUMENTS: Mapping[str, Any] = {"max_model_len": 1024, "max_num_seqs": 4, "max_num_batched_tokens": 1024}


@dataclass(frozen=True)
class Layout:
    """``data`` ranks take prompts; ``experts`` of them in a row share one set of experts, ``engram`` one n-gram table.

    Both divide ``data``. As in DeepInfer, attention and everything else is whole on every rank.
    """

    data: int
    experts: int
    engram: int

    def __str__(self) -> str:
        return f"{self.data} ranks, experts over {self.experts}, n-gram tables over {self.engram}"


@dataclass(frozen=True)
class RanksResult:
    """``tokens`` and ``logprobs``: of each prompt, in the order given. ``steps``: that every rank took, one number a rank."""

    tokens: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[Sequence[float]]]
    steps: Sequence[int]


def run(
    workspace: Workspace,
    model: Path,
    layout: Layout,
    prompts: Sequence[Sequence[int]],
    sampling: Mapping[str, Any],
    *,
    timeout: float,
) -> RanksResult:
    """Generate for ``prompts``, dealt out to the ranks in turn. Raises EngineError where a rank stops.

    ``logprobs`` holds, a token, those that ``top_logprobs`` of ``sampling`` asks for, the likeliest first.
    """
    requests = []
    for rank in range(layout.data):
        mine = [[*map(int, prompt)] for prompt in prompts[rank :: layout.data]]
        placed: dict[str, Any] = {
            "data_parallel_size": layout.data, "expert_parallel_size": layout.experts,
            "engram_parallel_size": layout.engram, "engine_rank": rank,
        }  # fmt: skip
        request: dict[str, Any] = {"model": str(model), "prompts": mine, "sampling": [dict(sampling)] * len(mine)}
        requests.append({**request, "arguments": {**ARGUMENTS, **placed}})
    answers = oneshot.run_ranks(
        workspace, CHILD, requests, timeout=timeout, environment={"DEEPINFER_NEURON_MEMORY_GB": "0.25"}
    )
    tokens: list[Sequence[int]] = [()] * len(prompts)
    logprobs: list[Sequence[Sequence[float]]] = [()] * len(prompts)
    for rank, answer in enumerate(answers):
        tokens[rank :: layout.data] = answer["tokens"]
        logprobs[rank :: layout.data] = answer["logprobs"]
    return RanksResult(tokens, logprobs, [answer["steps"] for answer in answers])
