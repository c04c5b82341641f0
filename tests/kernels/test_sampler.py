"""Rows, parameters, lookups and results of speculative sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops, wrap_int32
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.sampler import (
    DRAFT_POS_HASH_MUL,
    expand_sampling_params_tl,
    finalize_verification_tl,
    get_accept_result_tl,
    map_lookup_tl,
    prepare_verification_metadata_tl,
    remap_draft_topk_tl,
)


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def starts(lens: list[int]) -> list[int]:
    return [sum(lens[:i]) for i in range(len(lens))]


def packed(lens: list[int]) -> tuple[list[int], list[int], list[bool]]:
    rows = [(r, s, s + 1 < n) for r, n in enumerate(lens) for s in range(n)]
    owner, step, verify = zip(*rows, strict=True) if rows else ((), (), ())
    return list(owner), list(step), list(verify)


@pytest.mark.parametrize(
    "num_steps, lens",
    [
        (0, [1]),
        (0, [1, 1, 1]),
        (0, [1, 0, 1]),
        (3, [4]),
        (3, [1, 4, 2, 3]),
        (2, [0, 3, 0, 1, 0]),
        (5, [6] * 40 + [0, 3] * 30),
        (1, []),
    ],
)
def test_verification_metadata(num_steps: int, lens: list[int]) -> None:
    owner, step, verify = packed(lens)
    total = len(owner)
    outputs = [guard(ints([77] * total)), guard(ints([77] * total)), guard(torch.ones(total, dtype=torch.bool))]
    args = (guard(ints(starts(lens))), guard(ints(lens)), *outputs)
    kernel = prepare_verification_metadata_tl(num_steps)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("row_to_req", "local_step", "is_verify"))
    assert [t.tolist() for t in outputs] == [owner, step, verify]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=90))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_verification_metadata(lens: list[int]) -> None:
    owner, step, verify = packed(lens)
    outputs = ints([0] * len(owner)), ints([0] * len(owner)), torch.zeros(len(owner), dtype=torch.bool)
    prepare_verification_metadata_tl(5)(ints(starts(lens)), ints(lens), *outputs)
    assert [t.tolist() for t in outputs] == [owner, step, verify]


@pytest.mark.parametrize("rows", [[], [0], [2, 2, 0, 1]])
def test_expanded_parameters(rows: list[int]) -> None:
    temperatures, top_ps = torch.rand(3), torch.rand(3)
    top_ks, positions = ints([-1, 5, 2**31 - 1]), ints([0, 2**31 - 1, -7])
    seeds = torch.tensor([0, 2**64 - 1, 2**63 + 12345], dtype=torch.uint64)
    steps = [0, 1, 300, 214][: len(rows)]
    n = len(rows)
    outputs = [guard(torch.full((n,), 7.0)), guard(torch.full((n,), 7.0)), guard(ints([7] * n)), guard(ints([7] * n))]
    seeds_out = guard(torch.zeros(n, dtype=torch.uint64))
    args = tuple(guard(t) for t in (temperatures, top_ps, top_ks, positions, seeds, ints(rows), ints(steps)))
    written = ("temperatures_q", "top_ps_q", "top_ks_q", "sample_positions_q", "seq_seeds_q")
    check_kernel(expand_sampling_params_tl(), *args, *outputs, seeds_out, written=written)
    assert outputs[0].tolist() == [temperatures[r].item() for r in rows]
    assert outputs[1].tolist() == [top_ps[r].item() for r in rows]
    assert outputs[2].tolist() == [top_ks[r].item() for r in rows]
    moved = [wrap_int32(int(positions[r]) + s * DRAFT_POS_HASH_MUL) for r, s in zip(rows, steps, strict=True)]
    assert outputs[3].tolist() == moved
    assert seeds_out.tolist() == [seeds[r].item() for r in rows]


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lookup_by_key(rows: int, dtype: torch.dtype) -> None:
    width = 64
    key = torch.stack([torch.randperm(200)[:width] for _ in range(rows)]).int() if rows else ints([]).view(0, width)
    value = torch.randn(rows, width).to(dtype)
    query = torch.where(torch.arange(rows) % 2 == 0, key[:, 3], ints(999)).int().view(rows, 1)
    args = (
        guard(key, (70, 1)),
        guard(value, (72, 1)),
        guard(query, (3, 1)),
        guard(torch.full((rows, 1), 7.0).to(dtype), (2, 1)),
    )
    kernel = map_lookup_tl(width, value_dtype=dtype)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("out",))
    assert args[3].view(-1).tolist() == [value[r, 3].item() if r % 2 == 0 else -torch.inf for r in range(rows)]


@pytest.mark.parametrize("dtype, missing", [(torch.float32, -torch.inf), (torch.int32, -1)])
def test_lookup_by_index(dtype: torch.dtype, missing: float) -> None:
    columns = [0, 63, 64, -1, 2**31 - 1, -(2**31), 7]
    value = (torch.randn(len(columns), 64) * 100).to(dtype)
    args = (
        None,
        guard(value, (64, 1)),
        guard(ints(columns).view(-1, 1)),
        guard(torch.zeros(len(columns), 1, dtype=dtype)),
    )
    kernel = map_lookup_tl(64, "by_index", dtype)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("out",))
    assert args[3].view(-1).tolist() == [value[r, c].item() if 0 <= c < 64 else missing for r, c in enumerate(columns)]


def test_lookup_refuses_what_upstream_refuses() -> None:
    for args in ((64, "by_value"), (64, "by_key", torch.int32), (60, "by_key")):
        with pytest.raises(AssertionError):
            map_lookup_tl(*args)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_remapped_draft(rows: int) -> None:
    width, vocab, pool = 64, 300, 6
    draft = torch.stack([torch.randperm(vocab)[:width] for _ in range(pool)]).int()
    target = (
        torch.stack([torch.randperm(vocab)[:width] for _ in range(rows)]).int() if rows else ints([]).view(0, width)
    )
    draft[1, 5], draft[2, 0] = -1, vocab
    logprobs, read = torch.randn(pool, width), torch.arange(1, rows + 1, dtype=torch.int32)
    chosen = ints([0, target[0, 9] if rows else 0, -5, 4, 5, 6])
    outputs = [guard(torch.full((rows, width), 7.0), (70, 1)), guard(ints([7] * rows)), guard(ints([7] * rows))]
    args = (guard(draft), guard(logprobs), guard(chosen), guard(target, (80, 1)), guard(read), *outputs)
    kernel = remap_draft_topk_tl(width, vocab)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("aligned_logprobs", "draft_local_ids", "identity_rows"))
    for r in range(rows):
        known = dict(zip(draft[r + 1].tolist(), logprobs[r + 1].tolist(), strict=True))
        wanted = target[r].tolist()
        assert outputs[0][r].tolist() == [known.get(t, -torch.inf) for t in wanted]
        token = int(chosen[r + 1])
        assert int(outputs[1][r]) == (wanted.index(token) if token in wanted else -1)
    assert outputs[2].tolist() == list(range(rows))


def accept_oracle(lens: list[int], accept: list[bool], verify: list[bool]) -> tuple[list[bool], list[bool]]:
    taken, final, row = [], [], 0
    for n in lens:
        alive = True
        for _ in range(n):
            good = verify[row] and accept[row]
            taken.append(alive and good)
            final.append(alive and not good)
            alive, row = alive and good, row + 1
    return taken, final


@pytest.mark.parametrize("has_golden", [False, True])
@pytest.mark.parametrize("lens", [[], [1], [3, 1, 4, 2], [2, 0, 3]])
def test_accepted_prefixes(has_golden: bool, lens: list[int]) -> None:
    owner, _, verify = packed(lens)
    total = len(owner)
    raw = [bool(v) for v in torch.rand(total) < 0.7]
    golden = torch.randint(-1, 3, (total,)).tolist()
    pool, read = torch.randint(0, 3, (total + 1,)).tolist(), list(range(total, 0, -1))
    tokens = torch.randint(100, 200, (total,)).tolist()
    inputs = (torch.tensor(raw, dtype=torch.bool), ints(golden), ints(pool), ints(read), ints(tokens))
    inputs = (*inputs, torch.tensor(verify, dtype=torch.bool), ints(starts(lens)), ints(owner))
    outputs = [
        guard(ints([7] * total)),
        guard(torch.zeros(total, dtype=torch.bool)),
        guard(torch.zeros(total, dtype=torch.bool)),
    ]
    args = (*(guard(t) for t in inputs), *outputs)
    kernel = get_accept_result_tl(has_golden)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("token_ids_out", "accept_out", "is_final_out"))
    forced = [has_golden and g != -1 for g in golden]
    accept = [g == pool[r] if f else a for f, g, r, a in zip(forced, golden, read, raw, strict=True)]
    assert outputs[0].tolist() == [g if f else t for f, g, t in zip(forced, golden, tokens, strict=True)]
    assert (outputs[1].tolist(), outputs[2].tolist()) == accept_oracle(lens, accept, verify)


@pytest.mark.parametrize("has_ssp, has_confidence, width", [(True, True, 5), (False, False, 0)])
@pytest.mark.parametrize("lens", [[1], [3, 1, 4, 2]])
def test_finalized(has_ssp: bool, has_confidence: bool, width: int, lens: list[int]) -> None:
    num_steps, requests = 3, len(lens)
    owner, step, verify = packed(lens)
    total = len(owner)
    taken, final = accept_oracle(lens, [bool(v) for v in torch.rand(total) < 0.6], verify)
    tokens, logprobs, masses = torch.randint(0, 50, (total,)).int(), torch.randn(total), torch.rand(total)
    top_logprobs, top_ids = torch.randn(total, width), torch.randint(0, 50, (total, width)).int()
    estimates, pool, read = torch.rand(total), torch.rand(total + 2), torch.arange(total + 1, 1, -1).int()
    stops = torch.randint(-1, 50, (requests, 2)).int()
    stops[0, 0] = tokens[0]
    flags = [torch.tensor(v, dtype=torch.bool) for v in (taken, final)]
    inputs = [*flags, tokens, logprobs, masses, top_logprobs, top_ids, ints(starts(lens)), ints(lens), ints(owner)]
    inputs += [torch.tensor(verify, dtype=torch.bool), estimates, pool, read, stops]
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "last_valid_offset": ((requests,), torch.int32),
        "num_generated_tokens": ((num_steps,), torch.int32),
        "num_verified_tokens": ((num_steps,), torch.int32),
        "batch_confidence_error": ((1,), torch.float32),
        "emitted_stop_token": ((requests,), torch.bool),
        "sampled_token_ids": ((requests,), torch.int32),
        "sampled_token_logprobs": ((requests,), torch.float32),
        "sampled_sum_smaller_probs": ((requests,), torch.float32),
        "sampled_top_logprobs": ((requests, width), torch.float32),
        "sampled_top_token_ids": ((requests, width), torch.int32),
        "verified_token_ids": ((total,), torch.int32),
        "verified_token_logprobs": ((total,), torch.float32),
        "verified_sum_smaller_probs": ((total,), torch.float32),
        "verified_top_logprobs": ((total, width), torch.float32),
        "verified_top_token_ids": ((total, width), torch.int32),
    }
    out = {name: guard(torch.zeros(shape, dtype=dtype)) for name, (shape, dtype) in shapes.items()}
    written = set(out)
    if not has_ssp:
        written -= {"sampled_sum_smaller_probs", "verified_sum_smaller_probs"}
    if not has_confidence:
        written -= {"emitted_stop_token"}
    args = (*(guard(t) for t in inputs), *out.values())
    kernel = finalize_verification_tl(has_ssp, has_confidence, num_steps, 2)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=written)

    last = [next(row for row in range(total) if owner[row] == r and final[row]) for r in range(requests)]
    assert out["last_valid_offset"].tolist() == [row - s for row, s in zip(last, starts(lens), strict=True)]
    assert out["num_generated_tokens"].tolist() == [
        sum(t and s == k for t, s in zip(taken, step, strict=True)) for k in range(num_steps)
    ]
    capped = [min(s, num_steps - 1) for s in step]
    assert out["num_verified_tokens"].tolist() == [
        sum(v and s == k for v, s in zip(verify, capped, strict=True)) for k in range(num_steps)
    ]
    assert torch.equal(out["sampled_token_ids"], tokens[last]) and torch.equal(
        out["sampled_token_logprobs"], logprobs[last]
    )
    assert torch.equal(out["sampled_top_logprobs"], top_logprobs[last]) and torch.equal(
        out["sampled_top_token_ids"], top_ids[last]
    )
    mask = torch.tensor(taken)
    assert out["verified_token_ids"].tolist() == [int(t) if a else -1 for t, a in zip(tokens, taken, strict=True)]
    assert torch.equal(out["verified_token_logprobs"], torch.where(mask, logprobs, 0.0))
    assert torch.equal(out["verified_top_logprobs"], torch.where(mask[:, None], top_logprobs, 0.0))
    assert torch.equal(out["verified_top_token_ids"], torch.where(mask[:, None], top_ids, 0))
    if has_ssp:
        assert torch.equal(out["sampled_sum_smaller_probs"], masses[last])
        assert torch.equal(out["verified_sum_smaller_probs"], torch.where(mask, masses, 0.0))
    if has_confidence:
        error = sum(abs(estimates[row].item() - pool[read[row]].item()) for row in range(total) if verify[row])
        assert out["batch_confidence_error"].item() == pytest.approx(error, abs=1e-5)
        emitted = [
            [int(tokens[row]) for row in range(total) if owner[row] == r and (taken[row] or final[row])]
            for r in range(requests)
        ]
        assert out["emitted_stop_token"].tolist() == [
            bool(set(e) & set(stops[r].tolist())) for r, e in enumerate(emitted)
        ]
    else:
        assert out["batch_confidence_error"].item() == 0


def test_against_the_references(upstream: Callable[[str], Any]) -> None:
    module = upstream("sampler")
    lens = torch.randint(1, 5, (37,)).int()
    ftp, total = (lens.cumsum(0) - lens).int(), int(lens.sum())
    metadata = module.prepare_verification_metadata(ftp, lens, total, 3)
    assert all(
        torch.equal(a, b)
        for a, b in zip(metadata, module.prepare_verification_metadata_ref(ftp, lens, total), strict=True)
    )
    owner, step, verify = metadata
    logits = module.LogitsTransformInputs(torch.rand(37), torch.rand(37), torch.randint(-1, 9, (37,)).int())
    seeds = torch.randint(-(2**62), 2**62, (37,)).view(torch.uint64)
    parameters = module.SamplingKernelInputs(logits, seeds, torch.randint(0, 2**31 - 1, (37,)).int())
    got, want = module.expand_sampling_params(parameters, owner, step), module.expand_sampling_params_ref(
        parameters, owner, step
    )
    for a, b in (
        (got.logits.temperatures, want.logits.temperatures),
        (got.logits.top_ps, want.logits.top_ps),
        (got.logits.top_ks, want.logits.top_ks),
        (got.sample_positions, want.sample_positions),
        (got.seq_seeds, want.seq_seeds),
    ):
        assert torch.equal(a, b)
    key = torch.stack([torch.randperm(300)[:128] for _ in range(9)]).int()
    value, query = torch.randn(9, 128), torch.randint(0, 300, (9, 1)).int()
    assert torch.equal(module.map_lookup(key, value, query), module.map_lookup_ref(key, value, query))
    by_index = module.map_lookup(None, value, query, "by_index")
    assert torch.equal(by_index, module.map_lookup_ref(None, value, query.long(), "by_index"))
    accept, golden = torch.rand(total) < 0.6, torch.randint(-1, 4, (total,)).int()
    draft, tokens = torch.randint(0, 4, (total,)).int(), torch.randint(0, 4, (total,)).int()
    result = module.get_accept_result(accept, golden, draft, torch.arange(total).int(), tokens, verify, ftp, owner)
    expected = module.get_accept_result_ref(accept, golden, draft, tokens, verify, ftp, owner)
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))
