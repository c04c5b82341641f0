"""Expert selection of ``tile_kernels.moe.topk_gate_kernel``."""

from __future__ import annotations

import torch

from neuron_numerics.stable_topk import stable_topk


def topk_gate(scores: torch.Tensor, num_topk: int) -> torch.Tensor:
    """Indices (int64 [tokens, k]) of the ``num_topk`` largest of each row of contiguous fp32 ``scores`` [tokens, experts].

    In descending order, equal scores by smaller index; at most 32.
    """
    assert (
        scores.ndim == 2 and scores.is_contiguous() and scores.dtype == torch.float32
    ), "expected contiguous fp32 rows"
    assert num_topk <= scores.shape[1], f"cannot take {num_topk} of {scores.shape[1]} experts"
    assert num_topk <= 32, f"at most 32 experts a token, got {num_topk}"
    # NEURON: 64-bit upstream's indices are int64
    return stable_topk(scores, num_topk).to(torch.int64)
