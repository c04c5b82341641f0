"""The expert gate of ``tile_kernels.moe.moe_topk_gate_forward_kernel``."""

from __future__ import annotations

import torch

from neuron_numerics.activations import sqrt_softplus
from neuron_numerics.stable_topk import stable_topk

# Spreads the tokens over an expert's replicas; upstream's number.
_REPLICA_STEP = 23333
# The golden section of 2**32: multiples of it are spread evenly over the words.
_NOISE_STEP = 0x9E3779B9 - (1 << 32)
_NOISE_BITS = 24
# Keeps the ranks' words apart.
_RANK_STEP = 0x01000193


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
    if out is not None:
        assert out[0].shape == out[1].shape == (tokens, width), f"expected outputs of {(tokens, width)}"
    if tokens == 0:
        # NEURON: 64-bit upstream's experts are int64
        return out or (logits.new_empty((0, width), dtype=torch.int64), logits.new_empty((0, width)))

    plain = sqrt_softplus(logits)
    drawn = None if force_random is None else (force_random if mask is None else force_random & mask).unsqueeze(1)
    absent = None if mask is None else ~mask.unsqueeze(1)
    biased = plain if bias is None else plain + bias
    if image_bias is not None and image_token_mask is not None:
        biased = torch.where(image_token_mask.unsqueeze(1), plain + image_bias, biased)
    logical = stable_topk(biased, num_topk)
    fixed = fix_routing_mask is not None and unmapped_topk_idx is not None
    if fixed:
        logical = torch.where(fix_routing_mask.unsqueeze(1), unmapped_topk_idx.to(torch.int32), logical)
    # NEURON: 64-bit gather takes nothing else
    weight = plain.gather(1, (logical.clamp_min(0) if fixed else logical).to(torch.int64))
    weight = weight.div_(weight.sum(1, keepdim=True).add_(1e-20)).mul_(routed_scaling_factor)
    if unmapped_topk_idx is not None:
        kept = logical if drawn is None else logical.masked_fill(drawn, -1)
        # NEURON: 64-bit upstream's experts are int64
        unmapped_topk_idx.copy_(kept if absent is None else kept.masked_fill(absent, -1))
    if scores is not None:
        silent = _either(absent, drawn)
        scores.copy_(plain if silent is None else plain.masked_fill(silent, 0.0))

    if shared:
        last = torch.arange(routed, routed + shared, dtype=torch.int32, device=logits.device)
        logical = torch.cat((logical, last.expand(tokens, shared)), 1)
        weight = torch.nn.functional.pad(weight, (0, shared), value=1.0)
    experts = logical
    if to_physical_map is not None and logical_count is not None:
        experts = _physical(logical, to_physical_map, logical_count, ep_rank, fixed)
    if drawn is not None:
        total = routed + shared if logical_count is None else logical_count.sum(dtype=torch.int32)
        random_experts, random_weights = _draw(tokens, width, total, ep_rank, logits.device)
        experts = torch.where(drawn, random_experts, experts)
        weight = torch.where(drawn, random_weights, weight)
    if absent is not None:
        experts = experts.masked_fill(absent, -1)
        weight = weight.masked_fill(absent, 0.0)
    if out is None:
        # NEURON: 64-bit upstream's experts are int64
        return experts.to(torch.int64), weight
    # NEURON: 64-bit upstream's experts are int64
    out[0].copy_(experts)
    out[1].copy_(weight)
    return out


def moe_topk_gate(*args: object, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor]:
    """``moe_topk_gate_forward`` under its older name."""
    return moe_topk_gate_forward(*args, **kwargs)  # type: ignore[arg-type]


def _either(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return first if second is None else second
    return first | second


def _physical(
    logical: torch.Tensor, to_physical_map: torch.Tensor, logical_count: torch.Tensor, ep_rank: int, with_none: bool
) -> torch.Tensor:
    """Physical experts of ``logical`` (int32 [tokens, k]): replica ``(ep_rank + token * step) mod count``.

    ``with_none``: there may be -1 among them, which stays.
    """
    tokens = logical.shape[0]
    known = logical.clamp_min(0) if with_none else logical
    if to_physical_map.shape[1] == 1:
        physical = to_physical_map[:, 0][known]
    else:
        count = logical_count[known]
        physical = to_physical_map[known, _replica(tokens, count, ep_rank)]
    return torch.where(logical < 0, logical, physical) if with_none else physical


def _replica(tokens: int, count: torch.Tensor, ep_rank: int) -> torch.Tensor:
    """Replica of each token's experts, below ``count`` (int32 [tokens, k])."""
    last = ep_rank + (tokens - 1) * _REPLICA_STEP
    if last < 2**31:
        seed = torch.arange(ep_rank, last + 1, _REPLICA_STEP, dtype=torch.int32, device=count.device)
        return seed.unsqueeze(1) % count
    # Reduced before the product, which then fits 32 bits.
    token = torch.arange(tokens, dtype=torch.int32, device=count.device).unsqueeze(1)
    return (ep_rank % count + (token % count) * (_REPLICA_STEP % count)) % count


def _draw(
    tokens: int, width: int, total: torch.Tensor | int, ep_rank: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct experts below ``total`` (int32 scalar) and weights in [0, 1) for each token, by token and rank.

    A token's experts lie evenly spread from one drawn for it, so that they fall on all ranks.
    """
    first = ep_rank * _RANK_STEP % (1 << 30)
    words = torch.arange(first, first + tokens * (width + 1), dtype=torch.int32, device=device)
    noise = (words.mul_(_NOISE_STEP) >> (32 - _NOISE_BITS)).bitwise_and_((1 << _NOISE_BITS) - 1).view(tokens, width + 1)
    spread = (torch.arange(width, dtype=torch.int32, device=device) * total).div_(width, rounding_mode="floor")
    experts = (noise[:, :1] + spread) % total
    return experts, noise[:, 1:] * 2.0**-_NOISE_BITS
