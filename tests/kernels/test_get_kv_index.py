"""load_kv_index in its three modes, and the inputs of draft tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import Work, check_kernel, guard, wide_ops, work
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.get_kv_index import get_fused_dflash_get_input_tl, load_kv_index_tl

Pair = tuple[int, int]


def expected(pairs: list[Pair], width: int, block_size: int, tables: list[int] | None) -> list[list[int]]:
    def slot(offset: int, j: int) -> int:
        token = offset + j
        if tables is not None:
            return tables[token // block_size] * block_size + token % block_size
        return token if block_size == 0 else offset // block_size * block_size + token % block_size

    return [[slot(offset, j) if j < length else -1 for j in range(width)] for offset, length in pairs]


def load(
    pairs: list[Pair], width: int, block_size: int, tables: list[int] | None, gates: bool = False
) -> list[list[int]]:
    out = guard(torch.full((len(pairs), width), 77, dtype=torch.int32))
    table = None if tables is None else guard(torch.tensor(tables, dtype=torch.int32))
    kernel = load_kv_index_tl(width, block_size, tables is not None)
    args = (guard(torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2)), out, table)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("kv_index",), gates=gates)
    return out.tolist()


@pytest.mark.parametrize(
    "block_size, tables",
    [
        pytest.param(0, None, id="dense"),
        pytest.param(16, None, id="ring"),
        pytest.param(13, None, id="ring of 13"),
        pytest.param(4, [9, 3, 7, 1, 8, 2], id="paged"),
        pytest.param(1, list(range(40, 16, -1)), id="paged by one"),
    ],
)
@pytest.mark.parametrize("pairs", [[], [(5, 3)], [(0, 0), (3, 8), (7, 20), (12, 1)]])
def test_modes(block_size: int, tables: list[int] | None, pairs: list[Pair]) -> None:
    if tables is not None:
        pairs = [(offset, min(length, len(tables) * block_size - offset)) for offset, length in pairs]
    assert load(pairs, 10, block_size, tables, gates=True) == expected(pairs, 10, block_size, tables)


TOP = 2**31 - 1


@pytest.mark.parametrize(
    "pairs, block_size, tables",
    [
        pytest.param([(TOP - 4, 5), (TOP, 1)], 0, None, id="dense"),
        pytest.param([(TOP - 1, 6), (TOP - 127, 8)], 128, None, id="ring"),
        pytest.param([((TOP // 133 - 1) * 133 + 130, 8)], 133, None, id="ring of 133"),
        pytest.param([(TOP - 6, 7)], 1 << 20, [0] * 2047 + [2047], id="paged"),
    ],
)
def test_near_the_top_of_int32(pairs: list[Pair], block_size: int, tables: list[int] | None) -> None:
    assert load(pairs, 8, block_size, tables) == expected(pairs, 8, block_size, tables)


@given(
    st.integers(0, 40),
    st.integers(1, 24),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), min_size=1, max_size=6),
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_ring(block_size: int, width: int, pairs: list[Pair]) -> None:
    out = torch.empty(len(pairs), width, dtype=torch.int32)
    load_kv_index_tl(width, block_size, False)(torch.tensor(pairs, dtype=torch.int32), out, None)
    assert out.tolist() == expected(pairs, width, block_size, None)


def test_cost_does_not_grow_with_the_tables() -> None:
    def cost(blocks: int) -> Work:
        args = (
            torch.zeros(3, 2, dtype=torch.int32),
            torch.empty(3, 64, dtype=torch.int32),
            torch.zeros(blocks, dtype=torch.int32),
        )
        return work(load_kv_index_tl(64, 32, True), *args)

    assert cost(64) == cost(1024)


def test_modes_against_the_references(upstream: Callable[[str], Any]) -> None:
    module = upstream("get_kv_index")
    pairs = torch.stack(
        [torch.randint(0, 900, (23,), dtype=torch.int32), torch.randint(0, 300, (23,), dtype=torch.int32)], 1
    )
    tables = torch.randint(0, 999, (6, 20), dtype=torch.int32)
    for name, args in (
        ("get_kv_ca_index_prefill", (pairs, 150)),
        ("get_kv_ca_index_decode", (pairs, 150, 16, tables)),
        ("get_kv_swa_index_decode", (pairs, 150, 133)),
    ):
        assert torch.equal(getattr(module, name)(*args), getattr(module, f"{name}_ref")(*args)), name


@pytest.mark.parametrize("block_size", [12, 0])
def test_refuses_paged_blocks_that_are_no_power_of_two(block_size: int) -> None:
    with pytest.raises(AssertionError, match="power of two"):
        load_kv_index_tl(8, block_size, True)


WRITTEN = ("newx_slot_mapping_out", "positions_out", "input_ids_out", "kv_index_out")


@pytest.mark.parametrize("has_mask, has_gate", [(True, True), (False, False)])
@pytest.mark.parametrize("ftp", [[-1], [0, -1, 3, 4]])
def test_draft_inputs(has_mask: bool, has_gate: bool, ftp: list[int]) -> None:
    ring, window, drafts, padded = 12, 6, 3, 16
    positions, slots, offsets = [100, 101, 102, 4, 11], [124, 125, 126, 40, 47], [2, 1, 0, 1][: len(ftp)]
    n = len(ftp)
    outputs = [guard(torch.full((n, drafts), 77, dtype=torch.int32)) for _ in range(3)]
    masks = [guard(torch.ones(n, drafts, dtype=torch.bool)) if has else None for has in (has_mask, has_gate)]
    index = guard(torch.full((n * drafts, padded), 77, dtype=torch.int32))
    inputs = [guard(torch.tensor(v, dtype=torch.int32)) for v in (slots, positions, ftp, offsets)]
    kernel = get_fused_dflash_get_input_tl(ring, padded, has_mask, has_gate)
    args = (*inputs, *outputs, *masks, index, window + drafts, window)
    written = [
        *WRITTEN,
        *(["valid_token_mask_out"] if has_mask else []),
        *(["gate_force_random_out"] if has_gate else []),
    ]
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=written)

    for r, (first, offset) in enumerate(zip(ftp, offsets, strict=True)):
        live = first >= 0
        accepted = positions[first] + offset
        base = slots[first] - positions[first] % ring
        drafted = [accepted + 1 + i for i in range(drafts)]
        assert outputs[0][r].tolist() == ([p % ring + base for p in drafted] if live else [-1] * drafts)
        assert outputs[1][r].tolist() == (drafted if live else [0] * drafts)
        assert outputs[2][r].tolist() == [0] * drafts
        keys = [accepted - window + 1 + j for j in range(padded)]
        row = [k % ring + base if live and k >= 0 and j < window + drafts else -1 for j, k in enumerate(keys)]
        assert index.view(n, drafts, padded)[r].tolist() == [row] * drafts
        assert masks[0] is None or masks[0][r].tolist() == [live] * drafts
    assert masks[1] is None or not masks[1].any()


def test_draft_inputs_against_the_reference(upstream: Callable[[str], Any]) -> None:
    module = upstream("get_kv_index")
    args = module._make_dflash_inputs(9, 2)
    got = module.get_fused_dflash_get_input(*args, 132, 5, 128, True, True)
    want = module.get_fused_dflash_get_input_ref(*args, 132, 5, 128, True, True)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
