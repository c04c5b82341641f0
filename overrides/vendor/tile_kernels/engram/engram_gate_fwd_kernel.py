"""The gate of n-gram embeddings, from ``tile_kernels.engram.engram_gate_fwd_kernel``."""

from __future__ import annotations

import torch


def engram_gate_fwd(
    hidden_states: torch.Tensor,
    kv: torch.Tensor,
    weight_fused: torch.Tensor,
    eps: float,
    clamp_value: float,
    save_for_backward: bool = True,
    image_token_mask: torch.Tensor | None = None,
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Add the gated value to each stream: ``x + sigmoid(signed_root(norm(x) . norm(k))) * v``.

    ``hidden_states``: bf16 [tokens, streams, hidden]. ``kv``: bf16 [tokens, streams + 1, hidden], a key a stream and the value.
    ``weight_fused``: fp32 [streams, hidden], see ``fused_weight``. The root is of the magnitude, at least ``clamp_value``, with
    the sign of the product, zero counting as positive. Tokens of ``image_token_mask`` (bool [tokens]) keep their streams.

    Returns the streams in bf16 (``hidden_states`` itself, written, when ``inplace``), and with ``save_for_backward`` the raw
    products, gates and 1 / rms of both sides, fp32 [tokens, streams], else None four times.
    """
    assert not (inplace and save_for_backward), "in place, nothing is left for a backward pass"
    streams, hidden = hidden_states.shape[1:]
    x, key, value = (
        hidden_states.to(torch.float32),
        kv[:, :streams].to(torch.float32),
        kv[:, streams:].to(torch.float32),
    )
    rstd_x = (x.square().mean(-1) + eps).rsqrt_()
    rstd_k = (key.square().mean(-1) + eps).rsqrt_()
    dot = (x * weight_fused).mul_(key).sum(-1)
    normed = dot * rstd_x * rstd_k * hidden**-0.5
    root = normed.abs().clamp_min_(clamp_value).sqrt_()
    gate = torch.where(normed >= 0.0, root, -root).sigmoid_()
    result = x.add_(gate.unsqueeze(-1) * value).to(torch.bfloat16)
    if image_token_mask is not None:
        result = torch.where(image_token_mask[:, None, None], hidden_states, result)
    if inplace:
        result = hidden_states.copy_(result)
    return (result, dot, gate, rstd_x, rstd_k) if save_for_backward else (result, None, None, None, None)
