"""Per-request inputs of the draft graph, after ``tilelang_ops.asc.dflash_copy``."""

from __future__ import annotations

from typing import Any

import torch


def _fill(target: torch.Tensor | None, source: torch.Tensor | None, padding: torch.Tensor | None) -> None:
    assert target is not None and source is not None and padding is not None
    live = source.shape[0]
    tail = min(padding.shape[0], target.shape[0] - live)
    assert tail >= 0, f"{live} live requests exceed {target.shape[0]} places"
    if target.itemsize == 8:
        # Wide numbers move as pairs of words.
        live, tail = 2 * live, 2 * tail
        target, source, padding = target.view(torch.int32), source.view(torch.int32), padding.view(torch.int32)
    target[:live].copy_(source)
    target[live : live + tail].copy_(padding[:tail])


def copy_dflash_decode_input_tl(has_driver_inputs: bool) -> Any:
    """Factory of the fill of each ``dst`` tensor with ``src`` and behind it the beginning of ``padding``.

    Without ``has_driver_inputs`` only the first token positions are copied, and the others may be None.
    """

    def copy_dflash_decode_input(
        src_first_token_positions: torch.Tensor,
        src_last_valid_offset: torch.Tensor | None,
        src_golden_tokens: torch.Tensor | None,
        src_sample_positions: torch.Tensor | None,
        src_temperatures: torch.Tensor | None,
        src_top_ps: torch.Tensor | None,
        src_top_ks: torch.Tensor | None,
        src_seq_seeds: torch.Tensor | None,
        src_mtp_info_write_slots: torch.Tensor | None,
        padding_first_token_positions: torch.Tensor,
        padding_last_valid_offset: torch.Tensor | None,
        padding_golden_tokens: torch.Tensor | None,
        padding_sample_positions: torch.Tensor | None,
        padding_temperatures: torch.Tensor | None,
        padding_top_ps: torch.Tensor | None,
        padding_top_ks: torch.Tensor | None,
        padding_seq_seeds: torch.Tensor | None,
        padding_mtp_info_write_slots: torch.Tensor | None,
        dst_first_token_positions: torch.Tensor,
        dst_last_valid_offset: torch.Tensor | None,
        dst_golden_tokens: torch.Tensor | None,
        dst_sample_positions: torch.Tensor | None,
        dst_temperatures: torch.Tensor | None,
        dst_top_ps: torch.Tensor | None,
        dst_top_ks: torch.Tensor | None,
        dst_seq_seeds: torch.Tensor | None,
        dst_mtp_info_write_slots: torch.Tensor | None,
    ) -> None:
        """Each [requests]: int32, but fp32 temperatures and top-ps and uint64 seeds. Written: the ``dst_*`` tensors."""
        _fill(dst_first_token_positions, src_first_token_positions, padding_first_token_positions)
        if not has_driver_inputs:
            return
        _fill(dst_last_valid_offset, src_last_valid_offset, padding_last_valid_offset)
        _fill(dst_golden_tokens, src_golden_tokens, padding_golden_tokens)
        _fill(dst_sample_positions, src_sample_positions, padding_sample_positions)
        _fill(dst_temperatures, src_temperatures, padding_temperatures)
        _fill(dst_top_ps, src_top_ps, padding_top_ps)
        _fill(dst_top_ks, src_top_ks, padding_top_ks)
        _fill(dst_seq_seeds, src_seq_seeds, padding_seq_seeds)
        _fill(dst_mtp_info_write_slots, src_mtp_info_write_slots, padding_mtp_info_write_slots)

    return copy_dflash_decode_input
