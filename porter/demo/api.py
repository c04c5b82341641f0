"""``porter demo``: DeepInfer's own offline inference on the emitted backend, from prompt to text, on the host or a simulated device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from porter.config import Config
from porter.demo import checkpoint, corpus
from porter.demo.engine import Answer, Engine
from porter.demo.workspace import Target, prepare
from porter.sources.progress import Progress, QuietProgress

ENGINE_ARGUMENTS: Mapping[str, Any] = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 1024}


@dataclass(frozen=True)
class DemoOptions:
    """What to generate.

    ``temperature`` 0 is greedy; above it, ``seed`` decides the draw. ``checkpoint_seed``: another seed is another
    model. ``model``: a checkpoint of the user's own instead of the tiny one.
    """

    prompts: Sequence[str] = corpus.PROMPTS
    max_tokens: int = 32
    temperature: float = 0.0
    seed: int = 0
    checkpoint_seed: int = 0
    model: Path | None = None
    offline: bool = False
    target: Target = Target.HOST
    engine_arguments: Mapping[str, Any] = field(default_factory=lambda: dict(ENGINE_ARGUMENTS))


@dataclass(frozen=True)
class DemoResult:
    """What came out. ``start_seconds``: of the engine's start, weights and caches included."""

    prompts: Sequence[str]
    answer: Answer
    start_seconds: float
    checkout: Path
    model: Path


def demo(
    config: Config, options: DemoOptions | None = None, *, root: Path | None = None, progress: Progress | None = None
) -> DemoResult:
    """Apply the backend to a copy of the pinned DeepInfer, build its extension, make a checkpoint, and generate.

    What is made lies in porter's cache (``root`` names another folder) and is made once.

    Raises:
        MissingPackagesError, BuildError, EngineError: see porter.demo.errors.
        PorterError: the pinned source cannot be had, or no complete tree is emitted.
    """
    options = options or DemoOptions()
    shown = progress or QuietProgress()
    made = prepare(config, root=root, offline=options.offline, progress=progress)
    workspace = replace(made, target=options.target)
    model = options.model
    if model is None:
        with shown.task("making a tiny checkpoint"):
            model = checkpoint.write(
                workspace.root / f"checkpoint-{options.checkpoint_seed}", seed=options.checkpoint_seed
            )
    with shown.task("starting the engine"):
        engine = Engine(workspace, model, options.engine_arguments)
    sampling = {"temperature": options.temperature, "max_tokens": options.max_tokens, "seq_seed": options.seed}
    with engine, shown.task(f"generating {len(options.prompts)} texts"):
        answer = engine.generate(options.prompts, sampling)
    return DemoResult(tuple(options.prompts), answer, engine.seconds, workspace.checkout, model)


def render(result: DemoResult) -> str:
    """The demo's output as text."""
    lines = []
    for prompt, completion in zip(result.prompts, result.answer.completions, strict=True):
        lines += [f"prompt  {prompt!r}", f"text    {completion.text!r}  ({completion.finish_reason})", ""]
    tokens = sum(len(completion.tokens) for completion in result.answer.completions)
    lines.append(
        f"{tokens} tokens in {result.answer.seconds:.1f} s: {result.answer.tokens_per_second:.1f} tokens/s; "
        f"engine started in {result.start_seconds:.1f} s"
    )
    return "\n".join(lines) + "\n"
