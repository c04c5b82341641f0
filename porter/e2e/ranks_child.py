"""Runs inside one rank's process: DeepInfer's own ``LLM``, one of several that form a world.

Called by path with the file of a request and the file of the answer, both JSON. It imports nothing of porter and changes
nothing of the engine. Every rank steps until all are done, since ranks compute each other's experts.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any


def main(request_path: Path, answer_path: Path) -> None:
    """Start this rank's engine, generate for its prompts, and wait for the others."""
    request = json.loads(request_path.read_text())
    began = time.perf_counter()
    from deepinfer.entrypoints.llm import LLM  # type: ignore[import-not-found]

    llm = LLM(request["model"], decode_sequence=False, **request["arguments"])
    start_seconds = time.perf_counter() - began
    began = time.perf_counter()
    outputs, steps = generate(llm, request["prompts"], request["sampling"])
    answer = {
        "tokens": [[output.token_id for output in one] for one in outputs],
        "logprobs": [[list(output.top_logprobs) for output in one] for one in outputs],
        "steps": steps,
        "start_seconds": start_seconds,
        "seconds": time.perf_counter() - began,
    }
    answer_path.write_text(json.dumps(answer))
    llm.close()


def generate(llm: Any, prompts: list[list[int]], sampling: list[dict[str, Any]]) -> tuple[list[list[Any]], int]:
    """The engine's outputs for each prompt, a token each, and how many steps the world took together."""
    import torch
    import torch.distributed as dist
    from deepinfer._C.engine import RequestOutput  # type: ignore[import-not-found]
    from deepinfer.model_executor.parallel_utils.parallel_state import PG  # type: ignore[import-not-found]
    from deepinfer.sampling_params import SamplingParams  # type: ignore[import-not-found]

    engine = llm.llm_engine
    requests = [
        llm._add_request(None, SamplingParams(**parameters), prompt).request_id
        for prompt, parameters in zip(prompts, sampling, strict=True)
    ]
    outputs: defaultdict[str, list[Any]] = defaultdict(list)
    steps = 0
    while True:
        unfinished = torch.tensor([int(engine.has_unfinished_requests())], dtype=torch.int32)
        dist.all_reduce(unfinished, group=PG.cpu_data_parallel_group())
        if not int(unfinished):
            break
        for raw in engine.step():
            output = RequestOutput.clone(raw)
            outputs[output.request_id].append(output)
        steps += 1
    return [outputs[request] for request in requests], steps


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
