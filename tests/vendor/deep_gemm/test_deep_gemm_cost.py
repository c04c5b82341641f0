"""Memory made beside the plain references, on the engine's shapes scaled down.

References are what upstream's tests compare with: operands cast back as a whole, then products, group by group. Bytes of all new
tensors are counted, which repeats exactly and is what a memory-bound device pays for; processor time would not repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from harness import new_bytes

from neuron_numerics import e2m1
from overrides.vendor.deep_gemm.utils import math

BF16 = torch.bfloat16
ONE = 0x7F7F


def e4m3(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns).to(torch.float8_e4m3fn)


def e2m1_values(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, (*shape[:-1], shape[-1] // 2), dtype=torch.int8)


def ones(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of 1 for [.., k] values: packed, and fp32."""
    *lead, k = shape
    return torch.full((*lead, k // 64), ONE, dtype=torch.int16), torch.ones(*lead, k // 32)


def linear(gemm: ModuleType) -> tuple[Callable[[], object], Callable[[], object]]:
    m, n, k = 4, 2048, 3584
    a, b, d = e4m3(m, k), e4m3(n, k), torch.empty(m, n, dtype=BF16)
    (sfa, wide_a), (sfb, wide_b) = ones(m, k), ones(n, k)

    def reference() -> None:
        d.copy_(math.cast_back_from_fp8(a, wide_a, 32) @ math.cast_back_from_fp8(b, wide_b, 32).T)

    return lambda: gemm.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, None, recipe=(1, 1, 32)), reference


def grouped(gemm: ModuleType) -> tuple[Callable[[], object], Callable[[], object]]:
    """A decode step: 32 experts, 8 of them with 2 rows each, in the psum layout."""
    groups, n, k, alignment = 32, 512, 1024, 128
    m = 8 * alignment
    psum = torch.tensor([alignment * group + 2 for group in range(8)] + [m] * (groups - 8), dtype=torch.int32)
    a, b, d = e4m3(m, k), e2m1_values(groups, n, k), torch.empty(m, n, dtype=BF16)
    (sfa, wide_a), (sfb, wide_b) = ones(m, k), ones(groups, n, k)

    def reference() -> None:
        weights = [math.cast_back_from_fp4(values, scale, 32) for values, scale in zip(b, wide_b, strict=True)]
        rows, start = math.cast_back_from_fp8(a, wide_a, 32), 0
        for weight, end in zip(weights, psum.tolist(), strict=True):
            d[start:end] = rows[start:end] @ weight.T
            start = -(-end // alignment) * alignment

    def ours() -> None:
        gemm.m_grouped_fp8_fp4_gemm_nt_contiguous((a, sfa), (b, sfb), d, psum, recipe=(1, 1, 32), use_psum_layout=True)

    return ours, reference


def logits(gemm: ModuleType) -> tuple[Callable[[], object], Callable[[], object]]:
    m, n, heads = 256, 2048, 32
    q, k, weights = e2m1_values(m, heads, 128), e2m1_values(n, 128), torch.randn(m, heads).to(BF16)
    q_sf, k_sf = ones(m, heads, 128)[0], ones(n, 128)[0]
    start = torch.zeros(m, dtype=torch.int32)

    def reference() -> torch.Tensor:
        scores = torch.einsum("mhd,nd->hmn", e2m1.decode(q), e2m1.decode(k))
        return torch.einsum("hmn,hm->mn", scores.relu(), weights.float().T)

    return lambda: gemm.fp8_fp4_mqa_logits((q, q_sf), (k, k_sf), weights, start, start + n, n), reference


@pytest.mark.parametrize("case", [linear, grouped, logits])
def test_makes_less_than_the_reference(
    gemm: ModuleType, case: Callable[..., tuple[Callable[[], object], Callable[[], object]]]
) -> None:
    ours, reference = case(gemm)
    assert 2 * new_bytes(ours) < new_bytes(reference) if case is grouped else new_bytes(ours) <= new_bytes(reference)
