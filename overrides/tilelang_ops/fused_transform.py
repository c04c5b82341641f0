"""Norm, RoPE, Hadamard transform, quantisation and cache store in one kernel, after ``tilelang_ops.asc.fused_transform``.

Each stage rounds to bf16 as on Ascend. RoPE multiplies and adds in two roundings where Ascend fuses them into one.
"""

from __future__ import annotations

from typing import Any

import torch

from neuron_numerics import e2m1
from neuron_numerics.casts import quantise_groups
from neuron_numerics.formats import quant_format

from ._cache_rows import join_rows, scatter_bytes
from ._rms import normalise_bf16

_FP32_MIN_NORMAL = 2.0**-126


def fused_norm_rope_hadamard_cast_store_kvcache_tl(num_heads: int, head_dim: int, **kwargs: Any) -> Any:
    """Factory of the fused transform over rows of ``head_dim`` (128 or 512).

    Keyword arguments, the first seven required:

    - ``do_norm``, ``norm_eps``: RMSNorm.
    - ``do_rope``, ``rotary_dim`` (64 or 128), ``rope_offset`` (the rotated part is the trailing one), ``positions_dtype``,
      ``is_neox`` (halves instead of neighbours form pairs), ``conjugate`` (turn back).
    - ``return_bf16``: also write the bf16 rows after ``bf16_stage``: ``norm``, ``transform`` or ``cast_back``.
    - ``do_hadamard``, ``hadamard_scale``.
    - ``cast_fmt`` (empty, ``e4m3`` or ``e2m1``), ``num_per_channels``, ``round_sf``, ``sf_format``: quantisation;
      ``preserve_last_group`` leaves the last group of a row out of ``cast_back``.
    - ``return_quant``: write the quantised rows; ``cache_layout``, ``block_size``: store them in a cache.
    - ``small_batch``: tunes Ascend only.
    """
    do_norm, do_rope, return_bf16 = kwargs["do_norm"], kwargs["do_rope"], kwargs["return_bf16"]
    norm_eps, rotary_dim, rope_offset = kwargs["norm_eps"], kwargs["rotary_dim"], kwargs["rope_offset"]
    positions_dtype, is_neox, conjugate = kwargs["positions_dtype"], kwargs["is_neox"], kwargs["conjugate"]
    do_hadamard, hadamard_scale = kwargs.get("do_hadamard", False), kwargs.get("hadamard_scale", 1.0)
    cast_fmt, group = kwargs.get("cast_fmt", ""), kwargs.get("num_per_channels", 0)
    round_sf, sf_format = kwargs.get("round_sf", False), kwargs.get("sf_format", "")
    bf16_stage, keep_last = kwargs.get("bf16_stage", ""), kwargs.get("preserve_last_group", False)
    return_quant, cache_layout, block_size = (
        kwargs.get("return_quant", False),
        kwargs.get("cache_layout"),
        kwargs.get("block_size", 1),
    )

    assert num_heads > 0 and head_dim in (128, 512), f"{num_heads=} {head_dim=}"
    assert positions_dtype in ("int32", "int64"), f"{positions_dtype=}"
    assert not do_norm or norm_eps >= _FP32_MIN_NORMAL, f"expected norm_eps of a normal fp32 size, got {norm_eps}"
    if do_rope:
        assert (
            rotary_dim in (64, 128) and rope_offset + rotary_dim == head_dim
        ), f"{rotary_dim=} {rope_offset=} {head_dim=}"
    fmt = None
    if cast_fmt == "":
        assert bf16_stage in ("", "norm", "transform"), f"{bf16_stage=} without a cast"
        assert not return_quant and cache_layout is None, "quantised output without a cast"
    else:
        if cast_fmt == "e2m1":
            assert (group, round_sf, sf_format) in (
                (16, False, "e4m3"),
                (32, True, "ue8m0"),
            ), f"{group=} {round_sf=} {sf_format=}"
            assert head_dim == 512 or sf_format != "e4m3", "e4m3 scales are for rows of 512"
        else:
            assert cast_fmt == "e4m3" and group in (32, 64, 128), f"{cast_fmt=} {group=}"
            assert sf_format == "fp32" or (sf_format == "ue8m0" and round_sf), f"{sf_format=} {round_sf=}"
        assert cast_fmt == "e4m3" or not (bf16_stage == "cast_back" or keep_last), "only e4m3 is cast back"
        fmt = quant_format(cast_fmt, sf_format, round_sf)
    if cache_layout is not None:
        assert num_heads == 1, f"a cache holds one head, got {num_heads}"
        assert cache_layout.quantized_elements == head_dim and cache_layout.bf16_elements == 0, f"{cache_layout=}"
        assert cache_layout.sf_format in ("ue8m0", "e4m3") and cache_layout.elements_per_sf == group, f"{cache_layout=}"

    def fused_norm_rope_hadamard_cast_store_kvcache(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        positions: torch.Tensor | None,
        cossin: torch.Tensor | None,
        sin: torch.Tensor | None,
        out_bf16: torch.Tensor | None,
        out_quant: torch.Tensor | None,
        out_sf: torch.Tensor | None,
        kv_cache: torch.Tensor | None,
        slot_mapping: torch.Tensor | None,
    ) -> None:
        """``x``: bf16 [n, num_heads, head_dim] or [n * num_heads, head_dim], strided. Arguments of absent stages are None.

        ``weight``: bf16 [head_dim]. ``positions``: [n]. ``cossin``: fp32 [positions, rotary_dim], cosines, then sines; ``sin`` is
        None. ``slot_mapping``: int32 [n], -1 skips, valid slots distinct. Written: ``out_bf16``, x's size; ``out_quant``, e4m3
        or int8 (two e2m1); ``out_sf``, a scale for each group: ue8m0 bytes as uint8, e4m3 or fp32; ``kv_cache``, uint8
        [blocks, block_size, bytes_per_token].
        """
        assert x.dtype == torch.bfloat16 and x.shape[-1] == head_dim, f"{x.dtype=} {x.shape=}"
        rows = x if x.ndim == 3 else x.unflatten(0, (-1, num_heads))
        out = out_bf16.view(rows.shape) if return_bf16 and out_bf16 is not None else None
        if do_norm:
            assert weight is not None
            rows = normalise_bf16(rows, weight, norm_eps)
        if out is not None and bf16_stage == "norm":
            out.copy_(rows)
        transformed = out if out is not None and bf16_stage not in ("norm", "cast_back") else None
        if do_rope:
            assert sin is None and positions is not None and cossin is not None and cossin.dtype == torch.float32
            assert cossin.shape[1] == rotary_dim, f"{cossin.shape=} {rotary_dim=}"
            turned = rotate(rows[..., rope_offset:], cossin.index_select(0, positions), is_neox, conjugate).bfloat16()
            if rope_offset == 0:
                rows = turned
            elif transformed is not None and not do_hadamard:
                torch.cat((rows[..., :rope_offset], turned), dim=2, out=transformed)
                rows, transformed = transformed, None
            else:
                rows = torch.cat((rows[..., :rope_offset], turned), dim=2)
        if do_hadamard:
            turned = hadamard(rows.flatten(0, 1), hadamard_scale)
            rows = turned.to(torch.bfloat16, memory_format=torch.contiguous_format).view(rows.shape)
        if transformed is not None:
            transformed.copy_(rows)
        if fmt is None:
            return
        scaled, scale = quantise_groups(rows.to(torch.float32), fmt, group)
        values = e2m1.encode(scaled) if fmt.value.name == "e2m1" else scaled.to(torch.float8_e4m3fn)
        if return_quant:
            assert out_quant is not None and out_sf is not None
            out_quant.copy_(values.view(out_quant.shape))
            out_sf.copy_(scale.encoded.view(out_sf.shape))
        if out is not None and bf16_stage == "cast_back":
            back = (
                values.to(torch.float32)
                .unflatten(2, (-1, group))
                .mul_(scale.inverse.reciprocal().unsqueeze(3))
                .flatten(2)
            )
            if keep_last:
                last = head_dim - group
                torch.cat((back[..., :last].to(torch.bfloat16), rows[..., last:]), dim=2, out=out)
            else:
                out.copy_(back)
        if cache_layout is not None:
            assert kv_cache is not None and slot_mapping is not None and kv_cache.dtype == torch.uint8
            assert kv_cache.shape[1:] == (block_size, cache_layout.bytes_per_token), f"{kv_cache.shape=}"
            scatter_bytes(kv_cache, cache_layout, join_rows(values.flatten(1), scale.encoded.flatten(1)), slot_mapping)

    return fused_norm_rope_hadamard_cast_store_kvcache


def rotate(x: torch.Tensor, cossin: torch.Tensor, is_neox: bool, conjugate: bool) -> torch.Tensor:
    """Turn the pairs of ``x`` [n, heads, rotary_dim] bf16 by the angles of ``cossin`` [n, rotary_dim]; fp32, same shape."""
    half = x.shape[2] // 2
    sizes, pair = ((2, half), 2) if is_neox else ((half, 2), 3)
    cos, sin = cossin.unsqueeze(1).split(half, dim=2)
    # Full rows of factors and of swapped partners: products over pairs of two are slow.
    first, second = (-sin, sin) if not conjugate else (sin, -sin)
    rows = x.to(torch.float32)
    one, other = rows.unflatten(2, sizes).unbind(pair)
    crossed = torch.stack((other, one), dim=pair).flatten(2).mul_(torch.stack((first, second), dim=pair).flatten(2))
    return rows.mul_(torch.stack((cos, cos), dim=pair).flatten(2)).add_(crossed)


def hadamard(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Walsh-Hadamard transform of the rows ``x`` [n, d] bf16, in fp32 butterflies of rising distance: fp32 [n, d], column-major.

    Each step sends the sums of neighbours to the first half and their differences to the second, which turns the index's bits
    round once after log2(d) steps, and leaves every sum in the order of the in-place transform.
    """
    size = x.shape[1]
    now = x.t().to(torch.float32, memory_format=torch.contiguous_format)
    following = torch.empty_like(now)
    for _ in range(size.bit_length() - 1):
        even, odd = now.unflatten(0, (-1, 2)).unbind(1)
        torch.add(even, odd, out=following[: size // 2])
        torch.sub(even, odd, out=following[size // 2 :])
        now, following = following, now
    return now.mul_(scale).t()
