"""Temperature, top-p, top-k, log-softmax and (rejection) sampling, after ``tilelang_ops.asc.fused_sample``."""

from __future__ import annotations

from typing import Any

import torch

from ._inverse_cdf import sample
from ._splitmix import GOLDEN, add, add_constant, flipped, mix, shift_right, streams, words_of
from ._threshold import keep_mask

DRAFT_PROB_PENALTY = 5e-5
_FIXED_POINT = float(1 << 31)
_LARGEST_FIXED = float((1 << 31) - (1 << 7))  # the largest fp32 that an int32 holds


# A stream and what spreads it: of a token, of a token from the residual, and the stream of an acceptance test.
_TOKEN = streams((0, 0), (0, 13))
_TOKEN_OR_TEST = streams((0, 0), (0, 13), (1, 0), (1, 13), (2, 0))


def _unit_interval(draw: torch.Tensor) -> torch.Tensor:
    """The top 53 bits of each draw, words [n, 2], as a fraction of 1, rounded to fp32."""
    low, high = draw.unbind(1)
    upper = shift_right(high, 8).to(torch.float32)
    lower = (((high & 0xFF) << 21) | shift_right(low, 11)).to(torch.float32)
    return torch.add(upper.mul_(2.0**-24), lower, alpha=2.0**-53)


def _draw(seeds: torch.Tensor, seed_offset: int, positions: torch.Tensor) -> torch.Tensor:
    """Random bits of a token: words [n, 2]."""
    number, moved = _TOKEN.of(flipped(positions)).view(-1, 2, 2).unbind(1)
    return mix(add(words_of(seeds), number ^ moved, GOLDEN + seed_offset))


def _draw_and_test(
    seeds: torch.Tensor, seed_offset: int, positions: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random bits of the token, of the residual where ``residual`` ([n] bool) says so, and of the acceptance test."""
    seed = words_of(seeds)
    if seed_offset:
        seed = add_constant(seed, seed_offset)
    numbers = _TOKEN_OR_TEST.of(flipped(positions)).view(-1, 5, 2)
    number, moved = torch.where(residual.view(-1, 1, 1), numbers[:, 2:4], numbers[:, :2]).unbind(1)
    right = number ^ moved
    left = torch.cat((seed, seed ^ numbers[:, 4]))
    n = positions.shape[0]
    draws = mix(add(left, torch.constant_pad_nd(right, (0, 0, 0, n)), GOLDEN))
    return draws[:n], draws[n:]


def fused_sample_tl(vocab_size: int, do_sample: bool, do_reject_sampling: bool) -> Any:
    """Factory of the sampler: log-probabilities always, tokens with ``do_sample``, verification with ``do_reject_sampling``."""
    assert do_sample or not do_reject_sampling, "rejection sampling needs do_sample"
    assert vocab_size > 0 and vocab_size % 64 == 0, f"expected a positive multiple of 64, got {vocab_size}"

    def fused_sample(
        logits: torch.Tensor,
        temperatures: torch.Tensor,
        top_p: torch.Tensor,
        top_k: torch.Tensor,
        sample_positions: torch.Tensor | None,
        seq_seeds: torch.Tensor | None,
        is_verify: torch.Tensor | None,
        logprobs: torch.Tensor,
        candidate_token_ids: torch.Tensor | None,
        last_nextn_token_logprobs: torch.Tensor,
        mtp_info_read_rows: torch.Tensor | None,
        last_next_n_token_ids: torch.Tensor,
        accept_result_verify: torch.Tensor | None,
        draft_selected_logprobs: torch.Tensor | None,
        accept_probs: torch.Tensor | None,
        seed_offset: int,
        lse_workspace: torch.Tensor,
    ) -> None:
        """``logits``: [q, vocab_size] fp32, strided rows; per row [q]: fp32, fp32, int32, int32, uint64, bool.

        The draft's [pool_rows, vocab_size] log-probabilities and [pool_rows] int32 tokens are read at the rows
        ``mtp_info_read_rows`` [q]. Written: ``logprobs`` [q, vocab_size] fp32; with sampling ``candidate_token_ids`` [q]
        int32; with rejection sampling ``accept_result_verify`` bool, ``draft_selected_logprobs`` and ``accept_probs``
        fp32, [q] each. Logits with NaN, +inf or a row of -inf only give unspecified results.
        """
        total_q = logits.shape[0]
        assert (
            logits.shape == logprobs.shape == (total_q, vocab_size)
        ), f"{logits.shape=} {logprobs.shape=} {vocab_size=}"

        scaled = torch.sub(logits, logits.amax(1, keepdim=True)).mul_((1.0 / temperatures).unsqueeze(1))
        probs = scaled.exp()
        total = probs.sum(1, keepdim=True)
        probs.div_(total)
        keep = keep_mask(probs, top_p, top_k)
        # Where a row keeps everything its mass is 1 by definition, not by summation.
        kept_mass = probs.mul_(keep).sum(1, keepdim=True).masked_fill_(keep.amin(1, keepdim=True) > 0, 1.0)
        scaled.sub_(total.log()).sub_(kept_mass.log()).add_(keep.log_())
        logprobs.copy_(scaled)
        if not do_sample:
            return

        assert sample_positions is not None and seq_seeds is not None and candidate_token_ids is not None
        weights = torch.exp(scaled, out=probs)
        if not do_reject_sampling:
            candidate_token_ids.copy_(sample(weights, _draw(seq_seeds, seed_offset, sample_positions)))
            return

        assert is_verify is not None and mtp_info_read_rows is not None
        assert accept_result_verify is not None and draft_selected_logprobs is not None and accept_probs is not None
        fresh = ~is_verify
        row = torch.arange(total_q, dtype=torch.int32, device=logits.device)
        draft_id = last_next_n_token_ids.index_select(0, mtp_info_read_rows)
        safe_id = draft_id.clamp(min=0)
        no_draft = draft_id < 0
        draft_logprob = last_nextn_token_logprobs[mtp_info_read_rows, safe_id]
        draft_selected_logprobs.copy_(draft_logprob.masked_fill(no_draft, -torch.inf))

        # Fresh rows subtract nothing, whatever the draft pool holds for them.
        draft = last_nextn_token_logprobs.index_select(0, mtp_info_read_rows).sub_(DRAFT_PROB_PENALTY)
        weights.sub_(draft.masked_fill_(fresh.unsqueeze(1), -torch.inf).exp_()).clamp_(min=0.0)
        coarse = (
            torch.mul(weights, _FIXED_POINT, out=draft)
            .clamp_(max=_LARGEST_FIXED)
            .to(torch.int32)
            .sum(1, dtype=torch.float32)
        )
        accept_probs.copy_((1.0 - coarse * (1.0 / _FIXED_POINT)).clamp_(min=0.0).masked_fill_(fresh, 1.0))

        draw, test = _draw_and_test(seq_seeds, seed_offset, sample_positions, is_verify)
        ratio = (scaled[row, safe_id] - draft_logprob).clamp_(max=0.0).exp_()
        accepted = (ratio > _unit_interval(test)) & ~no_draft
        accept_result_verify.copy_(accepted | fresh)

        # A residual that vanishes in 31-bit fixed point gives the first most likely token instead of a draw.
        column = torch.arange(vocab_size, dtype=torch.int32, device=logits.device)
        best = torch.where(scaled == scaled.amax(1, keepdim=True), column, vocab_size).amin(1)
        token = torch.where((coarse == 0) & is_verify, best, sample(weights, draw))
        candidate_token_ids.copy_(torch.where(accepted & is_verify, draft_id, token))

    return fused_sample
