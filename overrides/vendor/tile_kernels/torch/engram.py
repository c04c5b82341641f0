"""Plain n-gram embeddings of ``tile_kernels.torch.engram``: hash, gate, and the Sinkhorn optimiser's arithmetic."""

from __future__ import annotations

import torch

from ..engram.engram_fused_weight_kernel import fused_weight
from ..engram.engram_gate_fwd_kernel import engram_gate_fwd
from ..engram.engram_hash_kernel import engram_hash


def engram_sinkhorn_momentum_update_ref(
    grad: torch.Tensor, momentum_buffer: torch.Tensor, beta1: float, nesterov: bool = True
) -> torch.Tensor:
    """Move ``momentum_buffer`` [n] towards ``grad`` [n] in place: ``grad * (1 - beta1) + buffer * beta1``.

    Both bf16 or fp32. Returns the new momentum in fp32, with ``nesterov`` one step further ahead.
    """
    scaled = grad.to(torch.float32) * (1 - beta1)
    momentum = torch.add(scaled, momentum_buffer.to(torch.float32), alpha=beta1)
    momentum_buffer.copy_(momentum)
    return scaled.add_(momentum, alpha=beta1) if nesterov else momentum


def engram_sinkhorn_step_ref(
    matrix: torch.Tensor, row_scale: torch.Tensor, col_scale: torch.Tensor, col_sumsq: torch.Tensor, eps: float
) -> torch.Tensor:
    """Divide ``row_scale`` [rows] by the norms of the scaled rows plus ``eps``, in place, and return the norms.

    ``matrix`` [rows, columns] is scaled by ``row_scale`` and ``col_scale`` [columns]; ``col_sumsq`` [columns] receives the sums
    of squares after the step. All fp32.
    """
    norm = _scaled(matrix, row_scale, col_scale).square_().sum(1).sqrt_()
    row_scale.div_(norm + eps)
    torch.sum(_scaled(matrix, row_scale, col_scale).square_(), 0, out=col_sumsq)
    return norm


def engram_sinkhorn_finalize_ref(
    matrix: torch.Tensor,
    row_scale: torch.Tensor,
    col_scale: torch.Tensor,
    eps: float,
    alpha: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The scaled matrix of ``engram_sinkhorn_step_ref`` with rows of norm ``alpha``, in a new tensor or in ``out``."""
    norm = _scaled(matrix, row_scale, col_scale).square_().sum(1).sqrt_()
    result = (alpha * (row_scale / (norm + eps)).unsqueeze(1) * matrix).mul_(col_scale)
    return result if out is None else out.copy_(result)


def _scaled(matrix: torch.Tensor, row_scale: torch.Tensor, col_scale: torch.Tensor) -> torch.Tensor:
    return (row_scale.unsqueeze(1) * matrix).mul_(col_scale)


def make_offsets(vocab_sizes: torch.Tensor) -> torch.Tensor:
    """Start of each table among those of its layer: int32 [layers, orders, tables] sizes to [layers, orders * tables]."""
    sizes = vocab_sizes.flatten(1)
    return torch.nn.functional.pad(sizes[:, :-1].cumsum(1, dtype=torch.int32), (1, 0))


def engram_hash_ref(
    ngram_token_ids: torch.Tensor,
    multipliers: torch.Tensor,
    vocab_sizes: torch.Tensor,
    offsets: torch.Tensor,
    image_token_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """``tile_kernels.engram.engram_hash``."""
    return engram_hash(ngram_token_ids, multipliers, vocab_sizes, offsets, image_token_mask)


def engram_gate_ref(
    hidden_states: torch.Tensor,
    kv: torch.Tensor,
    weight_hidden: torch.Tensor,
    weight_embed: torch.Tensor,
    clamp_value: float,
    eps: float,
    save_for_backward: bool = False,
    image_token_mask: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``tile_kernels.engram.engram_gate_fwd`` with both norm weights (bf16 [streams, hidden]); the streams alone by default."""
    weight = fused_weight(weight_hidden, weight_embed)
    results = engram_gate_fwd(hidden_states, kv, weight, eps, clamp_value, True, image_token_mask)
    return results if save_for_backward else results[0]
