"""DeepInfer's own engine on a tiny checkpoint, on the host, started once for all tests of a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from porter.config import load_config
from porter.demo import checkpoint, corpus
from porter.demo.bpe import BOS
from porter.demo.engine import Engine
from porter.demo.workspace import Workspace, prepare

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS: Mapping[str, Any] = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 1024}


@pytest.fixture(scope="session")
def workspace() -> Workspace:
    """The emitted backend in a copy of the pinned engine, extension built, in porter's cache."""
    return prepare(load_config(ROOT / "porter.toml"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint in the released format."""
    return checkpoint.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def engine(workspace: Workspace, model: Path) -> Iterator[Engine]:
    """An engine that prefills every prompt here at once."""
    with Engine(workspace, model, ARGUMENTS) as running:
        yield running


@pytest.fixture(scope="session")
def chunking_engine(workspace: Workspace, model: Path) -> Iterator[Engine]:
    """An engine that prefills 128 tokens at a time."""
    with Engine(
        workspace, model, {**ARGUMENTS, "max_num_batched_tokens": 128, "max_num_seqs": 4, "chunked_prefill": True}
    ) as running:
        yield running


@pytest.fixture(scope="session")
def prompt_of() -> Callable[[int], Sequence[int]]:
    """A prompt of so many tokens: BOS and then the text from its start, again from there when it ends."""
    tokens = checkpoint.tokenizer().encode(corpus.TEXT)

    def make(length: int, start: int = 0) -> Sequence[int]:
        return [BOS, *(tokens[(start + index) % len(tokens)] for index in range(length - 1))]

    return make
