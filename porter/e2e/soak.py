"""The engine under a stream of requests of random lengths, some cancelled: is each answer the one it gives alone, does memory
stay flat, is every block and slot free in the end?"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from porter.demo.workspace import Workspace
from porter.e2e import oneshot

CHILD = Path(__file__).with_name("soak_child.py")
ARGUMENTS: Mapping[str, Any] = {
    "max_model_len": 1024, "max_num_seqs": 6, "max_num_batched_tokens": 1024, "chunked_prefill": True,
}  # fmt: skip
# The C library returns what is freed, so that resident memory is what the process holds.
_ENVIRONMENT = {
    "DEEPINFER_NEURON_MEMORY_GB": "0.25", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}  # fmt: skip
IN_FLIGHT = 10
"""More than the engine runs at once, so that some wait."""


@dataclass(frozen=True)
class SoakResult:
    """What a soak showed.

    ``together``, ``alone``: tokens of each request in the stream and by itself. ``cancelled``: indices of the cancelled ones.
    ``memory``: resident bytes after each tenth of the requests. ``free_before``, ``free_after``: free blocks and free state slots.
    """

    together: Sequence[Sequence[int]]
    alone: Sequence[Sequence[int]]
    cancelled: Sequence[int]
    memory: Sequence[int]
    free_before: Sequence[int]
    free_after: Sequence[int]
    steps: int
    seconds: float

    def different(self) -> Sequence[int]:
        """Indices of requests whose tokens are not those they give alone; a cancelled one's are their beginning."""
        return [
            index
            for index, (one, other) in enumerate(zip(self.together, self.alone, strict=True))
            if list(one) != list(other[: len(one)] if index in self.cancelled else other)
        ]

    def growth(self) -> int:
        """Bytes that the peak of the second half of the requests lies above the peak of the first half, the warm-up."""
        half = len(self.memory) // 2
        return max(self.memory[half:]) - max(self.memory[:half])


def requests(count: int, text: Sequence[int], *, seed: int = 0) -> Sequence[Mapping[str, Any]]:
    """``count`` requests that continue parts of ``text`` (ids, BOS first): mostly short, some beyond a window of 128 tokens
    and beyond 512 compressed entries; every third one drawn rather than greedy; every fourth one cancelled."""
    rng = random.Random(seed)
    made = []
    for index in range(count):
        length = rng.choice((rng.randint(2, 40), rng.randint(100, 300), rng.randint(2, 140), rng.randint(500, 620)))
        start = rng.randrange(1, len(text))
        tokens = rng.randint(2, 16)
        drawn = {"temperature": 1.0, "seq_seed": rng.randrange(1 << 60)} if index % 3 == 1 else {"temperature": 0}
        made.append(
            {
                "prompt": [text[0], *(text[1 + (start + step) % (len(text) - 1)] for step in range(length - 1))],
                "tokens": tokens,
                "cancel_after": rng.randint(0, tokens - 1) if index % 4 == 2 else None,
                "sampling": drawn,
            }
        )
    return made


def soak(
    workspace: Workspace, model: Path, count: int, text: Sequence[int], *, timeout: float, seed: int = 0
) -> SoakResult:
    """Run ``count`` requests together, then each alone, in one engine. Raises EngineError where it stops."""
    request = {
        "model": str(model),
        "arguments": dict(ARGUMENTS),
        "requests": [dict(one) for one in requests(count, text, seed=seed)],
        "in_flight": IN_FLIGHT,
        "seed": seed,
    }
    answer = oneshot.run(workspace, CHILD, request, timeout=timeout, environment=_ENVIRONMENT)
    return SoakResult(
        together=answer["tokens"],
        alone=answer["alone"],
        cancelled=answer["cancelled"],
        memory=answer["memory"],
        free_before=answer["free_before"],
        free_after=answer["free_after"],
        steps=answer["steps"],
        seconds=answer["seconds"],
    )
