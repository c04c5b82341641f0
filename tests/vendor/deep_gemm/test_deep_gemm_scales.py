"""Scale layouts: what the GEMMs are given on Ascend, CUDA's forms, and the settings beside them."""

from __future__ import annotations

import itertools
from types import ModuleType

import pytest
import torch

from neuron_numerics.formats import UE8M0
from neuron_numerics.gemm_scales import unpack_scales
from neuron_numerics.layouts import ScaleLayout, store_scales


def powers(*shape: int) -> torch.Tensor:
    return torch.exp2(torch.randint(-30, 30, shape).float())


@pytest.mark.parametrize("groups", [None, 3])
@pytest.mark.parametrize(("gran_mn", "gran_k"), [(1, 32), (32, 32), (1, 128), (128, 128)])
@pytest.mark.parametrize(("mn", "k"), [(1, 32), (33, 64), (130, 160), (64, 640)])
def test_transformed_scales(gemm: ModuleType, groups: int | None, gran_mn: int, gran_k: int, mn: int, k: int) -> None:
    """int16, MN-major without padding, equal to the fp32 scales of each row; as the quantising kernels store theirs."""
    lead = () if groups is None else (groups,)
    sf = powers(*lead, -(-mn // gran_mn), -(-k // gran_k))
    for given in (sf, sf.mT.contiguous().mT):
        got = gemm.transform_sf_into_required_layout(given, mn, k, (1, gran_mn, gran_k), groups, is_sfa=False)
        columns = -(-k // (2 * gran_k))
        assert got.dtype == torch.int16 and got.shape == (*lead, mn, columns)
        assert got.stride()[-2:] == (1, mn) and (groups is None or got.stride(0) == mn * columns)
        rows = torch.arange(mn) // gran_mn
        assert torch.equal(unpack_scales(got, sf.shape[-1]), sf.index_select(-2, rows))
        assert torch.equal(got, gemm.transform_sf_into_required_layout(given, mn, k, (gran_mn, gran_k), groups))
        assert gemm.transform_sf_into_required_layout(got, mn, k, (1, gran_k), groups) is got
    if groups is None and gran_mn == 1:
        exponents = (sf.view(torch.int32) >> 23).to(torch.int32)
        stored = store_scales(exponents, UE8M0, ScaleLayout(column_major=True, packed=True))
        assert torch.equal(got, stored) and got.stride() == stored.stride()


def test_unpacked_scales_stay_when_asked(gemm: ModuleType) -> None:
    sf = torch.rand(5, 3) + 0.5
    got = gemm.transform_sf_into_required_layout(sf, 5, 384, (1, 128), disable_ue8m0_cast=True)
    assert torch.equal(got, sf) and got.stride() == (1, 8)
    assert gemm.get_mn_major_tma_aligned_tensor(got) is got
    block = torch.rand(2, 3)
    assert (
        gemm.transform_sf_into_required_layout(block, 200, 384, (1, 128, 128), is_sfa=False, disable_ue8m0_cast=True)
        is block
    )


def test_rows_between_groups_are_zero(gemm: ModuleType) -> None:
    gemm.set_mk_alignment_for_contiguous_layout(8)
    sf, psum = powers(32, 4), torch.tensor([3, 8, 17, 24], dtype=torch.int32)
    kept = torch.tensor([0, 1, 2, *range(8, 17)])
    for got in (
        gemm.transform_sf_into_required_layout(sf, 32, 128, (1, 32), psum_layout=psum),
        gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, psum),
    ):
        wide = unpack_scales(got, 4)
        assert torch.equal(wide[kept], sf[kept])
        wide[kept] = 0
        assert wide.eq(0).all()


def test_wrong_scales_are_refused(gemm: ModuleType) -> None:
    transform = gemm.transform_sf_into_required_layout
    sf = powers(4, 2)
    for arguments, keywords in (
        ((sf, 4, 64, (1, 1, 32)), {}),
        ((sf, 4, 64, (1, 32)), {"is_sfa": True}),
        ((sf, 5, 64, (1, 32)), {}),
        ((sf, 4, 96, (1, 32)), {}),
        ((sf, 4, 64, (1, 32)), {"num_groups": 1}),
        ((sf.to(torch.float64), 4, 64, (1, 32)), {}),
        ((torch.zeros(4, 1, dtype=torch.int16), 128, 64, (32, 32)), {}),
    ):
        with pytest.raises(AssertionError):
            transform(*arguments, **keywords)


def test_scales_of_k_groups_without_sizes(gemm: ModuleType) -> None:
    """The static form packs what the form with sizes packs, groups of no rows included, and zeros after it."""
    for sizes, gran in itertools.product(([256, 0, 128, 384], [0, 0, 128], [128]), (32, 128)):
        ends, start = [], 0
        for size in sizes:
            ends.append(start + max(size - 5, 0))
            start += size
        sf, psum = powers(sum(sizes) // gran, 12), torch.tensor(ends, dtype=torch.int32)
        pack = gemm.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor
        exact, static = pack(sf, psum, sizes, gran, 128, True), pack(sf, psum, None, gran, 128, True)
        assert torch.equal(static[: exact.shape[0]], exact) and static[exact.shape[0] :].eq(0).all()
        with pytest.raises(AssertionError):
            pack(sf, psum, None, gran, 128, False)


def test_settings(gemm: ModuleType) -> None:
    assert gemm.get_num_sms() > 0 and gemm.get_tc_util() == 100 and gemm.get_pdl() is False
    for setter, getter, value in (
        (gemm.set_num_sms, gemm.get_num_sms, 5),
        (gemm.set_tc_util, gemm.get_tc_util, 60),
        (gemm.set_pdl, gemm.get_pdl, True),
        (gemm.set_mk_alignment_for_contiguous_layout, gemm.get_mk_alignment_for_contiguous_layout, 256),
    ):
        assert setter(value) is None and getter() == value
    assert gemm.get_theoretical_mk_alignment_for_contiguous_layout() == 16
    assert gemm.get_theoretical_mk_alignment_for_contiguous_layout(expected_m=3) == 16
    assert (
        gemm.get_tma_aligned_size(5, 2) == 8
        and gemm.get_tma_aligned_size(4, 4) == 4
        and gemm.get_tma_aligned_size(17, 1) == 32
    )
    for call in (
        lambda: gemm.use_deterministic_algorithms(True),
        lambda: gemm.set_ignore_compile_dims(True),
        lambda: gemm.set_block_size_multiple_of(16),
        lambda: gemm.set_block_size_multiple_of((16, 8)),
        gemm.shutdown,
    ):
        assert call() is None
    for wrong in (lambda: gemm.set_tc_util(101), lambda: gemm.set_num_sms(-1), lambda: gemm.get_tma_aligned_size(4, 3)):
        with pytest.raises(AssertionError):
            wrong()
