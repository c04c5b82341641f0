"""In the place of the module of this name that upstream's tests import and its distribution leaves out: small cases of every kind.

Names and result orders are what those tests unpack. References are plain products of the unquantised inputs, as they expect.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from deep_gemm.testing import get_arch_major
from deep_gemm.utils import (
    align,
    ceil_div,
    get_mk_alignment_for_contiguous_layout,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
    set_mk_alignment_for_contiguous_layout,
    transpose_packed_fp4,
)

__all__ = ["ceil_div", "get_arch_major"]


class KernelType(enum.Enum):
    """Whether scales are 1-D on both sides, 2-D on the weights', or absent."""

    Kernel1D1D = "1d1d"
    Kernel1D2D = "1d2d"
    KernelNoSF = "none"

    def is_1d1d(self) -> bool:
        return self is KernelType.Kernel1D1D


class Major(enum.Enum):
    """Which axis of an operand is contiguous."""

    K = "k"
    MN = "mn"

    def is_k_major(self) -> bool:
        return self is Major.K


class QuantConfig:
    """Granularities along K and number formats of both operands."""

    def __init__(self, value: tuple[int, int, bool, bool] = (128, 128, False, False)) -> None:
        self.gran_k_a, self.gran_k_b, self.is_fp4_a, self.is_fp4_b = value
        self.plain = value == (128, 128, False, False)

    def get_recipes(self, is_wgrad: bool = False) -> tuple[Any, Any, Any]:
        if self.plain:
            return ((1, 1, 128) if is_wgrad else None), None, None
        gran_n = 1 if is_wgrad or self.is_fp4_a or self.is_fp4_b else self.gran_k_b
        return None, (1, self.gran_k_a), (gran_n, self.gran_k_b)

    def max_diff(self) -> float:
        return (0.001, 0.01, 0.02)[self.is_fp4_a + self.is_fp4_b]


def get_ue8m0_usage(kernel_type: KernelType) -> bool:
    return get_arch_major() == 10 and kernel_type.is_1d1d()


def _configs(dtype: torch.dtype) -> list[Any]:
    if dtype == torch.bfloat16:
        return [None]
    mixed = [(128, 32, False, True), (32, 32, False, True), (32, 32, False, False), (32, 32, True, True)]
    return [QuantConfig(), *(QuantConfig(value) for value in mixed if get_arch_major() == 10)]


def _kernel(dtype: torch.dtype, is_wgrad: bool = False) -> KernelType:
    if dtype == torch.bfloat16:
        return KernelType.KernelNoSF
    return KernelType.Kernel1D1D if get_arch_major() == 10 or is_wgrad else KernelType.Kernel1D2D


def enumerate_normal(dtype: torch.dtype, collect_cublas_scores: bool = False) -> Iterator[tuple[Any, ...]]:
    """Shapes, majors, accumulation and output. On generation 10 a plain bf16 output is left out: there the tests go on to
    stochastic rounding, an epilogue that the drop-in excludes."""
    newest = get_arch_major() == 10
    for config in _configs(dtype):
        scores: list[float] = []
        both_fp4 = config is not None and config.is_fp4_a and config.is_fp4_b
        majors = [(Major.K, Major.K)]
        if dtype == torch.bfloat16:
            majors += [(Major.K, Major.MN), (Major.MN, Major.MN), (Major.MN, Major.K)]
        elif newest and not both_fp4:
            majors += [(Major.MN, Major.MN)]
        for (m, n, k), (major_a, major_b) in itertools.product([(1, 768, 512), (130, 96, 128)], majors):
            if config is not None and m % 2 and config.is_fp4_a and not major_a.is_k_major():
                continue
            for accumulate, out in (
                (False, torch.bfloat16),
                (True, torch.bfloat16),
                (False, torch.float),
                (True, torch.float),
            ):
                if newest and not accumulate and out == torch.bfloat16:
                    continue
                wgrad = accumulate and out == torch.float
                if dtype != torch.bfloat16 and not newest and (accumulate != wgrad or (out == torch.float) != wgrad):
                    continue
                case = (_kernel(dtype, wgrad), config, m, n, k, major_a, major_b, accumulate, out)
                yield (*case, scores) if collect_cublas_scores else case


def enumerate_m_grouped_contiguous(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for config, psum in itertools.product(_configs(dtype), (True, False)):
        both_fp4 = config is not None and config.is_fp4_a and config.is_fp4_b
        for zero_padding in (False, True) if psum and get_arch_major() == 10 else (False,):
            for major_b in (Major.K, Major.MN):
                if not major_b.is_k_major() and (both_fp4 or (dtype != torch.bfloat16 and get_arch_major() == 9)):
                    continue
                shapes = ((3, 100, 64, 128), (6, 20, 96, 256))
                for groups, rows, n, k in shapes if major_b.is_k_major() else shapes[:1]:
                    yield _kernel(dtype), config, groups, rows, n, k, Major.K, major_b, psum, zero_padding


def enumerate_m_grouped_masked(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for config, psum in itertools.product(_configs(dtype), (True, False)):
        yield _kernel(dtype), config, 4, 128, 30, 64, 256, psum


def enumerate_k_grouped_contiguous(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """Direct bf16 output is left out as above; the older generation's K-major FP8 form, which Ascend reads otherwise, too."""
    newest = get_arch_major() == 10
    if dtype == torch.float8_e4m3fn and not newest:
        return
    major = Major.K if dtype == torch.float4_e2m1fn_x2 else Major.MN
    sizes = {torch.bfloat16: [(128, 128), (256, 256)], torch.float4_e2m1fn_x2: [(32, 256)]}
    for psum, (gran_k, alignment) in itertools.product(
        (False, True), sizes.get(dtype, [(32, 128), (128, 128), (32, 256)])
    ):
        if psum and not newest:
            continue
        for accumulate, out in ((True, torch.float), (False, torch.float)):
            if not newest and not accumulate:
                continue
            set_mk_alignment_for_contiguous_layout(alignment)
            ks = [100, 257, 40]
            aligned = [align(k, alignment) for k in ks]
            yield 3, 64, 48, major, major, ks, aligned, 128, gran_k, alignment, psum, accumulate, out


def enumerate_k_grouped_contiguous_test_variants(real_ks_cpu: Sequence[int]) -> Iterator[list[int]]:
    yield list(real_ks_cpu)
    yield [0, *real_ks_cpu[1:]]
    yield [k if index == 1 else 0 for index, k in enumerate(real_ks_cpu)]


def enumerate_batched_syrk_symm() -> Iterator[tuple[Any, ...]]:
    return iter(())


def enumerate_sf_layout() -> Iterator[tuple[Any, ...]]:
    grans = (128,) if get_arch_major() == 9 else (32, 128)
    for ue8m0, contiguous, mn, k, groups, gran in itertools.product(
        (False, True), (True, False), (1, 64, 97), (128, 640, 7168), (1, 3), grans
    ):
        yield mn, k, contiguous, ue8m0, groups, gran


def enumerate_k_grouped_sf_layout() -> Iterator[tuple[Any, ...]]:
    for mn, (gran_k, alignment) in itertools.product((4, 96), ((32, 128), (128, 128), (128, 384))):
        set_mk_alignment_for_contiguous_layout(alignment)
        for ks in ([3, 0, 1, 2], [1], [0, 5]):
            yield mn, [k * alignment for k in ks], len(ks), gran_k, alignment


def enumerate_k_grouped_psum_sf_layout() -> Iterator[tuple[Any, ...]]:
    for mn, aligned, groups, gran_k, alignment in enumerate_k_grouped_sf_layout():
        real = [max(0, k - (gran_k // 2 if index % 2 else 0)) for index, k in enumerate(aligned)]
        yield mn, real, aligned, _psum(real, alignment), groups, gran_k, alignment


def _psum(sizes: Sequence[int], alignment: int) -> list[int]:
    ends: list[int] = []
    for size in sizes:
        ends.append((align(ends[-1], alignment) if ends else 0) + size)
    return ends


def _operand(x: torch.Tensor, major: Major, gran_k: int, fp4: bool, ue8m0: bool, block: bool = False) -> Any:
    if fp4:
        values, sf = per_token_cast_to_fp4(x, use_ue8m0=ue8m0, gran_k=gran_k)
        return (values if major.is_k_major() else transpose_packed_fp4(values).T), sf
    cast = per_block_cast_to_fp8 if block else per_token_cast_to_fp8
    values, sf = cast(x, use_ue8m0=ue8m0, gran_k=gran_k)
    return (values if major.is_k_major() else values.T.contiguous().T), sf


def _is_block(config: QuantConfig, is_wgrad: bool) -> bool:
    return not (is_wgrad or config.is_fp4_a or config.is_fp4_b)


def generate_normal(
    m: int,
    n: int,
    k: int,
    major_a: Major,
    major_b: Major,
    accumulate: bool,
    out_dtype: torch.dtype,
    kernel_type: KernelType,
    use_ue8m0: bool = False,
    use_bf16: bool = False,
    quant_config: QuantConfig | None = None,
    alpha: float | None = None,
) -> Any:
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    d = torch.randn(m, n).mul_(8).to(out_dtype) if accumulate else torch.empty(m, n, dtype=out_dtype)
    c = d if accumulate else None
    product = (a.float() @ b.float().T) * (1.0 if alpha is None else alpha)
    wanted = (product + (d.float() if accumulate else 0)).to(out_dtype)
    if use_bf16:
        left, right = (x if major.is_k_major() else x.T.contiguous().T for x, major in ((a, major_a), (b, major_b)))
        return left, right, c, d, wanted
    config = quant_config or QuantConfig()
    wgrad = kernel_type.is_1d1d() and accumulate
    left = _operand(a, major_a, config.gran_k_a, config.is_fp4_a, use_ue8m0)
    right = _operand(b, major_b, config.gran_k_b, config.is_fp4_b, use_ue8m0, _is_block(config, wgrad))
    return left, right, c, d, wanted


def _grouped(b: torch.Tensor, major: Major, config: QuantConfig, ue8m0: bool) -> Any:
    parts = [_operand(x, major, config.gran_k_b, config.is_fp4_b, ue8m0, _is_block(config, False)) for x in b]
    values = torch.stack([values if major.is_k_major() else values.T for values, _ in parts])
    return (values if major.is_k_major() else values.mT), torch.stack([sf for _, sf in parts])


def generate_m_grouped_contiguous(
    num_groups: int,
    expected_m_per_group: int,
    n: int,
    k: int,
    major_a: Major,
    major_b: Major,
    use_ue8m0: bool = False,
    use_bf16: bool = False,
    use_psum_layout: bool = False,
    quant_config: QuantConfig | None = None,
) -> Any:
    """Groups of uneven sizes, the second one empty."""
    alignment = get_mk_alignment_for_contiguous_layout()
    sizes = [0 if group == 1 else expected_m_per_group + 7 * group for group in range(num_groups)]
    ends = _psum(sizes, alignment)
    m = align(ends[-1], alignment)
    valid, owner = torch.zeros(m, dtype=torch.bool), torch.full((m,), -1, dtype=torch.int32)
    for group, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        valid[end - size : end], owner[end - size : end] = True, group
    a, b = torch.randn(m, k).bfloat16() * valid[:, None], torch.randn(num_groups, n, k).bfloat16()
    wanted = torch.zeros(m, n, dtype=torch.bfloat16)
    for group, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        wanted[end - size : end] = (a[end - size : end].float() @ b[group].float().T).bfloat16()
    layout = torch.tensor(ends, dtype=torch.int32) if use_psum_layout else owner
    d = torch.randn(m, n).bfloat16()
    if use_bf16:
        return m, a, b if major_b.is_k_major() else b.mT.contiguous().mT, layout, d, wanted, valid
    config = quant_config or QuantConfig()
    left = _operand(a, Major.K, config.gran_k_a, config.is_fp4_a, use_ue8m0)
    return m, left, _grouped(b, major_b, config, use_ue8m0), layout, d, wanted, valid


def generate_m_grouped_masked(
    num_groups: int,
    max_m: int,
    expected_m_per_group: int,
    n: int,
    k: int,
    use_ue8m0: bool = False,
    use_bf16: bool = False,
    use_psum_layout: bool = False,
    quant_config: QuantConfig | None = None,
) -> Any:
    if use_psum_layout:
        _, a, b, layout, d, wanted, valid = generate_m_grouped_contiguous(
            num_groups, expected_m_per_group, n, k, Major.K, Major.K, use_ue8m0, use_bf16, True, quant_config
        )
        return a, b, layout, d, wanted, valid
    a, b = torch.randn(num_groups, max_m, k).bfloat16(), torch.randn(num_groups, n, k).bfloat16()
    counts = torch.tensor(
        [0 if group == 1 else expected_m_per_group + group for group in range(num_groups)], dtype=torch.int32
    )
    valid = torch.arange(max_m)[None, :] < counts[:, None]
    wanted, d = torch.bmm(a.float(), b.float().mT).bfloat16(), torch.empty(num_groups, max_m, n, dtype=torch.bfloat16)
    if use_bf16:
        return a, b, counts, d, wanted, valid
    config = quant_config or QuantConfig()
    parts = [_operand(x, Major.K, config.gran_k_a, config.is_fp4_a, use_ue8m0) for x in a]
    left = torch.stack([values for values, _ in parts]), torch.stack([sf for _, sf in parts])
    return left, _grouped(b, Major.K, config, use_ue8m0), counts, d, wanted, valid


def generate_k_grouped_contiguous(
    num_groups: int,
    m: int,
    n: int,
    major_a: Major,
    major_b: Major,
    real_ks_cpu: Sequence[int],
    use_ue8m0: bool = False,
    use_bf16: bool = False,
    gran_k: int = 128,
    quant_config: QuantConfig | None = None,
    use_psum_layout: bool = False,
    k_alignment: int = 128,
    accumulate: bool = True,
    out_dtype: torch.dtype = torch.float,
) -> Any:
    aligned = [align(k, k_alignment) for k in real_ks_cpu]
    total = sum(aligned)
    a, b = torch.zeros(total, m).bfloat16(), torch.zeros(total, n).bfloat16()
    d = (
        torch.randn(num_groups, m, n).mul_(8).to(out_dtype)
        if accumulate
        else torch.empty(num_groups, m, n, dtype=out_dtype)
    )
    wanted = d.float().clone() if accumulate else torch.zeros(num_groups, m, n)
    start = 0
    for group, (real, size) in enumerate(zip(real_ks_cpu, aligned, strict=True)):
        used = slice(start, start + (real if use_psum_layout else size))
        a[used], b[used] = (
            torch.randn(used.stop - used.start, m).bfloat16(),
            torch.randn(used.stop - used.start, n).bfloat16(),
        )
        wanted[group] += a[used].float().T @ b[used].float()
        start += size
    layout = torch.tensor(_psum(real_ks_cpu, k_alignment) if use_psum_layout else aligned, dtype=torch.int32)
    c = d if accumulate else None
    if use_bf16:
        return total, a, b, c, d, wanted.to(out_dtype), layout, aligned
    if quant_config is not None:
        left, right = (per_token_cast_to_fp4(x.T.contiguous(), use_ue8m0, gran_k) for x in (a, b))
        left, right = ((values, sf.T.contiguous()) for values, sf in (left, right))
    else:
        left, right = (per_channel_cast_to_fp8(x, use_ue8m0, gran_k) for x in (a, b))
    return total, left, right, c, d, wanted.to(out_dtype), layout, aligned
