"""Residual streams into a layer's input, from ``tile_kernels.mhc.pre_apply_mix_kernel``."""

from __future__ import annotations

import torch


def mhc_pre_apply_mix_fwd(x, mix, o):
    """Write the sum of the streams ``x`` (bf16 [tokens, streams, hidden]) by ``mix`` (fp32 [tokens, streams]) into ``o``.

    ``o``: bf16 [tokens, hidden], summed in fp32.
    """
    o.copy_(torch.bmm(mix.unsqueeze(1), x.to(torch.float32)).squeeze(1))
