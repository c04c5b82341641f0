"""Probability mass up to a chosen token, after ``tilelang_ops.asc.sum_smaller_probs``."""

from __future__ import annotations

from typing import Any

import torch


def sum_smaller_probs_tl(vocab_size: int) -> Any:
    """Factory of the mass of all tokens less likely than the chosen one, of equals up to it by column, and of itself."""
    assert vocab_size > 0 and vocab_size % 64 == 0, f"expected a positive multiple of 64, got {vocab_size}"

    def sum_smaller_probs(logprobs: torch.Tensor, sample_results: torch.Tensor, output: torch.Tensor) -> None:
        """``logprobs``: [n, vocab_size] fp32, strided rows. ``sample_results``: [n] int32, negative gives 0. ``output``: [n] fp32, written."""
        n = logprobs.shape[0]
        assert logprobs.shape[1] == vocab_size and sample_results.shape == output.shape == (
            n,
        ), f"{logprobs.shape=} {output.shape=}"
        chosen = sample_results.clamp(min=0).unsqueeze(1)
        row = torch.arange(n, dtype=torch.int32, device=logprobs.device).unsqueeze(1)
        pivot = logprobs[row, chosen]
        column = torch.arange(vocab_size, dtype=torch.int32, device=logprobs.device)
        counted = (logprobs == pivot).logical_and_(column <= chosen).logical_or_(logprobs < pivot)
        torch.sum(logprobs.exp().mul_(counted), 1, out=output)
        output.masked_fill_(sample_results < 0, 0.0)

    return sum_smaller_probs
