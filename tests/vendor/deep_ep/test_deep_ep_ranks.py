"""Dispatch, combine and Engram fetch against upstream's references, on 1 (without a group), 2 and 4 gloo ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deep_ep_ranks
import pytest
import torch

from overrides.vendor.deep_ep.buffers import ep


@pytest.mark.parametrize(
    ("ranks", "case"), [(ranks, case) for ranks in (1, 2, 4) for case in deep_ep_ranks.names(ranks)]
)
def test_agrees_with_the_references(failures: Callable[[int], dict[str, str]], ranks: int, case: str) -> None:
    assert case not in failures(ranks), failures(ranks)[case]


def broken(name: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, upstream: Path) -> set[str]:
    monkeypatch.setattr(ep, name, wrong)
    return set(deep_ep_ranks.check_all(upstream, None))


def test_a_wrong_order_shows(
    source_root: Callable[[str], Path], lone_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ep._sum_rows

    def backwards(x: torch.Tensor, rows: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
        return right(x, rows.flip(1), outside.flip(1))

    assert "all-choose" in broken("_sum_rows", backwards, monkeypatch, source_root("deep_ep"))


def test_a_wrong_inverse_shows(
    source_root: Callable[[str], Path], lone_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ep._inverse

    def shifted(target: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
        return right(target, value, size).roll(1)

    found = broken("_inverse", shifted, monkeypatch, source_root("deep_ep"))
    assert {"plain", "fixed", "fp8"} <= found


@pytest.mark.parametrize(
    "read",
    [lambda x: x.tolist(), lambda x: x[0].item(), lambda x: int(x[0]), lambda x: x[x > 0], lambda x: x.nonzero()],
)
def test_a_host_sync_shows(read: Callable[[torch.Tensor], Any]) -> None:
    with deep_ep_ranks.NoHostSync(), pytest.raises(AssertionError):
        read(torch.ones(2))
