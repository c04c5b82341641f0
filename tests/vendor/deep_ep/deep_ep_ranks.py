"""Ranks of a process group that check the drop-in's dispatch, combine and Engram fetch, each in a process of its own.

``run(ranks, upstream)`` starts them and returns what went wrong: text by case, for each case that failed on some rank. Expected values
come from upstream's ``deep_ep/utils/refs.py``, loaded from its unpacked release and run over the same gloo group.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

ROOT = Path(__file__).resolve().parents[3]
SEED = 20261201


def import_paths() -> None:
    """Make ``overrides`` and ``neuron_numerics`` importable."""
    for path in (ROOT, ROOT / "overrides" / "shared"):
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))


def load_refs(upstream: Path) -> Any:
    """Upstream's ``utils/refs.py``. The seed comes from here, and ``ceil_div`` too: upstream's ``math`` loads the compiler."""
    name = "upstream_deep_ep_utils"
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [str(upstream / "deep_ep" / "utils")]
        envs = types.ModuleType(f"{name}.envs")
        envs.get_global_seed = lambda: SEED  # type: ignore[attr-defined]
        math = types.ModuleType(f"{name}.math")
        math.ceil_div = lambda x, y: -(-x // y)  # type: ignore[attr-defined]
        sys.modules.update({name: package, f"{name}.envs": envs, f"{name}.math": math})
    return importlib.import_module(f"{name}.refs")


class NoHostSync(TorchFunctionMode):
    """Refuses to read a tensor's values on the host, or to make a shape of them."""

    _REFUSED = (
        "tolist",
        "item",
        "__int__",
        "__bool__",
        "__float__",
        "__index__",
        "nonzero",
        "unique",
        "masked_select",
        "numpy",
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in self._REFUSED, f"{name} without a CPU sync"
        index = args[1] if name == "__getitem__" else None
        for part in index if isinstance(index, tuple) else (index,):
            assert not (
                isinstance(part, torch.Tensor) and part.dtype == torch.bool
            ), "indexing by a mask without a CPU sync"
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Case:
    """One dispatch and what follows it. ``lacking``: share of choices that are -1; ``idle``: a rank without tokens."""

    name: str
    experts: int = 12
    topk: int = 3
    limit: int = 7
    hidden: int = 256
    alignment: int = 8
    lacking: float = 0.3
    fp8: bool = False
    column_major: bool = False
    multiple: bool = True
    biases: int = 1
    sync: bool = True
    defer: bool = False
    event: bool = False
    idle: bool = False
    by_gather: bool = False


CASES = (
    Case("plain"),
    Case("fixed", sync=False),
    Case("fp8", fp8=True, column_major=True),
    Case("fp8-fixed-deferred", fp8=True, column_major=True, sync=False, defer=True, event=True),
    Case("fp8-row-major", fp8=True, sync=False),
    Case("deferred", defer=True, event=True, biases=2),
    Case("no-bias", biases=0),
    Case("single-reduction", multiple=False),
    Case("single-reduction-fixed", multiple=False, sync=False, biases=0),
    Case("unaligned", alignment=1, experts=24, topk=5),
    Case("wide-alignment", alignment=128, sync=False),
    Case("nobody-chooses", lacking=1.0),
    Case("nobody-chooses-fixed", lacking=1.0, sync=False),
    Case("all-choose", lacking=0.0, topk=12),
    Case("all-choose-fixed", lacking=0.2, topk=12, sync=False, fp8=True),
    Case("idle-rank", idle=True),
    Case("idle-rank-fixed", idle=True, sync=False),
    Case("one-choice", topk=1, limit=5),
    Case("exchange-by-gather", by_gather=True, fp8=True, sync=False),
)


class _Check:
    """One case on one rank."""

    def __init__(self, case: Case, ep: Any, refs: Any, group: Any) -> None:
        self.case, self.ep, self.refs, self.group = case, ep, refs, group
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        generator = torch.Generator().manual_seed(SEED + self.rank)
        tokens = case.limit - self.rank % case.limit
        if case.idle and self.rank == self.ranks - 1:
            tokens = 0
        self.tokens, self.local = tokens, case.experts // self.ranks
        scores = torch.rand((tokens, case.experts), generator=generator)
        self.weights, chosen = scores.topk(case.topk, dim=1)
        self.topk = chosen.masked_fill(torch.rand(chosen.shape, generator=generator) < case.lacking, -1)
        self.x: Any = torch.randn((tokens, case.hidden), generator=generator).to(torch.bfloat16)
        self.reference_x: Any = self.x
        if case.fp8:
            values = torch.randn((tokens, case.hidden), generator=generator).to(torch.float8_e4m3fn)
            scales = torch.rand((tokens, -(-case.hidden // 128)), generator=generator)
            # The sender's scales lie column-major, as a cast leaves them.
            self.x = values, scales.T.contiguous().T if case.column_major else scales
            self.reference_x = values.view(torch.uint8), scales
        biases = [
            torch.randn((tokens, case.hidden), generator=generator).to(torch.bfloat16) for _ in range(case.biases)
        ]
        self.bias: Any = tuple(biases) if case.biases == 2 else biases[0] if biases else None
        self.buffer = ep.EPBuffer(
            group, num_max_tokens_per_rank=case.limit, hidden=case.hidden, num_topk=case.topk, use_fp8_dispatch=case.fp8,
            allow_multiple_reduction=case.multiple, explicitly_destroy=True,
        )  # fmt: skip
        if case.by_gather and group is not None and self.ranks > 1:
            self.buffer._exchanges_by_gather = lambda: True

    def call(self, method: Callable[..., Any], **arguments: Any) -> tuple[Any, ...]:
        with nullcontext() if self.case.sync else NoHostSync():
            return self.call_now(method, **arguments)

    def call_now(self, method: Callable[..., Any], **arguments: Any) -> tuple[Any, ...]:
        if self.case.event:
            arguments |= {"previous_event": self.buffer.capture(), "allocate_on_comm_stream": True}
        if not self.case.defer:
            *results, event = method(**arguments)
            assert event.event is None
            return tuple(results)
        event = method(**arguments, async_with_compute_stream=True, defer_epilogue=True)
        results = event.current_stream_wait()
        assert event.current_stream_wait() is None, "a hook runs once"
        return tuple(results)

    def dispatch(self, **arguments: Any) -> tuple[Any, ...]:
        return self.call(
            self.buffer.dispatch, x=self.x, use_tma_aligned_col_major_sf=self.case.column_major, **arguments
        )

    def first_dispatch(self, **arguments: Any) -> tuple[Any, ...]:
        return self.dispatch(
            topk_idx=self.topk, topk_weights=self.weights, num_experts=self.case.experts, expert_alignment=self.case.alignment,
            do_cpu_sync=self.case.sync, num_sms=3, **arguments,
        )  # fmt: skip

    def run(self) -> None:
        case = self.case
        want = self.refs.dispatch(self.reference_x, self.topk, self.weights, case.limit, case.experts)
        self.want_x, self.want_topk, self.want_weights, self.want_source, from_ranks = want
        self.count = self.want_source.shape[0]
        self.psum = from_ranks.cumsum(0).to(torch.int32)
        plain = self.first_dispatch()
        self.check_plain(*plain)
        expanded = self.expanded()
        self.combine_plain(plain[3], plain[2])
        self.combine_expanded(expanded[3], expanded[2])
        self.cached(plain[3], expanded[3], expanded)
        self.buffer.destroy()
        assert self.buffer.runtime is None

    def same_rows(self, got: Any, rows: torch.Tensor, want: torch.Tensor) -> None:
        """Rows ``rows`` of what was received are the reference's rows ``want``, bit for bit."""
        if not self.case.fp8:
            assert torch.equal(got[rows].view(torch.int16), self.want_x[want].view(torch.int16))
            return
        values, scales = got
        assert values.dtype == torch.float8_e4m3fn and scales.dtype == torch.float32
        assert torch.equal(values.view(torch.uint8)[rows], self.want_x[0][want])
        assert torch.equal(scales[rows], self.want_x[1][want])
        if self.case.column_major:
            padded = -(-scales.shape[0] // 4) * 4
            assert scales.stride() == (1, padded), f"{scales.stride()=} {scales.shape=}"
        else:
            assert scales.is_contiguous()

    def check_plain(self, x: Any, topk: torch.Tensor, weights: torch.Tensor, handle: Any) -> None:
        rows, case = torch.arange(self.count), self.case
        total = self.count if case.sync else case.limit * self.ranks
        first = x[0] if case.fp8 else x
        assert first.shape == (total, case.hidden) and topk.shape == weights.shape == (total, case.topk)
        assert handle.num_recv_tokens == total and topk.dtype == torch.int64
        self.same_rows(x, rows, rows)
        assert torch.equal(topk[: self.count], self.want_topk)
        assert torch.equal(weights[: self.count], self.want_weights)
        assert torch.equal(handle.recv_src_metadata[: self.count, 0], self.want_source)
        last = torch.where(self.want_topk >= 0, torch.arange(case.topk), -1).amax(1)
        assert torch.equal(
            handle.recv_src_metadata[: self.count, 1].long(), self.want_source // case.limit * case.topk + last
        )
        assert torch.equal(handle.psum_num_recv_tokens_per_scaleup_rank, self.psum)
        counts = torch.bincount(self.want_topk[self.want_topk >= 0], minlength=self.local)
        aligned = -(-counts // case.alignment) * case.alignment
        assert handle.psum_num_recv_tokens_per_expert.tolist() == aligned.cumsum(0).tolist()
        assert handle.psum_num_recv_tokens_per_expert.dtype == torch.int32
        assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts.tolist()
        assert handle.num_recv_tokens_per_expert_list == (aligned.tolist() if case.sync else [])
        assert handle.num_sms == 4 and handle.topk_idx is self.topk
        self.check_slots(handle.dst_buffer_slot_idx)

    def check_slots(self, slots: torch.Tensor) -> None:
        """One slot a token and rank, at its last choice there, distinct among the tokens of a rank."""
        taken = set()
        for token in range(self.tokens):
            for k in range(self.case.topk):
                owner = int(self.topk[token, k]) // self.local
                last = owner >= 0 and owner not in (self.topk[token, k + 1 :] // self.local).tolist()
                assert (int(slots[token, k]) >= 0) == last
                if last:
                    assert int(slots[token, k]) // self.case.limit == self.rank
                    taken.add((owner, int(slots[token, k])))
        assert len(taken) == int((slots >= 0).sum())

    def expanded(self) -> tuple[Any, ...]:
        case = self.case
        stats = torch.full((self.local,), 3, dtype=torch.int32)
        x, topk, weights, handle = self.first_dispatch(do_expand=True, cumulative_local_expert_recv_stats=stats)
        assert topk is None
        self.check_expanded(x, weights, handle)
        counts = torch.bincount(self.want_topk[self.want_topk >= 0], minlength=self.local)
        assert (stats - 3).tolist() == counts.tolist() == handle.num_unaligned_recv_tokens_per_expert.tolist()
        aligned = -(-counts // case.alignment) * case.alignment
        starts = aligned.cumsum(0) - aligned
        assert handle.psum_num_recv_tokens_per_expert.tolist() == (starts + counts).tolist()
        most = case.limit * self.ranks * min(case.topk, self.local) + (case.alignment - 1) * self.local
        total = int(aligned.sum()) if case.sync else -(-most // case.alignment) * case.alignment
        assert handle.num_expanded_tokens == total == weights.shape[0]
        # Each expert's rows are its part, from its start on, in the order of the sources.
        rows = handle.recv_src_metadata[: self.count, 2:]
        for expert in range(self.local):
            mine = rows[self.want_topk == expert].tolist()
            assert mine == list(range(int(starts[expert]), int(starts[expert] + counts[expert]))), (expert, mine)
        return x, topk, weights, handle

    def check_expanded(self, x: Any, weights: torch.Tensor, handle: Any) -> None:
        rows = handle.recv_src_metadata[: self.count, 2:].long()
        assert torch.equal(rows >= 0, self.want_topk >= 0)
        assert torch.equal(handle.recv_src_metadata[: self.count, 0], self.want_source)
        token, choice = (self.want_topk >= 0).nonzero(as_tuple=True)
        self.same_rows(x, rows[token, choice], token)
        assert torch.equal(weights[rows[token, choice]], self.want_weights[token, choice])

    def made(self, source: torch.Tensor) -> torch.Tensor:
        """What the experts make of each choice of the tokens ``source``; the first two cancel, so that the order of a sum shows."""
        y = self.refs.generate_pre_combine_data(source, self.case.limit, self.case.topk, self.case.hidden)
        if self.case.topk > 2:
            y[:, 0] *= 2.0**26
            y[:, 1] = -y[:, 0]
        return y

    def wanted(self, local_first: bool) -> torch.Tensor:
        y = self.made(self.rank * self.case.limit + torch.arange(self.tokens))
        y[self.topk == -1] = 0
        return self.refs.combine(y, self.topk, 1, self.ranks, self.case.experts, self.bias, local_first, False)

    def check_combined(self, combined: torch.Tensor, weights: Any, want: torch.Tensor, with_weights: bool) -> None:
        want = want.to(torch.bfloat16)
        assert combined.dtype == torch.bfloat16 and torch.equal(combined, want), (combined - want).abs().max()
        if with_weights:
            assert torch.equal(weights, self.weights.masked_fill(self.topk < 0, 0))
        else:
            assert weights is None

    def combine_plain(self, handle: Any, weights: torch.Tensor) -> None:
        y = self.made(handle.recv_src_metadata[: self.count, 0])
        y[self.want_topk == -1] = 0
        x = torch.full((handle.num_recv_tokens, self.case.hidden), torch.nan, dtype=torch.bfloat16)
        x[: self.count] = self.refs.ordered_accumulate(y)
        got = self.call(self.buffer.combine, x=x, handle=handle, topk_weights=weights, bias=self.bias)
        self.check_combined(*got, self.wanted(True), with_weights=True)

    def combine_expanded(self, handle: Any, weights: torch.Tensor) -> None:
        rows = handle.recv_src_metadata[: self.count, 2:]
        y = self.made(handle.recv_src_metadata[: self.count, 0])
        # Rows of no token are NaN, so that one that counts shows.
        x = torch.full((handle.num_expanded_tokens, self.case.hidden), torch.nan, dtype=torch.bfloat16)
        x[rows[rows >= 0].long()] = y[rows >= 0]
        sent = {"topk_weights": weights} if self.case.multiple else {}
        got = self.call(self.buffer.combine, x=x, handle=handle, bias=self.bias, **sent)
        self.check_combined(*got, self.wanted(self.case.multiple), with_weights=self.case.multiple)

    def cached(self, handle: Any, expanded: Any, before: tuple[Any, ...]) -> None:
        rows = torch.arange(self.count)
        x, topk, weights, same = self.dispatch(handle=handle)
        assert same is handle and weights is None
        self.same_rows(x, rows, rows)
        assert torch.equal(topk[: self.count], self.want_topk)
        x, topk, weights, same = self.dispatch(
            handle=expanded, topk_weights=self.weights, do_expand=True, do_zero_padding=True
        )
        assert same is expanded and topk is None
        self.check_expanded(x, weights, expanded)
        used = torch.zeros(weights.shape[0], dtype=torch.bool)
        held = expanded.recv_src_metadata[: self.count, 2:]
        used[held[held >= 0].long()] = True
        for part in (*(x if self.case.fp8 else (x,)), weights):
            assert not part.view(torch.uint8 if part.itemsize == 1 else part.dtype)[~used].any()


def check_engram(ep: Any, group: Any, fp8: bool, on_host: bool, column_major: bool) -> None:
    """Write shards, fetch entries of all ranks, in two orders; a packed int16 scale table as on Ascend."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(SEED)
    entries, hidden, packs, limit, each = [5, 9], 64, 3, 6, 4
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    tables = [torch.randn((count * ranks, hidden), generator=generator).to(dtype) for count in entries]
    scales = [
        torch.randint(0, 1 << 15, (count * ranks, packs), generator=generator, dtype=torch.int16) for count in entries
    ]
    sizes = (entries, hidden, limit, each, dtype, packs if fp8 else 0)
    device_bytes, shard_bytes = ep.EngramBuffer.get_storage_size_hint(group, *sizes)
    assert (
        device_bytes % (2 << 20) == shard_bytes % (2 << 20) == 0
        and shard_bytes >= sum(entries) * hidden * dtype.itemsize
    )
    qps, depth, restrict = ep.EngramBuffer.get_theoretical_config(group, len(entries), limit, each)
    buffer = ep.EngramBuffer(
        group=group, num_gpu_bytes=device_bytes, num_rdma_storage_size=shard_bytes, use_cpu_rdma_storage=on_host, num_allocated_qps=qps,
        allow_hybrid_mode=True, explicitly_destroy=True, qp_depth=depth, restrict_rd_atomic=restrict,
    )  # fmt: skip
    assert buffer.num_rdma_storage_bytes == shard_bytes
    buffer.set_config(*sizes)
    shards = [table[rank * count : (rank + 1) * count].clone() for table, count in zip(tables, entries, strict=True)]
    buffer.write(shards, sfs=scales if fp8 else None)
    for shard in shards:
        shard.view(torch.uint8).fill_(0xFF)
    for turn, tokens in enumerate((limit - rank % limit, 0, limit)):
        own = torch.Generator().manual_seed(SEED + 10 * rank + turn)
        indices = torch.stack(
            [torch.randint(0, count * ranks, (tokens, each), generator=own, dtype=torch.int32) for count in entries]
        )
        with nullcontext() if on_host else NoHostSync():
            hooks = buffer.fetch(indices, use_tma_aligned_col_major_sf=column_major)
        assert len(hooks) == 2
        for layer in (0, 1) if turn else (1, 0):
            got = hooks[layer]()
            data, sf = got if fp8 else (got, None)
            want = (
                tables[layer]
                .view(torch.uint8)[indices[layer].view(-1).long()]
                .view(tokens, each * hidden * dtype.itemsize)
            )
            assert data.dtype == dtype and data.is_contiguous() and data.shape == (tokens, each * hidden)
            assert torch.equal(data.view(torch.uint8), want)
            if sf is not None:
                assert torch.equal(sf, scales[layer][indices[layer].view(-1).long()].view(tokens, each * packs))
                stride = (1, -(-tokens // 8) * 8) if column_major else (each * packs, 1)
                assert sf.stride() == stride or tokens < 2, f"{sf.stride()=} {stride=}"
    buffer.destroy()


ENGRAMS = tuple(
    (fp8, on_host, column_major) for fp8 in (False, True) for on_host in (False, True) for column_major in (False, True)
)


def check_compiled(ep: Any, group: Any) -> None:
    """A decode step with its exchanges traces as one graph, which leaves what the eager step leaves."""
    limit, hidden, experts = 6, 64, 8
    buffer = ep.EPBuffer(group, num_max_tokens_per_rank=limit, hidden=hidden, num_topk=3)
    generator = torch.Generator().manual_seed(SEED + dist.get_rank())
    x = torch.randn((limit - 1, hidden), generator=generator).to(torch.bfloat16)
    weights, chosen = torch.rand((limit - 1, experts), generator=generator).topk(3)

    def step(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
        event = buffer.dispatch(
            x, chosen, weights, num_experts=experts, expert_alignment=4, do_cpu_sync=False, do_expand=True,
            async_with_compute_stream=True, defer_epilogue=True,
        )  # fmt: skip
        rows, _, row_weights, handle = event.current_stream_wait()
        made = (rows * row_weights.unsqueeze(1)).to(torch.bfloat16)
        out.copy_(buffer.combine(made, handle, bias=x, async_with_compute_stream=True, defer_epilogue=True).wait()[0])

    graphs: list[Any] = []

    def backend(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    eager, traced = torch.zeros_like(x), torch.zeros_like(x)
    step(x, chosen, weights, eager)
    # One rank traces, which takes long; the other answers its exchanges.
    tracing = dist.get_rank() == 0
    run = torch.compile(step, fullgraph=True, dynamic=False, backend=backend) if tracing else step
    run(x, chosen, weights, traced)
    assert len(graphs) == tracing and torch.equal(eager, traced) and eager.any()


def names(ranks: int) -> list[str]:
    """All cases of so many ranks by name. Two are enough to trace an exchange, which takes long."""
    common = [case.name for case in CASES] + [engram_name(*row) for row in ENGRAMS]
    return [*common, "compiled"] if ranks == 2 else common


def engram_name(fp8: bool, on_host: bool, column_major: bool) -> str:
    return f"engram-{'fp8' if fp8 else 'bf16'}-{'host' if on_host else 'device'}-{'column' if column_major else 'row'}-major"


def _checks(ep: Any, refs: Any, group: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    for case in CASES:
        yield case.name, lambda case=case: _Check(case, ep, refs, group).run()
    for row in ENGRAMS:
        yield engram_name(*row), lambda row=row: check_engram(ep, group, *row)
    if dist.get_world_size() == 2:
        yield "compiled", lambda: check_compiled(ep, group)


def _rank_main(rank: int, ranks: int, store: str, upstream: str, out: str) -> None:
    import_paths()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    failures = check_all(Path(upstream), dist.group.WORLD)
    Path(f"{out}.{rank}").write_text(json.dumps(failures))
    dist.barrier()
    dist.destroy_process_group()


def check_all(upstream: Path, group: Any) -> dict[str, str]:
    """Run every case on this rank; the traceback of each that failed. Ranks agree after each case, so that none waits for another."""
    ep = importlib.import_module("overrides.vendor.deep_ep.buffers.ep")
    ep.EngramBuffer = importlib.import_module("overrides.vendor.deep_ep.buffers.engram").EngramBuffer
    refs, failures = load_refs(upstream), {}
    for name, check in _checks(ep, refs, group):
        try:
            check()
        except Exception:
            failures[name] = traceback.format_exc(limit=-4)
    return failures


def run(ranks: int, upstream: Path) -> dict[str, str]:
    """Start ``ranks`` processes; failures of all of them by case."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        mp.start_processes(
            _rank_main,
            args=(ranks, os.path.join(folder, "store"), str(upstream), out),
            nprocs=ranks,
            start_method="spawn",
        )
        failures: dict[str, str] = {}
        for rank in range(ranks):
            for name, text in json.loads(Path(f"{out}.{rank}").read_text()).items():
                failures[name] = failures.get(name, "") + f"rank {rank} of {ranks}:\n{text}"
        return failures
