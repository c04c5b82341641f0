"""Speculative decoding: pools, budget by confidence, confidence head, draft inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import Work, check_kernel, guard, wide_ops, work
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.dflash import confidence_head_fused_tl, dflash_input_store_tl
from overrides.tilelang_ops.dflash_copy import copy_dflash_decode_input_tl
from overrides.tilelang_ops.schedule_mtp_varlen import compute_seqlens_q_by_confidence_rates_tl
from overrides.tilelang_ops.store_mtp_info import store_mtp_info_tl


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("slots", [[], [0], [3], [2, 0, 1, 0], [0, 0]])
@pytest.mark.parametrize("nextn", [1, 3])
@pytest.mark.parametrize("has_index, has_confidence", [(False, True), (True, False)])
def test_pools(slots: list[int], nextn: int, has_index: bool, has_confidence: bool) -> None:
    r, width, rows = len(slots), 6, 4 * nextn
    values = (
        torch.randint(0, 99, (r, nextn)).int(),
        torch.randn(r, nextn, width),
        torch.randint(0, 99, (r, nextn, width)).int(),
        torch.rand(r, nextn),
    )
    pools = (
        torch.full((rows,), 77).int(),
        torch.full((rows, width), 7.0),
        torch.full((rows, width), 77).int(),
        torch.full((rows,), 7.0),
    )
    present = (True, True, has_index, has_confidence)
    names = ("token_ids_pool", "logprobs_pool", "logprobs_index_pool", "confidence_pool")
    args = (
        guard(ints(slots)),
        *(guard(v) if p else None for v, p in zip(values, present, strict=True)),
        *(guard(v) if p else None for v, p in zip(pools, present, strict=True)),
    )
    kernel = store_mtp_info_tl(nextn, width, has_index, has_confidence)
    assert wide_ops(kernel, *args) == []
    written = [name for name, p in zip(names, present, strict=True) if p]
    check_kernel(kernel, *args, written=written)
    for pool, value, got in zip(pools, values, args[5:], strict=True):
        if got is not None:
            for i, slot in enumerate(slots):
                if slot:
                    pool[slot * nextn : (slot + 1) * nextn] = value[i]
            assert torch.equal(got, pool)


def test_cost_does_not_grow_with_the_pool() -> None:
    def cost(rows: int) -> Work:
        values = (ints([1]), ints([[5, 6]]), torch.randn(1, 2, 8), None, None)
        return work(store_mtp_info_tl(2, 8, False, False), *values, ints([0] * rows), torch.zeros(rows, 8), None, None)

    assert cost(16) == cost(256)


def query_lengths(
    total: int, remap: list[int], rates: list[list[float]], nextn: int
) -> tuple[list[list[float]], list[int]]:
    chances = []
    for source in remap:
        row, chance = [], torch.tensor(1.0)
        for step in range(nextn):
            chance = chance * rates[source][step] if source != -1 else torch.tensor(0.0)
            row.append(chance.item())
        chances.append(row)
    order = sorted(range(len(remap) * nextn), key=lambda k: (-chances[k // nextn][k % nextn], k))
    winners = order[: max(total - len(remap), 0)]
    return chances, [1 + sum(k // nextn == i for k in winners) for i in range(len(remap))]


@pytest.mark.parametrize("nextn", [1, 3])
@pytest.mark.parametrize("remap, previous", [([0], 1), ([-1, -1], 0), ([2, -1, 0, 1, 1], 3)])
@pytest.mark.parametrize("extra", [-1, 0, 1, 4, 99])
def test_budget(nextn: int, remap: list[int], previous: int, extra: int) -> None:
    rates = (torch.randint(0, 5, (previous, nextn)) / 4).float()
    n = len(remap)
    chances, lengths = guard(torch.full((n, nextn), 7.0)), guard(ints([77] * n))
    args = (guard(ints(remap)), guard(rates), chances, lengths, n + extra)
    kernel = compute_seqlens_q_by_confidence_rates_tl(nextn)
    # Only the indices of topk, which nothing reads.
    assert set(wide_ops(kernel, *args)) <= {"aten.topk.default"}
    check_kernel(kernel, *args, written=("cum_rates", "seqlens_q"), gates=extra in (0, 4))
    want_chances, want_lengths = query_lengths(n + extra, remap, rates.tolist(), nextn)
    assert chances.tolist() == want_chances and lengths.tolist() == want_lengths


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=12), st.integers(0, 40), st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_budget(remap: list[int], extra: int, random: Any) -> None:
    rates = torch.tensor([[random.choice([0.0, 0.25, 0.3, 0.7, 1.0]) for _ in range(3)] for _ in range(4)])
    n = len(remap)
    chances, lengths = torch.empty(n, 3), ints([0] * n)
    compute_seqlens_q_by_confidence_rates_tl(3)(ints(remap), rates, chances, lengths, n + extra)
    assert lengths.tolist() == query_lengths(n + extra, remap, rates.tolist(), 3)[1]


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("rank", [0, 64])
def test_confidence_head(rows: int, rank: int) -> None:
    width, temperature = 128, 0.85
    hidden, markov = torch.randn(rows, width).bfloat16(), torch.randn(rows, rank).bfloat16() if rank else None
    weight = torch.randn(width + rank).bfloat16()
    if rows > 1:
        hidden[1], weight[0] = 0.0, 3.0
        hidden[1, 0] = 3e4
    args = (
        guard(hidden, (width + 8, 1)),
        None if markov is None else guard(markov),
        guard(weight),
        guard(torch.full((rows,), 7.0), (3,)),
        temperature,
    )
    kernel = confidence_head_fused_tl(width, rank, bool(rank))
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("out",))
    features = hidden if markov is None else torch.cat([hidden, markov], 1)
    logit = (features.double() @ weight.double() / temperature).clamp(-60, 60)
    assert torch.allclose(args[3].double(), logit.sigmoid(), atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_mean_of_streams(rows: int, streams: int) -> None:
    x = torch.randn(rows, streams, 128).bfloat16()
    args = (guard(x), guard(torch.full((rows, 128), 7.0).bfloat16(), (300, 1)))
    kernel = dflash_input_store_tl(128, streams)
    check_kernel(kernel, *args, written=("out",))
    total = x[:, 0].float()
    for stream in range(1, streams):
        total = total + x[:, stream].float()
    assert torch.equal(args[1], (total * (1 / streams)).bfloat16())


TENSORS = {"temperatures": torch.float32, "top_ps": torch.float32, "seq_seeds": torch.uint64}


@pytest.mark.parametrize("driver", [False, True])
@pytest.mark.parametrize("live, padding, places", [(0, 3, 3), (2, 4, 5), (3, 0, 3), (2, 1, 6)])
def test_draft_inputs(driver: bool, live: int, padding: int, places: int) -> None:
    kernel = copy_dflash_decode_input_tl(driver)
    args, written = [], []
    for name in inspect.signature(kernel).parameters:
        kind, field = name.split("_", 1)
        if not driver and field != "first_token_positions":
            args.append(None)
            continue
        size = {"src": live, "padding": padding, "dst": places}[kind]
        args.append(guard(torch.randint(0, 99, (size,)).to(TENSORS.get(field, torch.int32))))
        written += [name] if kind == "dst" else []
    before = [t.clone() if t is not None else None for t in args]
    check_kernel(kernel, *args, written=written)
    for source, pad, target, old in zip(args[:9], args[9:18], args[18:], before[18:], strict=True):
        if target is not None:
            want = [*source.tolist(), *pad.tolist(), *old.tolist()[live + padding :]][:places]
            assert target.tolist() == want


def test_against_the_references(upstream: Callable[[str], Any]) -> None:
    module = upstream("schedule_mtp_varlen")
    remap, rates = torch.randint(-1, 40, (40,)).int(), torch.rand(40, 3)
    got, want = ints([0] * 40), ints([0] * 40)
    module.compute_seqlens_q_by_confidence_rates(90, remap, rates, got)
    module.compute_seqlens_q_by_confidence_rates_ref(90, remap, rates, want)
    assert torch.equal(got, want) and int(got.sum()) == 90
    module = upstream("dflash")
    hidden, weight, markov = (
        torch.randn(9, 512).bfloat16(),
        torch.randn(640, 1).bfloat16() / 10,
        torch.randn(9, 128).bfloat16(),
    )
    head = module.confidence_head_fused(hidden, weight, 0.85, markov)
    assert torch.allclose(head, module.confidence_head_fused_ref(hidden, weight, 0.85, markov), atol=1e-6)
    module, pools = upstream("store_mtp_info"), []
    slots, tokens, logprobs = ints([2, 0, 1]), torch.randint(0, 9, (3, 2)).int(), torch.randn(3, 2, 64)
    for function in (module.store_mtp_info, module.store_mtp_info_ref):
        pools.append((torch.zeros(8).int(), torch.zeros(8, 64), torch.zeros(8)))
        function(slots, tokens, logprobs, None, torch.ones(3, 2), pools[-1][0], pools[-1][1], None, pools[-1][2])
    assert all(torch.equal(a, b) for a, b in zip(*pools, strict=True))


def test_refuses_what_upstream_refuses() -> None:
    for factory, args in (
        (dflash_input_store_tl, (100, 4)),
        (dflash_input_store_tl, (16384, 4)),
        (confidence_head_fused_tl, (60, 0, False)),
    ):
        with pytest.raises(AssertionError, match="expected"):
            factory(*args)  # type: ignore[operator]
