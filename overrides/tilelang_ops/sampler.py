"""Rows, parameters and results of speculative sampling, after ``tilelang_ops.asc.sampler``."""

from __future__ import annotations

from typing import Any, Literal

import torch

from ._constants import Constant
from ._segments import count_at_or_before

DRAFT_POS_HASH_MUL = 10000019
_MAX_DRAFT_TOPK = 4096


def prepare_verification_metadata_tl(num_steps: int) -> Any:
    """Factory of the request, the step and the role of each packed row; at most ``num_steps + 1`` rows a request."""
    assert num_steps >= 0, f"expected num_steps of at least 0, got {num_steps}"

    def prepare_verification_metadata(
        ftp: torch.Tensor,
        seqlen_q: torch.Tensor,
        row_to_req: torch.Tensor,
        local_step: torch.Tensor,
        is_verify: torch.Tensor,
    ) -> None:
        """``ftp``, ``seqlen_q``: [req_cnt] int32, first row and number of rows of each request, packed in order.

        Written: ``row_to_req``, ``local_step`` [total_q] int32, ``is_verify`` [total_q] bool (not a request's last row).
        """
        total_q = row_to_req.shape[0]
        row = torch.arange(total_q, dtype=torch.int32, device=ftp.device)
        if num_steps == 0 and total_q == ftp.shape[0]:
            row_to_req.copy_(row)
            local_step.zero_()
            is_verify.zero_()
            return
        # The first request begins at row 0, so its start is not counted.
        row_to_req.copy_(count_at_or_before(ftp[1:], total_q))
        torch.sub(row, ftp.index_select(0, row_to_req), out=local_step)
        torch.lt(local_step, (seqlen_q - 1).index_select(0, row_to_req), out=is_verify)

    return prepare_verification_metadata


def expand_sampling_params_tl() -> Any:
    """Factory of the copy of each request's sampling parameters to its packed rows."""

    def expand_sampling_params(
        temperatures: torch.Tensor,
        top_ps: torch.Tensor,
        top_ks: torch.Tensor,
        sample_positions: torch.Tensor,
        seq_seeds: torch.Tensor,
        row_to_req: torch.Tensor,
        local_step: torch.Tensor,
        temperatures_q: torch.Tensor,
        top_ps_q: torch.Tensor,
        top_ks_q: torch.Tensor,
        sample_positions_q: torch.Tensor,
        seq_seeds_q: torch.Tensor,
    ) -> None:
        """Per request [req_cnt]: fp32, fp32, int32, int32, uint64; ``row_to_req``, ``local_step``: [total_q] int32.

        Written: the ``*_q`` tensors [total_q]. A row's position moves by ``local_step * DRAFT_POS_HASH_MUL``, in int32.
        """
        torch.index_select(temperatures, 0, row_to_req, out=temperatures_q)
        torch.index_select(top_ps, 0, row_to_req, out=top_ps_q)
        torch.index_select(top_ks, 0, row_to_req, out=top_ks_q)
        torch.add(
            sample_positions.index_select(0, row_to_req), local_step, alpha=DRAFT_POS_HASH_MUL, out=sample_positions_q
        )
        # Seeds move as pairs of 32-bit words.
        torch.index_select(
            seq_seeds.view(torch.int32).view(-1, 2), 0, row_to_req, out=seq_seeds_q.view(torch.int32).view(-1, 2)
        )

    return expand_sampling_params


def map_lookup_tl(
    force_topk: int, mode: Literal["by_key", "by_index"] = "by_key", value_dtype: torch.dtype = torch.float32
) -> Any:
    """Factory of the lookup of one value a row, by matching key or by column index."""
    assert mode in ("by_key", "by_index"), f"expected mode by_key or by_index, got {mode!r}"
    assert mode != "by_key" or value_dtype.is_floating_point, f"by_key needs floating-point values, got {value_dtype}"
    assert force_topk > 0 and force_topk % 64 == 0, f"expected a positive multiple of 64, got {force_topk}"
    missing = -torch.inf if value_dtype.is_floating_point else -1

    def map_lookup(key: torch.Tensor | None, value: torch.Tensor, query: torch.Tensor, out: torch.Tensor) -> None:
        """``key``: [q, force_topk] int32 or None; ``value``: [q, force_topk]; ``query``: [q, 1] int32; strided rows.

        Written: ``out`` [q, 1] ``value_dtype``; -inf (-1 for integers) where the key or the column is not there.
        """
        assert (
            value.shape == (query.shape[0], force_topk) and value.dtype == value_dtype
        ), f"{value.shape=} {value.dtype=}"
        if mode == "by_key":
            assert key is not None
            out.copy_(value.masked_fill(key != query, missing).amax(1, keepdim=True))
            return
        rows, stride = query.shape[0], value.stride(0)
        if rows == 0:
            return
        # The rows as one, whatever lies between them.
        cells = value.as_strided(((rows - 1) * stride + force_topk,), (1,))
        assert cells.shape[0] < 1 << 31, f"{rows} rows {stride} elements apart exceed an int32 index"
        column = query.clamp(0, force_topk - 1)
        row = torch.arange(rows, dtype=torch.int32, device=query.device).unsqueeze(1)
        place = torch.add(column, row, alpha=stride).view(-1)
        out.copy_(cells.index_select(0, place).unsqueeze(1).masked_fill_(column != query, missing))

    return map_lookup


def remap_draft_topk_tl(force_topk: int, vocab_size: int) -> Any:
    """Factory of the draft's log-probabilities in the order of the target's top-k tokens."""
    assert (
        0 < force_topk <= _MAX_DRAFT_TOPK and force_topk % 64 == 0
    ), f"expected a multiple of 64 up to 4096, got {force_topk}"
    nothing = Constant([-torch.inf], torch.float32)

    def remap_draft_topk(
        draft_topk_index: torch.Tensor,
        draft_topk_logprobs: torch.Tensor,
        draft_token_ids_pool: torch.Tensor,
        target_topk_index: torch.Tensor,
        read_rows: torch.Tensor,
        aligned_logprobs: torch.Tensor,
        draft_local_ids: torch.Tensor,
        identity_rows: torch.Tensor,
    ) -> None:
        """``draft_topk_*``: [pool_rows, force_topk] int32 and fp32; ``draft_token_ids_pool``: [pool_rows] int32.

        ``target_topk_index``: [q, force_topk] int32, strided rows; ``read_rows``: [q] int32, pool row of each row.
        Written: ``aligned_logprobs`` [q, force_topk] fp32 (-inf where the draft lacks the token), ``draft_local_ids``
        [q] int32 (the draft token's column, or -1) and ``identity_rows`` [q] int32.
        """
        total_q = target_topk_index.shape[0]
        assert total_q * (vocab_size + 2) < 1 << 31, f"{total_q} rows of {vocab_size} tokens exceed an int32 index"
        assert target_topk_index.shape[1] == force_topk and aligned_logprobs.shape == (
            total_q,
            force_topk,
        ), f"{target_topk_index.shape=}"
        device = target_topk_index.device
        torch.arange(total_q, dtype=torch.int32, device=device, out=identity_rows)
        # One dense row a query, of which only the cells are touched that a token of the draft or of the target names: the
        # target's are emptied, the draft's are written, the target's are read. The draft's tokens outside of the vocabulary
        # have a cell at either end.
        width = vocab_size + 2
        cells = torch.empty(total_q * width, dtype=torch.float32, device=device)
        cell = torch.arange(1, total_q * width + 1, width, dtype=torch.int32, device=device).unsqueeze(1)
        wanted = target_topk_index.clamp(0, vocab_size - 1)
        outside = wanted != target_topk_index
        wanted = wanted.add_(cell).view(-1)
        known = draft_topk_index.index_select(0, read_rows).clamp_(-1, vocab_size).add_(cell).view(-1)
        cells.index_put_((wanted,), nothing.beside(cells))
        cells.index_put_((known,), draft_topk_logprobs.index_select(0, read_rows).view(-1))
        found = cells.index_select(0, wanted).view(total_q, force_topk)
        aligned_logprobs.copy_(found.masked_fill_(outside, -torch.inf))

        # Columns count from 1, so that none found, one behind the last, is 0 modulo their number and one.
        column = torch.arange(1, force_topk + 1, dtype=torch.int32, device=device)
        chosen = draft_token_ids_pool.index_select(0, read_rows).unsqueeze(1)
        local = column.masked_fill(target_topk_index != chosen, force_topk + 1).amin(1)
        torch.sub(local.remainder_(force_topk + 1), 1, out=draft_local_ids)

    return remap_draft_topk


def get_accept_result_tl(has_golden: bool) -> Any:
    """Factory of prefix acceptance: a row counts only while every earlier row of its request was accepted."""

    def get_accept_result(
        raw_accept: torch.Tensor,
        golden: torch.Tensor,
        draft_token_ids_pool: torch.Tensor,
        read_rows: torch.Tensor,
        candidate_token_ids: torch.Tensor,
        is_verify: torch.Tensor,
        ftp: torch.Tensor,
        row_to_req: torch.Tensor,
        token_ids_out: torch.Tensor,
        accept_out: torch.Tensor,
        is_final_out: torch.Tensor,
    ) -> None:
        """Per row [q]: ``raw_accept``, ``is_verify`` bool, the others int32; ``golden`` (-1: none) only with ``has_golden``.

        Written, per row: ``token_ids_out`` int32, ``accept_out`` and ``is_final_out`` (first row not accepted) bool.
        """
        accept, token = raw_accept, candidate_token_ids
        if has_golden:
            forced = golden != -1
            accept = torch.where(forced, golden == draft_token_ids_pool.index_select(0, read_rows), accept)
            token = torch.where(forced, golden, token)
        token_ids_out.copy_(token)
        stops = ~(is_verify & accept)
        before = torch.add(stops.cumsum(0, dtype=torch.int32), stops, alpha=-1)
        alive = before == before.index_select(0, ftp.index_select(0, row_to_req))
        torch.logical_and(alive, ~stops, out=accept_out)
        torch.logical_and(alive, stops, out=is_final_out)

    return get_accept_result


def finalize_verification_tl(
    has_sum_smaller_probs: bool, has_confidence: bool, num_steps: int, num_stop_tokens: int
) -> Any:
    """Factory of the results of a verification: one sampled payload a request, accepted payloads a row, counters a step."""
    assert num_steps > 0, f"expected num_steps of at least 1, got {num_steps}"

    def finalize_verification(
        effective_accept: torch.Tensor,
        is_final_input: torch.Tensor,
        effective_token_ids: torch.Tensor,
        token_logprobs: torch.Tensor,
        sum_smaller_probs: torch.Tensor,
        top_logprobs: torch.Tensor,
        top_token_ids: torch.Tensor,
        ftp: torch.Tensor,
        seqlen_q: torch.Tensor,
        row_to_req: torch.Tensor,
        is_verify: torch.Tensor,
        accept_probs: torch.Tensor,
        confidence_pool: torch.Tensor,
        mtp_info_read_rows: torch.Tensor,
        stop_token_ids: torch.Tensor,
        last_valid_offset: torch.Tensor,
        num_generated_tokens: torch.Tensor,
        num_verified_tokens: torch.Tensor,
        batch_confidence_error: torch.Tensor,
        emitted_stop_token: torch.Tensor,
        sampled_token_ids: torch.Tensor,
        sampled_token_logprobs: torch.Tensor,
        sampled_sum_smaller_probs: torch.Tensor,
        sampled_top_logprobs: torch.Tensor,
        sampled_top_token_ids: torch.Tensor,
        verified_token_ids: torch.Tensor,
        verified_token_logprobs: torch.Tensor,
        verified_sum_smaller_probs: torch.Tensor,
        verified_top_logprobs: torch.Tensor,
        verified_top_token_ids: torch.Tensor,
    ) -> None:
        """Per row [q] (top-k ones [q, k]) up to ``top_token_ids`` and from ``row_to_req`` on; ``ftp``, ``seqlen_q``: [req_cnt].

        Written: everything from ``last_valid_offset`` on; per request, per step [num_steps], scalar [1], per row. The
        ``*_sum_smaller_probs`` and ``emitted_stop_token`` outputs only with their flag. Each request has one final row.
        """
        total_q = effective_accept.shape[0]
        req_cnt = ftp.shape[0]
        device = ftp.device
        row = torch.arange(total_q, dtype=torch.int32, device=device)
        # Rows that are not final write to a spare place behind the last request.
        final_row = torch.zeros(req_cnt + 1, dtype=torch.int32, device=device)
        final_row.index_put_((row_to_req.masked_fill(~is_final_input, req_cnt),), row)
        final_row = final_row[:req_cnt]
        torch.sub(final_row, ftp, out=last_valid_offset)

        step = row - ftp.index_select(0, row_to_req)
        steps = torch.arange(num_steps, dtype=torch.int32, device=device).unsqueeze(1)
        torch.sum((step == steps) & effective_accept, 1, dtype=torch.int32, out=num_generated_tokens)
        torch.sum((step.clamp(max=num_steps - 1) == steps) & is_verify, 1, dtype=torch.int32, out=num_verified_tokens)

        if has_confidence:
            error = (
                (accept_probs - confidence_pool.index_select(0, mtp_info_read_rows))
                .abs_()
                .masked_fill_(~is_verify, 0.0)
            )
            torch.sum(error, 0, keepdim=True, out=batch_confidence_error)
            hit = (effective_token_ids.unsqueeze(1) == stop_token_ids.index_select(0, row_to_req)).any(1)
            hit = hit & (effective_accept | is_final_input)
            emitted = torch.zeros(req_cnt + 1, dtype=torch.bool, device=device)
            emitted.index_put_((row_to_req.masked_fill(~hit, req_cnt),), hit)
            emitted_stop_token.copy_(emitted[:req_cnt])
        else:
            batch_confidence_error.zero_()

        torch.index_select(effective_token_ids, 0, final_row, out=sampled_token_ids)
        torch.index_select(token_logprobs, 0, final_row, out=sampled_token_logprobs)
        torch.index_select(top_logprobs, 0, final_row, out=sampled_top_logprobs)
        torch.index_select(top_token_ids, 0, final_row, out=sampled_top_token_ids)
        dropped = ~effective_accept
        verified_token_ids.copy_(effective_token_ids.masked_fill(dropped, -1))
        verified_token_logprobs.copy_(token_logprobs.masked_fill(dropped, 0.0))
        # Wide rows keep their bits or lose them all.
        bits = effective_accept.to(torch.int32).neg_().unsqueeze(1)
        verified_top_logprobs.copy_((top_logprobs.view(torch.int32) & bits).view(torch.float32))
        verified_top_token_ids.copy_(top_token_ids & bits)
        if has_sum_smaller_probs:
            torch.index_select(sum_smaller_probs, 0, final_row, out=sampled_sum_smaller_probs)
            verified_sum_smaller_probs.copy_(sum_smaller_probs.masked_fill(dropped, 0.0))

    return finalize_verification
