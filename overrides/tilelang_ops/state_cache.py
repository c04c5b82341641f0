"""Window copies between a ring of state rows and a flat one, after ``tilelang_ops.asc.state_cache``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def _spans(start: int, length: int, first_ring: int, second_ring: int) -> Iterator[tuple[int, int, int]]:
    """Split ``[start, start + length)`` where either ring wraps: (place in first, place in second, rows)."""
    done = 0
    while done < length:
        first, second = (start + done) % first_ring, (start + done) % second_ring
        rows = min(length - done, first_ring - first, second_ring - second)
        yield first, second, rows
        done += rows


def select_state_slice_tl(block_size_kvstore: int, block_size_inference: int, num_layers: int, feature_dim: int) -> Any:
    """Factory of the copy of the window that ends at ``last_hit_position`` from the cache's ring to the tensor's."""
    assert block_size_kvstore > 0 and block_size_inference > 0, f"{block_size_kvstore=} {block_size_inference=}"

    def select_state_slice(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
        """``state_tensor``: [layers, block_size_inference, dim] uint8, written. ``state_cache``: [layers, block_size_kvstore, dim]."""
        assert state_tensor.shape == (num_layers, block_size_inference, feature_dim), f"{state_tensor.shape=}"
        assert state_cache.shape == (num_layers, block_size_kvstore, feature_dim), f"{state_cache.shape=}"
        start = last_hit_position - block_size_inference
        for target, source, rows in _spans(start, block_size_inference, block_size_inference, block_size_kvstore):
            state_tensor[:, target : target + rows].copy_(state_cache[:, source : source + rows])

    return select_state_slice


def load_state_to_cache_tl(block_size_kvstore: int, block_size_inference: int, num_layers: int, feature_dim: int) -> Any:
    """Factory of the copy of the tensor's ring into the window of the cache's ring that ends at ``last_hit_position``."""
    assert block_size_kvstore > 0 and block_size_inference > 0, f"{block_size_kvstore=} {block_size_inference=}"

    def load_state_to_cache(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
        """``state_tensor``: [layers, block_size_inference, dim] uint8. ``state_cache``: [layers, block_size_kvstore, dim], written."""
        assert state_tensor.shape == (num_layers, block_size_inference, feature_dim), f"{state_tensor.shape=}"
        assert state_cache.shape == (num_layers, block_size_kvstore, feature_dim), f"{state_cache.shape=}"
        start = last_hit_position - block_size_inference
        for target, source, rows in _spans(start, block_size_inference, block_size_kvstore, block_size_inference):
            state_cache[:, target : target + rows].copy_(state_tensor[:, source : source + rows])

    return load_state_to_cache
