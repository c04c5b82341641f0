"""Doubly stochastic mixing weights, from ``tile_kernels.mhc.sinkhorn_kernel``."""

from __future__ import annotations

from neuron_numerics.hyper_connections import sinkhorn


def mhc_sinkhorn_fwd(comb_res_mix, comb_res_mix_out, repeat: int, eps: float):
    """Write the Sinkhorn normalisation of ``comb_res_mix`` (fp32 [tokens, n, n]) into ``comb_res_mix_out``.

    A softmax over the rows plus ``eps``, then columns and rows are divided by their sums in turn, ``repeat`` times the columns.
    """
    comb_res_mix_out.copy_(sinkhorn(comb_res_mix, repeat, eps))
