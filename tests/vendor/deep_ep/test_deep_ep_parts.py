"""What surrounds the exchange: arithmetic, events, handles, sizes, and how the engine itself uses the buffers."""

from __future__ import annotations

import gc
import importlib.util
import re
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))
from harness import check_fake, check_fullgraph, count_ops, new_bytes, wide_ops

from overrides.vendor.deep_ep import _C
from overrides.vendor.deep_ep._C import EventHandle
from overrides.vendor.deep_ep.buffers import base
from overrides.vendor.deep_ep.buffers.engram import EngramBuffer
from overrides.vendor.deep_ep.buffers.ep import EPBuffer, EPHandle
from overrides.vendor.deep_ep.comm.handle import get_logical_domain_size, get_physical_domain_size
from overrides.vendor.deep_ep.utils import math as ours
from overrides.vendor.deep_ep.utils.event import EventOverlap
from overrides.vendor.deep_ep.utils.semantic import value_or, weak_lru

# --- arithmetic ---


@pytest.fixture(scope="module")
def theirs(source_root: Callable[[str], Path]) -> Any:
    """Upstream's ``utils/math.py``, with its compiled functions left as they are written."""
    file = source_root("deep_ep") / "deep_ep/utils/math.py"
    spec = importlib.util.spec_from_file_location("upstream_deep_ep_math", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda **_: lambda function: function)
        spec.loader.exec_module(module)
    return module


def test_integers(theirs: Any) -> None:
    for x in (0, 1, 5, 127, 128, 129):
        for y in (1, 2, 128):
            assert ours.ceil_div(x, y) == theirs.ceil_div(x, y) and ours.align(x, y) == theirs.align(x, y)
    assert ours.safe_div(6, 4) == theirs.safe_div(6, 4) and ours.safe_div(0, 0) == theirs.safe_div(0, 0) == 0
    with pytest.raises(ZeroDivisionError):
        ours.safe_div(1, 0)


@pytest.mark.parametrize("columns", [128, 256, 200, 7])
def test_casts(theirs: Any, columns: int) -> None:
    x = torch.randn(5, columns).to(torch.bfloat16)
    x[3] = 0
    mine, reference = ours.per_token_cast_to_fp8(x), theirs.per_token_cast_to_fp8(x)
    assert torch.equal(mine[0].view(torch.uint8), reference[0].view(torch.uint8)) and mine[0].is_contiguous()
    assert torch.equal(mine[1], reference[1])
    packed = torch.randint(0x70707070, 0x7A7A7A7A, (5, 1), dtype=torch.int32)
    for scales in (mine[1], *([packed] if columns > 384 else [])):
        back = ours.per_token_cast_back(mine[0], scales)
        assert torch.equal(back, theirs.per_token_cast_back(mine[0], scales)) and back.is_contiguous()
    assert ours.per_token_cast_back(mine[0][:0], mine[1][:0]).shape == (0, columns)


def test_packed_scales(theirs: Any) -> None:
    values = torch.randn(3, 1024).to(torch.float8_e4m3fn)
    packed = torch.randint(110, 135, (3, 8), dtype=torch.uint8).view(torch.int32)
    want = theirs.per_token_cast_back(values, packed)
    assert torch.equal(ours.per_token_cast_back(values, packed), want)
    # One token, or one pack, of a column-major scale.
    one_token = torch.empty_strided((1, 2), (1, 4), dtype=torch.int32).copy_(packed[:1])
    one_pack = torch.empty_strided((3, 1), (1, 4), dtype=torch.int32).copy_(packed[:, :1])
    assert torch.equal(ours.per_token_cast_back(values[:1], one_token), want[:1])
    assert torch.equal(ours.per_token_cast_back(values[:, :512], one_pack), want[:, :512])


def test_checks(theirs: Any) -> None:
    x, y = torch.randn(40), torch.randn(40)
    assert ours.calc_diff(x, y) == pytest.approx(theirs.calc_diff(x, y)) and ours.calc_diff(x, x) == pytest.approx(
        0, abs=1e-15
    )
    nested = (x, None, [y, (x, y)], torch.ones(3, dtype=torch.int32))
    assert ours.hash_tensors(*nested) == theirs.hash_tensors(*nested)
    assert ours.hash_tensor(y) == theirs.hash_tensor(y)
    assert ours.count_bytes(*nested) == theirs.count_bytes(*nested) == 4 * (40 * 4 + 3)


@pytest.mark.parametrize("slots", [3, 6, 12])
def test_unique_and_grouped_scores(theirs: Any, slots: int) -> None:
    x = torch.randint(-1, slots, (20, 6))
    mine, reference = x.clone(), x.clone()
    ours.inplace_unique(mine, slots)
    theirs.inplace_unique(reference, slots)
    # Where more slots are named than are kept, the most frequent stay, and ties are anybody's: then only what is kept counts.
    for row, kept, other in zip(x.tolist(), mine.tolist(), reference.tolist(), strict=True):
        assert len([slot for slot in kept if slot >= 0]) == len([slot for slot in other if slot >= 0])
        assert kept == sorted(kept, reverse=True) and {slot for slot in kept if slot >= 0} <= set(row)
        if len({slot for slot in row if slot >= 0}) <= min(slots, 6):
            assert kept == other
    scores, groups = torch.rand(7, 12), torch.tensor([[0, 2]] * 7)
    assert torch.equal(ours.create_grouped_scores(scores, groups, 4), theirs.create_grouped_scores(scores, groups, 4))


def test_alignments_are_upstreams(source_root: Callable[[str], Path]) -> None:
    text = (source_root("deep_ep") / "deep_ep/include/deep_ep/common/compiled.cuh").read_text()
    for name, value in (
        ("kNumAllocationAlignmentBytes", _C.get_num_allocation_alignment()),
        ("kNumRDMAAlignmentBytes", _C.get_num_rdma_alignment()),
        ("kNumTMAAlignmentBytes", _C.get_num_tma_alignment()),
    ):
        found = re.search(rf"constexpr int {name} = ([\d *]+);", text)
        assert found is not None and eval(found[1]) == value
    assert _C.topk_idx_t == torch.int64


def test_semantics() -> None:
    assert value_or(None, 3) == 3 and value_or(0, 3) == 0
    calls = []

    class Counter:
        @weak_lru(maxsize=None)
        def square(self, x: int, sign: int = 1) -> int:
            calls.append(x)
            return sign * x * x

    one, two = Counter(), Counter()
    assert [one.square(3), one.square(3), one.square(3, sign=-1), two.square(3)] == [9, 9, -9, 9] and len(calls) == 3
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


# --- events ---


class Work:
    def __init__(self) -> None:
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


def test_event_waits_once() -> None:
    works = Work(), Work()
    event = EventHandle((works[0], None, works[1]))
    event.current_stream_wait()
    event.current_stream_wait()
    assert [work.waits for work in works] == [1, 1]
    EventHandle().current_stream_wait()


def test_overlap() -> None:
    overlap = EventOverlap(EventHandle())
    overlap.register_hook_after_wait(lambda: 5)
    with pytest.raises(AssertionError):
        overlap.register_hook_after_wait(lambda: 6)
    assert overlap.wait() == 5 and overlap.wait() is None and overlap.event is not None
    with overlap(release_handle=True) as same:
        assert same is overlap and overlap.event is not None
    assert overlap.event is None
    with overlap:
        pass
    with pytest.raises(AssertionError):
        overlap.current_stream_wait()
    with EventOverlap(EventHandle()) as kept:
        kept.register_hook_after_wait(lambda: calls.append(1))
        calls: list[int] = []
    assert calls == [1] and kept.event is not None


# --- buffers ---


class Group:
    """So many ranks; never asked for more than its size by what is tested with it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return 1


def token_bytes(*parts: int) -> int:
    return -(-sum(-(-part // 32) * 32 for part in parts) // 64) * 64


@pytest.mark.parametrize("ranks", [1, 4, 16])
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("multiple", [False, True])
def test_buffer_size(ranks: int, fp8: bool, multiple: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger of upstream's dispatch and combine layouts, slots a rank or choice times bytes a token."""
    tokens, hidden, topk, step = 96, 1056, 6, 2 << 20
    group = None if ranks == 1 else Group(ranks)
    sent = token_bytes(hidden * (1 if fp8 else 2), hidden // 32 * 4 if fp8 else 0, topk * 8 + 4 * (1 + topk))
    back = token_bytes(hidden * 2, 0, topk * 8)
    size = max(sent * ranks * tokens, back * (min(ranks, topk) if multiple else topk) * tokens)
    arguments = (group, tokens, hidden, topk, fp8, True, multiple)
    assert EPBuffer.get_buffer_size_hint(*arguments) == -(-size // step) * step
    if ranks == 16:
        # Ranks of several hosts: a send buffer, too.
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        size = max(sent * 17 * tokens, back * ((min(ranks, topk) + ranks) if multiple else topk * (ranks + 1)) * tokens)
        assert EPBuffer.get_buffer_size_hint(*arguments) == -(-size // step) * step


def test_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert get_physical_domain_size(None) == (1, 1) and get_physical_domain_size(Group(8)) == (1, 8)
    assert get_logical_domain_size(Group(8)) == get_logical_domain_size(SimpleNamespace(num_ranks=8), False) == (1, 8)
    for local, want in (("4", (2, 4)), ("8", (1, 8)), ("3", (1, 8)), ("16", (1, 8)), ("0", (1, 8))):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        assert get_physical_domain_size(Group(8)) == want


def test_lifecycle(capsys: pytest.CaptureFixture[str]) -> None:
    kept = EPBuffer(None, num_bytes=2 << 20)
    with pytest.raises(AssertionError):
        kept.destroy()
    buffer = EPBuffer(None, num_bytes=4 << 20, explicitly_destroy=True)
    assert buffer.main_context is not None and (buffer.rank_idx, buffer.num_ranks) == (0, 1)
    assert (buffer.num_scaleout_ranks, buffer.num_scaleup_ranks, buffer.scaleup_rank_idx, buffer.num_rdma_ranks) == (
        1,
        1,
        0,
        1,
    )
    buffer.print_memory_usage()
    assert "rank 0 of 1" in capsys.readouterr().out
    buffer.barrier()
    buffer.destroy()
    buffer.destroy()
    assert buffer.main_context is None
    for wrong in ({"num_bytes": 5}, {"num_bytes": 0}, {}):
        with pytest.raises(AssertionError):
            EPBuffer(None, **wrong)
    with pytest.raises(NotImplementedError):
        EPBuffer(None, num_bytes=2 << 20, lb_allocation_plan_or_num_bytes=2 << 20)


def test_counts_of_units() -> None:
    buffer = EPBuffer(None, num_bytes=2 << 20)
    assert buffer.get_theoretical_num_sms(num_experts=256, num_topk=8) == 4
    assert [buffer.get_theoretical_num_qps(n) for n in (2, 4, 64)] == [33, 65, 129]
    assert [EPBuffer(None, 2 << 20, allow_hybrid_mode=False).get_theoretical_num_qps(n) for n in (2, 64)] == [2, 9]


@pytest.mark.parametrize(
    ("sizes", "want"),
    [
        ((2, 8, 4), (1 + 28, 1024, False)),
        ((2, 8192, 24), (29, 16384, False)),
        ((4, 65536, 24), (201, 32768, True)),
    ],
)
def test_engram_configuration(sizes: tuple[int, int, int], want: tuple[int, int, bool]) -> None:
    """Upstream's estimate by hand: ceil(45e6 * 10e-6 / 16) pairs, the least depth from 1024 up that holds the requests."""
    assert EngramBuffer.get_theoretical_config(None, *sizes) == want


def test_engram_checks() -> None:
    sizes = ([5], 64, 4, 3, torch.bfloat16, 0)
    device_bytes, shard_bytes = EngramBuffer.get_storage_size_hint(None, *sizes)
    assert (device_bytes, shard_bytes) == (2 << 20, 2 << 20)
    arguments = {
        "group": None,
        "num_gpu_bytes": device_bytes,
        "use_cpu_rdma_storage": False,
        "num_allocated_qps": 1,
        "qp_depth": 1024,
    }
    with pytest.raises(TypeError):
        EngramBuffer(**arguments, num_rdma_storage_size=1, num_rdma_storage_bytes=1)
    buffer = EngramBuffer(**arguments, num_rdma_storage_bytes=shard_bytes)
    buffer.set_config(*sizes)
    with pytest.raises(AssertionError):
        buffer.fetch(torch.zeros(1, 1, 3, dtype=torch.int32))
    with pytest.raises(AssertionError):
        buffer.write([torch.zeros(6, 64, dtype=torch.bfloat16)])
    with pytest.raises(AssertionError):
        buffer.write([torch.zeros(5, 64, dtype=torch.bfloat16)], sfs=[torch.zeros(5, 1)])
    buffer.write([torch.zeros(5, 64, dtype=torch.bfloat16)])
    for wrong in (
        torch.zeros(1, 5, 3, dtype=torch.int32),
        torch.zeros(2, 1, 3, dtype=torch.int32),
        torch.zeros(1, 1, 3),
    ):
        with pytest.raises(AssertionError):
            buffer.fetch(wrong)
    with pytest.raises(AssertionError):
        buffer.set_config([5], 63, 4, 3)
    with pytest.raises(AssertionError):
        buffer.set_config([20000], 64, 4, 3)


EXPERTS, TOPK, TOKENS, HIDDEN = 16, 4, 8, 256


def choices(tokens: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor]:
    weights, chosen = torch.rand(tokens, EXPERTS).topk(TOPK)
    return chosen, weights


def test_handle_guards_its_choices() -> None:
    buffer = EPBuffer(None, num_bytes=2 << 20, num_max_tokens_per_rank=TOKENS)
    chosen, _ = choices()
    x = torch.randn(TOKENS, HIDDEN).to(torch.bfloat16)
    *_, handle, _ = buffer.dispatch(x, chosen, num_experts=EXPERTS)
    assert isinstance(handle, EPHandle) and handle.topk_idx is chosen
    chosen[0] = -1
    with pytest.raises(AssertionError):
        buffer.combine(x, handle)
    with torch.inference_mode():
        chosen, _ = choices()
        *_, handle, _ = buffer.dispatch(x, chosen, num_experts=EXPERTS)
        chosen[0] = -1
        assert handle.topk_idx is chosen


@pytest.mark.parametrize(
    "change",
    [
        {"do_handle_copy": True}, {"do_zero_padding": True}, {"defer_epilogue": True}, {"previous_event": EventHandle()},
        {"num_experts": None}, {"topk_idx": None}, {"num_max_tokens_per_rank": 3}, {"topk_weights": torch.rand(2, 4)},
    ],
    ids=lambda change: "+".join(change),
)  # fmt: skip
def test_dispatch_refuses(change: dict[str, Any]) -> None:
    buffer = EPBuffer(None, num_bytes=2 << 20, num_max_tokens_per_rank=TOKENS)
    arguments = {
        "x": torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16),
        "topk_idx": choices()[0],
        "num_experts": EXPERTS,
    }
    with pytest.raises(AssertionError):
        buffer.dispatch(**{**arguments, **change})


def test_cached_dispatch_refuses_another_layout() -> None:
    buffer = EPBuffer(None, num_bytes=2 << 20, num_max_tokens_per_rank=TOKENS)
    x, chosen = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16), choices()[0]
    *_, handle, _ = buffer.dispatch(x, chosen, num_experts=EXPERTS)
    for wrong in (
        {"topk_idx": chosen},
        {"do_cpu_sync": True},
        {"num_experts": 32},
        {"expert_alignment": 8},
        {"do_expand": True},
    ):
        with pytest.raises(AssertionError):
            buffer.dispatch(x, handle=handle, **wrong)


def test_scales_of_odd_width_travel_with_their_values() -> None:
    """Three int16 packs a token, as a packed ue8m0 scale of 192 values is on Ascend, from a column-major tensor."""
    buffer = EPBuffer(None, num_bytes=2 << 20, num_max_tokens_per_rank=TOKENS)
    values = torch.randn(TOKENS, 192).to(torch.float8_e4m3fn)
    scales = torch.randint(0, 999, (3, TOKENS), dtype=torch.int16).T
    chosen, weights = choices()
    (got, sf), _, got_weights, handle, _ = buffer.dispatch(
        (values, scales),
        chosen,
        weights,
        num_experts=EXPERTS,
        expert_alignment=4,
        do_expand=True,
        use_tma_aligned_col_major_sf=True,
    )
    rows = handle.recv_src_metadata[:, 2:].long()
    assert sf.dtype == torch.int16 and sf.stride() == (1, -(-sf.shape[0] // 8) * 8)
    for k in range(TOPK):
        assert torch.equal(got.view(torch.uint8)[rows[:, k]], values.view(torch.uint8)) and torch.equal(
            sf[rows[:, k]], scales
        )
        assert torch.equal(got_weights[rows[:, k]], weights[:, k])


# --- one decode step, as the engine's MoE layer runs it ---

STEP = EPBuffer(None, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN, num_topk=TOPK)


def step(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor, stats: torch.Tensor, out: torch.Tensor
) -> None:  # fmt: skip
    event = STEP.dispatch(
        x=x, num_sms=4, topk_idx=chosen, topk_weights=weights, cumulative_local_expert_recv_stats=stats, num_experts=EXPERTS,
        num_max_tokens_per_rank=TOKENS, expert_alignment=16, previous_event=None, async_with_compute_stream=True,
        allocate_on_comm_stream=False, do_handle_copy=False, do_cpu_sync=False, do_expand=True, use_tma_aligned_col_major_sf=True,
        defer_epilogue=True,
    )  # fmt: skip
    rows, _, row_weights, handle = event.current_stream_wait()
    made = (rows * row_weights.unsqueeze(1)).to(torch.bfloat16)
    event = STEP.combine(
        x=made, handle=handle, num_sms=4, bias=shared, previous_event=STEP.capture(), async_with_compute_stream=True,
        allocate_on_comm_stream=True, defer_epilogue=True,
    )  # fmt: skip
    out.copy_(event.current_stream_wait()[0])


def step_arguments() -> tuple[torch.Tensor, ...]:
    x, (chosen, weights) = torch.randn(TOKENS, HIDDEN).to(torch.bfloat16), choices()
    chosen[1, 2] = chosen[3] = -1
    return x, chosen, weights, torch.randn_like(x), torch.zeros(EXPERTS, dtype=torch.int32), torch.empty_like(x)


def test_step() -> None:
    x, chosen, weights, shared, stats, out = step_arguments()
    step(x, chosen, weights, shared, stats, out)
    total = shared.float()
    local = torch.zeros_like(total)
    for k in range(TOPK):
        local += (x * weights[:, k : k + 1]).to(torch.bfloat16).float() * (chosen[:, k : k + 1] >= 0)
    assert torch.equal(out, (total + local.to(torch.bfloat16)).to(torch.bfloat16))
    assert torch.equal(stats, torch.bincount(chosen[chosen >= 0], minlength=EXPERTS).to(torch.int32))


def test_step_is_static() -> None:
    arguments = step_arguments()
    check_fake(step, *arguments)
    check_fullgraph(step, *arguments)
    assert wide_ops(step, *arguments) == []
    assert len(count_ops(step, *arguments)) <= 54


def test_one_rank_copies_nothing_but_its_rows() -> None:
    """New memory: the rows and their weights, the sums, and counters; no second copy of the tokens to send."""
    buffer = EPBuffer(None, num_bytes=2 << 20, num_max_tokens_per_rank=64)
    x, (chosen, weights) = torch.randn(64, 4096).to(torch.bfloat16), choices(64)

    def dispatch(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> None:
        buffer.dispatch(x, chosen, weights, num_experts=EXPERTS, expert_alignment=1, do_cpu_sync=False, do_expand=True)

    rows = 64 * TOPK * 4096 * 2
    assert rows < new_bytes(dispatch, x, chosen, weights) < rows * 1.05


def test_two_device_ranks_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's all_to_all takes no pair of ranks."""
    buffer = EPBuffer(None, num_bytes=2 << 20)
    for backend, ranks, want in (("neuron", 2, True), ("neuron", 4, False), ("gloo", 2, False)):
        monkeypatch.setattr(base.dist, "get_backend", lambda group, name=backend: name)
        buffer.num_ranks = ranks
        assert buffer._exchanges_by_gather() == want


# --- the engine's own module for buffers ---


@pytest.fixture
def userbuffer(source_root: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """``parallel_utils/userbuffer.py`` as it is in the engine; what it imports beside ``deep_ep`` does nothing here."""

    def stand_in(name: str, **names: Any) -> None:
        made = types.ModuleType(name)
        made.__path__ = []  # type: ignore[attr-defined]
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)

    envs = SimpleNamespace(
        DEEPINFER_BATCH_INVARIANT=False, DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL=0, DEEPINFER_USERBUFFER_COMM_SMS=0,
        DEEPINFER_ENGRAM_FORCE_GPU_STORAGE=False,
    )  # fmt: skip
    stand_in("deep_ep", EPBuffer=EPBuffer, EngramBuffer=EngramBuffer)
    stand_in("deep_gemm", SymmBuffer=object)
    stand_in("tile_kernels")
    stand_in("deepinfer", PLATFORM=SimpleNamespace(is_gpu=False), envs=envs)
    stand_in("deepinfer.logger", init_logger=lambda name: SimpleNamespace(info=lambda text: None))
    for package in ("deepinfer.model_executor", "deepinfer.model_executor.parallel_utils"):
        stand_in(package)
    stand_in("deepinfer.model_executor.parallel_utils.cp", CPManager=object)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=24))
    file = source_root("deepinfer") / "deepinfer/model_executor/parallel_utils/userbuffer.py"
    spec = importlib.util.spec_from_file_location("upstream_userbuffer", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Lone:
    """A process group of one, which nothing is sent over."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


@pytest.mark.parametrize("fp8", [False, True])
def test_the_engine_allocates(userbuffer: Any, fp8: bool) -> None:
    manager, group = userbuffer._UserBufferManager(), Lone()
    buffer = manager.allocate_ep(group, 64, 512, 6, 16, use_fp8_dispatch=fp8)
    assert manager.allocate_ep(group, 32, 512, 6, 16, use_fp8_dispatch=fp8) is buffer
    assert userbuffer.envs.DEEPINFER_USERBUFFER_COMM_SMS == 4
    dtype, packs = (torch.float8_e4m3fn, 2) if fp8 else (torch.bfloat16, 0)
    engram = manager.allocate_engram(group, [10, 12], 128, 64, 3, dtype, packs)
    tables = [torch.randn(count, 128).to(dtype) for count in (10, 12)]
    scales = [torch.randint(0, 999, (count, 2), dtype=torch.int16) for count in (10, 12)] if fp8 else None
    engram.write(tables, sfs=scales)
    hashes = torch.stack([torch.randint(0, count, (5, 3), dtype=torch.int32) for count in (10, 12)])
    for layer, hook in enumerate(engram.fetch(hashes, use_tma_aligned_col_major_sf=True)):
        data = hook()[0] if fp8 else hook()
        want = tables[layer].view(torch.uint8)[hashes[layer].view(-1).long()].view(5, -1)
        assert torch.equal(data.view(torch.uint8), want)
    manager.close()
    assert buffer.runtime is None and engram.runtime is None


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("strides", [(1, 1), (1, 8), (5, 2), (7, 1)])
@pytest.mark.parametrize("packs", [1, 2, 3])
def test_inputs_of_any_stride(tokens: int, strides: tuple[int, int], packs: int) -> None:
    """One token, or one pack, may have any stride, and still count as contiguous."""
    buffer = EPBuffer(None, num_bytes=2 << 20, num_max_tokens_per_rank=TOKENS)
    source = torch.randint(0, 999, (64,), dtype=torch.int16)
    scales = source.as_strided((tokens, packs), strides)
    values = torch.randn(tokens, 3, 64).to(torch.float8_e4m3fn)[:, 1]
    weights = torch.rand(64).as_strided((tokens, TOPK), strides)
    chosen = choices(tokens)[0]
    (got, sf), _, got_weights, handle, _ = buffer.dispatch(
        (values, scales), chosen, weights, num_experts=EXPERTS, do_expand=True
    )
    rows = handle.recv_src_metadata[:, 2:].long()
    for k in range(TOPK):
        assert torch.equal(got.view(torch.uint8)[rows[:, k]], values.contiguous().view(torch.uint8))
        assert torch.equal(sf[rows[:, k]], scales) and torch.equal(got_weights[rows[:, k]], weights[:, k])
    x = torch.randn(got.shape[0], 128).to(torch.bfloat16)[:, ::2]
    back, back_weights, _ = buffer.combine(x, handle, topk_weights=got_weights, bias=x[:tokens])
    want = x[:tokens].float() + sum(x[rows[:, k]].float() for k in range(TOPK)).to(torch.bfloat16).float()
    assert torch.equal(back, want.to(torch.bfloat16)) and torch.equal(back_weights, weights)
