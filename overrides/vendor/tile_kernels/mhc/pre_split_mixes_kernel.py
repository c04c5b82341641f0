"""The three mixing weights of a layer, from ``tile_kernels.mhc.pre_split_mixes_kernel``."""

from __future__ import annotations

from neuron_numerics.hyper_connections import split_mixes


def mhc_pre_split_mixes_fwd(
    input_mixes,
    mhc_scale,
    mhc_base,
    pre_layer_mix,
    post_layer_mix,
    comb_res_mix,
    mhc_post_mult_value: float,
    mhc_pre_eps: float,
):
    """Scale and shift ``input_mixes`` and write its three parts. All fp32, outputs written in place.

    ``input_mixes`` [tokens, 2 n + n * n] and ``mhc_base`` [2 n + n * n]; ``mhc_scale`` [3], one factor a part. ``pre_layer_mix``
    and ``post_layer_mix`` [tokens, n]: sigmoids plus ``mhc_pre_eps`` and times ``mhc_post_mult_value``. ``comb_res_mix``
    [tokens, n * n]: as it is.
    """
    pre, post, comb = split_mixes(
        input_mixes, mhc_scale, mhc_base, pre_layer_mix.shape[-1], mhc_post_mult_value, mhc_pre_eps
    )
    pre_layer_mix.copy_(pre)
    post_layer_mix.copy_(post)
    comb_res_mix.copy_(comb)
