"""Decode metadata of packed sequences and the expansion of their block tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.prepare_v4_decode_metadata import copy_block_tables_tl, prepare_v4_decode_metadata_tl

PLACEHOLDER = 998244353


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def running(lens: list[int]) -> list[int]:
    return [sum(lens[: i + 1]) for i in range(len(lens))]


def compact_tables(counts: list[int]) -> tuple[list[int], list[int]]:
    offsets = [0, *running(counts)]
    return [100 + 7 * i for i in range(offsets[-1])], offsets


@pytest.mark.parametrize(
    "lens, counts", [([1], [3]), ([2, 1, 3], [1, 4, 2]), ([1, 0, 2], [2, 3, 0]), ([1] * 70, [2] * 70)]
)
def test_block_tables(lens: list[int], counts: list[int]) -> None:
    table, offsets = compact_tables(counts)
    width, total = 5, sum(lens)
    out = guard(torch.full((total, width), 77, dtype=torch.int32))
    args = (guard(ints(lens)), guard(ints(running(lens))), guard(ints(table)), guard(ints(offsets)), out)
    kernel = copy_block_tables_tl(max(lens), width)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("block_tables_out",))
    owners = [r for r, n in enumerate(lens) for _ in range(n)]
    assert out.tolist() == [table[offsets[r] : offsets[r + 1]] + [77] * (width - counts[r]) for r in owners]


@pytest.mark.parametrize("ratios", [((2,), (2,), (2,)), ((1, 2), (), (1, 2)), ((), (), ())])
@pytest.mark.parametrize("lens, past", [([1], [0]), ([2, 1, 3], [0, 63, 6]), ([1] * 70, [2**20] * 70)])
@pytest.mark.parametrize("balance", [False, True])
def test_metadata(ratios: tuple[tuple[int, ...], ...], lens: list[int], past: list[int], balance: bool) -> None:
    ca, dense, sparse = ratios
    block, window, ring, width = 8, 5, 12, 4
    n, total, gap = len(lens), sum(lens), 3
    keys = [p + q for p, q in zip(past, lens, strict=True)]
    table, offsets = compact_tables([-(-k // block) + 1 for k in keys])
    states = [3 * i + 1 for i in range(n)]
    placeholder = [i % 2 == 1 for i in range(n)]
    inputs = [
        ints(lens),
        ints(keys),
        ints(running(lens)),
        ints(table),
        ints(offsets),
        ints(states),
        torch.tensor(placeholder),
    ]
    shapes = {
        "positions": (total,),
        "valid_token_mask": (total,),
        "gate_force_random": (total,),
        "fix_routing_mask": (total,),
        "context_lens": (total,),
        "klen": (max(len(sparse), 1), total + gap),
        "kv_ca_index_offset_len": (max(len(dense), 1), total + gap, 2),
        "kv_swa_index_offset_len": (total, 2),
        "slot_mapping_store_swa": (total,),
        "query_indices": (total,),
        "state_block_idx_out": (total,),
        "positions_c": (max(len(ca), 1), total + gap),
        "slot_mapping_store_ca": (max(len(ca), 1), total + gap),
    }
    flags = {"valid_token_mask", "gate_force_random", "fix_routing_mask"}
    out = {
        k: guard(torch.full(s, 77, dtype=torch.int32) if k not in flags else torch.ones(s, dtype=torch.bool))
        for k, s in shapes.items()
    }
    args = (*(guard(t) for t in inputs), *out.values())
    kernel = prepare_v4_decode_metadata_tl(max(lens), width, window, ring, block, balance, ca, dense, sparse)
    stacked = {"klen": sparse, "kv_ca_index_offset_len": dense, "positions_c": ca, "slot_mapping_store_ca": ca}
    unused = [name for name, used in stacked.items() if not used]
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=set(out) - set(unused), gates=n < 70)

    rows = [(r, past[r] + j) for r, q in enumerate(lens) for j in range(q)]
    spans = [min(p + 1, window) for _, p in rows]
    assert out["positions"].tolist() == [p for _, p in rows]
    assert out["valid_token_mask"].tolist() == [not placeholder[r] for r, _ in rows]
    assert out["gate_force_random"].tolist() == [balance] * total and not out["fix_routing_mask"].any()
    assert out["context_lens"].tolist() == [p + 1 for _, p in rows]
    assert out["query_indices"].tolist() == [PLACEHOLDER if placeholder[r] else r for r, _ in rows]
    assert out["state_block_idx_out"].tolist() == [states[r] for r, _ in rows]
    assert out["slot_mapping_store_swa"].tolist() == [states[r] * ring + p % ring for r, p in rows]
    starts = [states[r] * ring + (p - s + 1) % ring for (r, p), s in zip(rows, spans, strict=True)]
    assert out["kv_swa_index_offset_len"].tolist() == [[a, s] for a, s in zip(starts, spans, strict=True)]
    for i, ratio in enumerate(sparse):
        assert out["klen"][i].tolist() == [(p + 1) // ratio for _, p in rows] + [77] * gap
    for i, ratio in enumerate(dense):
        want = [[t * width * (block // ratio), (p + 1) // ratio] for t, (_, p) in enumerate(rows)]
        assert out["kv_ca_index_offset_len"][i].tolist() == want + [[77, 77]] * gap
    for i, ratio in enumerate(ca):
        per, ends = block // ratio, [(p + 1) % ratio == 0 for _, p in rows]
        slots = [
            table[offsets[r] + p // ratio // per] * per + p // ratio % per if e else -1
            for (r, p), e in zip(rows, ends, strict=True)
        ]
        assert out["slot_mapping_store_ca"][i].tolist() == slots + [77] * gap
        assert (
            out["positions_c"][i].tolist()
            == [p // ratio * ratio if e else 0 for (_, p), e in zip(rows, ends, strict=True)] + [77] * gap
        )
    assert all((out[name] == 77).all() for name in unused)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=60))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_any_block_tables(rows: list[tuple[int, int]]) -> None:
    lens, counts = [q for q, _ in rows], [c for _, c in rows]
    table, offsets = compact_tables([*counts[:-1], max(counts[-1], 1)])
    out = torch.full((sum(lens), 4), 77, dtype=torch.int32)
    copy_block_tables_tl(4, 4)(ints(lens), ints(running(lens)), ints(table), ints(offsets), out)
    owners = [r for r, n in enumerate(lens) for _ in range(n)]
    want = [(table[offsets[r] : offsets[r + 1]] + [77] * 4)[:4] for r in owners]
    assert out.tolist() == want


def test_against_the_reference(upstream: Callable[[str], Any]) -> None:
    module = upstream("prepare_v4_decode_metadata")
    n, width = 31, 64
    lens = torch.randint(1, 5, (n,)).int()
    keys, total = lens + 200, int(lens.sum())
    table, offsets, _ = module._build_compact_block_tables(keys, 1, 128)
    base = [lens, keys, lens.cumsum(0, dtype=torch.int32), table, offsets, torch.arange(n).int(), torch.rand(n) < 0.3]

    def outputs() -> list[torch.Tensor]:
        shapes = [(total,)] * 5 + [
            (2, total),
            (1, total, 2),
            (total, 2),
            (total,),
            (total,),
            (total,),
            (total, width),
            (2, total),
            (2, total),
        ]
        return [torch.zeros(s, dtype=torch.bool if i in (1, 2, 3) else torch.int32) for i, s in enumerate(shapes)]

    sizes = {"max_seqlen_q": 4, "max_num_blocks": width, "window_size": 128, "swa_block_size": 256, "block_size": 128}
    ratios = {"ca_ratios": (1, 2), "dense_ratios": (2,), "sparse_ratios": (1, 2)}
    got, want = outputs(), outputs()
    module.prepare_v4_decode_metadata(*base, *got, **sizes, **ratios)
    module.prepare_v4_decode_metadata_ref(*base, *want, **sizes, **ratios)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
