"""Sampling of one token a row, after ``tilelang_ops.asc.random_sampling``."""

from __future__ import annotations

from typing import Any

import torch

from ._inverse_cdf import sample
from ._splitmix import GOLDEN, add, flipped, mix, streams, words_of


def random_sampling_tl(vocab_size: int, is_nextn_predict: bool) -> Any:
    """Factory of draws weighted by ``probs``; ``is_nextn_predict`` selects the stream of residual draws."""
    assert vocab_size > 0, f"expected a positive vocabulary, got {vocab_size}"
    case = 1 if is_nextn_predict else 0
    stream = streams((case, 0), (case, 13))

    def random_sampling(
        probs: torch.Tensor, seq_seeds: torch.Tensor, sample_positions: torch.Tensor, out: torch.Tensor
    ) -> None:
        """``probs``: [n, vocab_size] fp32, strided rows that add up to at most 1. ``seq_seeds``: [n] uint64.

        ``sample_positions``: [n] int32. Written: ``out`` [n] int32.
        """
        n = probs.shape[0]
        assert probs.shape[1] == vocab_size, f"expected {vocab_size} columns, got {probs.shape[1]}"
        assert (
            seq_seeds.shape == sample_positions.shape == out.shape == (n,)
        ), f"{seq_seeds.shape=} {sample_positions.shape=}"
        number, moved = stream.of(flipped(sample_positions)).view(-1, 2, 2).unbind(1)
        out.copy_(sample(probs, mix(add(words_of(seq_seeds), number ^ moved, GOLDEN))))

    return random_sampling
