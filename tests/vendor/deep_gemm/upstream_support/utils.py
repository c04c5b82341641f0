"""In the place of the module of this name that upstream's tests import and its distribution leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from deep_gemm.testing import calc_diff
from deep_gemm.utils import transpose_packed_fp4
from deep_gemm.utils.math import cast_back_from_fp4


def add_sf_k_padding(sf: torch.Tensor, padding: int, k_grouped: bool = False) -> torch.Tensor:
    """The same scales with ``padding`` elements of garbage after each column (each row, with ``k_grouped``)."""
    if k_grouped:
        wide = torch.full((sf.shape[0], sf.shape[1] + padding), 0x55, dtype=sf.dtype)
        wide[:, : sf.shape[1]] = sf
        return wide[:, : sf.shape[1]]
    wide = torch.full((sf.shape[1], sf.shape[0] + padding), 0x55, dtype=sf.dtype)
    wide[:, : sf.shape[0]] = sf.T
    return wide[:, : sf.shape[0]].T


def assert_direct_output_matches_fp32_accumulation(d: torch.Tensor, launch: Callable[..., Any], label: str) -> None:
    """``d`` is the fp32 sum, rounded: nearly every element bit for bit, none off by more than a unit in the last place.

    Where terms cancel, the order of summation shows: 1e-4 is the noise of fp32 sums of the sizes used here.
    """
    total = torch.zeros(d.shape, dtype=torch.float32)
    launch(total, total)
    rounded = total.to(d.dtype)
    assert calc_diff(d, rounded) < 1e-7, label
    if d.dtype == torch.bfloat16:
        assert (d == rounded).float().mean() > 0.99, label
        assert bool(((d.float() - rounded.float()).abs() <= rounded.float().abs() * 2**-7 + 1e-4).all()), label


def assert_stochastic_bf16_matches_fp32_accumulation(d: torch.Tensor, launch: Callable[..., Any], label: str) -> None:
    raise NotImplementedError("stochastic rounding is an epilogue, which the drop-in excludes")


def assert_psum_zero_padding(a: Any, d: torch.Tensor, grouped_layout: torch.Tensor, label: str) -> None:
    """Rows between the groups are zero."""
    from deep_gemm.utils import align, get_mk_alignment_for_contiguous_layout

    alignment, start = get_mk_alignment_for_contiguous_layout(), 0
    for end in grouped_layout.tolist():
        assert d[end : align(end, alignment)].eq(0).all(), f"{label}: padding after row {end}"
        start = align(end, alignment)
    assert start <= d.shape[0]


def convert_to_fp8(operand: Any) -> Any:
    """A packed FP4 operand as the same values in e4m3, majors kept; others as they are."""
    values, sf = operand
    if values.dtype != torch.int8:
        return operand
    if values.ndim == 3:
        return torch.stack([convert_to_fp8((x, s))[0] for x, s in zip(values, sf, strict=True)]), sf
    k_major = values.stride(-1) == 1
    packed = values if k_major else transpose_packed_fp4(values.T.contiguous())
    one = torch.ones(packed.shape[0], 1)
    wide = cast_back_from_fp4(packed, one, gran_k=2 * packed.shape[1]).to(torch.float8_e4m3fn)
    return (wide if k_major else wide.T.contiguous().T), sf


def make_cublas_gemm(a: Any, b: Any, d: torch.Tensor, c: torch.Tensor | None) -> Callable[[], None]:
    return lambda: None
