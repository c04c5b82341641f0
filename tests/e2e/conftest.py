"""DeepInfer's own engine on a tiny checkpoint, started once for all tests of a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from porter.config import load_config
from porter.demo import checkpoint, corpus
from porter.demo.bpe import BOS
from porter.demo.engine import Engine
from porter.demo.workspace import Target, Workspace, prepare

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS: Mapping[str, Any] = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 1024}
CHUNKED: Mapping[str, Any] = {**ARGUMENTS, "max_num_batched_tokens": 128, "max_num_seqs": 4, "chunked_prefill": True}
"""128 tokens at a time."""


@pytest.fixture(scope="session")
def workspace() -> Workspace:
    """The emitted backend in a copy of the pinned engine, extension built, in porter's cache."""
    return prepare(load_config(ROOT / "porter.toml"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint in the released format."""
    return checkpoint.write(tmp_path_factory.mktemp("model"))


def started(workspace: Workspace, model: Path, arguments: Mapping[str, Any], target: Target) -> Iterator[Engine]:
    """An engine for the time of a fixture. What it served hit nothing that the backend leaves out."""
    with Engine(replace(workspace, target=target), model, arguments) as running:
        yield running
        for word in ("not supported on Neuron", "not emitted", "KernelUnavailable"):
            assert word not in running.log()


@pytest.fixture(scope="session")
def engine(workspace: Workspace, model: Path) -> Iterator[Engine]:
    """An engine that prefills every prompt here at once."""
    yield from started(workspace, model, ARGUMENTS, Target.HOST)


@pytest.fixture(scope="session")
def prompt_of() -> Callable[[int], Sequence[int]]:
    """A prompt of so many tokens: BOS and then the text from its start, again from there when it ends."""
    tokens = checkpoint.tokenizer().encode(corpus.TEXT)

    def make(length: int, start: int = 0) -> Sequence[int]:
        return [BOS, *(tokens[(start + index) % len(tokens)] for index in range(length - 1))]

    return make
