"""Activations that take care with rounding."""

from __future__ import annotations

import torch

# Below this, log(1 + exp(x)) is exp(x) to fp32's precision.
_TAIL = -17.0


def sqrt_softplus(x: torch.Tensor) -> torch.Tensor:
    """``sqrt(log(1 + exp(x)))`` of fp32 ``x``, to a few units in the last place down to the least normal number."""
    tail = x.abs().neg_().exp_()
    grown = 1.0 + tail
    # log(1 + q) * q / ((1 + q) - 1) undoes the rounding of 1 + q.
    excess = grown - 1.0
    lost = excess == 0.0
    log = torch.where(lost, tail, grown.log() * (tail / torch.where(lost, 1.0, excess)))
    small = (x.clamp_max(0.0) * 0.5).exp_()
    return torch.where(x < _TAIL, small, (x.clamp_min(0.0) + log).sqrt_())
