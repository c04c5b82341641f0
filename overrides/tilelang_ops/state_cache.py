"""Window copies between a ring of state rows and a shorter one, after ``tilelang_ops.asc.state_cache``."""

from __future__ import annotations

from typing import Any

import torch


def _places(last: int, short_ring: int, long_ring: int, device: torch.device) -> torch.Tensor:
    """Row of the long ring for each row of the short one, for the window of ``short_ring`` positions before ``last``."""
    start = last - short_ring
    row = torch.arange(short_ring, dtype=torch.int32, device=device)
    return (row - start % short_ring).remainder_(short_ring).add_(start % long_ring).remainder_(long_ring)


def select_state_slice_tl(block_size_kvstore: int, block_size_inference: int, num_layers: int, feature_dim: int) -> Any:
    """Factory of the copy of the window that ends at ``last_hit_position`` from the cache's ring to the tensor's."""
    assert block_size_kvstore > 0 and block_size_inference > 0, f"{block_size_kvstore=} {block_size_inference=}"

    def select_state_slice(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
        """Read ``state_cache`` [layers, block_size_kvstore, dim] uint8, strided layers and rows.

        Written: ``state_tensor`` [layers, block_size_inference, dim] uint8, strided too.
        """
        assert state_tensor.shape == (num_layers, block_size_inference, feature_dim), f"{state_tensor.shape=}"
        assert state_cache.shape == (num_layers, block_size_kvstore, feature_dim), f"{state_cache.shape=}"
        place = _places(last_hit_position, block_size_inference, block_size_kvstore, state_cache.device)
        state_tensor.copy_(state_cache.index_select(1, place))

    return select_state_slice


def load_state_to_cache_tl(
    block_size_kvstore: int, block_size_inference: int, num_layers: int, feature_dim: int
) -> Any:
    """Factory of the copy of the tensor's ring into the window of the cache's ring that ends at ``last_hit_position``."""
    assert (
        0 < block_size_inference <= block_size_kvstore
    ), f"expected a window of at most {block_size_kvstore} rows, got {block_size_inference}"

    def load_state_to_cache(state_tensor: torch.Tensor, state_cache: torch.Tensor, last_hit_position: int) -> None:
        """Read ``state_tensor`` [layers, block_size_inference, dim] uint8, strided layers and rows.

        Written: the window's rows of ``state_cache`` [layers, block_size_kvstore, dim] uint8, strided too.
        """
        assert state_tensor.shape == (num_layers, block_size_inference, feature_dim), f"{state_tensor.shape=}"
        assert state_cache.shape == (num_layers, block_size_kvstore, feature_dim), f"{state_cache.shape=}"
        place = _places(last_hit_position, block_size_inference, block_size_kvstore, state_cache.device)
        layer = torch.arange(num_layers, dtype=torch.int32, device=state_cache.device).unsqueeze(1)
        state_cache.index_put_((layer, place), state_tensor)

    return load_state_to_cache
