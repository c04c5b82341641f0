"""``deep_gemm._C``: FP8, FP4 and bf16 GEMMs, indexer logits, scale layouts and settings, in pure torch.

Semantics are Ascend's where it differs: scales are fp32 or exponent bytes packed two in an int16, in any strides (four in an int32,
CUDA's form, are read as well); outputs are written in place and None is returned. fp32 scales are powers of two unless
``disable_ue8m0_cast`` says otherwise: operands are expanded to bf16, which is exact, and multiplied with fp32 sums; with it, to fp32.
Epilogues other than ``alpha`` are not supported.
"""

from __future__ import annotations

from typing import Any

import torch

from neuron_numerics.casts import cast_per_token
from neuron_numerics.formats import quant_format
from neuron_numerics.gemm_logits import (
    dense_logits,
    gathered_logits,
    no_logits,
    page_rows,
    paged_logits,
    row_step,
    scale_of_bytes,
    stored_logits,
)
from neuron_numerics.gemm_operands import dequantise, dequantise_mx, is_packed_fp4, logical_shape
from neuron_numerics.gemm_products import (
    RowBlocks,
    RowGroups,
    blocks_of_psum,
    blocks_of_rows,
    grouped_product,
    groups_of_psum,
    groups_of_rows,
    occupied_groups,
    pieced_grouped_product,
    psum_gaps,
    take_rows,
    write_blocks,
    write_k_grouped,
    write_pieced_product,
    write_product,
    write_rows,
)
from neuron_numerics.gemm_scales import (
    PACKED_DTYPES,
    ceil_div,
    mn_major,
    pack_ue8m0,
    repeat_rows,
    tma_aligned_size,
    unpack_scale_rows,
)
from neuron_numerics.layouts import ASCEND_PACK

# Settings of the process. Nothing here depends on the number of cores; callers divide it among themselves, as upstream's do.
_SETTINGS: dict[str, Any] = {
    "num_sms": 32,
    "tc_util": 100,
    "pdl": False,
    "deterministic": False,
    "ignore_compile_dims": False,
    "block_multiples": (1, 1),
    "mk_alignment": 128,
}
# Small, since casts and activations run over the padding too: a decode step's few rows lie in as many groups.
_THEORETICAL_MK_ALIGNMENT = 16

Quantised = tuple[torch.Tensor, torch.Tensor]
Recipe = tuple[int, int, int]
Granularity = tuple[int, int]


def shutdown() -> None:
    """Nothing is held that must be released."""


def set_num_sms(new_num_sms: int, /) -> None:
    """Set what ``get_num_sms`` returns."""
    assert new_num_sms >= 0, f"expected a count of cores, got {new_num_sms}"
    _SETTINGS["num_sms"] = new_num_sms


def get_num_sms() -> int:
    """A nominal count of cores, 32 unless set."""
    return _SETTINGS["num_sms"]


def set_tc_util(new_tc_util: int, /) -> None:
    """Set what ``get_tc_util`` returns, in percent."""
    assert 0 <= new_tc_util <= 100, f"expected a percentage, got {new_tc_util}"
    _SETTINGS["tc_util"] = new_tc_util


def get_tc_util() -> int:
    """Share of the tensor cores that kernels may use, in percent; kept, not used."""
    return _SETTINGS["tc_util"]


def set_pdl(new_enable_pdl: bool, /) -> None:
    """Set what ``get_pdl`` returns."""
    _SETTINGS["pdl"] = bool(new_enable_pdl)


def get_pdl() -> bool:
    """Whether dependent launches were asked for; kept, not used."""
    return _SETTINGS["pdl"]


def use_deterministic_algorithms(enabled: bool, /) -> None:
    """Kept, not used: every result is the same each time."""
    _SETTINGS["deterministic"] = bool(enabled)


def set_ignore_compile_dims(new_value: bool, /) -> None:
    """Kept, not used: nothing is compiled by shape here."""
    _SETTINGS["ignore_compile_dims"] = bool(new_value)


def set_block_size_multiple_of(new_value: int | Granularity, /) -> None:
    """Kept, not used: there are no blocks."""
    _SETTINGS["block_multiples"] = (new_value, new_value) if isinstance(new_value, int) else tuple(new_value)


def set_mk_alignment_for_contiguous_layout(new_value: int, /) -> None:
    """Set the rows (or the K) that each group of the contiguous layouts is padded to a multiple of."""
    assert new_value > 0, f"expected a positive alignment, got {new_value}"
    _SETTINGS["mk_alignment"] = new_value


def get_mk_alignment_for_contiguous_layout() -> int:
    """The alignment of groups in the contiguous layouts, 128 unless set."""
    return _SETTINGS["mk_alignment"]


def get_theoretical_mk_alignment_for_contiguous_layout(expected_m: int | None = None) -> int:
    """The best alignment of groups, 16; ``expected_m`` does not matter."""
    return _THEORETICAL_MK_ALIGNMENT


def get_tma_aligned_size(x: int, element_size: int, /) -> int:
    """``x`` elements of ``element_size`` bytes rounded up to whole 16-byte units."""
    return tma_aligned_size(x, element_size)


def get_mn_major_tma_aligned_tensor(sf: torch.Tensor, /) -> torch.Tensor:
    """fp32 scales [..., mn, k] MN-major, K columns 16-byte units apart; ``sf`` itself when it lies so already."""
    assert (
        sf.ndim in (2, 3) and sf.dtype == torch.float32
    ), f"expected fp32 scales of 2 or 3 axes, got {sf.dtype} of {sf.ndim}"
    stride = tma_aligned_size(sf.shape[-2], sf.itemsize)
    wanted = (stride * sf.shape[-1], 1, stride)[-sf.ndim :]
    return sf if sf.stride() == wanted else mn_major(sf, stride)


def get_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: torch.Tensor, psum_layout: torch.Tensor | None = None
) -> torch.Tensor:
    """fp32 scales [..., mn, k] as CUDA packs them: int32 [..., mn, ceil(k / 4)], MN-major, K columns 16-byte units apart.

    ``psum_layout``: int32 [groups]; rows between the groups become zero.
    """
    assert (
        sf.ndim in (2, 3) and sf.dtype == torch.float32
    ), f"expected fp32 scales of 2 or 3 axes, got {sf.dtype} of {sf.ndim}"
    return pack_ue8m0(_without_gaps(sf, psum_layout), torch.int32, tma_aligned_size(sf.shape[-2], 4))


def _without_gaps(sf: torch.Tensor, psum_layout: torch.Tensor | None) -> torch.Tensor:
    if psum_layout is None:
        return sf
    return sf.masked_fill(psum_gaps(psum_layout, get_mk_alignment_for_contiguous_layout(), sf.shape[-2]), 0)


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: torch.Tensor,
    grouped_layout: torch.Tensor,
    ks_cpu: list[int] | None,
    gran_k: int,
    k_alignment: int,
    use_psum_layout: bool = False,
) -> torch.Tensor:
    """fp32 scales [sum of k / gran_k, mn] of K groups, packed four in an int32 along K, every group from a packed row of its own.

    Returns int32 [rows, mn]: the exact rows with ``ks_cpu``, else the most there can be, the last of them zero.
    """
    assert sf.ndim == 2 and gran_k in (32, 128) and k_alignment % 128 == 0, f"{sf.ndim=}, {gran_k=}, {k_alignment=}"
    groups, sf_rows = grouped_layout.shape[0], sf.shape[0]
    exponents = (sf.contiguous().view(torch.int32) >> 23) & 0xFF
    if ks_cpu:
        assert len(ks_cpu) == groups and all(k % k_alignment == 0 and k % gran_k == 0 for k in ks_cpu), f"{ks_cpu=}"
        counts = [k // gran_k for k in ks_cpu]
        assert sum(counts) == sf_rows, f"expected {sum(counts)} rows of scales, got {sf_rows}"
        parts = [torch.nn.functional.pad(part, (0, 0, 0, -part.shape[0] % 4)) for part in exponents.split(counts)]
        return _packed_rows(torch.cat(parts))
    assert use_psum_layout, "expected ks_cpu unless the psum layout is used"
    # Packed byte i of the result belongs to group g and is row i - padded_start[g] of it.
    ends = ((grouped_layout + (k_alignment - 1)) // k_alignment).mul_(k_alignment // gran_k)
    start = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    padded = ((ends - start + 3) // 4).mul_(4)
    padded_end = padded.cumsum(0, dtype=torch.int32)
    rows = (sf_rows + 3 * groups) // 4 * 4
    byte = torch.arange(rows, dtype=torch.int32, device=sf.device)
    group = (padded_end <= byte.unsqueeze(1)).sum(1, dtype=torch.int32).clamp_max_(groups - 1)
    source = byte - (padded_end - padded).index_select(0, group) + start.index_select(0, group)
    valid = source < ends.index_select(0, group)
    gathered = exponents.index_select(0, source.clamp_(0, sf_rows - 1)).masked_fill_(~valid.unsqueeze(1), 0)
    return _packed_rows(gathered)


def _packed_rows(exponents: torch.Tensor) -> torch.Tensor:
    four = exponents.to(torch.uint8).unflatten(0, (-1, 4)).transpose(1, 2).contiguous()
    return four.view(torch.int32).squeeze(-1)


def transform_sf_into_required_layout(
    sf: torch.Tensor,
    mn: int,
    k: int,
    recipe: Recipe | Granularity,
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scales as the GEMMs are given them: one a row and group of K, packed two in an int16, MN-major.

    ``sf``: fp32 powers of two [(num_groups,) ceil(mn / gran_mn), ceil(k / gran_k)], or packed already, which is returned as it is.
    ``recipe``: (gran_m, gran_n, gran_k) with ``is_sfa``, or (gran_mn, gran_k) without.
    Returns int16 [(num_groups,) mn, ceil(k / (2 * gran_k))] with the strides (.., 1, mn). With ``disable_ue8m0_cast`` fp32 scales stay.
    """
    if len(recipe) == 3:
        assert is_sfa is not None, "a recipe of three needs is_sfa"
        gran_mn, gran_k = recipe[0] if is_sfa else recipe[1], recipe[2]
    else:
        assert is_sfa is None, "a recipe of two takes no is_sfa"
        gran_mn, gran_k = recipe
    packed = sf.dtype in PACKED_DTYPES
    assert packed or sf.dtype == torch.float32, f"expected fp32, int16 or int32 scales, got {sf.dtype}"
    columns = ceil_div(k, gran_k * (sf.itemsize if packed else 1))
    groups = () if num_groups is None else (num_groups,)
    wanted = (*groups, ceil_div(mn, gran_mn), columns)
    assert tuple(sf.shape) == wanted, f"expected scales of the shape {wanted}, got {tuple(sf.shape)}"
    if packed:
        assert gran_mn == 1, f"packed scales have one a row, not one for {gran_mn}"
        return sf
    if disable_ue8m0_cast:
        return get_mn_major_tma_aligned_tensor(sf) if gran_mn == 1 else sf
    return pack_ue8m0(_without_gaps(repeat_rows(sf, gran_mn, mn), psum_layout), ASCEND_PACK, mn)


def _granularities(
    sfa: torch.Tensor,
    sfb: torch.Tensor,
    recipe: Recipe | None,
    recipe_a: Granularity | None,
    recipe_b: Granularity | None,
) -> tuple[Granularity, Granularity]:
    assert (recipe_a is None) == (recipe_b is None), "recipe_a and recipe_b go together"
    assert recipe is None or recipe_a is None, "recipe excludes recipe_a and recipe_b"
    if recipe_a is not None and recipe_b is not None:
        return recipe_a, recipe_b
    gran_m, gran_n, gran_k = recipe or ((1, 128, 128) if sfb.dtype == torch.float32 else (1, 1, 128))
    return (gran_m, gran_k), (gran_n, gran_k)


def _operand_dtype(sfa: torch.Tensor, sfb: torch.Tensor, disable_ue8m0_cast: bool = False) -> torch.dtype:
    """bf16 where every scale is a power of two, as it is unless ``disable_ue8m0_cast`` says that fp32 ones are not."""
    return torch.float32 if disable_ue8m0_cast and torch.float32 in (sfa.dtype, sfb.dtype) else torch.bfloat16


def _no_epilogue(epilogue: object) -> None:
    if epilogue is not None:
        raise NotImplementedError("epilogue: not supported on Neuron (basic mode)")


def _check_output(d: torch.Tensor, shape: tuple[int, ...], c: torch.Tensor | None = None) -> None:
    assert tuple(d.shape) == shape, f"expected d of the shape {shape}, got {tuple(d.shape)}"
    assert d.dtype in (torch.bfloat16, torch.float32), f"expected bf16 or fp32 d, got {d.dtype}"
    assert c is None or (c.shape == d.shape and c.dtype == d.dtype), "c must have d's shape and dtype"


def fp8_fp4_gemm_nt(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: Any = None,
) -> None:
    """``d`` (bf16 or fp32 [m, n]) = alpha * A @ B.T + c.

    ``a``, ``b``: values (e4m3 [m, k] and [n, k], or e2m1 packed along its contiguous axis) and scales (see the module).
    ``recipe``: (gran_m, gran_n, gran_k), or ``recipe_a`` and ``recipe_b``, (gran_mn, gran_k) each.
    """
    _no_epilogue(epilogue)
    (m, k), (n, k_b) = logical_shape(a[0]), logical_shape(b[0])
    assert k == k_b, f"the operands' K differ: {k} and {k_b}"
    _check_output(d, (m, n), c)
    if 0 in (m, n, k):
        empty = d.new_empty((m, 0)), d.new_empty((n, 0))
        write_product(*empty, d, c)
        return
    gran_a, gran_b = _granularities(a[1], b[1], recipe, recipe_a, recipe_b)
    dtype = _operand_dtype(a[1], b[1], disable_ue8m0_cast)
    left, (values, sf), gran_n = dequantise(*a, gran_a, dtype), b, gran_b[0]
    if is_packed_fp4(values) and values.stride(-1) != 1:
        # Rows cannot be cut where they are packed together.
        write_product(left, dequantise(values, sf, gran_b, dtype), d, c, alpha)
        return
    write_pieced_product(
        left,
        lambda start, stop: dequantise(values[start:stop], sf[start // gran_n : ceil_div(stop, gran_n)], gran_b, dtype),
        gran_n,
        d,
        c,
        alpha,
    )


def fp8_fp4_gemm_nn(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: Any = None,
) -> None:
    """``fp8_fp4_gemm_nt`` with B as [k, n]."""
    fp8_fp4_gemm_nt(
        a, (b[0].mT, b[1].mT), d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, alpha, epilogue
    )


def fp8_fp4_gemm_tn(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: Any = None,
) -> None:
    """``fp8_fp4_gemm_nt`` with A as [k, m] and B as [k, n]."""
    left, right = (a[0].mT, a[1].mT), (b[0].mT, b[1].mT)
    fp8_fp4_gemm_nt(left, right, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, alpha, epilogue)


def fp8_fp4_gemm_tt(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
    epilogue: Any = None,
) -> None:
    """``fp8_fp4_gemm_nt`` with A as [k, m]."""
    fp8_fp4_gemm_nt(
        (a[0].mT, a[1].mT), b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, alpha, epilogue
    )


def bf16_gemm_nt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    compiled_dims: str = "nk",
    alpha: float | None = None,
    epilogue: Any = None,
) -> None:
    """``d`` (bf16 or fp32 [m, n]) = alpha * ``a`` (bf16 [m, k]) @ ``b`` (bf16 [n, k]).T + c."""
    _no_epilogue(epilogue)
    assert a.dtype == b.dtype == torch.bfloat16, f"expected bf16 operands, got {a.dtype} and {b.dtype}"
    assert a.shape[1] == b.shape[1], f"the operands' K differ: {a.shape[1]} and {b.shape[1]}"
    _check_output(d, (a.shape[0], b.shape[0]), c)
    write_product(a, b, d, c, alpha)


def bf16_gemm_nn(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    compiled_dims: str = "nk",
    alpha: float | None = None,
    epilogue: Any = None,
) -> None:
    """``bf16_gemm_nt`` with ``b`` as [k, n]."""
    bf16_gemm_nt(a, b.mT, d, c, compiled_dims, alpha, epilogue)


def bf16_gemm_tn(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    alpha: float | None = None,
    epilogue: Any = None,
) -> None:
    """``bf16_gemm_nt`` with ``a`` as [k, m] and ``b`` as [k, n]."""
    bf16_gemm_nt(a.mT, b.mT, d, c, compiled_dims, alpha, epilogue)


def bf16_gemm_tt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    alpha: float | None = None,
    epilogue: Any = None,
) -> None:
    """``bf16_gemm_nt`` with ``a`` as [k, m]."""
    bf16_gemm_nt(a.mT, b, d, c, compiled_dims, alpha, epilogue)


def cublaslt_gemm_nt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """``d`` (bf16 or fp32 [m, n]) = ``a`` [m, k] @ ``b`` [n, k].T + c, operands both bf16 or both fp32.

    A plain product under the name that the vision tower calls; no vendor library is behind it.
    """
    assert a.dtype == b.dtype and a.dtype in (torch.bfloat16, torch.float32), f"got operands of {a.dtype} and {b.dtype}"
    assert a.shape[1] == b.shape[1], f"the operands' K differ: {a.shape[1]} and {b.shape[1]}"
    _check_output(d, (a.shape[0], b.shape[0]), c)
    write_product(a, b, d, c)


def cublaslt_gemm_nn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """``cublaslt_gemm_nt`` with ``b`` as [k, n]."""
    cublaslt_gemm_nt(a, b.mT, d, c)


def cublaslt_gemm_tn(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """``cublaslt_gemm_nt`` with ``a`` as [k, m] and ``b`` as [k, n]."""
    cublaslt_gemm_nt(a.mT, b.mT, d, c)


def cublaslt_gemm_tt(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """``cublaslt_gemm_nt`` with ``a`` as [k, m]."""
    cublaslt_gemm_nt(a.mT, b, d, c)


def _row_blocks(grouped_layout: torch.Tensor, use_psum_layout: bool, groups: int, rows: int) -> RowBlocks | None:
    """The rows in blocks of one group each, where there are no more blocks than groups; None else.

    So few blocks take a batched product, which expands no more matrices than there are groups.
    """
    alignment = get_mk_alignment_for_contiguous_layout()
    if rows == 0 or rows % alignment or rows // alignment > groups:
        return None
    if use_psum_layout:
        return blocks_of_psum(grouped_layout, alignment, rows)
    return blocks_of_rows(grouped_layout, alignment)


def _check_layout(grouped_layout: torch.Tensor, use_psum_layout: bool, groups: int, rows: int) -> None:
    wanted = groups if use_psum_layout else rows
    assert grouped_layout.dtype == torch.int32, f"expected an int32 layout, got {grouped_layout.dtype}"
    assert tuple(grouped_layout.shape) == (wanted,), f"expected a layout of {wanted}, got {tuple(grouped_layout.shape)}"


def _row_groups(grouped_layout: torch.Tensor, use_psum_layout: bool, groups: int, rows: int) -> RowGroups:
    alignment = get_mk_alignment_for_contiguous_layout()
    if use_psum_layout:
        return groups_of_psum(grouped_layout, alignment, rows)
    return groups_of_rows(grouped_layout, alignment, groups)


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    grouped_layout: torch.Tensor,
    recipe: Recipe | None = None,
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    epilogue: Any = None,
) -> None:
    """Rows of A (values [m, k]) times the matrix of their group (B: values [groups, n, k]), into ``d`` [m, n].

    ``grouped_layout``: int32 [groups] with ``use_psum_layout`` (aligned start of the group plus its count of rows), else int32 [m]
    (group of each row, -1 on padding). Padding rows of ``d`` become zero. Only matrices of groups with rows are expanded, once each.
    """
    _no_epilogue(epilogue)
    (m, k), (groups, n, k_b) = logical_shape(a[0]), logical_shape(b[0])
    assert k == k_b, f"the operands' K differ: {k} and {k_b}"
    _check_output(d, (m, n))
    _check_layout(grouped_layout, use_psum_layout, groups, m)
    if 0 in (m, n, k):
        d.zero_()
        return
    gran_a, gran_b = _granularities(a[1], b[1], recipe, recipe_a, recipe_b)
    dtype = _operand_dtype(a[1], b[1], disable_ue8m0_cast)
    # Rows cannot be cut where they are packed together or share scales.
    whole = b[0].stride(-1) != 1 or b[1].shape[-2] != n
    blocks = None if whole else _row_blocks(grouped_layout, use_psum_layout, groups, m)
    if blocks is not None:
        values, sf = take_rows(b[0], blocks.group), b[1].index_select(0, blocks.group)
        write_blocks(
            dequantise(*a, gran_a, dtype),
            lambda start, stop: dequantise(values[:, start:stop], sf[:, start:stop], gran_b, dtype),
            d,
            blocks,
        )
        return
    rows = _row_groups(grouped_layout, use_psum_layout, groups, m)
    left = dequantise(take_rows(a[0], rows.source), a[1].index_select(0, rows.source), gran_a, dtype)
    values, sf, ends = b[0], b[1], rows.ends
    slots = min(groups, ceil_div(m, get_mk_alignment_for_contiguous_layout()))
    if slots < groups:
        occupied = occupied_groups(rows, slots)
        values, sf, ends = take_rows(values, occupied.group), sf.index_select(0, occupied.group), occupied.ends
    if whole:
        product = grouped_product(left, dequantise(values, sf, gran_b, dtype), ends)
    else:
        product = pieced_grouped_product(
            left,
            lambda start, stop: dequantise(values[:, start:stop], sf[:, start:stop], gran_b, dtype),
            n,
            slots * k,
            ends,
        )
    write_rows(d, product, rows)


def m_grouped_fp8_fp4_gemm_nn_contiguous(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    grouped_layout: torch.Tensor,
    recipe: Recipe | None = None,
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    epilogue: Any = None,
) -> None:
    """``m_grouped_fp8_fp4_gemm_nt_contiguous`` with B as [groups, k, n]."""
    m_grouped_fp8_fp4_gemm_nt_contiguous(
        a,
        (b[0].mT, b[1].mT),
        d,
        grouped_layout,
        recipe,
        recipe_a,
        recipe_b,
        compiled_dims,
        disable_ue8m0_cast,
        use_psum_layout,
        ensure_zero_padding,
        None,
        epilogue,
    )


def m_grouped_fp8_fp4_gemm_nt_masked(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int,
    recipe: Recipe | None = None,
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    epilogue: Any = None,
) -> None:
    """``d`` [groups, m, n] of A (values [groups, m, k]) and B (values [groups, n, k]).

    ``masked_m``: int32 [groups], rows of each group that count; the others of ``d`` hold the product of whatever A holds there.
    """
    _no_epilogue(epilogue)
    (groups, m, k), (groups_b, n, k_b) = logical_shape(a[0]), logical_shape(b[0])
    assert (groups, k) == (groups_b, k_b), f"the operands differ: {groups} x {k} and {groups_b} x {k_b}"
    assert tuple(masked_m.shape) == (groups,) and expected_m > 0, f"{tuple(masked_m.shape)=}, {expected_m=}"
    _check_output(d, (groups, m, n))
    gran_a, gran_b = _granularities(a[1], b[1], recipe, recipe_a, recipe_b)
    dtype = _operand_dtype(a[1], b[1], disable_ue8m0_cast)
    write_product(dequantise(*a, gran_a, dtype), dequantise(*b, gran_b, dtype), d)


def m_grouped_bf16_gemm_nt_contiguous(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    grouped_layout: torch.Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    epilogue: Any = None,
) -> None:
    """``m_grouped_fp8_fp4_gemm_nt_contiguous`` for bf16 ``a`` [m, k] and ``b`` [groups, n, k]."""
    _no_epilogue(epilogue)
    (m, k), (groups, n, k_b) = a.shape, b.shape
    assert a.dtype == b.dtype == torch.bfloat16, f"expected bf16 operands, got {a.dtype} and {b.dtype}"
    assert k == k_b, f"the operands' K differ: {k} and {k_b}"
    _check_output(d, (m, n))
    _check_layout(grouped_layout, use_psum_layout, groups, m)
    if 0 in (m, n, k):
        d.zero_()
        return
    blocks = _row_blocks(grouped_layout, use_psum_layout, groups, m)
    if blocks is not None:
        chosen = b.index_select(0, blocks.group)
        write_blocks(a, lambda start, stop: chosen[:, start:stop], d, blocks)
        return
    rows = _row_groups(grouped_layout, use_psum_layout, groups, m)
    write_rows(d, grouped_product(a.index_select(0, rows.source), b, rows.ends), rows)


def m_grouped_bf16_gemm_nn_contiguous(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    grouped_layout: torch.Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    epilogue: Any = None,
) -> None:
    """``m_grouped_bf16_gemm_nt_contiguous`` with ``b`` as [groups, k, n]."""
    m_grouped_bf16_gemm_nt_contiguous(
        a, b.mT, d, grouped_layout, compiled_dims, use_psum_layout, ensure_zero_padding, None, epilogue
    )


def m_grouped_bf16_gemm_nt_masked(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int,
    compiled_dims: str = "nk",
    epilogue: Any = None,
) -> None:
    """``m_grouped_fp8_fp4_gemm_nt_masked`` for bf16 ``a`` [groups, m, k] and ``b`` [groups, n, k]."""
    _no_epilogue(epilogue)
    (groups, m, k), (groups_b, n, k_b) = a.shape, b.shape
    assert a.dtype == b.dtype == torch.bfloat16, f"expected bf16 operands, got {a.dtype} and {b.dtype}"
    assert (groups, k) == (groups_b, k_b), f"the operands differ: {groups} x {k} and {groups_b} x {k_b}"
    assert tuple(masked_m.shape) == (groups,) and expected_m > 0, f"{tuple(masked_m.shape)=}, {expected_m=}"
    _check_output(d, (groups, m, n))
    write_product(a, b, d)


def _k_group_ends(
    grouped_layout: torch.Tensor, ks_cpu: list[int] | None, use_psum_layout: bool, sum_k: int
) -> torch.Tensor:
    alignment = get_mk_alignment_for_contiguous_layout()
    assert grouped_layout.dtype == torch.int32, f"expected an int32 layout, got {grouped_layout.dtype}"
    assert not ks_cpu or sum(ks_cpu) == sum_k, f"expected a K of {sum(ks_cpu or ())}, got {sum_k}"
    if use_psum_layout:
        return ((grouped_layout + (alignment - 1)) // alignment).mul_(alignment).clamp_max_(sum_k)
    assert ks_cpu, "expected ks_cpu unless the psum layout is used"
    return grouped_layout.cumsum(0, dtype=torch.int32)


def k_grouped_bf16_gemm_tn_contiguous(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    ks_cpu: list[int] | None,
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
    epilogue: Any = None,
) -> None:
    """``d[g]`` (bf16 or fp32 [groups, m, n]) = A_g.T @ B_g + c[g] over the K range of group g.

    ``a``: bf16 [sum_k, m]. ``b``: bf16 [sum_k, n]. ``grouped_layout``: int32 [groups], sizes of K, or with ``use_psum_layout`` the
    aligned start plus the size; K padding holds zeros.
    """
    _no_epilogue(epilogue)
    _check_output(d, (grouped_layout.shape[0], a.shape[1], b.shape[1]), c)
    assert a.shape[0] == b.shape[0], f"the operands' K differ: {a.shape[0]} and {b.shape[0]}"
    write_k_grouped(a, b, d, c, _k_group_ends(grouped_layout, ks_cpu, use_psum_layout, a.shape[0]))


def _k_major_operand(operand: Quantised, gran_k: int, dtype: torch.dtype) -> torch.Tensor:
    """Expanded [sum_k, mn] of values e4m3 [sum_k, mn] and scales [sum_k / gran_k, mn]."""
    values, sf = operand
    sum_k = values.shape[0]
    scale = unpack_scale_rows(sf, ceil_div(sum_k, gran_k))
    return dequantise(values.mT, scale.mT, (1, gran_k), dtype).mT


def k_grouped_fp8_gemm_tn_contiguous(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    ks_cpu: list[int] | None,
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Recipe = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
    epilogue: Any = None,
) -> None:
    """``k_grouped_bf16_gemm_tn_contiguous`` for e4m3 [sum_k, mn] with scales of ``recipe[2]`` rows: fp32 or packed along K."""
    _no_epilogue(epilogue)
    assert recipe[:2] == (1, 1), f"expected a recipe (1, 1, gran_k), got {recipe}"
    _check_output(d, (grouped_layout.shape[0], a[0].shape[1], b[0].shape[1]), c)
    assert a[0].shape[0] == b[0].shape[0], f"the operands' K differ: {a[0].shape[0]} and {b[0].shape[0]}"
    ends = _k_group_ends(grouped_layout, ks_cpu, use_psum_layout, a[0].shape[0])
    dtype = _operand_dtype(a[1], b[1])
    write_k_grouped(_k_major_operand(a, recipe[2], dtype), _k_major_operand(b, recipe[2], dtype), d, c, ends)


def k_grouped_fp8_gemm_nt_contiguous(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    ks_cpu: list[int] | None,
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Recipe = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
    epilogue: Any = None,
) -> None:
    """``k_grouped_fp8_gemm_tn_contiguous`` with values [mn, sum_k] and scales [mn, sum_k / gran_k], as on Ascend."""
    left, right = (a[0].mT, a[1].mT), (b[0].mT, b[1].mT)
    k_grouped_fp8_gemm_tn_contiguous(
        left, right, d, ks_cpu, grouped_layout, c, recipe, compiled_dims, use_psum_layout, epilogue
    )


def k_grouped_fp4_gemm_nt_contiguous(
    a: Quantised,
    b: Quantised,
    d: torch.Tensor,
    ks_cpu: list[int] | None,
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: Recipe = (1, 1, 32),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
    epilogue: Any = None,
) -> None:
    """``k_grouped_fp8_gemm_tn_contiguous`` for e2m1 [mn, sum_k / 2] with scales [sum_k / 32, mn]."""
    _no_epilogue(epilogue)
    (m, sum_k), (n, k_b) = logical_shape(a[0]), logical_shape(b[0])
    assert recipe == (1, 1, 32) and sum_k == k_b, f"{recipe=}, K {sum_k} and {k_b}"
    _check_output(d, (grouped_layout.shape[0], m, n), c)
    ends = _k_group_ends(grouped_layout, ks_cpu, use_psum_layout, sum_k)
    dtype = _operand_dtype(a[1], b[1])
    left, right = (
        dequantise(values, unpack_scale_rows(sf, ceil_div(sum_k, 32)).mT, (1, 32), dtype).mT for values, sf in (a, b)
    )
    write_k_grouped(left, right, d, c, ends)


def einsum(
    expr: str, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None, epilogue: Any = None
) -> None:
    """``d`` (bf16 or fp32) = einsum + c of bf16 ``a`` and ``b``.

    ``expr``: ``bmk,bnk->mn``, ``bhr,hdr->bhd``, ``bhd,hdr->bhr`` or ``bhd,bhr->hdr``.
    """
    _no_epilogue(epilogue)
    assert a.dtype == b.dtype == torch.bfloat16, f"expected bf16 operands, got {a.dtype} and {b.dtype}"
    if expr == "bmk,bnk->mn":
        left, right = a.transpose(0, 1).flatten(1), b.transpose(0, 1).flatten(1)
        _check_output(d, (left.shape[0], right.shape[0]), c)
        write_product(left, right, d, c)
        return
    left, right, out, added = _batched(expr, a, b, d, c)
    _check_output(out, (left.shape[0], left.shape[1], right.shape[1]), added)
    write_product(left, right, out, added)


def _batched(
    expr: str, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The operands and outputs of a batched product [batch, m, k] x [batch, n, k] as views of those of ``expr``."""
    if expr == "bhr,hdr->bhd":
        return a.transpose(0, 1), b, d.transpose(0, 1), None if c is None else c.transpose(0, 1)
    if expr == "bhd,hdr->bhr":
        return a.transpose(0, 1), b.mT, d.transpose(0, 1), None if c is None else c.transpose(0, 1)
    if expr == "bhd,bhr->hdr":
        return a.permute(1, 2, 0), b.permute(1, 2, 0), d, c
    raise NotImplementedError(f"einsum {expr!r}: not supported on Neuron (basic mode)")


def fp8_einsum(
    expr: str,
    a: Quantised,
    b: Quantised,
    d: torch.Tensor | Quantised,
    c: torch.Tensor | None = None,
    recipe: Recipe = (1, 128, 128),
    epilogue: Any = None,
) -> None:
    """``einsum`` of e4m3 operands with scales whose axes are the operands' own, by ``recipe`` over (m, n, k) of each batch.

    ``d``: bf16 or fp32; or for ``bhr,hdr->bhd`` a pair (e4m3 [b, h, d], scales [b, h * d / (32 * pack)]): quantised again, one
    power-of-two scale for 32 values, packed in the scales' dtype.
    """
    _no_epilogue(epilogue)
    result = d if isinstance(d, torch.Tensor) else torch.empty(d[0].shape, dtype=torch.float32, device=d[0].device)
    left, right, out, added = _batched(expr, a[0], b[0], result, c)
    sfa, sfb, _, _ = _batched(expr, a[1], b[1], result, None)
    _check_output(out, (left.shape[0], left.shape[1], right.shape[1]), added)
    (gran_m, gran_n, gran_k), dtype = recipe, _operand_dtype(a[1], b[1])
    if out.numel():
        x, y = dequantise(left, sfa, (gran_m, gran_k), dtype), dequantise(right, sfb, (gran_n, gran_k), dtype)
        write_product(x, y, out, added)
    if not isinstance(d, torch.Tensor):
        assert expr == "bhr,hdr->bhd" and c is None, "a quantised d is for bhr,hdr->bhd without c"
        _write_quantised(result.flatten(1), d[0], d[1])


def _write_quantised(x: torch.Tensor, values: torch.Tensor, sf: torch.Tensor) -> None:
    """``x`` fp32 [rows, n] into e4m3 ``values`` (n elements a row) and packed ``sf`` [rows, n / (32 * pack)]."""
    quantised, exponents = cast_per_token(x, quant_format("e4m3", "ue8m0"), 32)
    values.copy_(quantised.view(values.shape))
    sf.copy_(exponents.to(torch.uint8).view(sf.dtype))


def tf32_hc_prenorm_gemm(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None = None
) -> None:
    """``d`` (fp32 [m, n]) = ``a`` (bf16 [m, k]) @ ``b`` (fp32 [n, k]).T and ``sqr_sum`` (fp32 [m]) = sum of squares of ``a``.

    With ``num_splits``, ``d`` is [num_splits, m, n] and ``sqr_sum`` [num_splits, m]: parts over K that add up to the results.
    """
    (m, k), n = a.shape, b.shape[0]
    assert (
        a.dtype == torch.bfloat16 and b.dtype == d.dtype == sqr_sum.dtype == torch.float32
    ), "expected bf16 a, else fp32"
    splits = () if num_splits is None else (num_splits,)
    assert b.shape[1] == k, f"the operands' K differ: {k} and {b.shape[1]}"
    assert tuple(d.shape) == (*splits, m, n) and tuple(sqr_sum.shape) == (
        *splits,
        m,
    ), f"{tuple(d.shape)=}, {tuple(sqr_sum.shape)=}"
    if m == 0:
        return
    wide = a.to(torch.float32)
    if num_splits is None:
        d.copy_(wide @ b.mT)
        sqr_sum.copy_(wide.square().sum(-1))
        return
    part = ceil_div(k, num_splits)
    missing = part * num_splits - k
    right = torch.nn.functional.pad(b, (0, missing)) if missing else b
    left = torch.nn.functional.pad(wide, (0, missing)) if missing else wide
    left, right = (x.unflatten(1, (num_splits, part)).transpose(0, 1) for x in (left, right))
    d.copy_(torch.bmm(left, right.mT))
    sqr_sum.copy_(left.square().sum(-1))


def get_mqa_logits_metadata(
    cu_seq_len_k_start: torch.Tensor, cu_seq_len_k_end: torch.Tensor, num_kv_tokens: int, num_heads: int
) -> torch.Tensor:
    """A schedule for ``fp8_fp4_mqa_logits``, which needs none: one int32 zero."""
    return torch.zeros(1, dtype=torch.int32, device=cu_seq_len_k_start.device)


def fp8_fp4_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor | None],
    kv: Quantised,
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    max_seqlen_k: int,
    schedule_meta: torch.Tensor | None = None,
) -> torch.Tensor:
    """Indexer logits of every query against the keys of its range: sum over heads of weight * relu(q . k).

    ``q``: values (e4m3 [m, heads, d] or e2m1 int8 [m, heads, d / 2]) and exponent bytes, one for 32 values (int16 [m, heads, d / 64],
    int32 [m, heads]), or None. ``kv``: the same for keys without the heads' axis; fp32 scales [keys] where ``q`` has none.
    ``weights``: [m, heads]. ``cu_seq_len_k_start``, ``cu_seq_len_k_end``: int32 [m].
    Returns bf16 (fp32 where ``q`` has no scales) [m, max_seqlen_k], rows 1024-byte units apart: column j of row i belongs to key
    ``start[i] + j``; columns from ``end[i] - start[i]`` on hold anything finite.
    """
    (values, q_sf), (key_values, key_sf) = q, kv
    rows = values.shape[0]
    assert max_seqlen_k > 0, f"expected a positive max_seqlen_k, got {max_seqlen_k}"
    assert tuple(weights.shape) == tuple(
        values.shape[:2]
    ), f"expected weights of {tuple(values.shape[:2])}, got {tuple(weights.shape)}"
    dtype = torch.float32 if q_sf is None else torch.bfloat16
    if rows == 0 or key_values.shape[0] == 0:
        return no_logits(rows, max_seqlen_k, dtype, values.device)
    query, key = dequantise_mx(values, q_sf), dequantise_mx(key_values, key_sf)
    pieces = dense_logits(query, key, weights.to(torch.float32), cu_seq_len_k_start, max_seqlen_k)
    return stored_logits(pieces, 0, max_seqlen_k, dtype)


def get_paged_mqa_logits_metadata(
    context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: torch.Tensor | None = None
) -> torch.Tensor:
    """A schedule for ``fp8_fp4_paged_mqa_logits``, which needs none: int32 zeros [num_sms + 1, 2]."""
    return torch.zeros((num_sms + 1, 2), dtype=torch.int32, device=context_lens.device)


def fp8_fp4_paged_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor | None],
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: torch.Tensor,
    max_context_len: int,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """``fp8_fp4_mqa_logits`` over a paged cache.

    ``q``: values [batch, next_n, heads, ..] and their scales. ``kv_cache``: uint8 [pages, tokens, 1, bytes + 4], in each page all
    tokens' values and then 4 scale bytes a token. ``weights``: [batch * next_n, heads]. ``context_lens``: int32 [batch, next_n].
    ``block_table``: int32 [batch, blocks].
    Returns [batch * next_n, max_context_len]; columns from the row's context length on are not cleaned.
    """
    values, q_sf = q
    rows = values.shape[0] * values.shape[1]
    assert tuple(weights.shape) == (
        rows,
        values.shape[2],
    ), f"expected weights of {(rows, values.shape[2])}, got {tuple(weights.shape)}"
    assert tuple(context_lens.shape) == tuple(values.shape[:2]), f"expected context_lens of {tuple(values.shape[:2])}"
    dtype = torch.float32 if q_sf is None else torch.bfloat16
    if rows == 0 or max_context_len == 0 or kv_cache.shape[0] == 0:
        return no_logits(rows, max_context_len, dtype, values.device)
    pieces = paged_logits(
        dequantise_mx(values, q_sf),
        kv_cache,
        weights.to(torch.float32),
        block_table,
        max_context_len,
        is_packed_fp4(values),
        q_sf is not None,
    )
    return stored_logits(pieces, 1, max_context_len, dtype)


def get_sparse_mqa_logits_metadata(
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    num_kv_tokens: int,
    sparse_kv_block_indices: torch.Tensor,
    qk_dtype: torch.dtype,
    sparse_block_kv: int,
    use_unaligned_ks: bool = False,
) -> torch.Tensor:
    """First token of every candidate block, int32 [m, blocks]: what ``fp8_fp4_sparse_mqa_logits`` gathers by.

    ``sparse_kv_block_indices``: int32 [m, blocks], absolute. Block i starts at ``i * sparse_block_kv + start % sparse_block_kv``:
    Ascend takes any start, so that ``use_unaligned_ks`` does not matter.
    """
    return sparse_kv_block_indices * sparse_block_kv + (cu_seq_len_k_start % sparse_block_kv).unsqueeze(1)


def get_paged_sparse_mqa_logits_metadata(
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    indices: torch.Tensor,
    page_kv: int,
    sparse_kv_block_indices: torch.Tensor,
    qk_dtype: torch.dtype,
    sparse_block_kv: int,
) -> torch.Tensor:
    """Place of every candidate block in the cache, int32 [m, blocks], counted in blocks of ``sparse_block_kv`` tokens.

    ``block_table``: int32 [m, pages of the query]. ``sparse_kv_block_indices``: int32 [m, blocks], of the query's own context; a page
    holds whole blocks. Indices outside the table are read as the nearest one inside.
    """
    assert page_kv % sparse_block_kv == 0, f"a page of {page_kv} tokens holds no whole blocks of {sparse_block_kv}"
    per_page = page_kv // sparse_block_kv
    block = sparse_kv_block_indices.clamp(0, block_table.shape[1] * per_page - 1)
    page = block // per_page
    row = torch.arange(block.shape[0], dtype=torch.int32, device=block.device).unsqueeze(1)
    return block_table[row, page] * per_page + (block - page * per_page)


def fp8_fp4_sparse_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor | None],
    kv: Quantised,
    weights: torch.Tensor,
    metadata: torch.Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
    use_unaligned_ks: bool = False,
) -> torch.Tensor:
    """``fp8_fp4_mqa_logits`` for the tokens of chosen blocks alone.

    ``metadata``: of ``get_sparse_mqa_logits_metadata``. Returns bf16 [m, num_max_sparse_blocks * sparse_block_kv], rows 1024-byte
    units apart: the tokens of the first block, then of the second; tokens outside the row's range are not cleaned.
    """
    (values, q_sf), (key_values, key_sf) = q, kv
    rows, columns = values.shape[0], num_max_sparse_blocks * sparse_block_kv
    assert tuple(metadata.shape) == (rows, num_max_sparse_blocks), f"metadata was made for {tuple(metadata.shape)}"
    query, wide = dequantise_mx(values, q_sf), weights.to(torch.float32)
    keys = key_values.shape[0]
    within = torch.arange(sparse_block_kv, dtype=torch.int32, device=values.device)
    stored = key_values.view(torch.uint8)
    step = row_step(query.shape[1], query.shape[2], columns)
    pieces = []
    for first in range(0, rows, step):
        token = (metadata[first : first + step].unsqueeze(-1) + within).flatten().clamp_(0, keys - 1)
        chosen = stored.index_select(0, token).view(key_values.dtype)
        key = dequantise_mx(chosen, key_sf.index_select(0, token)).view(-1, columns, query.shape[2])
        pieces.append(gathered_logits(query[first : first + step], key, wide[first : first + step]))
    return stored_logits(pieces, 0, columns, torch.bfloat16)


def fp8_fp4_paged_sparse_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor | None],
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    metadata: torch.Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
) -> torch.Tensor:
    """``fp8_fp4_sparse_mqa_logits`` over a paged cache; ``metadata`` of ``get_paged_sparse_mqa_logits_metadata``.

    ``q``: values [m, 1, heads, ..] and their scales. ``kv_cache``: as for ``fp8_fp4_paged_mqa_logits``.
    """
    values, q_sf = q
    rows, columns = values.shape[0], num_max_sparse_blocks * sparse_block_kv
    assert tuple(metadata.shape) == (rows, num_max_sparse_blocks), f"metadata was made for {tuple(metadata.shape)}"
    assert values.shape[1] == 1, f"expected one query a row, got {values.shape[1]}"
    query, wide = dequantise_mx(values, q_sf).squeeze(1), weights.to(torch.float32)
    value, scale = page_rows(kv_cache, kv_cache.shape[-1] - 4)
    pages, tokens = value.shape[:2]
    per_page = tokens // sparse_block_kv
    value = value.unflatten(1, (per_page, sparse_block_kv)).flatten(2)
    scale = scale.unflatten(1, (per_page, sparse_block_kv)).flatten(2)
    step = row_step(query.shape[1], query.shape[2], columns)
    pieces = []
    for first in range(0, rows, step):
        place = metadata[first : first + step].flatten().clamp(0, pages * per_page - 1)
        page = place // per_page
        block = place - page * per_page
        chosen = value[page, block].view(-1, columns, kv_cache.shape[-1] - 4)
        chosen = chosen if is_packed_fp4(values) else chosen.view(torch.float8_e4m3fn)
        chosen_scale = scale_of_bytes(scale[page, block].view(-1, columns, 4), q_sf is not None)
        key = dequantise_mx(chosen, chosen_scale)
        pieces.append(gathered_logits(query[first : first + step], key, wide[first : first + step]))
    return stored_logits(pieces, 0, columns, torch.bfloat16)
