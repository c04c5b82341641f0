"""RMSNorm of the residual streams' projections, from ``tile_kernels.mhc.norm_fn_kernel``."""

from __future__ import annotations

import torch


def mhc_fn_normw_merge_fwd(fn, normw, out_fn):
    """Write ``fn * normw`` into ``out_fn``; fp32 [outputs, width], ``normw`` [width]."""
    torch.mul(fn, normw, out=out_fn)


def mhc_reduce_partials_and_rmsnorm_fwd(
    out_mul_splitted,
    sqrsum_splitted,
    out_mul,
    sqrsum,
    out,
    rms_group_size: int,
    rms_eps: float,
    n_splits: int,
):
    """Sum the partial products and squares, and divide the products by the rms. All fp32, outputs written in place.

    ``out_mul_splitted`` [splits, tokens, 1, outputs] and ``sqrsum_splitted`` [splits, tokens, 1] give ``out_mul``
    [tokens, 1, outputs] and ``sqrsum`` [tokens, 1]; ``out`` [tokens, outputs] is the former times
    ``1 / sqrt(sqrsum / rms_group_size + rms_eps)``.
    """
    assert out_mul_splitted.shape[0] == n_splits, f"expected {n_splits} partials, got {out_mul_splitted.shape[0]}"
    assert out_mul_splitted.shape[2] == 1, f"expected one rms group, got {out_mul_splitted.shape[2]}"
    torch.sum(out_mul_splitted, 0, out=out_mul)
    torch.sum(sqrsum_splitted, 0, out=sqrsum)
    torch.mul(out_mul.squeeze(1), (sqrsum / rms_group_size + rms_eps).rsqrt_(), out=out)
