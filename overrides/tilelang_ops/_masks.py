"""Masks as int32 words, -1 (all bits) where they hold and 0 elsewhere, so that a bitwise or writes -1 without a branch."""

from __future__ import annotations

import torch

from ._constants import Scalars

_SCALARS = Scalars(1, 31)


def at_or_past(column: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """-1 where ``column >= length``, by the sign of their difference; both int32 and at least 0."""
    is_ = _SCALARS.beside(column)
    return ((length - is_[1]) - column).bitwise_right_shift_(is_[31])


def negative(value: torch.Tensor) -> torch.Tensor:
    """-1 where ``value`` (int32) is below 0."""
    return value >> _SCALARS.beside(value)[31]
