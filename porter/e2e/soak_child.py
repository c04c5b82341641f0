"""Runs inside the engine's process: many requests of random lengths, some of them cancelled, then each of them alone.

Called by path with the file of a request and the file of the answer, both JSON. It imports nothing of porter and changes
nothing of the engine.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any


def main(request_path: Path, answer_path: Path) -> None:
    """Start the engine, run the soak, then every request by itself."""
    request = json.loads(request_path.read_text())
    from deepinfer.entrypoints.llm import LLM  # type: ignore[import-not-found]

    llm = LLM(request["model"], decode_sequence=False, **request["arguments"])
    soak = Soak(llm)
    answer = soak.together(request["requests"], request["in_flight"], request["seed"])
    answer["alone"] = [soak.alone(one) for one in request["requests"]]
    answer_path.write_text(json.dumps(answer))
    llm.close()


class Soak:
    """An engine under a stream of requests. A request: ``prompt`` (ids), ``tokens`` to make, ``cancel_after`` so many or None."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._engine = llm.llm_engine
        caches = self._engine.driver_worker.cache_engine
        for cache in (caches.gpu_blocks, caches.gpu_states):
            cache.zero_()  # as they are; from here on all of their pages are resident, not only those used so far

    def together(self, requests: list[dict[str, Any]], in_flight: int, seed: int) -> dict[str, Any]:
        """All requests, up to ``in_flight`` in the engine at once, arriving in bursts; what each gave, and the memory.

        ``memory``: resident bytes after each tenth of the requests, garbage collected.
        """
        rng = random.Random(seed)
        began = time.perf_counter()
        waiting = list(enumerate(requests))[::-1]
        running: dict[str, int] = {}
        tokens: defaultdict[int, list[int]] = defaultdict(list)
        cancelled: list[int] = []
        memory: list[int] = []
        free_before = self._free()
        done = steps = 0
        while waiting or running:
            if waiting and len(running) < in_flight and rng.random() < 0.5:
                for _ in range(rng.randint(1, in_flight - len(running))):
                    if waiting:
                        index, request = waiting.pop()
                        running[self._add(request)] = index
            finished = self._step(running, tokens)
            steps += 1
            for name, index in list(running.items()):
                limit = requests[index]["cancel_after"]
                if name not in finished and limit is not None and len(tokens[index]) >= limit:
                    assert self._engine.abort_request(name)[0] == 1
                    cancelled.append(index)
                    finished.append(name)
            for name in finished:
                del running[name]
                done += 1
                if done % max(len(requests) // 10, 1) == 0:
                    gc.collect()
                    memory.append(resident())
        for _ in range(3):  # what a cancelled request holds is let go in the steps after
            self._engine.step()
        return {
            "tokens": [tokens[index] for index in range(len(requests))],
            "cancelled": sorted(cancelled),
            "memory": memory,
            "free_before": free_before,
            "free_after": self._free(),
            "steps": steps,
            "seconds": time.perf_counter() - began,
        }

    def _free(self) -> list[int]:
        """Free blocks and free state slots."""
        return [self._engine.scheduler.get_num_free_gpu_blocks(), self._engine.state_manager.get_num_free_blocks()]

    def alone(self, request: dict[str, Any]) -> list[int]:
        """The tokens of one request that has the engine to itself."""
        tokens: defaultdict[int, list[int]] = defaultdict(list)
        running = {self._add(request): 0}
        while running:
            for name in self._step(running, tokens):
                del running[name]
        return tokens[0]

    def _add(self, request: dict[str, Any]) -> str:
        from deepinfer.sampling_params import SamplingParams  # type: ignore[import-not-found]

        sampling = SamplingParams(**request["sampling"], max_tokens=request["tokens"], ignore_eos=True)
        name: str = self._llm._add_request(None, sampling, request["prompt"]).request_id
        return name

    def _step(self, running: dict[str, int], tokens: defaultdict[int, list[int]]) -> list[str]:
        """One step; the names of the requests that it ended."""
        from deepinfer._C.engine import RequestOutput  # type: ignore[import-not-found]

        finished = []
        for raw in self._engine.step():
            output = RequestOutput.clone(raw)
            if output.request_id not in running:
                continue  # of a cancelled request, from the step in which it was
            tokens[running[output.request_id]].append(output.token_id)
            if output.finished:
                finished.append(output.request_id)
        return finished


def resident() -> int:
    """Resident bytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
