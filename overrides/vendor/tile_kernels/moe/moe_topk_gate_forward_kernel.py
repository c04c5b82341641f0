"""The expert gate of ``tile_kernels.moe.moe_topk_gate_forward_kernel``."""

from __future__ import annotations

import torch

from neuron_numerics.activations import sqrt_softplus
from neuron_numerics.stable_topk import stable_topk

# Spreads the tokens over an expert's replicas; upstream's number.
_REPLICA_STEP = 23333
_HASH_FACTORS = (0x7FEB352D, 0x846CA68B - (1 << 32))
_HASH_STEP = 0x9E3779B9 - (1 << 32)


def moe_topk_gate_forward(
    logits: torch.Tensor,
    num_topk: int,
    use_shared_as_routed: bool,
    num_shared_experts: int,
    routed_scaling_factor: float,
    ep_rank: int,
    scoring_func: str = "sqrtsoftplus",
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    image_bias: torch.Tensor | None = None,
    image_token_mask: torch.Tensor | None = None,
    fix_routing_mask: torch.Tensor | None = None,
    to_physical_map: torch.Tensor | None = None,
    logical_count: torch.Tensor | None = None,
    unmapped_topk_idx: torch.Tensor | None = None,
    force_random: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    scores: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts for each token by ``sqrt(softplus(logits)) + bias``, and weigh them by the scores without bias.

    ``logits``: contiguous fp32 [tokens, routed]. ``bias``, ``image_bias``: fp32 [routed], the second for the tokens of
    ``image_token_mask``. Returns int64 experts and fp32 weights [tokens, topk (+ shared)], or writes and returns ``out``:
    descending by biased score, equal ones by smaller index; weights are normalised to ``routed_scaling_factor``, shared experts
    come last with weight 1.

    - ``mask`` (bool [tokens]): False leaves a token out: experts -1, weights 0.
    - ``fix_routing_mask`` (bool [tokens]): True takes the experts from ``unmapped_topk_idx`` (int64 [tokens, topk], rows strided
      or not), which receives the logical experts of all tokens.
    - ``to_physical_map`` (int32 [experts, replicas]) and ``logical_count`` (int32 [experts]): logical to physical experts, the
      replica by token and ``ep_rank``.
    - ``force_random`` (bool [tokens]): True gives distinct physical experts and weights in [0, 1) by a hash of token and
      ``ep_rank``, logical ones -1.
    - ``scores`` (fp32 [tokens, routed]): receives the scores without bias, 0 for tokens left out or drawn at random.
    """
    assert scoring_func == "sqrtsoftplus", f"expected 'sqrtsoftplus', got {scoring_func!r}"
    assert (
        logits.ndim == 2 and logits.is_contiguous() and logits.dtype == torch.float32
    ), "expected contiguous fp32 logits"
    assert (image_token_mask is None) == (image_bias is None), "image_bias and image_token_mask go together"
    assert (to_physical_map is None) == (logical_count is None), "to_physical_map and logical_count go together"
    assert fix_routing_mask is None or unmapped_topk_idx is not None, "fix_routing_mask needs unmapped_topk_idx"
    tokens, routed = logits.shape
    assert num_topk <= routed, f"cannot take {num_topk} of {routed} experts"
    shared = num_shared_experts if use_shared_as_routed else 0
    assert shared in (1, 2) or not use_shared_as_routed, f"expected 1 or 2 shared experts, got {shared}"
    width = num_topk + shared
    assert width <= 32, f"at most 32 experts a token, got {width}"
    if out is None:
        # NEURON: 64-bit upstream's experts are int64
        topk_idx = torch.empty((tokens, width), dtype=torch.int64, device=logits.device)
        topk_weights = torch.empty((tokens, width), dtype=torch.float32, device=logits.device)
    else:
        topk_idx, topk_weights = out
        assert topk_idx.shape == topk_weights.shape == (tokens, width), f"expected outputs of {(tokens, width)}"
    if tokens == 0:
        return topk_idx, topk_weights

    plain = sqrt_softplus(logits)
    drawn = None if force_random is None else (force_random if mask is None else force_random & mask)
    biased = plain if bias is None else plain + bias
    if image_bias is not None and image_token_mask is not None:
        biased = torch.where(image_token_mask.unsqueeze(1), plain + image_bias, biased)
    logical = stable_topk(biased, num_topk)
    if fix_routing_mask is not None and unmapped_topk_idx is not None:
        logical = torch.where(fix_routing_mask.unsqueeze(1), unmapped_topk_idx.to(torch.int32), logical)
    # NEURON: 64-bit gather takes nothing else
    weight = plain.gather(1, logical.clamp_min(0).to(torch.int64))
    weight = weight / weight.sum(1, keepdim=True).add_(1e-20) * routed_scaling_factor
    if unmapped_topk_idx is not None:
        kept = logical if drawn is None else logical.masked_fill(drawn.unsqueeze(1), -1)
        unmapped_topk_idx.copy_(kept if mask is None else kept.masked_fill(~mask.unsqueeze(1), -1))
    if scores is not None:
        silent = _either(None if mask is None else ~mask, drawn)
        scores.copy_(plain if silent is None else plain.masked_fill(silent.unsqueeze(1), 0.0))

    if shared:
        last = torch.arange(routed, routed + shared, dtype=torch.int32, device=logits.device)
        logical = torch.cat((logical, last.expand(tokens, shared)), 1)
        weight = torch.nn.functional.pad(weight, (0, shared), value=1.0)
    experts = logical
    if to_physical_map is not None and logical_count is not None:
        experts = _physical(logical, to_physical_map, logical_count, ep_rank)
    if drawn is not None:
        total = torch.tensor(routed + shared, dtype=torch.int32, device=logits.device)
        if logical_count is not None:
            total = logical_count.sum(dtype=torch.int32)
        random_experts, random_weights = _draw(tokens, width, total, ep_rank)
        experts = torch.where(drawn.unsqueeze(1), random_experts, experts)
        weight = torch.where(drawn.unsqueeze(1), random_weights, weight)
    if mask is not None:
        experts = experts.masked_fill(~mask.unsqueeze(1), -1)
        weight = weight.masked_fill(~mask.unsqueeze(1), 0.0)
    topk_idx.copy_(experts)
    topk_weights.copy_(weight)
    return topk_idx, topk_weights


def moe_topk_gate(*args: object, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
    """``moe_topk_gate_forward`` under its older name."""
    return moe_topk_gate_forward(*args, **kwargs)  # type: ignore[arg-type]


def _either(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return first if second is None else second
    return first | second


def _physical(
    logical: torch.Tensor, to_physical_map: torch.Tensor, logical_count: torch.Tensor, ep_rank: int
) -> torch.Tensor:
    """Physical experts of ``logical`` (int32 [tokens, k], -1 stays): replica ``(ep_rank + token * step) mod count``."""
    tokens = logical.shape[0]
    known = logical.clamp_min(0)
    count = logical_count[known]
    token = torch.arange(tokens, dtype=torch.int32, device=logical.device).unsqueeze(1)
    # Reduced before the product, which then fits 32 bits.
    replica = (ep_rank % count + (token % count) * (_REPLICA_STEP % count)) % count
    return torch.where(logical < 0, logical, to_physical_map[known, replica])


def _draw(tokens: int, width: int, total: torch.Tensor, ep_rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct experts below ``total`` (int32 scalar) and weights in [0, 1) for each token, by a hash of token and rank."""
    place = torch.arange(tokens * (width + 2), dtype=torch.int32, device=total.device).view(tokens, width + 2)
    word = (place + ep_rank * 0x01000193 % (1 << 30)) * _HASH_STEP
    for factor in _HASH_FACTORS:
        word = (word ^ ((word >> 16) & _HALF)) * factor
    noise = (word ^ ((word >> 16) & _HALF)) & 0x00FFFFFF
    # Steps this short keep a token's experts apart.
    longest = (total - 1).clamp_min(1) // max(width - 1, 1)
    start, step = noise[:, :1] % total, noise[:, 1:2] % longest.clamp_min(1) + 1
    lane = torch.arange(width, dtype=torch.int32, device=total.device)
    return (start + lane * step) % total, noise[:, 2:].to(torch.float32) * 2.0**-24


_HALF = 0xFFFF
