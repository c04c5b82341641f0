"""DeepInfer's offline engine in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from porter.demo.dialogue import Dialogue
from porter.demo.errors import EngineError
from porter.demo.workspace import Target, Workspace

Prompt = str | Sequence[int]

TARGET_ARGUMENTS: Mapping[Target, Mapping[str, Any]] = {
    Target.HOST: {},
    # Of a NeuronCore's 24 GiB, which the simulated device claims to have; what this leaves for the cache is plenty.
    Target.SIM: {"gpu_memory_utilization": 0.16},
}

CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Completion:
    """What one prompt gave.

    ``top``: for each token, the likeliest ids with their log probabilities, where ``top_logprobs`` asked for them.
    ``prompt_logprobs``: of the prompt's tokens, where asked for. ``finish_reason``: the engine's own word.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    text: str
    logprobs: Sequence[float]
    top: Sequence[Sequence[tuple[int, float]]]
    prompt_logprobs: Sequence[float]
    finish_reason: str


@dataclass(frozen=True)
class Answer:
    """Completions in the order of the prompts, and how long the engine took for all of them."""

    completions: Sequence[Completion]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens, of all prompts together."""
        return sum(len(completion.tokens) for completion in self.completions) / self.seconds


class Engine:
    """A running engine; a context manager. ``seconds``: what its start took.

    Parameters:
        workspace: the applied checkout that runs.
        model: checkpoint folder.
        arguments: of DeepInfer's ``EngineArgs``, by name.
        environment: variables beyond the workspace's.

    Raises EngineError, with the end of the engine's log, where it does not start or dies.
    """

    child: ClassVar[Path] = CHILD
    """What runs in the engine's process."""

    def __init__(
        self,
        workspace: Workspace,
        model: Path,
        arguments: Mapping[str, Any],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._dialogue = Dialogue(
            [sys.executable, "-P", str(self.child)],
            folder=workspace.root,
            environment=workspace.environment(**(environment or {})),
            name="porter-demo",
            failure=lambda words: EngineError(f"the engine stopped:\n{words}", fix="read the lines above"),
        )
        try:
            given = {**TARGET_ARGUMENTS[workspace.target], **arguments}
            self.seconds: float = self._ask({"model": str(model), "arguments": given})["seconds"]
        except BaseException:
            self.close()
            raise

    def generate(
        self, prompts: Sequence[Prompt], sampling: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> Answer:
        """Generate for all ``prompts`` in one call of ``LLM.generate``.

        ``sampling``: DeepInfer's ``SamplingParams`` by name, for all prompts or one a prompt.
        """
        each = [dict(sampling or {})] * len(prompts) if not isinstance(sampling, Sequence) else [*map(dict, sampling)]
        command = {"prompts": [p if isinstance(p, str) else [*map(int, p)] for p in prompts], "sampling": each}
        answer = self._ask(command)
        return Answer(tuple(Completion(**completion) for completion in answer["completions"]), answer["seconds"])

    def log(self) -> str:
        """What the engine printed so far."""
        return self._dialogue.log()

    def _ask(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._dialogue.ask(command)

    def close(self) -> None:
        """Let the engine shut down, and wait for it. Safe to call twice."""
        self._dialogue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
