"""Expert parallelism: tokens to the ranks of their experts and back, after ``deep_ep.buffers.ep``.

Every pair of ranks has the same number of slots, so that equal-split collectives serve gloo and the device alike:

- without a CPU sync the slots are ``num_max_tokens_per_rank``, slot t of every rank is token t, and all shapes are fixed: what goes
  out is gathered, being the same for all, what comes back is exchanged;
- with one, ranks agree on the largest number of tokens between any two, and slots hold only the tokens that are sent.

Received tokens are ordered by source rank and token, in each expert's part of the expanded layout too: a run repeats bit for bit.
One rank exchanges nothing, and needs no process group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .._C import EventHandle, get_num_allocation_alignment, get_num_rdma_alignment, get_num_tma_alignment
from ..comm.barrier import barrier
from ..comm.handle import get_logical_domain_size, get_physical_domain_size
from ..utils.event import EventOverlap
from ..utils.math import align, ceil_div
from ..utils.semantic import value_or
from .base import BufferBase, _Runtime

# Bytes of a scale pack in upstream's size formula, and those that a column of received scales is padded to.
_SF_PACK_BYTES = 4
_SF_COLUMN_BYTES = 16
_MIN_SMS = 4


@dataclass(frozen=True)
class _Route:
    """Where tokens go and where they come back from. T tokens here, K choices a token, P = ranks * slots.

    ``outgoing``: int32 [P, 1], the token sent in each slot; None where slot t of every rank is token t.
    ``owner``, ``place``: int32 [T, K], the rank of each choice and the token's slot there; ``live``: bool [T, K], a choice at all.
    ``own``: int32 [P, K], the local expert of each choice in a slot, or any number where ``outside``, bool [P, K].
    Plain only: ``received``: int32 [n], the slot of each received token; ``position``: int32 [P], the inverse, within [0, n).
    Expanded only: ``rows``: int32 [P, K], the expanded row of each choice, past the last one where outside.
    """

    slots: int
    outgoing: torch.Tensor | None
    owner: torch.Tensor
    place: torch.Tensor
    live: torch.Tensor
    own: torch.Tensor
    outside: torch.Tensor
    received: torch.Tensor | None
    position: torch.Tensor | None
    rows: torch.Tensor | None


class _Outgoing(NamedTuple):
    """The sender's part of a route. ``used``: int32 [P, 1], 1 for a slot that holds a token, None where ``tokens`` is."""

    slots: int
    tokens: torch.Tensor | None
    used: torch.Tensor | None
    owner: torch.Tensor
    place: torch.Tensor
    live: torch.Tensor


class EPHandle:
    """How a dispatch laid out its tokens: for ``combine``, and for a dispatch of other data the same way.

    Attributes:
        do_expand, num_experts, expert_alignment, num_max_tokens_per_rank, num_sms: as given to the dispatch.
        topk_idx: [tokens, topk], as given; must stay as it is while the handle is used.
        psum_num_recv_tokens_per_scaleup_rank: int32 [ranks], tokens received from the ranks up to each.
        psum_num_recv_tokens_per_expert: int32 [local experts]. Counts are rounded up to ``expert_alignment``; their sums up to and
            with each expert, or, expanded, the sums before it plus its own true count.
        num_unaligned_recv_tokens_per_expert: int32 [local experts], the true counts.
        num_recv_tokens_per_expert_list: the rounded counts, empty without a CPU sync.
        recv_src_metadata: int32 [received, 2 + topk]: source rank * num_max_tokens_per_rank + token; source rank * topk + last
            choice here; the choices' expanded rows, -1 for none (expanded only).
        dst_buffer_slot_idx: int32 [tokens, topk], rank * num_max_tokens_per_rank + slot at the last choice on each rank, else -1.
        num_recv_tokens, num_expanded_tokens: rows of the two layouts, upper bounds without a CPU sync.
        token_metadata_at_forward, channel_linked_list: None, they belong to two-level communication.
    """

    def __init__(
        self,
        do_expand: bool,
        num_experts: int,
        expert_alignment: int,
        num_max_tokens_per_rank: int,
        num_sms: int,
        topk_idx: torch.Tensor,
        num_recv_tokens: int,
        num_expanded_tokens: int,
        num_recv_tokens_per_expert_list: list,
        psum_num_recv_tokens_per_scaleup_rank: torch.Tensor,
        psum_num_recv_tokens_per_expert: torch.Tensor,
        num_unaligned_recv_tokens_per_expert: torch.Tensor,
        recv_src_metadata: torch.Tensor,
        dst_buffer_slot_idx: torch.Tensor,
        token_metadata_at_forward: torch.Tensor | None,
        channel_linked_list: torch.Tensor | None,
    ):
        assert topk_idx is not None, "a handle needs its topk_idx"
        self.do_expand = do_expand
        self.num_experts = num_experts
        self.expert_alignment = expert_alignment
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_sms = num_sms
        self.num_recv_tokens = num_recv_tokens
        self.num_expanded_tokens = num_expanded_tokens
        self.num_recv_tokens_per_expert_list = num_recv_tokens_per_expert_list
        self.psum_num_recv_tokens_per_expert = psum_num_recv_tokens_per_expert
        self.num_unaligned_recv_tokens_per_expert = num_unaligned_recv_tokens_per_expert
        self.token_metadata_at_forward = token_metadata_at_forward
        self.channel_linked_list = channel_linked_list
        self.cached_recv_src_metadata_before_sort: torch.Tensor | None = None
        # Tensors, or functions that make them: a step that does not ask for them does not pay for them.
        self._psum_ranks: Any = psum_num_recv_tokens_per_scaleup_rank
        self._metadata: Any = recv_src_metadata
        self._buffer_slots: Any = dst_buffer_slot_idx
        self._topk_idx = topk_idx
        self._version = _version(topk_idx)
        self._route: _Route | None = None

    @property
    def topk_idx(self) -> torch.Tensor:
        """The choices of the dispatch.

        Raises:
            AssertionError: they were written to since.
        """
        assert (
            self._version is None or _version(self._topk_idx) == self._version
        ), "topk_idx was written to while its handle is used"
        return self._topk_idx

    @property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> torch.Tensor:
        """int32 [ranks], tokens received from the ranks up to each."""
        if callable(self._psum_ranks):
            self._psum_ranks = self._psum_ranks()
        made: torch.Tensor = self._psum_ranks
        return made

    @psum_num_recv_tokens_per_scaleup_rank.setter
    def psum_num_recv_tokens_per_scaleup_rank(self, value: torch.Tensor) -> None:
        self._psum_ranks = value

    @property
    def recv_src_metadata(self) -> torch.Tensor:
        """int32 [received, 2 + topk]; see the class."""
        if callable(self._metadata):
            self._metadata = self._metadata()
        made: torch.Tensor = self._metadata
        return made

    @recv_src_metadata.setter
    def recv_src_metadata(self, value: torch.Tensor) -> None:
        self._metadata = value

    @property
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        """int32 [tokens, topk]; see the class."""
        if callable(self._buffer_slots):
            self._buffer_slots = self._buffer_slots()
        made: torch.Tensor = self._buffer_slots
        return made

    @dst_buffer_slot_idx.setter
    def dst_buffer_slot_idx(self, value: torch.Tensor) -> None:
        self._buffer_slots = value

    def deterministic_sort(
        self,
        do_cpu_sync: bool,
        is_cached_dispatch: bool,
        recv_x: torch.Tensor,
        recv_sf: torch.Tensor | None,
        recv_topk_idx: torch.Tensor,
        recv_topk_weights: torch.Tensor,
        channel_linked_list: torch.Tensor | None,
    ) -> None:
        """Nothing to do: what a dispatch receives is in source order already."""
        self.cached_recv_src_metadata_before_sort = self.recv_src_metadata


class EPBuffer(BufferBase):
    """Dispatch and combine over ``group``; None, or a group of one, exchanges nothing.

    Attributes:
        group, rank_idx, num_ranks: the ranks, and this one among them.
        num_bytes: what upstream would allocate for the given sizes; nothing is allocated here.
        num_max_tokens_per_rank: the default of ``dispatch``.
        allow_multiple_reduction: sum an expanded token's rows on their rank, round, and sum the ranks' sums; else send all rows
            and sum them once.
        num_scaleout_ranks, num_scaleup_ranks, scaleout_rank_idx, scaleup_rank_idx, num_rdma_ranks, num_nvlink_ranks: see
            ``deep_ep.comm``.
        deterministic, allow_hybrid_mode, prefer_overlap_with_compute, num_allocated_qps, num_lb_bytes: as given.
    """

    barrier = barrier
    get_physical_domain_size = get_physical_domain_size
    get_logical_domain_size = get_logical_domain_size

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_bytes: int | None = None,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        lb_allocation_plan_or_num_bytes: Any = 0,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int | None = None,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ):
        if lb_allocation_plan_or_num_bytes != 0:
            raise NotImplementedError("EPBuffer, lb_allocation_plan_or_num_bytes: not supported on Neuron (basic mode)")
        super().__init__(explicitly_destroy)
        self._join(group)
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.deterministic = deterministic
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_lb_bytes = 0
        self.num_allocated_qps = num_allocated_qps or (129 if allow_hybrid_mode else 17)
        if num_bytes is None:
            num_bytes = self.get_buffer_size_hint(
                group,
                num_max_tokens_per_rank,
                hidden,
                num_topk,
                use_fp8_dispatch,
                allow_hybrid_mode,
                allow_multiple_reduction,
            )
        assert num_bytes > 0 and num_bytes % get_num_allocation_alignment() == 0, f"{num_bytes=}"
        self.num_bytes = num_bytes
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self.runtime = _Runtime(self.rank_idx, self.num_ranks, num_bytes)

    def destroy(self) -> None:
        """Release the buffer; see ``BufferBase.destroy``."""
        super().destroy()

    @staticmethod
    def get_buffer_size_hint(
        group: dist.ProcessGroup,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes that upstream's one-level buffer takes for these sizes, a multiple of the allocation alignment.

        ``num_topk`` of 0 stands for the most that upstream takes, 32.
        """
        assert num_max_tokens_per_rank > 0 and hidden > 0, f"{num_max_tokens_per_rank=} {hidden=}"
        _, ranks = get_logical_domain_size(group, allow_hybrid_mode)
        sends_apart = get_physical_domain_size(group)[1] != ranks
        choices = num_topk or 32
        sf_bytes = ceil_div(hidden, 32) * _SF_PACK_BYTES if use_fp8_dispatch else 0
        dispatched = _token_bytes(hidden * (1 if use_fp8_dispatch else 2), sf_bytes, choices, with_source=True)
        combined = _token_bytes(hidden * 2, 0, choices, with_source=False)
        dispatch_bytes = dispatched * num_max_tokens_per_rank * (ranks + sends_apart)
        copies = min(ranks, choices) if allow_multiple_reduction else choices
        sent = ranks * (1 if allow_multiple_reduction else choices) if sends_apart else 0
        combine_bytes = combined * num_max_tokens_per_rank * (copies + sent)
        return align(max(dispatch_bytes, combine_bytes), get_num_allocation_alignment())

    @staticmethod
    def capture() -> EventHandle:
        """An event for all work so far."""
        return EventHandle()

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 0,
        sm_write_gbs: float = 0,
    ) -> int:
        """The least that callers may set aside, 4: collectives take no compute cores here, and the count changes nothing."""
        assert num_scaleout_topk == 0, f"{num_scaleout_topk=}"
        return _MIN_SMS

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Queue pairs that upstream would use; they change nothing here."""
        wanted = num_sms * 16 + 1 if self.allow_hybrid_mode else min(num_sms, 9)
        return min(wanted, self.num_allocated_qps)

    def dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = False,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """Send each token once to every rank that holds one of its experts.

        ``x``: [tokens, hidden], bf16 or any dtype of whole 4-byte words a row, or a pair of it and its scales [tokens, packs], any
        strides. ``topk_idx``: [tokens, topk] integers, -1 for no choice, a token's choices distinct. ``topk_weights``: fp32 [tokens, topk].
        ``cumulative_local_expert_recv_stats``: int32 [local experts], the true counts are added to it. ``handle``: repeat its
        layout with other data; then without ``topk_idx`` and without a CPU sync.

        Received rows are one a token, or, with ``do_expand``, one a local choice, grouped by expert with each group's start at a
        multiple of ``expert_alignment``; ``do_zero_padding`` zeroes the rows between, which else hold anything. Without
        ``do_cpu_sync`` there are as many rows as could ever arrive, the received ones first. ``use_tma_aligned_col_major_sf``: scales
        are column-major, columns padded to 16 bytes, else row-major.

        Returns ``recv_x`` like ``x``, ``recv_topk_idx`` (local experts, -1 for others; None if expanded), ``recv_topk_weights``
        ([rows, topk], or [rows] if expanded; None without weights), the handle, and an EventOverlap; with ``defer_epilogue`` the
        EventOverlap alone, whose wait returns the first four.
        """
        assert not do_handle_copy, "do_handle_copy is not supported"
        assert not do_zero_padding or do_expand, "do_zero_padding needs do_expand"
        _start(previous_event, async_with_compute_stream, allocate_on_comm_stream, defer_epilogue)
        data, sf = x if isinstance(x, tuple) else (x, None)
        tokens = data.shape[0]
        columns = [_words(data)]
        if sf is not None:
            assert sf.shape[0] == tokens, f"{sf.shape=} {data.shape=}"
            columns.append(_words(sf))
        if topk_weights is not None:
            assert (
                topk_weights.dtype == torch.float32 and topk_weights.shape[0] == tokens
            ), f"{topk_weights.dtype=} {topk_weights.shape=}"
            columns.append(_words(topk_weights))
        if handle is not None:
            assert topk_idx is None and not do_cpu_sync, "a cached handle brings its topk_idx, and needs no CPU sync"
            num_experts = value_or(num_experts, handle.num_experts)
            expert_alignment = value_or(expert_alignment, handle.expert_alignment)
            num_max_tokens_per_rank = value_or(num_max_tokens_per_rank, handle.num_max_tokens_per_rank)
            known = (handle.num_experts, handle.expert_alignment, handle.num_max_tokens_per_rank)
            assert (num_experts, expert_alignment, num_max_tokens_per_rank) == known, f"the handle is for {known}"
            assert handle.do_expand or not do_expand, "the handle's dispatch was not expanded"
            topk_idx, outgoing = handle.topk_idx, None
        assert topk_idx is not None and num_experts is not None, "dispatch needs topk_idx and num_experts, or a handle"
        assert topk_idx.shape[0] == tokens and num_experts % self.num_ranks == 0, f"{topk_idx.shape=} {num_experts=}"
        limit = value_or(num_max_tokens_per_rank, self.num_max_tokens_per_rank)
        alignment = value_or(expert_alignment, 1)
        with_sync = value_or(do_cpu_sync, handle is None)
        assert tokens <= limit, f"{tokens} tokens, at most {limit} a rank"
        if handle is None:
            choices = topk_idx.to(torch.int32)
            outgoing = self._outgoing(choices, num_experts // self.num_ranks, limit, with_sync)
            # Plus one, so that an empty slot's zeros are no choice.
            columns.append(choices + 1)
            slots, sent, used = outgoing.slots, outgoing.tokens, outgoing.used
            if sent is not None:
                columns.append(sent)
        else:
            assert handle._route is not None, "the handle comes from no dispatch"
            slots, sent, used = handle._route.slots, handle._route.outgoing, None
        arrive, event = self._send(
            columns, slots, sent, used, len(columns) - 2 if sent is not None else -1, async_with_compute_stream
        )
        widths = [column.shape[1] for column in columns if column.ndim == 2]
        sms = align(num_sms, 2) or _MIN_SMS

        def finish() -> tuple[Any, torch.Tensor | None, torch.Tensor | None, EPHandle]:
            parts = arrive(widths)
            done = handle
            if done is None:
                assert outgoing is not None and topk_idx is not None and num_experts is not None
                source = parts.pop().reshape(-1) if sent is not None else None
                done = self._make_handle(
                    outgoing,
                    parts.pop() - 1,
                    source,
                    topk_idx,
                    num_experts,
                    alignment,
                    limit,
                    sms,
                    with_sync,
                    do_expand,
                )
                if cumulative_local_expert_recv_stats is not None:
                    cumulative_local_expert_recv_stats.add_(done.num_unaligned_recv_tokens_per_expert)
            route = done._route
            assert route is not None
            if do_expand:
                assert route.rows is not None
                place = _Placement(route.rows, done.num_expanded_tokens, do_zero_padding)
                recv_topk, recv_weights = None, None
                if topk_weights is not None:
                    recv_weights = place.choices(parts[-1]).view(torch.float32)
            else:
                place = _Placement(None, 0, False)
                place.slots = (
                    _plain_order(route.outside, done.num_recv_tokens)[0] if route.received is None else route.received
                )
                # NEURON: 64-bit upstream's choices are int64, as the caller's are
                recv_topk = _own_choices(route).index_select(0, place.slots).to(topk_idx.dtype)
                recv_weights = None if topk_weights is None else _like(place.rows(parts[-1]), topk_weights)
            recv_x = _like(place.rows(parts[0]), data)
            if sf is None:
                return recv_x, recv_topk, recv_weights, done
            recv_sf = _scale_layout(_like(place.rows(parts[1]), sf), use_tma_aligned_col_major_sf)
            return (recv_x, recv_sf), recv_topk, recv_weights, done

        if defer_epilogue:
            overlap = EventOverlap(event)
            overlap.register_hook_after_wait(finish)
            return overlap
        event.current_stream_wait()
        return *finish(), EventOverlap(event if async_with_compute_stream else None)

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """Sum what the experts made of each token, on the rank that the token came from.

        ``x``: bf16 [rows, hidden], rows as the handle's dispatch laid them out; only received rows count. ``topk_weights``: fp32,
        [rows, topk], or [rows] if expanded (with ``allow_multiple_reduction`` only), brought back unsummed. ``bias``: one or two bf16
        [tokens, hidden], summed first. Sums are in fp32, in the order of a token's choices, those of one rank at the last of them.

        Returns bf16 [tokens, hidden], fp32 [tokens, topk] or None, and an EventOverlap; with ``defer_epilogue`` the EventOverlap
        alone, whose wait returns the first two.
        """
        _start(previous_event, async_with_compute_stream, allocate_on_comm_stream, defer_epilogue)
        route, choices = handle._route, handle.topk_idx.shape[1]
        assert route is not None, "the handle comes from no dispatch"
        assert x.ndim == 2 and x.dtype == torch.bfloat16, f"{x.dtype=} {x.shape=}"
        apart = handle.do_expand and not self.allow_multiple_reduction
        assert not apart or topk_weights is None, "weights come back with allow_multiple_reduction only"
        bias_parts = bias if isinstance(bias, tuple) else () if bias is None else (bias,)
        slot_count, weights = route.outside.shape[0], None
        if not handle.do_expand:
            assert route.position is not None
            part = _rows_or_zeros(x, route.position)
            if topk_weights is not None:
                weights = _rows_or_zeros(topk_weights, route.position)
        else:
            assert route.rows is not None
            rows = route.rows.clamp_max(max(x.shape[0] - 1, 0))
            part = _rows_or_zeros(x, rows.view(-1)) if apart else _sum_rows(x, rows, route.outside)
            if topk_weights is not None:
                weights = _rows_or_zeros(topk_weights.reshape(-1, 1), rows.view(-1)).view(-1, choices)
        columns = [_words(part.view(slot_count, -1))]
        if weights is not None:
            columns.append(_words(weights))
        packed = torch.cat(columns, 1) if len(columns) > 1 and self.num_ranks > 1 else columns[0]
        event = EventHandle()
        if self.num_ranks > 1:
            returned, work = self._exchange(packed.view(self.num_ranks, route.slots, -1), async_with_compute_stream)
            event = EventHandle((work,))
            packed = returned.flatten(0, 1)
            columns = list(packed.split([column.shape[1] for column in columns], 1))

        def finish() -> tuple[torch.Tensor, torch.Tensor | None]:
            tokens, hidden = route.live.shape[0], x.shape[1]
            total = (
                torch.zeros((tokens, hidden), dtype=torch.float32, device=x.device)
                if not bias_parts
                else bias_parts[0].to(torch.float32)
            )
            for item in bias_parts[1:]:
                total.add_(item)
            returned = (
                None
                if self.num_ranks == 1 and not apart and weights is None
                else route.owner * route.slots + route.place
            )
            if apart:
                assert returned is not None
                place = returned * choices + torch.arange(choices, dtype=torch.int32, device=x.device)
                _add_rows(total, columns[0].reshape(-1, hidden // 2).view(torch.bfloat16), place, ~route.live)
            elif self.num_ranks == 1:
                back = columns[0].view(torch.bfloat16)[:tokens]
                # An expanded token without a choice sums to zero by itself.
                total.add_(back if handle.do_expand else back.masked_fill(~route.live.any(1, keepdim=True), 0))
            else:
                assert returned is not None
                last = _last_on_rank(route.owner, route.live)
                _add_rows(
                    total, columns[0].view(torch.bfloat16), *_last_first(returned, last, min(self.num_ranks, choices))
                )
            combined_weights = None
            if weights is not None:
                assert returned is not None
                place = returned * choices + torch.arange(choices, dtype=torch.int32, device=x.device)
                held = _rows_or_zeros(columns[1].view(torch.float32).reshape(-1, 1), place.view(-1))
                combined_weights = held.view(place.shape).masked_fill_(~route.live, 0)
            return total.to(torch.bfloat16), combined_weights

        if defer_epilogue:
            overlap = EventOverlap(event)
            overlap.register_hook_after_wait(finish)
            return overlap
        event.current_stream_wait()
        return *finish(), EventOverlap(event if async_with_compute_stream else None)

    def _outgoing(self, choices: torch.Tensor, experts_per_rank: int, limit: int, with_sync: bool) -> _Outgoing:
        tokens, count = choices.shape
        device, ranks = choices.device, self.num_ranks
        live = choices >= 0
        place = torch.arange(tokens, dtype=torch.int32, device=device).unsqueeze(1).expand(tokens, count)
        if ranks == 1:
            return _Outgoing(max(tokens, 1), None, None, torch.zeros_like(choices), place, live)
        owner = (choices // experts_per_rank).clamp_min_(0)
        if not with_sync:
            return _Outgoing(limit, None, None, owner, place, live)
        one = torch.ones((), dtype=torch.float32, device=device)
        goes = torch.zeros((tokens, ranks + 1), dtype=torch.float32, device=device)
        goes.index_put_((place, owner.masked_fill(~live, ranks)), one)
        upto = goes[:, :ranks].cumsum(0).to(torch.int32)
        # NEURON: host sync
        slots = max(int(self._gather(upto[-1] if tokens else upto.new_zeros(ranks))[0].max()), 1)
        token = place
        if tokens:
            place = (upto[token, owner] - 1).masked_fill_(~live, 0)
        target = (owner * slots + place).masked_fill_(~live, ranks * slots)
        used = _inverse(target, torch.ones((), dtype=torch.int32, device=device), ranks * slots)
        return _Outgoing(
            slots, _inverse(target, token, ranks * slots).unsqueeze(1), used.unsqueeze(1), owner, place, live
        )

    def _send(
        self,
        columns: Sequence[torch.Tensor],
        slots: int,
        sent: torch.Tensor | None,
        used: torch.Tensor | None,
        choice_column: int,
        in_background: bool,
    ) -> tuple[Callable[[list[int]], list[torch.Tensor]], EventHandle]:
        """Exchange the tokens' int32 columns; what is returned first gives the received ones, by slot, after the event."""
        if self.num_ranks == 1:
            # A slot at least, for what is taken from it to fill a fixed shape.
            padded = [column if column.shape[0] else column.new_zeros((1, *column.shape[1:])) for column in columns]
            return (lambda widths: padded), EventHandle()
        if sent is None:
            # Slots are the same for every rank, so they are gathered rather than repeated and exchanged.
            tokens = columns[0].shape[0]
            packed = torch.nn.functional.pad(torch.cat(list(columns), 1), (0, 0, 0, slots - tokens))
            received, work = self._gather(packed, in_background)
        else:
            source = sent.view(-1)
            taken = [column if column is sent else _rows_or_zeros(column, source) for column in columns]
            if used is not None:
                taken[choice_column] = taken[choice_column] * used
            packed = torch.cat(taken, 1).view(self.num_ranks, slots, -1)
            received, work = self._exchange(packed, in_background)
        return (lambda widths: list(received.flatten(0, 1).split(widths, 1))), EventHandle((work,))

    def _make_handle(
        self,
        outgoing: _Outgoing,
        choices: torch.Tensor,
        source: torch.Tensor | None,
        topk_idx: torch.Tensor,
        num_experts: int,
        alignment: int,
        limit: int,
        num_sms: int,
        with_sync: bool,
        do_expand: bool,
    ) -> EPHandle:
        local, ranks, rank_idx = num_experts // self.num_ranks, self.num_ranks, self.rank_idx
        slot_count, choice_count = choices.shape
        own = choices - rank_idx * local if ranks > 1 else choices
        outside = own.clamp(0, local - 1) != own
        # One column more than there are experts takes the choices that are not for here.
        column = own.masked_fill(outside, local)
        upto_token = _count_up(column, local + 1)
        count = upto_token[-1].to(torch.int32)
        aligned = (count + (alignment - 1)) // alignment * alignment if alignment > 1 else count
        upto = aligned.cumsum(0, dtype=torch.int32)
        start = upto - aligned

        def psum_ranks() -> torch.Tensor:
            arrived = (~outside.all(1)).to(torch.int32).view(ranks, -1)
            return arrived.view(-1).cumsum(0, dtype=torch.int32).view(ranks, -1)[:, -1].contiguous()

        psum: Any = psum_ranks
        if with_sync:
            psum = psum_ranks()
            # NEURON: host sync
            num_recv, *per_expert = torch.cat((psum[-1:], aligned[:local])).tolist()
            num_expanded = sum(per_expert)
        else:
            num_recv, per_expert = limit * ranks, []
            num_expanded = align(num_recv * min(choice_count, local) + (alignment - 1) * local, alignment)
        received, position, rows = None, None, None
        if do_expand:
            token = (
                torch.arange(slot_count, dtype=torch.int32, device=choices.device).unsqueeze(1).expand(choices.shape)
            )
            rows = (
                (start[column] + upto_token[token, column].to(torch.int32)).sub_(1).masked_fill_(outside, num_expanded)
            )
        else:
            received, position = _plain_order(outside, num_recv)
        route = _Route(
            outgoing.slots, outgoing.tokens, outgoing.owner, outgoing.place, outgoing.live, own, outside, received, position, rows
        )  # fmt: skip

        def metadata() -> torch.Tensor:
            return _metadata(route, source, ranks, limit, num_recv)

        def buffer_slots() -> torch.Tensor:
            last = _last_on_rank(route.owner, route.live)
            return (route.place + rank_idx * limit).masked_fill(~last, -1)

        lazy: Any = (psum, metadata, buffer_slots)
        handle = EPHandle(
            do_expand,
            num_experts,
            alignment,
            limit,
            num_sms,
            topk_idx,
            num_recv,
            num_expanded,
            per_expert,
            lazy[0],
            ((start + count) if do_expand else upto)[:local],
            count[:local],
            lazy[1],
            lazy[2],
            None,
            None,
        )
        handle._route = route
        return handle


def _version(tensor: torch.Tensor) -> int | None:
    # porter: ignore[PT103] two flags of the host's own, no value of a tensor
    return None if torch.compiler.is_compiling() or tensor.is_inference() else tensor._version


def _start(previous: EventHandle | None, in_background: bool, on_comm_stream: bool, defer: bool) -> None:
    assert previous is None or on_comm_stream, "previous_event needs allocate_on_comm_stream"
    assert not defer or in_background, "defer_epilogue needs async_with_compute_stream"
    if previous is not None:
        previous.current_stream_wait()


def _token_bytes(data_bytes: int, sf_bytes: int, choices: int, with_source: bool) -> int:
    """Bytes of a token in upstream's buffers: data, scales, then the choices with their weights and where they come from."""
    metadata = choices * 8 + (4 * (1 + choices) if with_source else 0)
    step = get_num_tma_alignment()
    return align(sum(align(size, step) for size in (data_bytes, sf_bytes, metadata)), get_num_rdma_alignment())


def _words(x: torch.Tensor) -> torch.Tensor:
    """``x`` [n, w] as int32 words [n, ceil(bytes / 4)], a view where it can be."""
    data = BufferBase._row_bytes(x)
    if data.shape[1] % 4:
        data = torch.nn.functional.pad(data, (0, -data.shape[1] % 4))
    return data.view(torch.int32)


def _rows_or_zeros(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of ``x`` at int32 ``index`` [n]; zeros where ``x`` has none at all."""
    return x.index_select(0, index) if x.shape[0] else x.new_zeros((index.shape[0], *x.shape[1:]))


def _inverse(target: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
    """int32 [size] with ``value[i]`` at ``target[i]``, which is ``size`` where it goes nowhere; zeros elsewhere."""
    out = torch.zeros(size + 1, dtype=torch.int32, device=target.device)
    return out.index_put_((target,), value)[:size]


def _count_up(column: torch.Tensor, columns: int) -> torch.Tensor:
    """fp32 [n, columns]: how often the rows of ``column`` [n, k] up to each name a column, a row naming it once at most.

    In fp32, exact to 2**24: integer sums and scatters are not for the device.
    """
    token = torch.arange(column.shape[0], dtype=torch.int32, device=column.device).unsqueeze(1).expand(column.shape)
    hit = torch.zeros((column.shape[0], columns), dtype=torch.float32, device=column.device)
    return hit.index_put_((token, column), torch.ones((), dtype=torch.float32, device=column.device)).cumsum(0)


def _plain_order(outside: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The slot of each of ``size`` received tokens, in order, and each slot's place among them, within the size."""
    empty = outside.all(1)
    place = (~empty).to(torch.int32).cumsum(0, dtype=torch.int32) - 1
    slot = torch.arange(outside.shape[0], dtype=torch.int32, device=outside.device)
    return _inverse(place.masked_fill(empty, size), slot, size), place.clamp_(0, max(size - 1, 0))


def _own_choices(route: _Route) -> torch.Tensor:
    """int32 [slots, topk], local experts, -1 for none."""
    return route.own.masked_fill(route.outside, -1)


def _last_on_rank(owner: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """bool [tokens, topk]: the last of a token's choices on that rank."""
    order = torch.arange(owner.shape[1], dtype=torch.int32, device=owner.device)
    later = (owner.unsqueeze(2) == owner.unsqueeze(1)) & (order.unsqueeze(1) < order) & live.unsqueeze(1)
    return live & ~later.any(2)


def _metadata(route: _Route, source: torch.Tensor | None, ranks: int, limit: int, num_recv: int) -> torch.Tensor:
    """``EPHandle.recv_src_metadata``; ``source``: int32 [slots], a slot's token on its rank, None where slot t is token t."""
    slot_count, choice_count = route.outside.shape
    slot = torch.arange(slot_count, dtype=torch.int32, device=route.outside.device)
    rank = slot // (slot_count // ranks)
    token = slot - rank * (slot_count // ranks) if source is None else source
    order = torch.arange(choice_count, dtype=torch.int32, device=slot.device)
    last = order.expand(route.outside.shape).masked_fill(route.outside, -1).amax(1)
    columns = torch.stack((rank * limit + token, rank * choice_count + last), 1)
    tail = _own_choices(route) if route.rows is None else route.rows.masked_fill(route.outside, -1)
    received = _plain_order(route.outside, num_recv)[0] if route.received is None else route.received
    return torch.cat((columns, tail), 1).index_select(0, received)


class _Placement:
    """From what the slots hold to received rows.

    Expanded: ``targets``: int32 [slots, topk], each choice's row of ``size``, ``size`` itself for none; ``zero`` the rows that no choice
    has. Plain: ``slots``, set afterwards, is the slot of each row.
    """

    def __init__(self, targets: torch.Tensor | None, size: int, zero: bool) -> None:
        self._targets, self._size, self._zero = targets, size, zero
        self.slots: torch.Tensor | None = None
        self._filled: torch.Tensor | None = None
        # Alignment leaves many more rows than choices, as a rule: then write the choices' rows and leave the others alone.
        self._writes = targets is not None and targets.numel() <= size
        if targets is not None and not self._writes:
            flat = torch.arange(1, targets.numel() + 1, dtype=torch.int32, device=targets.device)
            self._filled = _inverse(targets.view(-1), flat, size)

    def rows(self, words: torch.Tensor) -> torch.Tensor:
        """int32 [rows, w] of ``words`` [slots, w]."""
        if self._targets is None:
            assert self.slots is not None
            return words.index_select(0, self.slots)
        shape = self._targets.shape
        if self._writes:
            return self._written(words.unsqueeze(1).expand(*shape, words.shape[1]), (words.shape[1],))
        return self._read(words, shape[1])

    def choices(self, words: torch.Tensor) -> torch.Tensor:
        """int32 [rows] of ``words`` [slots, topk]; expanded only."""
        return self._written(words, ()) if self._writes else self._read(words.reshape(-1, 1), 1).view(-1)

    def _written(self, values: torch.Tensor, width: tuple[int, ...]) -> torch.Tensor:
        assert self._targets is not None
        make = torch.zeros if self._zero else torch.empty
        out = make((self._size + 1, *width), dtype=torch.int32, device=values.device)
        return out.index_put_((self._targets,), values)[: self._size]

    def _read(self, words: torch.Tensor, choices: int) -> torch.Tensor:
        assert self._filled is not None
        taken = words.index_select(0, (self._filled - 1).clamp_min_(0) // choices)
        return taken.masked_fill_((self._filled == 0).unsqueeze(1), 0) if self._zero else taken


def _like(words: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """int32 ``words`` as ``like``'s dtype and width."""
    out = words.view(like.dtype)
    return out[:, : like.shape[1]] if like.shape[1] * like.itemsize % 4 else out


def _scale_layout(sf: torch.Tensor, column_major: bool) -> torch.Tensor:
    if not column_major:
        return sf.contiguous()
    rows, packs = sf.shape
    out = torch.empty_strided(
        (rows, packs), (1, align(rows, max(_SF_COLUMN_BYTES // sf.itemsize, 1))), dtype=sf.dtype, device=sf.device
    )
    return out.copy_(sf)


def _sum_rows(x: torch.Tensor, rows: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
    """bf16 [n, hidden]: fp32 sums, in order, of the rows of ``x`` at int32 ``rows`` [n, topk], but for those ``outside``."""
    total = torch.zeros((rows.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    _add_rows(total, x, rows, outside)
    return total.to(torch.bfloat16)


def _add_rows(total: torch.Tensor, x: torch.Tensor, rows: torch.Tensor, missing: torch.Tensor) -> None:
    """Add to fp32 ``total`` the bf16 rows of ``x`` at ``rows`` [n, k], one column after the other, but for the ``missing``."""
    for index, none in zip(rows.unbind(1), missing.unsqueeze(2).unbind(1), strict=True):
        total.add_(_rows_or_zeros(x, index).masked_fill_(none, 0))


def _last_first(returned: torch.Tensor, last: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The slots of each token's ranks, by their last choices: int32 [tokens, most], and bool, which of them there are not."""
    tokens = returned.shape[0]
    upto = last.to(torch.int32).cumsum(1, dtype=torch.int32)
    token = torch.arange(tokens, dtype=torch.int32, device=returned.device).unsqueeze(1).expand(returned.shape)
    place = torch.zeros((tokens, most + 1), dtype=torch.int32, device=returned.device)
    place.index_put_((token, (upto - 1).masked_fill_(~last, most)), returned)
    missing = torch.arange(most, dtype=torch.int32, device=returned.device) >= upto[:, -1:]
    return place[:, :most], missing
