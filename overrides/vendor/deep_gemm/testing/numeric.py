"""``deep_gemm.testing.numeric``: the comparisons that upstream's tests use, on tensors of any device."""

from __future__ import annotations

from typing import Any

import torch


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> Any:
    """One minus the likeness ``2 x.y / (x.x + y.y)``, in fp64; 0.0 when both are zero."""
    # porter: ignore[PT110] a comparison of tests: upstream's limits go below fp32's own noise
    x, y = x.to(torch.float64), y.to(torch.float64)
    total = (x * x + y * y).sum()
    # NEURON: host sync
    if total == 0:
        return 0.0
    return 1 - 2 * (x * y).sum() / total


def count_bytes(*tensors: Any) -> int:
    """Bytes of the elements of all tensors, in tuples and lists too; None counts nothing."""
    total = 0
    for item in tensors:
        if isinstance(item, (tuple, list)):
            total += count_bytes(*item)
        elif item is not None:
            total += item.numel() * item.element_size()
    return total


def assert_bitwise_equal(x: torch.Tensor, y: torch.Tensor, label: str = "") -> None:
    """Raise AssertionError unless both have the same shape, dtype and bytes; the message names the first element that differs."""
    assert x.shape == y.shape, f"shapes differ: {tuple(x.shape)} and {tuple(y.shape)}"
    assert x.dtype == y.dtype, f"dtypes differ: {x.dtype} and {y.dtype}"
    first, second = (t.contiguous().view(-1, 1).view(torch.uint8) for t in (x, y))
    differs = (first != second).any(1)
    # NEURON: host sync
    where = [index for index, one in enumerate(differs.tolist()) if one]
    if not where:
        return
    # NEURON: host sync
    values = x.flatten()[where[0]].item(), y.flatten()[where[0]].item()
    name = f" ({label})" if label else ""
    raise AssertionError(
        f"{len(where)} of {x.numel()} elements differ{name}, first {where[0]}: {values[0]} and {values[1]}"
    )
