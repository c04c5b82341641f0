"""The expert gate of the emitted tile_kernels against the real torch reference: experts exactly, weights to a rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def logits_without_ties(tokens: int, experts: int) -> torch.Tensor:
    """Distinct scores, far enough apart that no rounding of the activation reorders them."""
    return (
        torch.stack([torch.randperm(experts) for _ in range(tokens)]).float().mul_(8.0 / experts).sub_(4.0)
        if tokens
        else torch.empty(0, experts)
    )


def check(actual: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert torch.equal(actual[0], expected[0]) and actual[0].dtype == torch.int64
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-6, atol=0)
    assert actual[1].dtype == torch.float32


@pytest.mark.parametrize("tokens", [0, 1, 37])
@pytest.mark.parametrize(("experts", "topk"), [(72, 6), (256, 8), (384, 32), (8, 8), (32, 1)])
def test_topk(tk: Any, real: Any, tokens: int, experts: int, topk: int) -> None:
    for scores in (
        torch.randn(tokens, experts),
        torch.randint(0, 4, (tokens, experts)).float(),
        torch.zeros(tokens, experts),
    ):
        expected = real.torch.stable_topk(scores, topk)
        assert torch.equal(tk.moe.topk_gate(scores, topk), expected)
        ours = tk.torch.stable_topk(scores, topk)
        assert (
            torch.equal(ours, expected)
            and ours.dtype == torch.int64
            and (not tokens or ours.stride() == expected.stride())
        )


def test_topk_of_infinite_scores(tk: Any, real: Any) -> None:
    scores = torch.randn(5, 16)
    scores[:, ::3] = -float("inf")
    scores[2] = -float("inf")
    assert torch.equal(tk.moe.topk_gate(scores, 12), real.torch.stable_topk(scores, 12))


def test_score(tk: Any, real: Any) -> None:
    x = torch.cat(
        (torch.linspace(-87, 80, 20001), torch.linspace(-2, 2, 4001), torch.tensor([0.0, -17.0, -17.1, -16.9, 100.0]))
    )
    expected, actual = (
        package.torch.topk.sqrt_softplus_ref(x) if hasattr(package.torch, "topk") else None for package in (real, tk)
    )
    apart = (actual.view(torch.int32) - expected.view(torch.int32)).abs()
    assert int(apart.max()) <= 8 and float((apart > 2).float().mean()) < 0.01


@pytest.mark.parametrize("tokens", [0, 1, 37])
@pytest.mark.parametrize("shared", [0, 1, 2])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("mapped", [None, 1, 3])
@pytest.mark.parametrize("fixed", [None, False, True])
def test_gate(
    tk: Any,
    real: Any,
    tokens: int,
    shared: int,
    masked: bool,
    biased: bool,
    images: bool,
    mapped: int | None,
    fixed: bool | None,
) -> None:
    experts, topk = 72, 6
    logits = logits_without_ties(tokens, experts)
    total = experts + shared
    options: dict[str, Any] = {
        "use_shared_as_routed": shared > 0,
        "num_shared_experts": shared,
        "routed_scaling_factor": 2.5,
        "ep_rank": 5,
        "scoring_func": "sqrtsoftplus",
        "mask": torch.rand(tokens) < 0.7 if masked else None,
        # Multiples of a binary fraction keep the biased scores apart.
        "bias": torch.randint(-8, 9, (experts,)).float() * 16 if biased else None,
        "image_bias": torch.randint(-8, 9, (experts,)).float() * 16 if images else None,
        "image_token_mask": torch.rand(tokens) < 0.5 if images else None,
        "to_physical_map": torch.randint(0, 1000, (total, mapped), dtype=torch.int32) if mapped else None,
        "logical_count": torch.randint(1, mapped + 1, (total,), dtype=torch.int32) if mapped else None,
    }
    if biased or images:
        logits = logits * 8  # the bias decides groups, the logits the order within
    kept = None if fixed is None else torch.randint(0, experts, (tokens, topk + 1))[:, :topk]
    held = [None, None] if kept is None else [kept.clone(), torch.cat((kept, torch.full((tokens, 2), -7)), 1)[:, :topk]]
    if fixed:
        options["fix_routing_mask"] = torch.rand(tokens) < 0.5
    expected = real.torch.moe_topk_gate_forward(logits, topk, **options, unmapped_topk_idx=held[0])
    actual = tk.moe.moe_topk_gate(logits, topk, **options, unmapped_topk_idx=held[1])
    check(actual, expected)
    if kept is not None:
        assert torch.equal(held[1], held[0])
    again = None if kept is None else kept.clone()
    check(tk.torch.moe_topk_gate_forward(logits, topk, **options, unmapped_topk_idx=again), expected)
    out = torch.full_like(expected[0], 9), torch.full_like(expected[1], 9.0)
    again = None if kept is None else kept.clone()
    result = tk.moe.moe_topk_gate_forward(logits, topk, **options, unmapped_topk_idx=again, out=out)
    assert result[0] is out[0] and result[1] is out[1]
    if tokens:
        check(out, expected)


def test_equal_scores_go_to_the_smaller_index(tk: Any, real: Any) -> None:
    logits = torch.randint(0, 3, (40, 64)).float()
    arguments = (logits, 6, False, 0, 1.0, 0, "sqrtsoftplus")
    check(tk.moe.moe_topk_gate(*arguments), real.torch.moe_topk_gate_forward(*arguments))


def test_fixed_experts_that_are_none_stay_none(tk: Any, real: Any) -> None:
    kept = torch.tensor([[3, -1], [5, 0]])
    arguments = (torch.randn(2, 8), 2, False, 0, 1.5, 1, "sqrtsoftplus")
    options = {
        "fix_routing_mask": torch.tensor([True, True]),
        "to_physical_map": torch.arange(8, dtype=torch.int32).view(8, 1),
    }
    options["logical_count"] = torch.ones(8, dtype=torch.int32)
    check(
        tk.moe.moe_topk_gate(*arguments, **options, unmapped_topk_idx=kept.clone()),
        real.torch.moe_topk_gate_forward(*arguments, **options, unmapped_topk_idx=kept.clone()),
    )


def test_replicas_of_far_tokens(tk: Any, real: Any) -> None:
    # Far enough that the token times the step passes 2**31.
    tokens = 92_100
    logits = torch.zeros(tokens, 2)
    logits[:, 0] = 1.0
    options = {
        "to_physical_map": torch.arange(14, dtype=torch.int32).view(2, 7),
        "logical_count": torch.tensor([7, 7], dtype=torch.int32),
    }
    arguments = (logits, 1, False, 0, 1.0, 3, "sqrtsoftplus")
    assert torch.equal(
        tk.moe.moe_topk_gate(*arguments, **options)[0], real.torch.moe_topk_gate_forward(*arguments, **options)[0]
    )


def test_scores_are_handed_out(tk: Any, real: Any) -> None:
    logits, scores = torch.randn(9, 32), torch.full((9, 32), 7.0)
    mask = torch.arange(9) % 3 > 0
    drawn = torch.arange(9) == 4
    tk.moe.moe_topk_gate(logits, 4, False, 0, 1.0, 0, mask=mask, force_random=drawn, scores=scores)
    silent = ~mask | drawn
    assert int(scores[silent].abs().sum()) == 0
    torch.testing.assert_close(
        scores[~silent], torch.nn.functional.softplus(logits.double()).sqrt().float()[~silent], rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("mapped", [True, False])
def test_random_experts(tk: Any, mapped: bool) -> None:
    tokens, experts, topk = 3000, 64, 8
    counts = torch.full((experts,), 2, dtype=torch.int32)
    options = (
        {"to_physical_map": torch.arange(128, dtype=torch.int32).view(64, 2), "logical_count": counts} if mapped else {}
    )
    drawn = torch.arange(tokens) % 4 > 0
    mask = torch.arange(tokens) % 10 > 0
    unmapped = torch.zeros(tokens, topk, dtype=torch.int64)
    logits = torch.randn(tokens, experts)
    call = lambda rank: tk.moe.moe_topk_gate(  # noqa: E731
        logits, topk, False, 0, 1.0, rank, mask=mask, force_random=drawn, unmapped_topk_idx=unmapped, **options
    )
    index, weight = call(0)
    both = drawn & mask
    limit = 128 if mapped else 64
    chosen = index[both]
    assert int(chosen.min()) >= 0 and int(chosen.max()) < limit
    assert bool((chosen.sort(1).values.diff(dim=1) > 0).all()), "a token's experts are distinct"
    counted = torch.bincount(chosen.flatten(), minlength=limit).float()
    assert float(counted.min()) > 0.5 * float(counted.mean()) and float(counted.max()) < 1.6 * float(counted.mean())
    assert bool(((weight[both] >= 0) & (weight[both] < 1)).all()) and 0.45 < float(weight[both].mean()) < 0.55
    assert bool((unmapped[both] == -1).all()) and bool((index[~mask] == -1).all()) and bool((weight[~mask] == 0).all())
    plain = tk.moe.moe_topk_gate(logits, topk, False, 0, 1.0, 0, mask=mask, **options)
    rest = ~drawn & mask
    assert torch.equal(index[rest], plain[0][rest]) and torch.equal(weight[rest], plain[1][rest])
    assert torch.equal(call(0)[0], index) and not torch.equal(call(1)[0], index)


@pytest.mark.parametrize("tokens", [0, 29])
def test_normalised_weights(tk: Any, real: Any, tokens: int) -> None:
    weights = torch.rand(tokens, 8)
    for ours, theirs in zip(tk.moe.normalize_weight(weights), real.torch.normalize_weight(weights), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(tk.torch.normalize_weight(weights), real.torch.normalize_weight(weights), strict=True):
        assert torch.equal(ours, theirs)
    nothing = tk.moe.normalize_weight(torch.zeros(2, 4))
    assert bool((nothing[1] == 0).all()), "rows of zeros stay zeros"


@pytest.mark.parametrize(("ranks", "columns"), [(8, 1), (8, 2), (8, 8), (4, 2)])
def test_indices_of_a_rank(tk: Any, real: Any, ranks: int, columns: int) -> None:
    indices = torch.randint(-1, 64, (50, 6))
    for rank in range(columns):
        assert torch.equal(
            tk.torch.mask_indices_by_tp(indices, 64, ranks, rank, columns),
            real.torch.mask_indices_by_tp(indices, 64, ranks, rank, columns),
        )


@pytest.mark.parametrize(
    "options",
    [
        {"scoring_func": "softmax"},
        {"image_bias": torch.zeros(8)},
        {"logical_count": torch.ones(8, dtype=torch.int32)},
        {"fix_routing_mask": torch.ones(2, dtype=torch.bool)},
        {"out": (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3))},
    ],
    ids=lambda options: next(iter(options)),
)
def test_calls_that_do_not_fit(tk: Any, options: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        tk.moe.moe_topk_gate(torch.randn(2, 8), 2, False, 0, 1.0, 0, **options)
