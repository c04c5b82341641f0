"""Everything between the prenorm product and a layer's input, from ``tile_kernels.mhc.pre_big_fuse_kernel``."""

from __future__ import annotations

import torch

from neuron_numerics.hyper_connections import sinkhorn, split_mixes


def mhc_pre_big_fuse_fwd(
    gemm_out_mul,
    gemm_out_sqrsum,
    mhc_scale,
    mhc_base,
    residual,
    post_mix,
    comb_mix,
    layer_input,
    rms_eps: float,
    mhc_pre_eps: float,
    mhc_sinkhorn_eps: float,
    mhc_post_mult_value: float,
    sinkhorn_repeat: int,
    n_splits: int = 16,
):
    """RMSNorm of the product, the three mixing weights, Sinkhorn, and the streams mixed into the layer's input.

    ``gemm_out_mul`` (fp32 [1, tokens, 24]) and ``gemm_out_sqrsum`` (fp32 [1, tokens]): the one partial of the product with
    ``residual`` (bf16 [tokens, 4, hidden]), as on Ascend; ``n_splits`` is not looked at. ``mhc_scale``, ``mhc_base``: as in
    ``mhc_pre_split_mixes_fwd``. Written in place: ``post_mix`` (fp32 [tokens, 4]), ``comb_mix`` (fp32 [tokens, 16]) and
    ``layer_input`` (bf16 [tokens, hidden]).
    """
    _, streams, hidden = residual.shape
    assert streams == 4, f"expected four streams, got {streams}"
    assert gemm_out_mul.shape[0] == 1, f"expected one partial of the product, got {gemm_out_mul.shape[0]}"
    rstd = (gemm_out_sqrsum[0] * (1.0 / (streams * hidden)) + rms_eps).rsqrt_()
    mixes = gemm_out_mul[0] * rstd.unsqueeze(1)
    pre, post, comb = split_mixes(mixes, mhc_scale, mhc_base, streams, mhc_post_mult_value, mhc_pre_eps)
    post_mix.copy_(post)
    comb_mix.copy_(sinkhorn(comb.unflatten(1, (streams, streams)), sinkhorn_repeat, mhc_sinkhorn_eps).flatten(1))
    layer_input.copy_(torch.bmm(pre.unsqueeze(1), residual.to(torch.float32)).squeeze(1))
