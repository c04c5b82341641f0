"""GEMMs against fp64 products of what the operands stand for: scale forms, strides, accumulation, groups, edges, cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from harness import check_kernel, count_ops, guard, new_bytes, wide_ops

BF16, FP32 = torch.bfloat16, torch.float32
E4M3 = torch.float8_e4m3fn
CODES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def values(fp4: bool, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random stored values [..., k] (k / 2 packed for e2m1) and the fp64 numbers they stand for, decoded by table."""
    if not fp4:
        stored = (torch.randn(shape) * 8).to(E4M3)
        return stored, stored.double()
    codes = torch.randint(0, 16, shape)
    packed = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8).view(torch.int8)
    return packed, CODES[codes]


def powers(*shape: int) -> torch.Tensor:
    return torch.exp2(torch.randint(-6, 6, shape).float())


def expand(sf: torch.Tensor, gran_mn: int, gran_k: int, mn: int, k: int) -> torch.Tensor:
    rows, columns = torch.arange(mn) // gran_mn, torch.arange(k) // gran_k
    return sf.double().index_select(-2, rows).index_select(-1, columns)


def stored_scales(sf: torch.Tensor, form: str) -> torch.Tensor:
    """fp32 scales in one of the forms that callers pass."""
    if form == "fp32":
        return sf
    dtype = torch.int32 if form == "int32" else torch.int16
    exponents = (sf.view(torch.int32) >> 23).to(torch.uint8)
    packed = torch.nn.functional.pad(exponents, (0, -exponents.shape[-1] % dtype.itemsize)).contiguous().view(dtype)
    return packed if form == "int16 rows" else packed.mT.contiguous().mT


def close(got: torch.Tensor, want: torch.Tensor, gemm_diff: Callable[..., Any]) -> None:
    """1e-6 in fp32; bf16 is the exact result rounded once, but for the order of fp32 sums."""
    if got.dtype == FP32:
        assert gemm_diff(got, want) < 1e-12
        return
    rounded = want.to(FP32).to(BF16)
    assert (got == rounded).float().mean() > 0.99
    assert gemm_diff(got, rounded) < 1e-7


@pytest.fixture
def diff() -> Callable[..., Any]:
    from overrides.vendor.deep_gemm.testing.numeric import calc_diff

    return calc_diff


FORMS = ("fp32", "int16", "int16 rows", "int32")


@pytest.mark.parametrize(("fp4_a", "fp4_b"), [(False, False), (False, True), (True, True), (True, False)])
@pytest.mark.parametrize("form", FORMS)
def test_quantised(gemm: ModuleType, diff: Any, fp4_a: bool, fp4_b: bool, form: str) -> None:
    m, n, k = 33, 40, 192
    a, exact_a = values(fp4_a, m, k)
    b, exact_b = values(fp4_b, n, k)
    for (gran_a, gran_b, gran_n), out in itertools.product(((32, 32, 1), (128, 32, 1), (32, 32, 32)), (BF16, FP32)):
        if gran_n != 1 and form != "fp32":
            continue
        sfa, sfb = powers(m, -(-k // gran_a)), powers(-(-n // gran_n), -(-k // gran_b))
        product = (exact_a * expand(sfa, 1, gran_a, m, k)) @ (exact_b * expand(sfb, gran_n, gran_b, n, k)).T
        left, right = (a, stored_scales(sfa, form)), (b, stored_scales(sfb, form))
        recipes = {"recipe_a": (1, gran_a), "recipe_b": (gran_n, gran_b)}
        d = torch.full((m, n + 8), 3.0, dtype=out)[:, 4 : n + 4]
        assert gemm.fp8_fp4_gemm_nt(left, right, d, **recipes) is None
        close(d, product, diff)
        assert d._base is not None and d._base[:, :4].eq(3).all() and d._base[:, n + 4 :].eq(3).all()
        if gran_a == gran_b:
            again = torch.empty_like(d)
            gemm.fp8_fp4_gemm_nt(left, right, again, recipe=(1, gran_n, gran_a))
            assert torch.equal(again, d)
        c = torch.randn(m, n).mul_(100).to(out)
        for added, alpha in ((c, None), (c, -0.5), (None, 2.0)):
            gemm.fp8_fp4_gemm_nt(left, right, d, added, alpha=alpha, **recipes)
            close(d, product * (1 if alpha is None else alpha) + (0 if added is None else c.double()), diff)
        d.copy_(c)
        gemm.fp8_fp4_gemm_nt(left, right, d, d, **recipes)
        close(d, product + c.double(), diff)


def test_scales_that_are_no_powers_of_two(gemm: ModuleType, diff: Any) -> None:
    m, n, k = 16, 256, 256
    (a, exact_a), (b, exact_b) = values(False, m, k), values(False, n, k)
    sfa, sfb = torch.rand(m, 2) + 0.1, torch.rand(2, 2) + 0.1
    d = torch.empty(m, n)
    gemm.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, disable_ue8m0_cast=True)
    close(d, (exact_a * expand(sfa, 1, 128, m, k)) @ (exact_b * expand(sfb, 128, 128, n, k)).T, diff)


def test_transposed_operands(gemm: ModuleType, diff: Any) -> None:
    m, n, k = 24, 40, 64
    (a, exact_a), (b, exact_b) = values(False, m, k), values(False, n, k)
    sfa, sfb = powers(m, 2), powers(n, 2)
    want = (exact_a * expand(sfa, 1, 32, m, k)) @ (exact_b * expand(sfb, 1, 32, n, k)).T
    half_a, half_b = torch.randn(m, k).to(BF16), torch.randn(n, k).to(BF16)
    for kind in ("nt", "nn", "tn", "tt"):
        left = (a, sfa) if kind[0] == "n" else (a.T.contiguous(), sfa.T.contiguous())
        right = (b, sfb) if kind[1] == "t" else (b.T.contiguous(), sfb.T.contiguous())
        d = torch.empty(m, n)
        getattr(gemm, f"fp8_fp4_gemm_{kind}")(left, right, d, recipe=(1, 1, 32))
        close(d, want, diff)
        getattr(gemm, f"bf16_gemm_{kind}")(
            half_a if kind[0] == "n" else half_a.T.contiguous(), half_b if kind[1] == "t" else half_b.T.contiguous(), d
        )
        close(d, half_a.double() @ half_b.double().T, diff)
        for x, y in ((half_a, half_b), (half_a.float(), half_b.float())):
            left, right = (
                one if turn else one.T.contiguous() for one, turn in ((x, kind[0] == "n"), (y, kind[1] == "t"))
            )
            getattr(gemm, f"cublaslt_gemm_{kind}")(left, right, d, torch.ones(m, n))
            close(d, x.double() @ y.double().T + 1, diff)


@pytest.mark.parametrize("out", [BF16, FP32])
def test_bf16(gemm: ModuleType, diff: Any, out: torch.dtype) -> None:
    for m, n, k in ((1, 8, 64), (37, 40, 192)):
        a, b = torch.randn(m, 2 * k).to(BF16)[:, :k], torch.randn(n, k).to(BF16)
        d, c = torch.empty(m, n + 8, dtype=out)[:, :n], torch.randn(m, n).to(out)
        for added, alpha in ((None, None), (c, None), (None, 0.25), (c, -1.5)):
            gemm.bf16_gemm_nt(a, b, d, added, alpha=alpha)
            close(
                d,
                (a.double() @ b.double().T) * (1 if alpha is None else alpha) + (0 if added is None else c.double()),
                diff,
            )


def test_wide_results_are_made_in_pieces(gemm: ModuleType, diff: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight is never widened whole when it is larger than a piece."""
    import neuron_numerics.gemm_products as products

    a, b, d = torch.randn(4, 64).to(BF16), torch.randn(50, 64).to(BF16), torch.empty(4, 50)

    def kernel(a: Any, b: Any, d: Any) -> None:
        gemm.bf16_gemm_nt(a, b, d)

    assert sum("mm" in op for op in count_ops(kernel, a, b, d)) == 1
    monkeypatch.setattr(products, "PIECE", 7 * 64)
    assert sum("mm" in op for op in count_ops(kernel, a, b, d)) == 8
    kernel(a, b, d)
    close(d, a.double() @ b.double().T, diff)


@pytest.mark.parametrize("gran_n", [1, 32])
def test_quantised_weights_are_expanded_in_pieces(
    gemm: ModuleType, diff: Any, monkeypatch: pytest.MonkeyPatch, gran_n: int
) -> None:
    import neuron_numerics.gemm_products as products

    (a, exact_a), (b, exact_b) = values(False, 8, 64), values(True, 100, 64)
    sfa, sfb = powers(8, 2), powers(-(-100 // gran_n), 2)
    want = (exact_a * expand(sfa, 1, 32, 8, 64)) @ (exact_b * expand(sfb, gran_n, 32, 100, 64)).T
    d, c = torch.empty(8, 100, dtype=BF16), torch.randn(8, 100).to(BF16)

    def kernel(a: Any, sfa: Any, b: Any, sfb: Any, d: Any, c: Any) -> None:
        gemm.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, c, recipe=(1, gran_n, 32))

    assert sum("mm" in op for op in count_ops(kernel, a, sfa, b, sfb, d, c)) == 1
    monkeypatch.setattr(products, "PIECE", 33 * 64)
    assert sum("mm" in op for op in count_ops(kernel, a, sfa, b, sfb, d, c)) == 4
    kernel(a, sfa, b, sfb, d, c)
    close(d, want + c.double(), diff)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 8, 32), (4, 0, 32), (4, 8, 0)])
def test_empty_sizes(gemm: ModuleType, m: int, n: int, k: int) -> None:
    left = torch.zeros(m, k).to(E4M3), torch.ones(m, -(-k // 32))
    right = torch.zeros(n, k).to(E4M3), torch.ones(n, -(-k // 32))
    d, c = torch.full((m, n), 5.0), torch.full((m, n), 2.0)
    launches: list[Callable[..., None]] = [
        lambda c=None: gemm.fp8_fp4_gemm_nt(left, right, d, c, recipe=(1, 1, 32)),
        lambda c=None: gemm.bf16_gemm_nt(torch.zeros(m, k).to(BF16), torch.zeros(n, k).to(BF16), d, c),
    ]
    for launch in launches:
        launch()
        assert d.eq(0).all()
        launch(c)
        assert torch.equal(d, c)


def test_refusals(gemm: ModuleType) -> None:
    a, b = torch.zeros(4, 32).to(BF16), torch.zeros(8, 32).to(BF16)
    d = torch.empty(4, 8, dtype=BF16)
    for arguments in (
        (a, b[:, :16], d),
        (a, b, d[:, :4]),
        (a, b, d.to(torch.float16)),
        (a.float(), b, d),
        (a, b, d, torch.zeros(4, 8)),
        (a, b, d, torch.zeros(4, 4).to(BF16)),
    ):
        with pytest.raises(AssertionError):
            gemm.bf16_gemm_nt(*arguments)
    with pytest.raises(NotImplementedError, match="epilogue"):
        gemm.bf16_gemm_nt(a, b, d, epilogue=object())
    quantised = a.to(E4M3), torch.ones(4, 1)
    with pytest.raises(AssertionError, match="go together"):
        gemm.fp8_fp4_gemm_nt(quantised, quantised, torch.empty(4, 4), recipe_a=(1, 32))
    with pytest.raises(AssertionError, match="excludes"):
        gemm.fp8_fp4_gemm_nt(
            quantised, quantised, torch.empty(4, 4), recipe=(1, 1, 32), recipe_a=(1, 32), recipe_b=(1, 32)
        )
    with pytest.raises(NotImplementedError, match="einsum"):
        gemm.einsum("ab,bc->ac", a, b, d)


SIZES = ([5, 0, 16, 1], [0, 0, 0, 0], [16, 16, 16, 16], [0, 0, 30, 0])


def grouped_case(sizes: list[int], alignment: int, extra: int) -> tuple[torch.Tensor, torch.Tensor, list[slice], int]:
    """The psum and the plain layout of groups, each group's rows, and the count of all rows with ``extra`` ones at the end."""
    ends, spans, start = [], [], 0
    for size in sizes:
        ends.append(start + size)
        spans.append(slice(start, start + size))
        start = -(-(start + size) // alignment) * alignment
    owner = torch.full((start + extra,), -1, dtype=torch.int32)
    for group, span in enumerate(spans):
        owner[span] = group
    return torch.tensor(ends, dtype=torch.int32), owner, spans, start + extra


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", ["bf16", "fp8", "fp8xfp4", "fp4"])
@pytest.mark.parametrize("extra", [0, 16])
def test_grouped_rows(gemm: ModuleType, diff: Any, sizes: list[int], kind: str, extra: int) -> None:
    alignment, n, k, groups = 16, 40, 64, len(sizes)
    gemm.set_mk_alignment_for_contiguous_layout(alignment)
    psum, owner, spans, m = grouped_case(sizes, alignment, extra)
    if m == 0:
        m, owner = alignment, torch.full((alignment,), -1, dtype=torch.int32)
    gap = owner < 0
    if kind == "bf16":
        a, b = torch.randn(m, k).to(BF16), torch.randn(groups, n, k).to(BF16)
        exact_a, exact_b = a.double(), b.double()
        # What padding rows hold reaches nobody.
        a[gap] = float("nan")
        calls = {
            "nt": lambda d, layout, psum: gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, layout, use_psum_layout=psum),
            "nn": lambda d, layout, psum: gemm.m_grouped_bf16_gemm_nn_contiguous(
                a, b.mT.contiguous(), d, layout, use_psum_layout=psum
            ),
        }
    else:
        a, exact_a = values(kind == "fp4", m, k)
        b, exact_b = values(kind != "fp8", groups, n, k)
        sfa, sfb = powers(m, 2), powers(groups, n, 2)
        exact_a, exact_b = exact_a * expand(sfa, 1, 32, m, k), exact_b * expand(sfb, 1, 32, n, k)
        if kind != "fp4":
            a.view(torch.uint8)[gap] = 0x7F
        left, right = (a, stored_scales(sfa, "int16")), (b, stored_scales(sfb, "int16"))
        recipes = {"recipe_a": (1, 32), "recipe_b": (1, 32)}
        calls = {
            "nt": lambda d, layout, psum: gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
                left, right, d, layout, use_psum_layout=psum, **recipes
            )
        }
        if kind == "fp8":
            turned = b.mT.contiguous(), right[1].mT
            calls["nn"] = lambda d, layout, psum: gemm.m_grouped_fp8_fp4_gemm_nn_contiguous(
                left, turned, d, layout, use_psum_layout=psum, **recipes
            )
    want = torch.zeros(m, n, dtype=torch.float64)
    for group, span in enumerate(spans):
        want[span] = exact_a[span] @ exact_b[group].T
    for (name, call), (layout, use_psum) in itertools.product(calls.items(), ((psum, True), (owner, False))):
        d = torch.full((m, n + 8), float("nan"), dtype=BF16)[:, :n]
        assert call(d, layout, use_psum) is None, name
        assert d[gap].eq(0).all()
        close(d, want, diff)


def test_weight_blocks_of_32_rows(gemm: ModuleType, diff: Any) -> None:
    """fp32 scales of 32 x 32 blocks, whose rows cannot be cut anywhere."""
    gemm.set_mk_alignment_for_contiguous_layout(16)
    psum, _, spans, m = grouped_case([5, 0, 20], 16, 0)
    (a, exact_a), (b, exact_b) = values(False, m, 64), values(False, 3, 96, 64)
    sfa, sfb = powers(m, 2), powers(3, 3, 2)
    d, want = torch.empty(m, 96, dtype=BF16), torch.zeros(m, 96, dtype=torch.float64)
    gemm.m_grouped_fp8_fp4_gemm_nt_contiguous((a, sfa), (b, sfb), d, psum, recipe=(1, 32, 32), use_psum_layout=True)
    for group, span in enumerate(spans):
        left = exact_a[span] * expand(sfa, 1, 32, m, 64)[span]
        want[span] = left @ (exact_b[group] * expand(sfb[group], 32, 32, 96, 64)).T
    close(d, want, diff)


def test_grouped_pieces_give_the_same(gemm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import neuron_numerics.gemm_products as products

    gemm.set_mk_alignment_for_contiguous_layout(16)
    psum, _, _, m = grouped_case([5, 0, 20, 3], 16, 0)
    (a, _), (b, _) = values(False, m, 64), values(True, 4, 56, 64)
    left, right = (a, stored_scales(powers(m, 2), "int16")), (b, stored_scales(powers(4, 56, 2), "int16"))
    results = []
    for piece in (products.PIECE, 64):
        monkeypatch.setattr(products, "PIECE", piece)
        d = torch.empty(m, 56, dtype=BF16)
        gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(left, right, d, psum, recipe=(1, 1, 32), use_psum_layout=True)
        results.append(d)
    assert torch.equal(*results)


def test_only_weights_of_groups_with_rows_are_expanded(gemm: ModuleType) -> None:
    """Bytes made do not grow with the count of experts beyond the blocks of rows; nor do the operations."""
    gemm.set_mk_alignment_for_contiguous_layout(16)
    n, k, m = 64, 128, 32

    def cost(groups: int) -> tuple[int, int]:
        (a, _), (b, _) = values(False, m, k), values(True, groups, n, k)
        arguments = a, stored_scales(powers(m, 4), "int16"), b, stored_scales(powers(groups, n, 4), "int16")
        psum = torch.full((groups,), 3, dtype=torch.int32)
        psum[groups // 2 :] = 18

        def kernel(a: Any, sfa: Any, b: Any, sfb: Any, psum: Any, d: Any) -> None:
            gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
                (a, sfa), (b, sfb), d, psum, recipe=(1, 1, 32), use_psum_layout=True
            )

        d = torch.empty(m, n, dtype=BF16)
        return new_bytes(kernel, *arguments, psum, d), len(count_ops(kernel, *arguments, psum, d))

    (few_bytes, few_ops), (many_bytes, many_ops) = cost(8), cost(128)
    expanded = 128 * n * k * 2
    assert many_ops == few_ops < 80
    assert many_bytes - few_bytes < expanded // 16, "experts without rows are expanded"


@pytest.mark.parametrize("fp4", [False, True])
def test_masked_groups(gemm: ModuleType, diff: Any, fp4: bool) -> None:
    groups, m, n, k = 3, 16, 24, 64
    (a, exact_a), (b, exact_b) = values(False, groups, m, k), values(fp4, groups, n, k)
    sfa, sfb, count = powers(groups, m, 2), powers(groups, n, 2), torch.tensor([16, 0, 3], dtype=torch.int32)
    want = (exact_a * expand(sfa, 1, 32, m, k)) @ (exact_b * expand(sfb, 1, 32, n, k)).mT
    d = torch.empty(groups, m, n, dtype=BF16)
    gemm.m_grouped_fp8_fp4_gemm_nt_masked((a, stored_scales(sfa, "int16")), (b, sfb), d, count, 5, recipe=(1, 1, 32))
    half_a, half_b, half = torch.randn(groups, m, k).to(BF16), torch.randn(groups, n, k).to(BF16), torch.empty_like(d)
    gemm.m_grouped_bf16_gemm_nt_masked(half_a, half_b, half, count, 5)
    for group, rows in enumerate(count.tolist()):
        close(d[group, :rows], want[group, :rows], diff) if rows else None
        close(half[group, :rows], half_a[group, :rows].double() @ half_b[group].double().T, diff) if rows else None


@pytest.mark.parametrize("sizes", [[256, 0, 512], [0, 256, 0]])
@pytest.mark.parametrize("out", [BF16, FP32])
def test_k_groups(gemm: ModuleType, diff: Any, sizes: list[int], out: torch.dtype) -> None:
    gemm.set_mk_alignment_for_contiguous_layout(256)
    m, n = 24, 40
    total, groups = sum(sizes), len(sizes)
    layout, ends = torch.tensor(sizes, dtype=torch.int32), torch.tensor(sizes).cumsum(0)
    (a8, x8), (b8, y8) = values(False, total, m), values(False, total, n)
    (a4, x4), (b4, y4) = values(True, m, total), values(True, n, total)
    half_a, half_b = torch.randn(total, m).to(BF16), torch.randn(total, n).to(BF16)
    sfa, sfb = powers(total // 32, m), powers(total // 32, n)
    rows = torch.arange(total) // 32
    scaled = {
        "bf16": (half_a.double(), half_b.double()),
        "fp8": (x8 * sfa.double()[rows], y8 * sfb.double()[rows]),
        "fp4": (x4.T * sfa.double()[rows], y4.T * sfb.double()[rows]),
    }
    packed = [stored_scales(sf.T.contiguous(), "int16 rows").T for sf in (sfa, sfb)]
    calls: dict[str, list[Callable[..., None]]] = {
        "bf16": [lambda d, c: gemm.k_grouped_bf16_gemm_tn_contiguous(half_a, half_b, d, sizes, layout, c)],
        "fp8": [
            lambda d, c: gemm.k_grouped_fp8_gemm_tn_contiguous((a8, sfa), (b8, sfb), d, sizes, layout, c, (1, 1, 32)),
            lambda d, c: gemm.k_grouped_fp8_gemm_tn_contiguous(
                (a8, packed[0]), (b8, packed[1]), d, sizes, layout, c, (1, 1, 32)
            ),
            lambda d, c: gemm.k_grouped_fp8_gemm_nt_contiguous(
                (a8.T.contiguous(), sfa.T.contiguous()),
                (b8.T.contiguous(), sfb.T.contiguous()),
                d,
                sizes,
                layout,
                c,
                (1, 1, 32),
            ),
        ],
        "fp4": [lambda d, c: gemm.k_grouped_fp4_gemm_nt_contiguous((a4, sfa), (b4, sfb), d, sizes, layout, c)],
    }
    for kind, launches in calls.items():
        left, right = scaled[kind]
        want = torch.stack(
            [left[end - size : end].T @ right[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        )
        for launch in launches:
            d, c = torch.full((groups, m, n), float("nan"), dtype=out), torch.randn(groups, m, n).mul_(9).to(out)
            launch(d, None)
            close(d, want, diff)
            launch(d, c)
            close(d, want + c.double(), diff)


@pytest.mark.parametrize("out", [BF16, FP32])
def test_einsum(gemm: ModuleType, diff: Any, out: torch.dtype) -> None:
    b, h, r, d = 5, 3, 64, 40
    x, y, z = torch.randn(b, h, r).to(BF16), torch.randn(h, d, r).to(BF16), torch.randn(b, h, d).to(BF16)
    for expr, left, right in (
        ("bhr,hdr->bhd", x, y),
        ("bhd,hdr->bhr", z, y),
        ("bhd,bhr->hdr", z, x),
        ("bmk,bnk->mn", x, torch.randn(b, 7, r).to(BF16)),
    ):
        want = torch.einsum(expr, left.double(), right.double())
        result, added = torch.empty(want.shape, dtype=out), torch.randn(want.shape).mul_(20).to(out)
        gemm.einsum(expr, left, right, result)
        close(result, want, diff)
        gemm.einsum(expr, left, right, result, added)
        close(result, want + added.double(), diff)


@pytest.mark.parametrize("form", ["fp32", "int16"])
def test_fp8_einsum(gemm: ModuleType, diff: Any, form: str) -> None:
    b, h, r, d = 6, 3, 64, 96
    (x, exact_x), (y, exact_y), (z, exact_z) = values(False, b, h, r), values(False, h, d, r), values(False, b, h, d)
    sfx, sfy = powers(b, h, 2), powers(h, d, 2)
    want = torch.einsum("bhr,hdr->bhd", exact_x * expand(sfx, 1, 32, h, r), exact_y * expand(sfy, 1, 32, d, r))
    left, right = (x, stored_scales(sfx, form)), (y, stored_scales(sfy, form))
    for out in (BF16, FP32):
        result, added = torch.empty(b, h, d, dtype=out), torch.randn(b, h, d).mul_(500).to(out)
        gemm.fp8_einsum("bhr,hdr->bhd", left, right, result, recipe=(1, 1, 32))
        close(result, want, diff)
        gemm.fp8_einsum("bhr,hdr->bhd", left, right, result, added, recipe=(1, 1, 32))
        close(result, want + added.double(), diff)
    if form == "fp32":
        blocks, sfz = powers(h, 3, 2), powers(b, h, 3)
        want = torch.einsum("bhd,hdr->bhr", exact_z * expand(sfz, 1, 32, h, d), exact_y * expand(blocks, 32, 32, d, r))
        result = torch.empty(b, h, r)
        gemm.fp8_einsum("bhd,hdr->bhr", (z, sfz), (y, blocks), result, recipe=(1, 32, 32))
        close(result, want, diff)
        batch = 64
        (p, exact_p), (q, exact_q) = values(False, batch, h, d), values(False, batch, h, r)
        sfp, sfq, rows = powers(2, h, d), powers(2, h, r), torch.arange(batch) // 32
        want = torch.einsum("bhd,bhr->hdr", exact_p * sfp.double()[rows], exact_q * sfq.double()[rows])
        result = torch.ones(h, d, r)
        gemm.fp8_einsum("bhd,bhr->hdr", (p, sfp), (q, sfq), result, c=result, recipe=(1, 1, 32))
        close(result, want + 1, diff)


def test_fp8_einsum_with_a_quantised_result(gemm: ModuleType, upstream: Any) -> None:
    """The result is what upstream's cast makes of the fp32 product, scales packed two in an int16, columns ``b`` apart."""
    b, h, r, d = 6, 3, 64, 128
    (x, _), (y, _) = values(False, b, h, r), values(False, h, d, r)
    left, right = (x, stored_scales(powers(b, h, 2), "int16")), (y, stored_scales(powers(h, d, 2), "int16"))
    wide, result = torch.empty(b, h, d), torch.empty(b, h, d, dtype=E4M3)
    sf = torch.full((b + 2, h * d // 64), -1, dtype=torch.int16).T.contiguous().T[:b]
    gemm.fp8_einsum("bhr,hdr->bhd", left, right, wide, recipe=(1, 1, 32))
    gemm.fp8_einsum("bhr,hdr->bhd", left, right, (result, sf), recipe=(1, 1, 32))
    values8, scales = upstream[1].utils.per_token_cast_to_fp8(wide.flatten(1), use_ue8m0=True, gran_k=32)
    assert torch.equal(result.flatten(1).view(torch.uint8), values8.view(torch.uint8))
    assert torch.equal(sf.contiguous().view(torch.uint8), (scales.view(torch.int32) >> 23).to(torch.uint8))


@pytest.mark.parametrize("splits", [None, 1, 4, 5])
def test_hyperconnection(gemm: ModuleType, diff: Any, splits: int | None) -> None:
    for m in (0, 1, 37):
        a, b = torch.randn(m, 256).to(BF16), torch.randn(24, 256)
        lead = () if splits is None else (splits,)
        d, square = torch.full((*lead, m, 24), float("nan")), torch.full((*lead, m), float("nan"))
        gemm.tf32_hc_prenorm_gemm(a, b, d, square, splits)
        if m:
            total, sums = (d, square) if splits is None else (d.sum(0), square.sum(0))
            assert diff(total, a.double() @ b.double().T) < 1e-12 and diff(sums, a.double().square().sum(-1)) < 1e-12
            if splits and splits > 1:
                assert (d[1:].abs().amax((1, 2)) > 0).all()


def per_step(gemm: ModuleType) -> dict[str, tuple[Callable[..., None], list[torch.Tensor]]]:
    """The engine's calls as kernels of the harness."""
    m, n, k, groups = 5, 48, 128, 3
    (a, _), (b, _), (experts, _) = values(False, m, k), values(False, n, k), values(True, groups, n, k)
    sfa, sfb, sfe = (stored_scales(powers(*shape), "int16") for shape in ((m, 4), (n, 4), (groups, n, 4)))
    half, weight, stacked = torch.randn(m, k).to(BF16), torch.randn(n, k).to(BF16), torch.randn(groups, n, k).to(BF16)
    psum, rows = torch.tensor([3, 16, 20], dtype=torch.int32), torch.randn(32, k).to(BF16)
    (wide, _), sfw = values(False, 32, k), stored_scales(powers(32, 4), "int16")
    (x, _), (y, _) = values(False, m, groups, k), values(False, groups, n, k)
    sfx, sfy = stored_scales(powers(m, groups, 4), "int16 rows"), stored_scales(powers(groups, n, 4), "int16")

    def linear(a: Any, sfa: Any, b: Any, sfb: Any, d: Any) -> None:
        gemm.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, None, recipe=(1, 1, 32))

    def accumulated(a: Any, sfa: Any, b: Any, sfb: Any, d: Any) -> None:
        gemm.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, d, recipe=(1, 1, 32))

    def plain(a: Any, b: Any, d: Any) -> None:
        gemm.bf16_gemm_nt(a, b, d, None)

    def wide_plain(a: Any, b: Any, d: Any) -> None:
        gemm.bf16_gemm_nt(a, b, d, None)

    def grouped(a: Any, sfa: Any, b: Any, sfb: Any, psum: Any, d: Any) -> None:
        recipes = {"recipe_a": (1, 32), "recipe_b": (1, 32)}
        gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
            (a, sfa), (b, sfb), d, psum, use_psum_layout=True, expected_m_for_psum_layout=4, **recipes
        )

    def grouped_plain(a: Any, b: Any, psum: Any, d: Any) -> None:
        gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, psum, use_psum_layout=True)

    def projected(x: Any, sfx: Any, y: Any, sfy: Any, d: Any) -> None:
        gemm.fp8_einsum("bhr,hdr->bhd", (x, sfx), (y, sfy), d, recipe=(1, 1, 32))

    def prenorm(a: Any, b: Any, d: Any, sqr_sum: Any) -> None:
        gemm.tf32_hc_prenorm_gemm(a, b, d, sqr_sum)

    out = torch.zeros(m, n, dtype=BF16)
    return {
        "linear": (linear, [a, sfa, b, sfb, out]),
        "accumulated": (accumulated, [a, sfa, b, sfb, out]),
        "plain": (plain, [half, weight, out]),
        "wide_plain": (wide_plain, [half, weight, out.float()]),
        "grouped": (grouped, [wide, sfw, experts, sfe, psum, torch.zeros(32, n, dtype=BF16)]),
        "grouped_plain": (grouped_plain, [rows, stacked, psum, torch.zeros(32, n, dtype=BF16)]),
        "projected": (projected, [x, sfx, y, sfy, torch.zeros(m, groups, n, dtype=BF16)]),
        "prenorm": (prenorm, [half, torch.randn(24, k), torch.zeros(m, 24), torch.zeros(m)]),
    }


@pytest.mark.parametrize(
    "name", ["linear", "accumulated", "plain", "wide_plain", "grouped", "grouped_plain", "projected", "prenorm"]
)
def test_calls_are_static(gemm: ModuleType, name: str) -> None:
    gemm.set_mk_alignment_for_contiguous_layout(16)
    kernel, arguments = per_step(gemm)[name]
    guarded = [guard(x, x.stride()) for x in arguments]
    written = ("d", "sqr_sum") if name == "prenorm" else ("d",)
    check_kernel(kernel, *guarded, written=written)
    assert wide_ops(kernel, *guarded) == []
