"""Query norm, RoPE, sparse attention, inverse RoPE and FP8 cast in one call, after ``flash_mla.fused_norm_rope_attn_rope_cast``.

Upstream's kernels take queries in a layout of their own, 16 elements of every head in turn, and give the result in another, 32
elements of every head of a group in turn; the two ``permute`` functions bring the neighbouring weights into these layouts.
"""

from __future__ import annotations

import torch

from neuron_numerics.casts import quantise_groups
from neuron_numerics.formats import E4M3, quant_format
from neuron_numerics.kvcache import cache_rows, element_rows
from neuron_numerics.kvcache_attention import attend

_QUERY_CHUNK = 16
_OUTPUT_CHUNK = 32
_ROPE_DIM = 64
# Scale bytes in one int32, and the rows that a column of them is padded to.
_PACK = 4
_COLUMN_ALIGNMENT = 4


def prefill(
    enable_q_norm: bool,
    rms_norm_eps: float,
    token_positions: torch.Tensor,
    is_rope_neox_style: bool,
    rope_dim: int,
    cos_sin_cache: torch.Tensor,
    n_wv_group: int,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompt tokens over chosen rows of ``kv``; see ``flash_mla_sparse_fwd`` for the attention's arguments.

    ``q``: bf16 [s_q, h, 512], as a projection by ``permute_q_b_proj``'s weight gives it. With ``enable_q_norm`` the logits are
    those of queries divided by their root mean square (``rms_norm_eps`` inside the root). ``token_positions``: int32 [s_q], rows
    of ``cos_sin_cache``, fp32 [positions, 64], cosines then sines, for the last 64 dimensions, neighbours paired.

    Returns e4m3 [s_q, n_wv_group, h / n_wv_group * d_v] for a projection by ``permute_wv_proj``'s weight, its scales, int32 of
    four ue8m0 bytes each (one for 32 values), column-major, and the largest logits and log-sum-exp, fp32 [s_q, h].
    """
    _check(is_rope_neox_style, rope_dim, num_per_channels, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
    rows = element_rows(kv.squeeze(1), indices.squeeze(1), topk_length)
    factor = _norm_factor(q, rms_norm_eps) if enable_q_norm else None
    query, angles = _rotated_query(q, token_positions, cos_sin_cache)
    out, largest, lse = attend(query, (rows,), sm_scale, d_v, attn_sink, factor, torch.float32)
    return *_cast_output(_rotated(out, *angles, inverse=True), n_wv_group), largest, lse


def decode(
    enable_q_norm: bool,
    rms_norm_eps: float,
    token_positions: torch.Tensor,
    is_rope_neox_style: bool,
    rope_dim: int,
    cos_sin_cache: torch.Tensor,
    n_wv_group: int,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices_in_kvcache: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decoded tokens over one or two paged, quantised caches; see ``prefill`` and ``flash_mla_with_kvcache``.

    There is no batch axis: ``q`` [s_q, h, 512], indices [s_q, topk], lengths [s_q]. Returns ``prefill``'s results but for the
    largest logits.
    """
    _check(is_rope_neox_style, rope_dim, num_per_channels, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
    assert (extra_k_cache is None) == (extra_indices_in_kvcache is None), "an extra cache and its indices come together"
    sources = [cache_rows(k_cache, indices_in_kvcache, topk_length)]
    if extra_k_cache is not None and extra_indices_in_kvcache is not None:
        sources.append(cache_rows(extra_k_cache, extra_indices_in_kvcache, extra_topk_length))
    factor = _norm_factor(q, rms_norm_eps) if enable_q_norm else None
    query, angles = _rotated_query(q, token_positions, cos_sin_cache)
    out, _, lse = attend(query, sources, sm_scale, d_v, attn_sink, factor, torch.float32)
    return *_cast_output(_rotated(out, *angles, inverse=True), n_wv_group), lse


def permute_q_b_proj(
    weight_and_sf: tuple[torch.Tensor, torch.Tensor],
    h_q: int,
    d_q: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reorder the rows of a query projection so that its results have the layout that ``prefill`` and ``decode`` read.

    The weight, e4m3 [h_q * d_q, r], and its scales [h_q * d_q, packs]; scales stay contiguous along the rows if they were.
    """
    weight, sf = weight_and_sf
    assert weight.shape[0] == sf.shape[0] == h_q * d_q, f"{weight.shape=} {sf.shape=} {h_q=} {d_q=}"

    def reorder(x: torch.Tensor) -> torch.Tensor:
        return x.view(h_q, d_q // _QUERY_CHUNK, _QUERY_CHUNK, -1).transpose(0, 1).reshape(h_q * d_q, -1)

    return reorder(weight.view(torch.uint8)).view(weight.dtype), _column_major(reorder(sf.contiguous()))


def permute_wv_proj(
    weight_and_sf: tuple[torch.Tensor, torch.Tensor],
    wv_group_size: int,
    d_o: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reorder the columns of an output projection so that it takes the results of ``prefill`` and ``decode``.

    The weight, e4m3 [groups, d_out, wv_group_size * d_o], and its scales, int32 [groups, d_out, wv_group_size * d_o / 128], four
    ue8m0 bytes each; scales come back contiguous along ``d_out``.
    """
    weight, sf = weight_and_sf
    chunks = d_o // _OUTPUT_CHUNK
    assert weight.shape[2] == wv_group_size * d_o, f"{weight.shape=} {wv_group_size=} {d_o=}"
    assert (
        sf.shape[2] * _PACK == wv_group_size * chunks
    ), f"expected a scale for {_OUTPUT_CHUNK} values, got {sf.shape=}"
    order = (*weight.shape[:2], wv_group_size, chunks)
    permuted = weight.view(torch.uint8).reshape(*order, _OUTPUT_CHUNK).transpose(2, 3).reshape(weight.shape)
    scale = sf.contiguous().view(torch.uint8).view(order).transpose(2, 3).reshape(*weight.shape[:2], -1)
    return permuted.view(weight.dtype), _column_major(scale.view(torch.int32))


def _check(neox: bool, rope_dim: int, group: int, column_major: bool, round_sf: bool, packed: bool) -> None:
    assert (
        not neox and rope_dim == _ROPE_DIM
    ), f"expected neighbours paired over {_ROPE_DIM} dimensions, got {neox=} {rope_dim=}"
    assert group == _OUTPUT_CHUNK, f"expected a scale for {_OUTPUT_CHUNK} values, got {group}"
    assert (
        column_major and round_sf and packed
    ), f"expected packed, column-major ue8m0 scales, got {column_major=} {round_sf=} {packed=}"


def _norm_factor(q: torch.Tensor, eps: float) -> torch.Tensor:
    """Reciprocal root mean square of each head, fp32 [s, h], in whatever order the elements lie."""
    chunks = q.reshape(q.shape[0], -1, q.shape[1], _QUERY_CHUNK).to(torch.float32)
    return chunks.square().sum((1, 3)).div_(q.shape[2]).add_(eps).rsqrt_()


def _rotated_query(
    q: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """The queries in head order, rotated and rounded to bf16, and the angles' cosines and sines [s, 1, 32]."""
    heads, d = q.shape[1:]
    plain = q.reshape(-1, d // _QUERY_CHUNK, heads, _QUERY_CHUNK).transpose(1, 2).reshape(-1, heads, d)
    cos, sin = cos_sin_cache.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    return _rotated(plain.to(torch.float32), cos, sin).to(torch.bfloat16), (cos, sin)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """fp32 ``x`` [s, h, d], its last 64 rotated, neighbours paired, by the angles or their negatives."""
    first, second = x[..., -_ROPE_DIM::2], x[..., 1 - _ROPE_DIM :: 2]
    sign = -1.0 if inverse else 1.0
    turned = torch.addcmul(first * cos, second, sin, value=-sign), torch.addcmul(second * cos, first, sin, value=sign)
    return torch.cat((x[..., :-_ROPE_DIM], torch.stack(turned, -1).flatten(-2)), -1)


def _cast_output(out: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [s, groups, h / groups * d] and packed scales of fp32 ``out`` [s, h, d], heads interleaved by 32 elements."""
    tokens, heads, d = out.shape
    ordered = (
        out.view(tokens, groups, heads // groups, d // _OUTPUT_CHUNK, _OUTPUT_CHUNK)
        .transpose(2, 3)
        .reshape(tokens, groups, -1)
    )
    scaled, scale = quantise_groups(ordered, quant_format("e4m3", "ue8m0"), _OUTPUT_CHUNK)
    packed = scale.encoded.to(torch.uint8).view(torch.int32)
    return scaled.to(E4M3.storage), _column_major(packed.transpose(0, 1)).transpose(0, 1)


def _column_major(scale: torch.Tensor) -> torch.Tensor:
    """A copy of ``scale`` [..., rows, columns] that is contiguous along the rows, columns padded to a multiple of 4."""
    rows = scale.shape[-2]
    padded = torch.empty(
        (*scale.shape[:-2], scale.shape[-1], -(-rows // _COLUMN_ALIGNMENT) * _COLUMN_ALIGNMENT),
        dtype=scale.dtype,
        device=scale.device,
    )
    out = padded.transpose(-1, -2).narrow(-2, 0, rows)
    return out.copy_(scale)
