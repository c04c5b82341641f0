"""``deep_gemm.utils.math``: casts to FP8 and FP4 as upstream's host helpers make them, scales from the largest magnitude (floor 1e-4) of each group.

Values are divided by multiplying with the scale's reciprocal. Packed scales here are four exponent bytes in an int32.
"""

from __future__ import annotations

import torch

from neuron_numerics import e2m1
from neuron_numerics.gemm_scales import align as _align
from neuron_numerics.gemm_scales import ceil_div as _ceil_div
from neuron_numerics.gemm_scales import repeat_columns
from neuron_numerics.scales import ue8m0_decode

_FLOOR = 1e-4
_FP8_MAX = 448.0
_FP4_MAX = 6.0


def ceil_div(x: int, y: int) -> int:
    """Quotient of ``x`` by ``y``, rounded up."""
    return _ceil_div(x, y)


def align(x: int, y: int) -> int:
    """Least multiple of ``y`` that is not below ``x``."""
    return _align(x, y)


def ceil_to_ue8m0(x: torch.Tensor) -> torch.Tensor:
    """Magnitudes of ``x`` rounded up to powers of two, fp32, within [2**-126, 2**127]."""
    bits = x.abs().to(torch.float32).view(torch.int32)
    exponent = (bits >> 23) + (bits & 0x007FFFFF != 0).to(torch.int32)
    return (exponent.clamp_(1, 254) << 23).view(torch.float32)


def pack_ue8m0_to_int(x: torch.Tensor) -> torch.Tensor:
    """Positive powers of two (fp32 [..., 4 n]) as exponent bytes, four in an int32 [..., n]."""
    assert (
        x.dtype == torch.float32 and x.shape[-1] % 4 == 0
    ), f"expected fp32 with a multiple of 4 columns, got {x.dtype} {tuple(x.shape)}"
    bits = x.contiguous().view(torch.int32)
    # NEURON: host sync
    assert bool((bits & ~0x7F800000 == 0).all()), "expected positive powers of two"
    return (bits >> 23).to(torch.uint8).view(torch.int32)


def unpack_ue8m0_from_int(packed_sf: torch.Tensor) -> torch.Tensor:
    """fp32 scales [..., 4 n] of exponent bytes packed in int32 [..., n]."""
    return ue8m0_decode(packed_sf.view(torch.uint8))


def _scale(amax: torch.Tensor, maximum: float, use_ue8m0: bool) -> torch.Tensor:
    # A scalar divisor may be turned into a multiplication, which rounds differently.
    scale = amax.clamp_min(_FLOOR) / torch.full_like(amax, maximum)
    return ceil_to_ue8m0(scale) if use_ue8m0 else scale


def _to_fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x * (1.0 / scale)).to(torch.float8_e4m3fn)


def _packed(scale: torch.Tensor) -> torch.Tensor:
    """Scales [m, n] packed; the missing ones of the last int32 are 1."""
    return pack_ue8m0_to_int(torch.nn.functional.pad(scale, (0, -scale.shape[-1] % 4), value=1.0))


def per_token_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` (bf16 or fp32 [m, n]) as e4m3 [m, n] with one scale for ``gran_k`` columns.

    Returns the values and the scales: fp32 [m, ceil(n / gran_k)], powers of two with ``use_ue8m0``; packed with ``use_packed_ue8m0``.
    """
    assert x.ndim == 2, f"expected 2 axes, got {x.ndim}"
    assert use_ue8m0 or not use_packed_ue8m0, "only powers of two can be packed"
    n = x.shape[1]
    padded = torch.nn.functional.pad(x, (0, -n % gran_k))
    groups = padded.unflatten(1, (-1, gran_k))
    scale = _scale(groups.abs().to(torch.float32).amax(2), _FP8_MAX, use_ue8m0)
    values = _to_fp8(groups, scale.unsqueeze(2)).flatten(1)[:, :n].contiguous()
    return values, _packed(scale) if use_packed_ue8m0 else scale


def per_channel_cast_to_fp8(x: torch.Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` (bf16 or fp32 [m, n], m a multiple of ``gran_k``) as e4m3 [m, n] with fp32 scales [m / gran_k, n]."""
    assert (
        x.ndim == 2 and x.shape[0] % gran_k == 0
    ), f"expected [m, n] with m a multiple of {gran_k}, got {tuple(x.shape)}"
    groups = x.unflatten(0, (-1, gran_k))
    scale = _scale(groups.abs().to(torch.float32).amax(1), _FP8_MAX, use_ue8m0)
    return _to_fp8(groups, scale.unsqueeze(1)).flatten(0, 1), scale


def per_block_cast_to_fp8(x: torch.Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` (bf16 or fp32 [m, n]) as e4m3 [m, n] with one fp32 scale for each ``gran_k`` x ``gran_k`` block."""
    assert x.ndim == 2, f"expected 2 axes, got {x.ndim}"
    m, n = x.shape
    padded = torch.nn.functional.pad(x, (0, -n % gran_k, 0, -m % gran_k))
    blocks = padded.unflatten(1, (-1, gran_k)).unflatten(0, (-1, gran_k))
    scale = _scale(blocks.abs().to(torch.float32).amax((1, 3)), _FP8_MAX, use_ue8m0)
    values = _to_fp8(blocks, scale[:, None, :, None]).flatten(0, 1).flatten(1)
    return values[:m, :n].contiguous(), scale


def per_custom_dims_cast_to_fp8(
    x: torch.Tensor, dims: tuple[int, ...], use_ue8m0: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` as e4m3 with one fp32 scale for each index of the axes ``dims``; the scales lose their axes of size 1."""
    others = tuple(axis for axis in range(x.ndim) if axis not in dims)
    scale = _scale(x.abs().to(torch.float32).amax(others, keepdim=True), _FP8_MAX, use_ue8m0)
    return _to_fp8(x, scale), scale.squeeze()


def per_token_cast_to_fp4(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """``per_token_cast_to_fp8`` to e2m1, int8 [m, n / 2], ties to the even code, no negative zero."""
    assert x.shape[1] % 2 == 0, f"expected an even number of columns, got {x.shape[1]}"
    assert use_ue8m0 or not use_packed_ue8m0, "only powers of two can be packed"
    n = x.shape[1]
    padded = torch.nn.functional.pad(x, (0, -n % gran_k))
    groups = padded.unflatten(1, (-1, gran_k))
    scale = _scale(groups.abs().to(torch.float32).amax(2), _FP4_MAX, use_ue8m0)
    scaled = (groups * (1.0 / scale.unsqueeze(2))).to(torch.float32).flatten(1)
    # What rounds to zero loses its sign.
    codes = e2m1.encode(scaled.masked_fill(scaled.abs() <= 0.25, 0.0))
    return codes[:, : n // 2].contiguous(), _packed(scale) if use_packed_ue8m0 else scale


def transpose_packed_fp4(a: torch.Tensor) -> torch.Tensor:
    """e2m1 int8 [m, n / 2] transposed: int8 [n, m / 2]."""
    assert (
        a.dtype == torch.int8 and a.ndim == 2 and a.shape[0] % 2 == 0
    ), f"expected int8 [even, n], got {a.dtype} {tuple(a.shape)}"
    byte = a.view(torch.uint8).to(torch.int32)
    codes = torch.stack([byte & 15, byte >> 4], -1).flatten(1).mT
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).to(torch.uint8).contiguous().view(torch.int8)


def cast_back_from_fp4(
    packed: torch.Tensor, sf: torch.Tensor, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> torch.Tensor:
    """fp32 [m, n] of e2m1 int8 [m, n / 2] and scales [m, >= ceil(n / gran_k)], fp32 or packed."""
    scale = unpack_ue8m0_from_int(sf) if use_packed_ue8m0 else sf
    x = e2m1.decode(packed)
    return x * repeat_columns(scale, gran_k, x.shape[1])


def cast_back_from_fp8(
    x_fp8: torch.Tensor, sf: torch.Tensor, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> torch.Tensor:
    """fp32 [m, n] of e4m3 [m, n] and scales [m, >= ceil(n / gran_k)], fp32 or packed."""
    scale = unpack_ue8m0_from_int(sf) if use_packed_ue8m0 else sf
    return x_fp8.to(torch.float32) * repeat_columns(scale, gran_k, x_fp8.shape[1])
