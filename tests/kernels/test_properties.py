"""Properties over random shapes and values of kernels whose own files hold cases alone, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import check_kernel, guard, run_guarded
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.dflash_copy import copy_dflash_decode_input_tl
from overrides.tilelang_ops.image_embed_ops import batch_downsample_tl, replace_input_embeds_tl, rgb_pad_to_patches_tl
from overrides.tilelang_ops.kv_index_cat import kv_index_cat_tl
from overrides.tilelang_ops.norm import norm_tl
from overrides.tilelang_ops.prepare_v4_decode_metadata import copy_block_tables_tl, prepare_v4_decode_metadata_tl
from overrides.tilelang_ops.sampler import (
    expand_sampling_params_tl,
    finalize_verification_tl,
    get_accept_result_tl,
    map_lookup_tl,
    prepare_verification_metadata_tl,
    remap_draft_topk_tl,
)
from overrides.tilelang_ops.store_mtp_info import store_mtp_info_tl
from overrides.tilelang_ops.structure_output import apply_token_bitmask_by_step_inplace_tl
from overrides.tilelang_ops.swa_index import expand_swa_index_tl

FEW = settings(deadline=None, derandomize=True, max_examples=30)
INT32 = st.integers(-(2**31), 2**31 - 1)


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


@given(st.integers(0, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 3), INT32, st.data())
@FEW
def test_any_index_rows(rows: int, window: int, topk: int, gap: int, shift: int, data: st.DataObject) -> None:
    right = [[data.draw(st.one_of(st.just(-1), INT32)) for _ in range(topk)] for _ in range(rows)]
    stride = window + topk + gap
    whole = guard(torch.full((rows, stride), 77, dtype=torch.int32))
    left = torch.randint(-1, 9, (rows, window), dtype=torch.int32)
    halves = whole[:, :window], whole[:, window : window + topk]
    run_guarded(
        kv_index_cat_tl("int32", window, topk, stride),
        left,
        ints(right).view(rows, topk),
        *halves,
        shift,
        0,
        written=("kv_index_out", "kv_ca_index_out"),
    )
    assert torch.equal(halves[0], left)
    assert halves[1].tolist() == [[-1 if v == -1 else wrapped(v + shift) for v in row] for row in right]


@given(st.lists(st.integers(0, 6), max_size=6), st.integers(1, 4), st.integers(1, 5))
@FEW
def test_any_write_slots(slots: list[int], nextn: int, width: int) -> None:
    # Each slot but 0 once.
    slots = [slot if slot not in slots[:i] else 0 for i, slot in enumerate(slots)]
    tokens, logprobs = torch.arange(len(slots) * nextn).int().view(-1, nextn), torch.randn(len(slots), nextn, width)
    pools = torch.full((7 * nextn,), -7, dtype=torch.int32), torch.zeros(7 * nextn, width)
    want = [pool.clone().view(7, nextn, *pool.shape[1:]) for pool in pools]
    for i, slot in enumerate(slots):
        if slot:
            want[0][slot], want[1][slot] = tokens[i], logprobs[i]
    args = (ints(slots), tokens, logprobs, None, None, *pools, None, None)
    run_guarded(store_mtp_info_tl(nextn, width, False, False), *args, written=("token_ids_pool", "logprobs_pool"))
    assert all(torch.equal(pool, w.view(pool.shape)) for pool, w in zip(pools, want, strict=True))


@given(st.integers(1, 4), st.integers(1, 40), st.data())
@FEW
def test_any_remapped_draft(rows: int, vocab: int, data: st.DataObject) -> None:
    """Tokens outside of the vocabulary have no log-probability, not even where draft and target name the same one."""
    width = 64
    wild = st.one_of(st.integers(-2, vocab + 1), st.sampled_from([2**31 - 1, -(2**31)]))
    target = [data.draw(st.lists(wild, min_size=width, max_size=width)) for _ in range(rows)]
    drafts = []
    for _ in range(rows + 1):
        inside = data.draw(st.permutations(range(vocab)))
        outside = [-1, vocab, -2, vocab + 1, 2**31 - 1, -(2**31)] * (width // 4)
        drafts.append((list(inside)[: width - 6] + outside)[:width])
    read = data.draw(st.lists(st.integers(0, rows), min_size=rows, max_size=rows))
    logprobs, chosen = torch.randn(rows + 1, width), [row[3] for row in drafts]
    out = guard(torch.full((rows, width), 7.0), (width + 3, 1)), ints([7] * rows), ints([7] * rows)
    run_guarded(
        remap_draft_topk_tl(width, vocab),
        ints(drafts),
        logprobs,
        ints(chosen),
        guard(ints(target), (width + 5, 1)),
        ints(read),
        *out,
        written=("aligned_logprobs", "draft_local_ids", "identity_rows"),
    )
    for r, source in enumerate(read):
        known = {t: logprobs[source, j].item() for j, t in enumerate(drafts[source]) if 0 <= t < vocab}
        assert out[0][r].tolist() == [known.get(t, -torch.inf) for t in target[r]]
        assert int(out[1][r]) == (target[r].index(chosen[source]) if chosen[source] in target[r] else -1)


@given(st.integers(0, 5), st.integers(0, 5), st.sampled_from([torch.float32, torch.bfloat16, torch.int32]), st.data())
@FEW
def test_any_lookup_by_index(rows: int, gap: int, dtype: torch.dtype, data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.one_of(st.integers(-1, 64), INT32), min_size=rows, max_size=rows))
    value = (torch.randn(rows, 64) * 100).to(dtype)
    out = guard(torch.zeros(rows, 1, dtype=dtype))
    args = None, guard(value, (64 + gap, 1)), ints(columns).view(-1, 1), out
    run_guarded(map_lookup_tl(64, "by_index", dtype), *args, written=("out",))
    missing = -torch.inf if dtype.is_floating_point else -1
    assert out.view(-1).tolist() == [value[r, c].item() if 0 <= c < 64 else missing for r, c in enumerate(columns)]


def test_lookup_by_index_in_rows_of_one_and_of_none() -> None:
    """Rows that share one storage row, and none at all: the same graph gates as for others."""
    value, out = torch.randn(1, 64).expand(3, 64), guard(torch.zeros(3, 1))
    check_kernel(map_lookup_tl(64, "by_index"), None, value, ints([[0], [63], [64]]), out, written=("out",))
    assert out.view(-1).tolist() == [value[0, 0].item(), value[0, 63].item(), -torch.inf]
    empty = torch.zeros(0, 1)
    check_kernel(
        map_lookup_tl(64, "by_index"), None, torch.zeros(0, 64), ints([]).view(0, 1), empty, written=(), optional=()
    )


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.booleans(), st.data())
@FEW
def test_any_accepted_prefix(lens: list[int], has_golden: bool, data: st.DataObject) -> None:
    total = sum(lens)
    many = {"min_size": total, "max_size": total}
    raw, golden = data.draw(st.lists(st.booleans(), **many)), data.draw(st.lists(st.integers(-1, 2), **many))
    drafted = data.draw(st.lists(st.integers(0, 2), **many))
    starts = [sum(lens[:r]) for r in range(len(lens))]
    owner = [r for r, n in enumerate(lens) for _ in range(n)]
    verify = [s + 1 < n for n in lens for s in range(n)]
    out = ints([7] * total), torch.zeros(total, dtype=torch.bool), torch.zeros(total, dtype=torch.bool)
    run_guarded(
        get_accept_result_tl(has_golden),
        torch.tensor(raw, dtype=torch.bool),
        ints(golden),
        ints(drafted),
        torch.arange(total, dtype=torch.int32),
        ints(range(100, 100 + total)),
        torch.tensor(verify, dtype=torch.bool),
        ints(starts),
        ints(owner),
        *out,
        written=("token_ids_out", "accept_out", "is_final_out"),
    )
    alive = dict.fromkeys(range(len(lens)), True)
    for row, r in enumerate(owner):
        forced = has_golden and golden[row] != -1
        good = verify[row] and (golden[row] == drafted[row] if forced else raw[row])
        assert out[0][row] == (golden[row] if forced else 100 + row)
        assert (bool(out[1][row]), bool(out[2][row])) == (alive[r] and good, alive[r] and not good)
        alive[r] = alive[r] and good


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 5), st.data())
@FEW
def test_any_bitmask(lens: list[int], step: int, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(lens) - 1), unique=True, max_size=len(lens)))
    first, rows = [sum(lens[:r]) for r in range(len(lens))], sum(lens)
    words = [[data.draw(INT32), data.draw(INT32)] for _ in lens]
    logits = torch.randn(rows, 64)
    want = logits.clone()
    for r in chosen:
        if step < lens[r]:
            allowed = torch.tensor([bool(words[r][t // 32] >> (t % 32) & 1) for t in range(64)])
            want[first[r] + step].masked_fill_(~allowed, -torch.inf)
    args = logits, ints(words), ints(chosen), ints(first), step
    run_guarded(apply_token_bitmask_by_step_inplace_tl(64, True), *args, written=("logits",))
    assert torch.equal(logits, want)


@given(st.integers(0, 4), st.sampled_from([128, 384]), st.booleans(), st.booleans(), st.integers(-20, 20))
@FEW
def test_any_norm(rows: int, hidden: int, residual: bool, wide: bool, power: int) -> None:
    dtype = torch.float32 if wide else torch.bfloat16
    x, other = (torch.randn(1, rows, hidden) * 2.0**power).to(dtype), torch.randn(1, rows, hidden).to(dtype)
    weight, y, total = torch.randn(hidden).to(dtype), torch.zeros_like(x), torch.zeros_like(x)
    name = "float" if wide else "bfloat16"
    kernel = norm_tl(hidden, name, name, "float", residual, 1e-6, 1.0, False, 0, *[False] * 4, 3, 0, *[hidden] * 6)
    args = x, y, weight, other, total, x, x, x
    run_guarded(kernel, *args, written=("y", "residual_out") if residual else ("y",))
    source = (x + other if residual else x).double()
    exact = source / (source.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert ((y.double() - exact).abs() <= exact.abs() * (2.0**-22 if wide else 2.0**-8) + 1e-38).all()


@pytest.mark.parametrize(
    "factory, arguments",
    [
        pytest.param(kv_index_cat_tl, ("int32", 8, 5, 12), id="a row shorter than its halves"),
        pytest.param(prepare_verification_metadata_tl, (-1,), id="steps below none"),
        pytest.param(finalize_verification_tl, (True, True, 0, 2), id="no step to finalize"),
        pytest.param(remap_draft_topk_tl, (60, 300), id="a draft that is no multiple of 64"),
        pytest.param(remap_draft_topk_tl, (8192, 300), id="a draft beyond 4096"),
        pytest.param(map_lookup_tl, (0,), id="no column"),
        pytest.param(expand_swa_index_tl, (0,), id="no index column"),
        pytest.param(copy_block_tables_tl, (1, 0), id="no block"),
        pytest.param(copy_block_tables_tl, (0, 4), id="no token"),
        pytest.param(prepare_v4_decode_metadata_tl, (1, 4, 5, 12, 8, False, (3,), (), ()), id="a ratio off the block"),
        pytest.param(prepare_v4_decode_metadata_tl, (1, 4, 5, 12, 8, False, (), (0,), ()), id="a ratio of zero"),
        pytest.param(prepare_v4_decode_metadata_tl, (1, 4, 0, 12, 8, False, (), (), ()), id="no window"),
        pytest.param(store_mtp_info_tl, (0, 8, False, False), id="no draft"),
        pytest.param(replace_input_embeds_tl, (100,), id="embeddings of no whole 128s"),
        pytest.param(rgb_pad_to_patches_tl, (0,), id="patches of nothing"),
        pytest.param(batch_downsample_tl, (2, 100, True, torch.bfloat16), id="features of no whole vectors"),
        pytest.param(batch_downsample_tl, (2, 128, True, torch.float16), id="fp16 features"),
        pytest.param(batch_downsample_tl, (0, 128, True, torch.float32), id="windows of nothing"),
    ],
)
def test_factories_refuse(factory: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(AssertionError):
        factory(*arguments)


def test_more_live_requests_than_places_are_refused() -> None:
    args: list[Any] = [None] * 27
    args[0], args[9], args[18] = ints([1, 2, 3]), ints([0]), ints([0, 0])
    with pytest.raises(AssertionError, match="3 live requests exceed 2 places"):
        copy_dflash_decode_input_tl(False)(*args)


def test_expanded_parameters_of_nobody() -> None:
    nothing = torch.zeros(0)
    seeds = torch.zeros(0, dtype=torch.uint64)
    args = nothing, nothing, ints([]), ints([]), seeds, ints([]), ints([])
    outputs = nothing.clone(), nothing.clone(), ints([]), ints([]), seeds.clone()
    run_guarded(expand_sampling_params_tl(), *args, *outputs, written=())
