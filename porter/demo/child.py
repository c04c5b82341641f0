"""Runs inside the engine's process: DeepInfer's own ``LLM``, told what to generate over a pipe.

Called by path with two file descriptors, one to read commands from and one to answer to, each a JSON object a line.
It changes nothing of the engine, and imports nothing of porter but the simulated device where it is asked for.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Serve = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""Answers one command with an engine."""


def main(commands_fd: int, answers_fd: int, serve: Serve | None = None) -> None:
    """Make the engine that the first line describes, then ``serve`` commands until the pipe closes: ``generate``."""
    serve = serve or generate
    with os.fdopen(commands_fd) as commands, os.fdopen(answers_fd, "w", buffering=1) as answers:

        def answer(**content: Any) -> None:
            answers.write(json.dumps(content) + "\n")

        try:
            settings = json.loads(commands.readline())
            if preload := os.environ.get("PORTER_DEMO_PRELOAD"):
                importlib.import_module(preload)
            began = time.perf_counter()
            from deepinfer.entrypoints.llm import LLM  # type: ignore[import-not-found]

            llm = LLM(settings["model"], decode_sequence=False, **settings["arguments"])
            answer(seconds=time.perf_counter() - began)
            for line in commands:
                answer(**serve(llm, json.loads(line)))
            llm.close()
        except Exception:
            answer(error=traceback.format_exc())
            raise


def generate(llm: Any, command: dict[str, Any]) -> dict[str, Any]:
    """Completions of ``prompts`` with ``sampling``, and how long they took."""
    from deepinfer.sampling_params import SamplingParams  # type: ignore[import-not-found]

    tokenizer = llm.get_tokenizer()
    prompts = [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in command["prompts"]]
    sampling = [SamplingParams(**parameters) for parameters in command["sampling"]]
    began = time.perf_counter()
    outputs = llm.generate(prompt_token_ids=prompts, sampling_params=sampling, use_tqdm=False)
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "completions": [_completion(tokenizer, *pair) for pair in zip(prompts, outputs, strict=True)],
    }


def _completion(tokenizer: Any, prompt: list[int], outputs: list[Any]) -> dict[str, Any]:
    tokens = [output.token_id for output in outputs]
    return {
        "prompt": prompt,
        "tokens": tokens,
        "text": tokenizer.decode(tokens),
        "logprobs": [output.token_logprobs for output in outputs],
        "top": [list(zip(output.top_token_ids, output.top_logprobs, strict=True)) for output in outputs],
        "prompt_logprobs": list(outputs[0].prompt_logprobs or ()),
        "finish_reason": outputs[-1].finish_reason,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
