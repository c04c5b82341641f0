"""Fixtures of the ``deep_ep`` tests: groups of ranks are started once, and report by case."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent))
import deep_ep_ranks

deep_ep_ranks.import_paths()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(20261203)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def lone_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A gloo group of this process alone, for upstream's references; the drop-in itself gets no group."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def failures(source_root: Callable[[str], Path], lone_rank: None) -> Callable[[int], dict[str, str]]:
    """What went wrong on a group of so many ranks, by case."""
    upstream = source_root("deep_ep")
    known: dict[int, dict[str, str]] = {}

    def get(ranks: int) -> dict[str, str]:
        if ranks not in known:
            known[ranks] = deep_ep_ranks.check_all(upstream, None) if ranks == 1 else deep_ep_ranks.run(ranks, upstream)
        return known[ranks]

    return get
