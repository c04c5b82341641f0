"""Activations that take care with rounding."""

from __future__ import annotations

import torch

# Below this, log(1 + exp(x)) is exp(x) to fp32's precision, and leaves the normal numbers long before its root does.
_TAIL = -17.0


def sqrt_softplus(x: torch.Tensor) -> torch.Tensor:
    """``sqrt(log(1 + exp(x)))`` of fp32 ``x``, to a few units in the last place down to the least normal number."""
    return torch.where(x < _TAIL, (x * 0.5).exp_(), torch.nn.functional.softplus(x).sqrt_())
