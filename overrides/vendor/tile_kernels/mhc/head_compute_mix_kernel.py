"""Mixing weights of the head, from ``tile_kernels.mhc.head_compute_mix_kernel``."""

from __future__ import annotations

import torch


def mhc_head_compute_mix_fwd(input_mix, mhc_scale, mhc_base, output_mix, mhc_pre_eps: float, token_block_size: int = 0):
    """Write ``sigmoid(input_mix * mhc_scale + mhc_base) + mhc_pre_eps`` into ``output_mix``.

    fp32: ``input_mix`` and ``output_mix`` [tokens, streams], ``mhc_scale`` [1], ``mhc_base`` [streams]. ``token_block_size``
    says how other devices cut the work and means nothing here.
    """
    output_mix.copy_(torch.sigmoid(input_mix * mhc_scale + mhc_base) + mhc_pre_eps)
