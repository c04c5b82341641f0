"""Confidence head and hidden-state input of the draft model, after ``tilelang_ops.asc.dflash``."""

from __future__ import annotations

from typing import Any

import torch

_BOUND = 60.0


def confidence_head_fused_tl(n_embed: int, markov_rank: int, has_markov_emb: bool) -> Any:
    """Factory of ``sigmoid(x . weight / temp)`` over the hidden state and, behind it, the Markov embedding."""
    total_dim = n_embed + markov_rank
    assert total_dim % 64 == 0, f"expected a multiple of 64 features, got {total_dim}"
    assert total_dim <= 11000, f"expected at most 11000 features, got {total_dim}"

    def confidence_head_fused(
        x0: torch.Tensor, x1: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor, temp: float
    ) -> None:
        """``x0``: [n, n_embed] bf16, strided rows; ``x1``: [n, markov_rank] bf16 or None; ``weight``: [n_embed + markov_rank] bf16.

        Written: ``out`` [n] fp32, strided. Sums are fp32.
        """
        assert (
            x0.shape[1] == n_embed and weight.shape == (total_dim,) and out.shape == (x0.shape[0],)
        ), f"{x0.shape=} {weight.shape=}"
        factor = weight.float()
        logit = torch.mv(x0.float(), factor[:n_embed])
        if has_markov_emb:
            assert x1 is not None
            logit = torch.addmv(logit, x1.float(), factor[n_embed:])
        out.copy_(logit.div_(temp).clamp_(-_BOUND, _BOUND).sigmoid_())

    return confidence_head_fused


def dflash_input_store_tl(n_embed: int, hc_mult: int) -> Any:
    """Factory of the mean over ``hc_mult`` hidden streams."""
    assert 0 < n_embed <= 8192 and n_embed % 128 == 0, f"expected a multiple of 128 up to 8192, got {n_embed}"
    assert hc_mult > 0, f"expected hc_mult of at least 1, got {hc_mult}"

    def dflash_input_store(x: torch.Tensor, out: torch.Tensor) -> None:
        """``x``: [n, hc_mult, n_embed] bf16. Written: ``out`` [n, n_embed] bf16, strided rows; summed in fp32."""
        assert x.shape[1:] == (hc_mult, n_embed) and out.shape == (x.shape[0], n_embed), f"{x.shape=} {out.shape=}"
        if hc_mult == 1:
            out.copy_(x[:, 0])
            return
        if hc_mult & (hc_mult - 1) == 0:
            out.copy_(x.mean(1, dtype=torch.float32))
        else:
            out.copy_(x.sum(1, dtype=torch.float32).mul_(1.0 / hc_mult))

    return dflash_input_store
