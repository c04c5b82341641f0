"""State slices between two rings: wrap-around in either, padded layers, large positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import Work, check_kernel, guard, work
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.state_cache import load_state_to_cache_tl, select_state_slice_tl


def window(last: int, rows: int) -> list[int]:
    return list(range(last - rows, last))


@pytest.mark.parametrize("last", [4, 5, 7, 8, 11, 12, 35, 2**31 - 1, 2])
@pytest.mark.parametrize("store, infer", [(12, 4), (7, 5), (4, 4), (1, 1)])
def test_rings(last: int, store: int, infer: int) -> None:
    layers, dim = 3, 6
    tensor = torch.randint(0, 256, (layers, infer, dim)).to(torch.uint8)
    cache = torch.randint(0, 256, (layers, store, dim)).to(torch.uint8)
    places = window(last, infer)
    gates = last in (5, 12) and store == 7

    args = (guard(tensor, (infer * dim + 5, dim, 1)), guard(cache, (store * dim + 2, dim, 1)), last)
    check_kernel(select_state_slice_tl(store, infer, layers, dim), *args, written=("state_tensor",), gates=gates)
    want = tensor.clone()
    for p in places:
        want[:, p % infer] = cache[:, p % store]
    assert torch.equal(args[0], want)

    args = (guard(tensor, (infer * dim + 5, dim, 1)), guard(cache, (store * dim + 2, dim, 1)), last)
    check_kernel(load_state_to_cache_tl(store, infer, layers, dim), *args, written=("state_cache",), gates=gates)
    want = cache.clone()
    for p in places:
        want[:, p % store] = tensor[:, p % infer]
    assert torch.equal(args[1], want)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 60))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_stored_window_comes_back(infer: int, extra: int, last: int) -> None:
    store = infer + extra
    tensor = torch.randint(0, 256, (2, infer, 3)).to(torch.uint8)
    cache, back = torch.zeros(2, store, 3, dtype=torch.uint8), torch.zeros_like(tensor)
    load_state_to_cache_tl(store, infer, 2, 3)(tensor, cache, last)
    select_state_slice_tl(store, infer, 2, 3)(back, cache, last)
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("factory", [select_state_slice_tl, load_state_to_cache_tl])
def test_cost_does_not_grow_with_the_cache(factory: Callable[..., Any]) -> None:
    def cost(store: int) -> Work:
        args = (torch.zeros(2, 8, 4, dtype=torch.uint8), torch.zeros(2, store, 4, dtype=torch.uint8), 5)
        return work(factory(store, 8, 2, 4), *args)

    assert cost(16) == cost(256)


def test_refuses_a_window_longer_than_the_ring() -> None:
    with pytest.raises(AssertionError, match="at most 4 rows, got 5"):
        load_state_to_cache_tl(4, 5, 1, 8)


def test_against_the_references(upstream: Callable[[str], Any]) -> None:
    module = upstream("state_cache")
    for name in ("select_state_slice", "load_state_to_cache"):
        tensor, cache = module._make_state_tensors(3, 24, 11, 5, 32)
        want = tensor.clone(), cache.clone()
        getattr(module, f"{name}_ref")(*want, 23)
        getattr(module, name)(tensor, cache, 23)
        assert torch.equal(tensor, want[0]) and torch.equal(cache, want[1])
