"""Arithmetic, FP8 casts and checks of ``deep_ep.utils.math``. None of it is called per step."""

from __future__ import annotations

from typing import Any

import torch

_GROUP = 128
_E4M3_MAX = 448.0


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """How far two tensors of one shape are apart, 0 for equal ones: one minus the cosine-like ratio of both plus one."""
    # porter: ignore[PT110] a comparison of tests: upstream's limits go below fp32's own noise
    a, b = (value.double() + 1 for value in (x, y))
    # NEURON: host sync
    return float(1 - 2 * (a * b).sum() / (a.square() + b.square()).sum())


def safe_div(a: float, b: float) -> float:
    """``a / b``, and 0 for 0 / 0.

    Raises:
        ZeroDivisionError: only ``b`` is 0.
    """
    return 0 if a == 0 and b == 0 else a / b


def ceil_div(x: int, y: int) -> int:
    """The least integer not below ``x / y``."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The least multiple of ``y`` not below ``x``."""
    return -(-x // y) * y


def per_token_cast_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [m, n] of ``x`` [m, n], and fp32 scales [m, ceil(n / 128)], one for 128 values of a row; at least 1e-4 / 448."""
    assert x.dim() == 2, f"expected [m, n], got {tuple(x.shape)}"
    rows, columns = x.shape
    groups = torch.nn.functional.pad(x, (0, -columns % _GROUP)).view(rows, -1, _GROUP)
    largest = groups.abs().float().amax(2).clamp(1e-4)
    values = (groups * (_E4M3_MAX / largest).unsqueeze(2)).to(torch.float8_e4m3fn)
    return values.flatten(1)[:, :columns].contiguous(), largest / _E4M3_MAX


def per_token_cast_back(x_fp8: torch.Tensor, x_scales: torch.Tensor) -> torch.Tensor:
    """bf16 [m, n] of e4m3 values [m, n] and their scales [m, ceil(n / 128)]: fp32, or ue8m0, four bytes an int32."""
    if x_fp8.numel() == 0:
        return x_fp8.to(torch.bfloat16)
    assert x_fp8.dim() == 2, f"expected [m, n], got {tuple(x_fp8.shape)}"
    rows, columns = x_fp8.shape
    if x_scales.dtype == torch.int32:
        x_scales = (x_scales.clone(memory_format=torch.contiguous_format).view(torch.uint8).to(torch.int32) << 23).view(
            torch.float32
        )
    scale = x_scales.reshape(rows, -1, 1)
    values = torch.nn.functional.pad(x_fp8.to(torch.float32), (0, -columns % _GROUP)).view(rows, -1, _GROUP)
    return (values * scale).flatten(1)[:, :columns].to(torch.bfloat16).contiguous()


def inplace_unique(x: torch.Tensor, num_slots: int) -> None:
    """Leave each slot once in every row of ``x`` (int64 [m, k], below ``num_slots``, negatives dropped), most frequent ones kept.

    Rows come out in descending order, -1 after the last.
    """
    assert x.dim() == 2, f"expected [m, k], got {tuple(x.shape)}"
    kept = min(num_slots, x.shape[1])
    count = torch.zeros((x.shape[0], num_slots + 1), dtype=x.dtype, device=x.device)
    count.scatter_add_(1, x.masked_fill(x < 0, num_slots), torch.ones_like(x))
    # porter: ignore[PT122] a helper of tests on host tensors
    frequency, slot = count[:, :num_slots].sort(dim=1, descending=True)
    # porter: ignore[PT122] a helper of tests on host tensors
    ordered = slot.masked_fill(frequency == 0, -1).sort(dim=1, descending=True).values
    x.fill_(-1)
    # porter: ignore[PT121] a helper of tests on host tensors
    x[:, :kept] = ordered[:, :kept]


def create_grouped_scores(scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
    """``scores`` [tokens, experts] with the experts outside of each token's groups ``group_idx`` [tokens, k] at 0."""
    inside = torch.zeros((scores.shape[0], num_groups), dtype=torch.bool, device=scores.device).scatter_(
        1, group_idx, True
    )
    return (scores.view(scores.shape[0], num_groups, -1) * inside.unsqueeze(2)).view_as(scores)


def hash_tensor(t: torch.Tensor) -> int:
    """The sum of a tensor's int32 words."""
    # NEURON: host sync
    return int(t.view(torch.int32).sum())  # NEURON: 64-bit: the sum of all words, on the host


def hash_tensors(*tensors: Any) -> int:
    """The exclusive or of the hashes of all tensors in ``tensors`` and the sequences in it; None counts nothing."""
    value = 0
    for item in tensors:
        if isinstance(item, (tuple, list)):
            value ^= hash_tensors(*item)
        elif isinstance(item, torch.Tensor):
            value ^= hash_tensor(item)
    return value


def count_bytes(*tensors: Any) -> int:
    """Bytes of the elements of all tensors in ``tensors`` and the sequences in it; None counts nothing."""
    total = 0
    for item in tensors:
        if isinstance(item, (tuple, list)):
            total += count_bytes(*item)
        elif item is not None:
            total += item.numel() * item.element_size()
    return total
