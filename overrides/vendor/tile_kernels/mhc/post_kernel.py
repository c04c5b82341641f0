"""Residual streams after a layer, from ``tile_kernels.mhc.post_kernel``."""

from __future__ import annotations

import torch


def mhc_post_fwd(
    x: torch.Tensor,
    residual: torch.Tensor,
    post_layer_mix: torch.Tensor,
    comb_res_mix: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x * post_layer_mix`` plus the streams mixed by ``comb_res_mix`` [.., in, out], in fp32, rounded to bf16.

    ``x``: bf16 [sequences, tokens, hidden]. ``residual``: bf16 [sequences, tokens, streams, hidden]. ``post_layer_mix``: fp32
    [sequences, tokens, streams, 1]. ``comb_res_mix``: fp32 [sequences, tokens, streams, streams]. Returns the new streams, or
    writes and returns ``out``.
    """
    assert x.dtype == residual.dtype == torch.bfloat16, f"expected bf16, got {x.dtype} and {residual.dtype}"
    assert post_layer_mix.dtype == comb_res_mix.dtype == torch.float32, "mixing weights are fp32"
    sequences, tokens, streams, hidden = residual.shape
    assert x.shape == (sequences, tokens, hidden), f"expected x of {(sequences, tokens, hidden)}, got {tuple(x.shape)}"
    assert post_layer_mix.shape == (
        sequences,
        tokens,
        streams,
        1,
    ), f"got post_layer_mix of {tuple(post_layer_mix.shape)}"
    assert comb_res_mix.shape == (
        sequences,
        tokens,
        streams,
        streams,
    ), f"got comb_res_mix of {tuple(comb_res_mix.shape)}"
    mixed = comb_res_mix.mT.matmul(residual.to(torch.float32))
    mixed.add_(x.unsqueeze(-2).to(torch.float32) * post_layer_mix)
    return mixed.to(torch.bfloat16) if out is None else out.copy_(mixed)
