"""Compression of KV windows and the state ring behind it, after ``tilelang_ops.asc.compress``.

A window of ``COMPRESS_RATIO`` positions becomes one row: ``latent`` weighted by the softmax of ``score`` over the window, for each
channel. The ring keeps the last positions of a sequence: ``state_cache[slot, position % size]`` is (score, latent).
"""

from __future__ import annotations

from typing import Any

import torch

from ._cache_rows import scatter_rows
from ._ring import offset_in_block
from ._segments import count_at_or_before


def compress_and_update_state_prefill_tl(DIM: int, COMPRESS_RATIO: int, HAS_INDEX: bool) -> Any:
    """Factory of the prefill kernel: ``DIM`` channels (a multiple of 64), windows of 1 or 2 positions.

    ``HAS_INDEX``: tokens lie permuted in ``score`` and ``latent``.
    """
    assert COMPRESS_RATIO in (1, 2), f"expected a ratio of 1 or 2, got {COMPRESS_RATIO}"
    assert DIM % 64 == 0, f"expected whole 64s of channels, got {DIM}"

    def compress_and_update_state_prefill(
        score: torch.Tensor,
        latent: torch.Tensor,
        state_cache: torch.Tensor,
        state_block_idx: torch.Tensor,
        compressed_batch_mapping: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        cu_compressed_seqlens_q: torch.Tensor,
        mirror_cp_reverse_index: torch.Tensor | None,
        kv_compressed: torch.Tensor,
    ) -> None:
        """``score``, ``latent``: fp32 [tokens, DIM], rows strided. All indices int32.

        ``state_block_idx``: [seqs]; ``cu_seqlens_q``, ``cu_seqlens_k``, ``cu_compressed_seqlens_q``: [seqs + 1];
        ``compressed_batch_mapping``: [rows], the sequence of each output row; ``mirror_cp_reverse_index``: [tokens of all
        sequences], with ``HAS_INDEX``. Written: ``kv_compressed`` bf16 [rows, DIM], zero where a sequence reserved a row and
        ends no window; ``state_cache`` fp32 [slots, size, 2, DIM], the last ``size`` tokens of each sequence.
        """
        assert score.shape[1] == latent.shape[1] == DIM and state_cache.shape[2:] == (
            2,
            DIM,
        ), f"{score.shape} {state_cache.shape}"
        tokens = mirror_cp_reverse_index.shape[0] if mirror_cp_reverse_index is not None else score.shape[0]
        if tokens == 0 or state_block_idx.shape[0] == 0:
            kv_compressed.zero_()
            return
        first_token = cu_seqlens_q[:-1]
        length = cu_seqlens_q[1:] - first_token
        start = cu_seqlens_k[1:] - cu_seqlens_k[:-1] - length

        def select(token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            token = token.clamp_(0, tokens - 1)
            if mirror_cp_reverse_index is not None:
                token = mirror_cp_reverse_index.index_select(0, token)
            return score.index_select(0, token), latent.index_select(0, token)

        # Windows first: they read the ring as the previous chunk left it. A window may begin before the chunk, by `before`.
        before, size = start % COMPRESS_RATIO, state_cache.shape[1]
        windows = (length + before) // COMPRESS_RATIO
        sequences = torch.stack(
            (first_token - before, windows, before, cu_compressed_seqlens_q[:-1], state_block_idx, (start - 1) % size)
        )
        first, windows, before, first_row, slot, cell = sequences.index_select(1, compressed_batch_mapping).unbind(0)
        window = torch.arange(kv_compressed.shape[0], dtype=torch.int32, device=score.device) - first_row
        begin = window * COMPRESS_RATIO
        early_score, early = select(first + begin)
        if COMPRESS_RATIO == 2:
            late_score, late = select(first + begin + 1)
            held, in_ring = state_cache[slot, cell], (begin < before).unsqueeze(1)
            early_score = torch.where(in_ring, held[:, 0], early_score)
            early = weigh(early_score, torch.where(in_ring, held[:, 1], early), late_score, late)
        none = ((window < 0) | (window >= windows)).unsqueeze(1)
        kv_compressed.copy_(early.masked_fill_(none, 0))

        ring = state_cache.flatten(2)
        if tokens <= state_block_idx.shape[0] * size:
            # Fewer tokens than the sequences' rings hold: a row a token, those that later ones overwrite left out.
            owner = count_at_or_before(cu_seqlens_q[1:], tokens).clamp_(max=state_block_idx.shape[0] - 1)
            table = torch.stack((cu_seqlens_q[1:], start - first_token, state_block_idx)).index_select(1, owner)
            end, shift, slot = table.unbind(0)
            token = torch.arange(tokens, dtype=torch.int32, device=score.device)
            rows = torch.cat((score, latent), dim=1)
            if mirror_cp_reverse_index is not None:
                rows = rows.index_select(0, mirror_cp_reverse_index)
            left = end - token
            slots = torch.add((token + shift) % size, slot, alpha=size)
            scatter_rows((ring,), rows, slots.masked_fill_((left < 1) | (left > size), -1))
            return
        age = torch.arange(size, dtype=torch.int32, device=score.device)
        place = (length - 1).unsqueeze(1) - age
        slots = state_block_idx.unsqueeze(1) * size + (place + start.unsqueeze(1)) % size
        rows = torch.cat(select((place + first_token.unsqueeze(1)).flatten()), dim=1)
        scatter_rows((ring,), rows, slots.masked_fill_(place < 0, -1).flatten())

    return compress_and_update_state_prefill


def compress_and_update_state_decode_tl(DIM: int, COMPRESS_RATIO: int) -> Any:
    """Factory of the decode kernel: ``DIM`` channels (a multiple of 64), windows of 1 or 2 positions."""
    assert COMPRESS_RATIO in (1, 2), f"expected a ratio of 1 or 2, got {COMPRESS_RATIO}"
    assert DIM % 64 == 0, f"expected whole 64s of channels, got {DIM}"

    def compress_and_update_state_decode(
        score: torch.Tensor,
        latent: torch.Tensor,
        state_cache: torch.Tensor,
        state_block_idx: torch.Tensor,
        context_lens: torch.Tensor,
        kv_compressed: torch.Tensor,
    ) -> None:
        """``score``, ``latent``: fp32 [n, DIM], rows strided. ``state_block_idx``, ``context_lens``: int32 [n].

        A token's position is its context length less one; tokens of one slot are distinct in the ring. Written: ``state_cache``
        fp32 [slots, size, 2, DIM], all tokens; then ``kv_compressed`` bf16 [n, DIM], zero where no window ends.
        """
        assert score.shape[1] == latent.shape[1] == DIM and state_cache.shape[2:] == (
            2,
            DIM,
        ), f"{score.shape} {state_cache.shape}"
        ring, size = state_cache.flatten(2), state_cache.shape[1]
        ring.index_put_((state_block_idx, offset_in_block(context_lens - 1, size)), torch.cat((score, latent), dim=1))
        if COMPRESS_RATIO == 1:
            kv_compressed.copy_(latent)
            return
        early_score, early = ring[state_block_idx, offset_in_block(context_lens - 2, size)].split(DIM, dim=1)
        none = offset_in_block(context_lens, 2).to(torch.bool).unsqueeze(1)
        kv_compressed.copy_(weigh(early_score, early, score, latent).masked_fill_(none, 0))

    return compress_and_update_state_decode


def weigh(early_score: torch.Tensor, early: torch.Tensor, late_score: torch.Tensor, late: torch.Tensor) -> torch.Tensor:
    """Mean of two rows weighted by the softmax of their scores: the late one's share is a sigmoid of the difference."""
    return torch.lerp(early, late, torch.sigmoid(late_score - early_score))
