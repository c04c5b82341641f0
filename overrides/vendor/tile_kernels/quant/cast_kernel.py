"""The narrowing cast of ``tile_kernels.quant.cast_kernel``."""

from __future__ import annotations

import torch

# Odd multipliers of upstream's hash: of four neighbouring words, and of its mixing steps.
_WORD_FACTORS = (0x5671D42B, 0x9995E499, 0xACE1B8A5, 0xE153538D)
_MIX = 0x7FEB352D
_PAIR = (0x846CA68B, 0xD35A2D97)
_HALF = 0xFFFF


def cast(x: torch.Tensor, dtype: torch.dtype, stochastic_rounding: bool = False) -> torch.Tensor:
    """Contiguous ``x`` as ``dtype``, rounded to nearest even, or stochastically.

    Stochastic rounding is fp32 to bf16 of a multiple of four values. Its noise is a hash of the values and their places, so
    the same input gives the same result.
    """
    assert x.is_contiguous(), "expected a contiguous tensor"
    if not stochastic_rounding:
        return x.to(dtype, copy=True)
    assert (x.dtype, dtype) == (
        torch.float32,
        torch.bfloat16,
    ), f"stochastic rounding is fp32 to bf16, got {x.dtype} to {dtype}"
    assert x.numel() % 4 == 0, f"stochastic rounding takes whole groups of four values, got {x.numel()}"
    if x.numel() == 0:
        return torch.empty_like(x, dtype=dtype)
    bits = x.view(torch.int32).view(-1, 4)
    noise = _noise(bits)
    # A carry into the upper half when the noise lies below the lower half, as unsigned numbers.
    upper = (bits >> 16) + (noise < (bits & _HALF)).to(torch.int32)
    low = (upper & _HALF).to(torch.int32)
    pairs = torch.stack((low & 0xFF, low >> 8), -1).to(torch.uint8)
    return pairs.view(torch.bfloat16).view(x.shape)


def _noise(bits: torch.Tensor) -> torch.Tensor:
    """Sixteen random bits (int32 [n, 4]) for each of ``bits`` (int32 [n, 4])."""
    place = torch.arange(bits.shape[0], dtype=torch.int32, device=bits.device)
    mixed = place
    for column, factor in enumerate(_WORD_FACTORS):
        mixed = mixed + bits[:, column] * _signed(factor)
    mixed = mixed ^ _shifted(mixed, 23)
    mixed = mixed * _signed(_MIX)
    mixed = mixed ^ _shifted(mixed, 16)
    words = torch.stack([mixed * _signed(factor) for factor in _PAIR], 1)
    words = words ^ _shifted(words, 11)
    return torch.stack((words & _HALF, _shifted(words, 16)), -1).flatten(1)


def _shifted(word: torch.Tensor, count: int) -> torch.Tensor:
    """``word`` >> ``count`` as an unsigned number."""
    return (word >> count) & ((1 << (32 - count)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
