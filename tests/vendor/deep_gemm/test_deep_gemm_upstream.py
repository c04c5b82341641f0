"""Upstream's own tests, unedited, on the drop-in: its Python package executed with this module in the place of its C++ one.

Left out, with reasons:

- ``test_legacy``, ``test_sanitizer``, ``test_lazy_init``: Triton kernels, compute-sanitizer, processes of the CUDA extension.
- ``test_mega_moe``, ``test_mega_mhc``, ``test_mega_gate``, ``test_locality_domain``: excluded names.
- in ``test_bf16`` the two batched tests, in ``test_einsum`` ``test_fp8_bhd_hdr_bhr`` and generation 10 of ``test_fp8_bhr_hdr_bhd``,
  and direct bf16 outputs on generation 10: excluded names and epilogues (stochastic rounding, FP8 cast with clamp).
- ``test_fp8_bhd_bhr_hdr``: its only sizes are 275 GFLOP; the expression has tests of its own.

The loops over large fixed sizes end after the cases that a host can run; the count of cases is asserted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_upstream import bench, load_test, on_host

BF16, FP32 = torch.bfloat16, torch.float


class _Enough(Exception):
    """Ends a loop of an upstream test."""


def run(module: ModuleType, name: str, arch: int, cases: int | None = None) -> int:
    """Run one upstream test function; returns how many cases it finished, and stops it after ``cases``."""
    finished = 0

    def count(function: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal finished
        result = bench(function, *args, **kwargs)
        finished += 1
        if finished == cases:
            raise _Enough
        return result

    module.bench_kineto = count  # type: ignore[attr-defined]
    with on_host(arch), contextlib.suppress(_Enough):
        getattr(module, name)()
    return finished


Upstream = tuple[Path, ModuleType]


@pytest.mark.parametrize("arch", [9, 10])
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("test_bf16", "test_gemm"),
        ("test_bf16", "test_m_grouped_gemm_contiguous"),
        ("test_bf16", "test_m_grouped_gemm_masked"),
        ("test_bf16", "test_k_grouped_gemm_contiguous"),
        ("test_bf16", "test_cublaslt_gemm"),
        ("test_fp8_fp4", "test_gemm"),
        ("test_fp8_fp4", "test_m_grouped_gemm_contiguous"),
        ("test_fp8_fp4", "test_m_grouped_gemm_masked"),
        ("test_fp8_fp4", "test_k_grouped_gemm_contiguous"),
        ("test_layout", "test_sf_layout_kernels"),
        ("test_layout", "test_k_grouped_sf_layout_kernels"),
        ("test_layout", "test_k_grouped_psum_sf_layout_kernels"),
    ],
)
def test_generated_cases(upstream: Upstream, file: str, name: str, arch: int) -> None:
    finished = run(load_test(upstream[0], file), name, arch)
    # Without a case: what upstream itself skips on generation 9.
    skipped = arch == 9 and (file, name) in {
        ("test_fp8_fp4", "test_k_grouped_gemm_contiguous"),
        ("test_layout", "test_k_grouped_sf_layout_kernels"),
        ("test_layout", "test_k_grouped_psum_sf_layout_kernels"),
    }
    assert (finished == 0) == skipped


@pytest.mark.parametrize(
    ("name", "arch", "cases"),
    [
        ("test_bmk_bnk_mn", 9, 6),
        ("test_bhr_hdr_bhd", 9, 4),
        ("test_bhd_hdr_bhr", 9, 4),
        ("test_bhd_bhr_hdr", 9, 2),
        ("test_fp8_bhr_hdr_bhd", 9, 2),
    ],
)
def test_einsum_cases(upstream: Upstream, name: str, arch: int, cases: int) -> None:
    assert run(load_test(upstream[0], "test_einsum"), name, arch, cases) == cases


def test_hyperconnection_cases(upstream: Upstream) -> None:
    assert run(load_test(upstream[0], "test_hyperconnection"), "test_hc_prenorm_gemm", 10, 10) == 10


PREFILL = {
    9: [("fp8", FP32, 64, 128, 32, dim, cp) for dim in (32, 128) for cp in (False, True)],
    10: [
        (f, BF16, 64, 128, h, d, cp)
        for f, d, h in (("mxfp4", 64, 8), ("mxfp4", 128, 12), ("mxfp8", 32, 12), ("mxfp8", 128, 8))
        for cp in (False, True)
    ],
}
PAGED = {
    9: [("fp8", FP32, 64, 3, 2, 32, dim, 200) for dim in (32, 128)],
    10: [
        ("mxfp4", BF16, 64, 3, 6, 8, 64, 200),
        ("mxfp4", BF16, 128, 3, 6, 20, 128, 200),
        ("mxfp8", BF16, 32, 3, 6, 12, 32, 200),
        ("mxfp8", BF16, 64, 3, 6, 64, 128, 100),
    ],
}
SPARSE = [
    *(
        (f, False, *case, unaligned)
        for f in ("mxfp4", "mxfp8")
        for case in ((1, 1, 16, 4), (2, 0, 16, 4), (9, 150, 8, 16))
        for unaligned in (False, True)
    ),
    *(
        (f, True, *case, False)
        for f in ("mxfp4", "mxfp8")
        for case in ((1, 64, 16, 8), (3, 64, 16, 8), (5, 200, 8, 16))
    ),
]


@pytest.mark.parametrize(
    ("name", "arch", "cases", "benches"),
    [
        ("test_mqa_logits", 9, PREFILL[9], 1),
        ("test_mqa_logits", 10, PREFILL[10], 3),
        ("test_paged_mqa_logits", 9, PAGED[9], 2),
        ("test_paged_mqa_logits", 10, PAGED[10], 2),
        # Each with 8, 12, 20 and 32 heads; equal to the dense logits bit for bit.
        ("test_sparse_mqa_logits", 10, SPARSE, 8),
    ],
)
def test_attention_cases(upstream: Upstream, name: str, arch: int, cases: list[Any], benches: int) -> None:
    module = load_test(upstream[0], "test_attention")
    module.sample_mqa_cases = lambda name, offered: cases  # type: ignore[attr-defined]
    assert run(module, name, arch) == len(cases) * benches
