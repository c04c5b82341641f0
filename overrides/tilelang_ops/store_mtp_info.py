"""Storage of draft results in per-slot pools, after ``tilelang_ops.asc.store_mtp_info``."""

from __future__ import annotations

from typing import Any

import torch


def store_mtp_info_tl(nextn: int, vocab_size: int, has_index: bool, has_confidence: bool) -> Any:
    """Factory of the write of ``nextn`` rows a request at its slot; slot 0 holds padding and stays as it is."""
    assert nextn > 0 and vocab_size > 0, f"{nextn=} {vocab_size=}"

    def _store(pool: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
        # Requests without a slot write to slot 0 too, whose rows are then put back.
        padding = pool[:nextn].clone()
        pool.index_put_((rows,), values.reshape(-1, *pool.shape[1:]))
        pool[:nextn].copy_(padding)

    def store_mtp_info(
        write_slots: torch.Tensor,
        token_ids: torch.Tensor,
        logprobs: torch.Tensor,
        logprobs_index: torch.Tensor | None,
        confidence: torch.Tensor | None,
        token_ids_pool: torch.Tensor,
        logprobs_pool: torch.Tensor,
        logprobs_index_pool: torch.Tensor | None,
        confidence_pool: torch.Tensor | None,
    ) -> None:
        """``write_slots``: [r] int32, each slot but 0 once; per request [r, nextn]: int32, fp32, and [r, nextn, vocab_size].

        Written: the pools [slots * nextn] and [slots * nextn, vocab_size]; those of the index and the confidence only
        with their flag.
        """
        assert (
            token_ids.shape == (write_slots.shape[0], nextn) and logprobs_pool.shape[1] == vocab_size
        ), f"{token_ids.shape=}"
        step = torch.arange(nextn, dtype=torch.int32, device=write_slots.device)
        rows = torch.add(step, write_slots.unsqueeze(1), alpha=nextn).view(-1)
        _store(token_ids_pool, rows, token_ids)
        _store(logprobs_pool, rows, logprobs)
        if has_index:
            assert logprobs_index is not None and logprobs_index_pool is not None
            _store(logprobs_index_pool, rows, logprobs_index)
        if has_confidence:
            assert confidence is not None and confidence_pool is not None
            _store(confidence_pool, rows, confidence)

    return store_mtp_info
