"""fused_sample: log-probabilities against an fp64 formula, draws and acceptance to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from harness import check_kernel, guard, wide_ops
from splitmix_oracle import acceptance_bits

from overrides.tilelang_ops.fused_sample import DRAFT_PROB_PENALTY, fused_sample_tl
from overrides.tilelang_ops.random_sampling import random_sampling_tl

V = 128


class Result(NamedTuple):
    logprobs: torch.Tensor
    tokens: torch.Tensor
    accepted: torch.Tensor
    draft_logprobs: torch.Tensor
    accept_probs: torch.Tensor


class Draft(NamedTuple):
    """Pool of draft results, the pool row of each row, and which rows verify."""

    logprobs: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor
    verify: torch.Tensor


def run(
    logits: torch.Tensor,
    *,
    temperature: float | list[float] = 1.0,
    top_p: float | list[float] = 1.0,
    top_k: int | list[int] = -1,
    seeds: list[int] | None = None,
    positions: list[int] | None = None,
    offset: int = 0,
    draft: Draft | None = None,
    sample: bool = True,
    gates: bool = False,
) -> Result:
    q, width = logits.shape

    def per_row(value: Any, dtype: torch.dtype) -> torch.Tensor:
        return guard(torch.tensor(value if isinstance(value, list) else [value] * q, dtype=dtype))

    stride = (width + 8, 1)
    out = Result(
        guard(torch.full((q, width), 7.0), stride),
        guard(torch.full((q,), -7, dtype=torch.int32)),
        guard(torch.zeros(q, dtype=torch.bool)),
        guard(torch.full((q,), 7.0)),
        guard(torch.full((q,), 7.0)),
    )
    reject = draft is not None
    pool = (
        (guard(draft.logprobs, stride), guard(draft.rows), guard(draft.tokens))
        if draft
        else (logits, None, torch.zeros(q, dtype=torch.int32))
    )
    args = (
        guard(logits, stride),
        per_row(temperature, torch.float32),
        per_row(top_p, torch.float32),
        per_row(top_k, torch.int32),
        per_row(positions or [0] * q, torch.int32) if sample else None,
        per_row(seeds or list(range(q)), torch.uint64) if sample else None,
        guard(draft.verify) if draft else None,
        out.logprobs,
        out.tokens if sample else None,
        *pool,
        out.accepted if reject else None,
        out.draft_logprobs if reject else None,
        out.accept_probs if reject else None,
        offset,
        guard(torch.zeros(q, 2)),
    )
    written = ["logprobs", *(["candidate_token_ids"] if sample else [])]
    written += ["accept_result_verify", "draft_selected_logprobs", "accept_probs"] if reject else []
    kernel = fused_sample_tl(width, sample, reject)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=written, gates=gates)
    return out


def standalone(probs: torch.Tensor, seeds: list[int], positions: list[int], residual: bool) -> list[int]:
    out = torch.empty(probs.shape[0], dtype=torch.int32)
    seed = torch.tensor(seeds, dtype=torch.uint64)
    random_sampling_tl(probs.shape[1], residual)(probs, seed, torch.tensor(positions, dtype=torch.int32), out)
    return out.tolist()


def filtered(logits: torch.Tensor, temperature: float, keep: torch.Tensor) -> torch.Tensor:
    """The formula in fp64: log-softmax of the scaled logits over the kept columns."""
    return (logits.double() / temperature).masked_fill(~keep, -torch.inf).log_softmax(1)


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert torch.equal(torch.isneginf(got), torch.isneginf(want.float()))
    finite = torch.isfinite(got)
    # Four roundings of numbers about as large as the result.
    bound = 4 * torch.finfo(torch.float32).eps * want[finite].abs().clamp(min=1.0)
    assert bool(((got[finite].double() - want[finite]).abs() <= bound).all())


@pytest.mark.parametrize("sample, reject", [(False, False), (True, False), (True, True)])
def test_gates(sample: bool, reject: bool) -> None:
    logits = torch.randn(2, 64)
    draft = Draft(
        torch.randn(3, 64).log_softmax(1),
        torch.tensor([1, -1, 5]).int(),
        torch.tensor([2, 0]).int(),
        torch.tensor([True, False]),
    )
    run(logits, sample=sample, draft=draft if reject else None, top_p=0.8, top_k=20, gates=True)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 1.7, 1e-5])
@pytest.mark.parametrize("width", [64, V, 129280])
def test_logprobs_against_fp64(temperature: float, width: int) -> None:
    logits = torch.randn(3, width) * (3 if temperature > 1e-3 else 1e-3)
    logits[1, ::3] = -torch.inf
    logits[2] = torch.randint(-1, 2, (width,)).float()
    got = run(logits, temperature=temperature, sample=False).logprobs
    # The kernel multiplies by the rounded reciprocal, as upstream does.
    inverse = 1.0 / float(torch.tensor(1.0) / torch.tensor(temperature))
    assert_close(got, filtered(logits, inverse, torch.ones_like(logits, dtype=torch.bool)))
    assert float((got.double().exp().sum(1) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize("count", [1, 2, 17, V - 1])
def test_top_k_against_fp64(count: int) -> None:
    logits = torch.stack([torch.randperm(V).float() / 8 for _ in range(4)])
    keep = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, logits.topk(count).indices, True)
    assert_close(run(logits, top_k=count, sample=False).logprobs, filtered(logits, 1.0, keep))


@pytest.mark.parametrize("count", [1, 2, 17, 60])
def test_top_p_against_fp64(count: int) -> None:
    logits = torch.stack([torch.randperm(V).float() / 16 for _ in range(4)])
    order = logits.double().softmax(1).sort(1, descending=True)
    mass = order.values.cumsum(1)
    goal = (mass[:, count - 1] + (mass[:, count - 2] if count > 1 else 0)) / 2
    keep = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, order.indices[:, :count], True)
    got = run(logits, top_p=goal.tolist(), sample=False).logprobs
    assert_close(got, filtered(logits, 1.0, keep))


def test_equal_logits_stay_in_column_order() -> None:
    logits = torch.zeros(2, V)
    logits[1, ::2] = -0.0
    for top_p, top_k, kept in ((1.0, 96, 96), (0.75, -1, 96), (0.75, 50, 50), (1.0, V, V), (1.0, 0, 1), (1e-9, -1, 1)):
        finite = torch.isfinite(run(logits, top_p=top_p, top_k=top_k, sample=False).logprobs)
        assert finite.tolist() == [[j < kept for j in range(V)]] * 2


def test_rows_filter_on_their_own() -> None:
    logits = torch.randn(3, V)
    together = run(logits, top_p=[1.0, 0.5, 1.0], top_k=[-1, -1, 3], temperature=[1.0, 0.5, 2.0])
    for row, (p, k, t) in enumerate(((1.0, -1, 1.0), (0.5, -1, 0.5), (1.0, 3, 2.0))):
        alone = run(logits[row : row + 1], top_p=p, top_k=k, temperature=t, seeds=[row])
        assert torch.equal(alone.logprobs[0], together.logprobs[row]) and alone.tokens[0] == together.tokens[row]


@pytest.mark.parametrize("offset", [0, 1000000007])
def test_draws_are_those_of_the_standalone_sampler(offset: int) -> None:
    q = 9
    logits, seeds = torch.randn(q, V) * 2, [2**64 - 5, 0, 2**63, *range(6)]
    positions = [0, -1, 2**31 - 1, -(2**31), *range(5)]
    got = run(logits, top_p=0.9, seeds=seeds, positions=positions, offset=offset)
    moved = [(s + offset) % 2**64 for s in seeds]
    assert got.tokens.tolist() == standalone(got.logprobs.exp(), moved, positions, False)


def reject_case(q: int) -> tuple[torch.Tensor, Draft, list[int], list[int]]:
    pool = torch.randn(q + 2, V).log_softmax(1)
    rows = torch.arange(q + 1, 1, -1).int()
    verify = torch.arange(q) % 3 != 0
    for row in rows[~verify].tolist():
        pool[row] = torch.nan  # a fresh row's draft is not looked at
    tokens = torch.randint(-1, V, (q + 2,)).int()
    return (
        torch.randn(q, V),
        Draft(pool, tokens, rows, verify),
        torch.randint(0, 2**62, (q,)).tolist(),
        torch.randint(0, 9**9, (q,)).tolist(),
    )


@pytest.mark.parametrize("offset", [0, 1000000007])
def test_rejection(offset: int) -> None:
    q = 40
    logits, draft, seeds, positions = reject_case(q)
    got = run(logits, top_p=0.95, seeds=seeds, positions=positions, offset=offset, draft=draft)
    moved = [(s + offset) % 2**64 for s in seeds]
    pool = draft.logprobs[draft.rows.long()]
    tokens = draft.tokens[draft.rows.long()].tolist()
    probs = got.logprobs.exp()
    residual = (probs - (pool - DRAFT_PROB_PENALTY).exp()).clamp(min=0.0)
    fresh = standalone(probs, moved, positions, False)
    instead = standalone(residual.nan_to_num(0.0), moved, positions, True)
    outcomes = set()
    for i in range(q):
        if not draft.verify[i]:
            assert got.accepted[i] and got.accept_probs[i] == 1.0 and int(got.tokens[i]) == fresh[i]
            continue
        token = tokens[i]
        uniform = torch.tensor(acceptance_bits(moved[i], positions[i]) / 2**53, dtype=torch.float64).float()
        ratio = (got.logprobs[i, token] - pool[i, token]).clamp(max=0.0).exp()
        accepted = token >= 0 and bool(ratio > uniform)
        outcomes.add((token >= 0, accepted))
        assert bool(got.accepted[i]) == accepted
        assert int(got.tokens[i]) == (token if accepted else instead[i])
        assert got.draft_logprobs[i] == (pool[i, token] if token >= 0 else -torch.inf)
        estimate = max(0.0, 1.0 - residual[i].double().sum().item())
        assert got.accept_probs[i].item() == pytest.approx(estimate, abs=V / 2**31 + 1e-7)
    assert outcomes >= {(True, True), (True, False)}


def test_residual_that_vanishes_gives_the_first_likeliest_token() -> None:
    logits = torch.zeros(3, 129280)
    logits[:, 0] = -torch.inf
    logits[:, [40, 90]] = 0.005
    target = run(logits).logprobs
    pool = target + math.log1p(-1e-6)
    pool[:, 0] = math.log(1e-6)
    draft = Draft(pool, torch.tensor([-1, 0, 1]).int(), torch.arange(3).int(), torch.ones(3, dtype=torch.bool))
    assert bool(((target.exp() - (pool - DRAFT_PROB_PENALTY).exp()).clamp(min=0) < 2**-31).all())
    got = run(logits, draft=draft)
    assert got.accepted.tolist() == [False, False, True]
    assert got.tokens.tolist() == [40, 40, 1] and got.accept_probs.tolist() == [1.0] * 3


def test_residual_of_one_is_representable() -> None:
    logits = torch.full((1, 64), -torch.inf)
    logits[0, 5] = 0.0
    pool = torch.full((1, 64), -torch.inf)
    pool[0, 9] = 0.0
    draft = Draft(pool, torch.tensor([9]).int(), torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.bool))
    got = run(logits, draft=draft)
    assert got.tokens.tolist() == [5] and not got.accepted[0] and got.accept_probs[0].item() < 1e-6


@pytest.mark.parametrize("reject", [False, True])
def test_draws_and_decisions_of_the_reference(upstream: Callable[[str], Any], reject: bool) -> None:
    """Where the reference's own logits transform agrees to the bit, so do tokens and acceptance."""
    module = upstream("fused_sample")
    q = 24
    logits = torch.randn(q, 256)
    parameters = module.SamplingKernelInputs(
        module.LogitsTransformInputs(torch.ones(q), torch.ones(q), torch.full((q,), -1, dtype=torch.int32)),
        torch.randint(0, 2**62, (q,)).view(torch.uint64),
        torch.randint(0, 9**9, (q,)).int(),
    )
    more = {}
    if reject:
        pool = torch.randn(q, 256).log_softmax(1)
        tokens = torch.randint(0, 256, (q,)).int()
        more = {
            "is_verify": torch.arange(q) % 3 != 0,
            "last_nextn_token_logprobs": pool,
            "last_next_n_token_ids": tokens,
        }
    got = module.fused_sample(logits, parameters, **more)
    want = module.fused_sample_ref(
        logits.clone(),
        parameters,
        **(more | ({"last_next_n_token_ids": more["last_next_n_token_ids"].long()} if reject else {})),
    )
    assert torch.allclose(got[0], want[0], atol=2e-6)
    assert torch.equal(got[1].long(), want[1].long())
    if reject:
        assert torch.equal(got[2], want[2]) and torch.equal(got[3], want[3])
        assert torch.allclose(got[4], want[4], atol=256 / 2**31 + 1e-6)


def test_refuses_what_upstream_refuses() -> None:
    with pytest.raises(AssertionError, match="needs do_sample"):
        fused_sample_tl(64, False, True)
    with pytest.raises(AssertionError, match="multiple of 64"):
        fused_sample_tl(100, True, False)
