"""Comparisons of ``tile_kernels.testing.numeric``."""

from __future__ import annotations

import math

import torch


def assert_equal(
    x: torch.Tensor,
    y: torch.Tensor,
    check_dtype: bool = True,
    check_shape: bool = True,
    check_stride: bool = True,
) -> None:
    """Fail unless two tensors hold the same bytes, and have the same dtype, shape and strides (unless told otherwise).

    Raises:
        AssertionError: they differ; it says in what, and where.
    """
    assert not check_dtype or x.dtype == y.dtype, f"dtypes differ: {x.dtype} and {y.dtype}"
    assert not check_shape or x.shape == y.shape, f"shapes differ: {tuple(x.shape)} and {tuple(y.shape)}"
    assert (
        not check_stride or x.numel() == 0 or x.stride() == y.stride()
    ), f"strides differ: {x.stride()} and {y.stride()}"
    assert x.device == y.device, f"devices differ: {x.device} and {y.device}"
    first, second = _bytes(x), _bytes(y)
    assert first.shape == second.shape, f"sizes differ: {tuple(x.shape)} of {x.dtype} and {tuple(y.shape)} of {y.dtype}"
    # NEURON: host sync a comparison ends on the host
    if torch.equal(first, second):
        return
    apart = (first != second).view(-1, x.element_size()).any(1)
    # NEURON: host sync it has failed already
    places = apart.nonzero().flatten().tolist()
    raise AssertionError(f"{len(places)} of {x.numel()} elements differ, flat indices {places[:8]}")


def _bytes(x: torch.Tensor) -> torch.Tensor:
    # A clone, for ``contiguous`` keeps the odd strides that axes of length one may have.
    return x.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The squared distance of two tensors over the sum of their squared norms, in fp64; 0 when both are 0."""
    # porter: ignore[PT110] a figure of a test, wherever it is computed
    first, second = x.double(), y.double()
    norm = (first * first + second * second).sum()
    # NEURON: host sync upstream's callers get a plain 0
    return (first - second).square().sum() / norm if norm != 0 else 0


def check_bias(x: torch.Tensor, ref_x: torch.Tensor) -> None:
    """Fail when ``x`` lies below ``ref_x`` more or less often than chance would have it, by twenty standard deviations.

    Raises:
        AssertionError: it does.
    """
    count = x.numel()
    if count == 0:
        return
    # NEURON: host sync a comparison ends on the host
    below, level = (x < ref_x).sum(dtype=torch.int32).item(), (x == ref_x).sum(dtype=torch.int32).item()
    share = (below + level / 2) / count
    assert abs(share - 0.5) < 10 / math.sqrt(
        count
    ), f"{share:.4f} of {count} values lie below: {below} below, {level} equal"


def count_bytes(*tensors) -> int:
    """Bytes of all tensors, in nested tuples and lists too; None counts nothing."""
    total = 0
    for one in tensors:
        if isinstance(one, (tuple, list)):
            total += count_bytes(*one)
        elif one is not None:
            total += one.numel() * one.element_size()
    return total
