"""Sparse attention over chosen keys, and dense attention of prompts, after ``flash_mla.flash_mla_interface``.

A sparse query gathers the rows that it names and nothing else. Sums are in fp32. There is no split over the keys, so the
result of a query does not depend on its batch, with or without ``enable_batch_invariant``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from neuron_numerics.kvcache import FP8_ROW_BYTES, cache_rows, element_rows
from neuron_numerics.kvcache_attention import attend

_HEAD_DIM = 512
# fp32 logits of dense attention held at a time, and what masks one: finite, the device does not handle infinities reliably.
_DENSE_LOGITS = 1 << 25
_MASKED = -1e30


@dataclass
class FlashMLASchedMeta:
    """What the calls that share it must agree on, set by the first of them.

    ``tile_scheduler_metadata`` and ``num_splits`` stay None: nothing is scheduled here, as on Ascend.
    """

    @dataclass
    class Config:
        """Shapes and flags of the first call."""

        b: int
        s_q: int
        h_q: int
        page_block_size: int
        h_k: int

        causal: bool
        is_fp8_kvcache: bool
        topk: int | None

        extra_page_block_size: int | None
        extra_topk: int | None

        enable_batch_invariant: bool

    have_initialized: bool = False
    config: Config | None = None
    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[FlashMLASchedMeta, None]:
    """An empty metadata object for ``flash_mla_with_kvcache``, and None. All arguments are ignored."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = True,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    enable_batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of decoded tokens over chosen tokens of one or two paged, quantised caches.

    ``q``: bf16 (or fp32) [b, s_q, h, 512]. ``k_cache``: [blocks, block_size, 1, 528] bytes; ``extra_k_cache`` likewise, or with
    288 bytes a token; see ``neuron_numerics.kvcache`` for the formats. ``indices``, ``extra_indices_in_kvcache``: int32
    [b, s_q, topk], block * block_size + offset; -1, or anything outside of the cache, does not count. ``topk_length``,
    ``extra_topk_length``: int32 [b], only so many leading indices count. ``attn_sink``: fp32 [h], scales ``out`` alone.
    ``softmax_scale`` is ``512 ** -0.5`` by default. ``block_table`` and ``cache_seqlens`` are ignored.

    Returns ``out``, like ``q``, and the natural log-sum-exp of the logits, fp32 [b, h, s_q] (the transposed view of
    [b, s_q, h]): zeros and +inf for a query without a token.

    Raises:
        AssertionError: no indices, a causal mask, a cache that is not quantised, or arguments that disagree with the calls that
            used ``tile_scheduler_metadata`` before.
    """
    assert isinstance(tile_scheduler_metadata, FlashMLASchedMeta), f"{type(tile_scheduler_metadata)=}"
    assert num_splits is None, "num_splits is not for callers to give"
    assert indices is not None, "only sparse attention is supported: give indices"
    assert not causal, "a causal mask is not supported"
    assert is_fp8_kvcache, "only a quantised cache is supported"
    batch, s_q, heads, d = q.shape
    assert d == _HEAD_DIM and head_dim_v == _HEAD_DIM, f"expected heads of {_HEAD_DIM}, got {d} and {head_dim_v}"
    assert (
        k_cache.shape[3] == FP8_ROW_BYTES
    ), f"expected {FP8_ROW_BYTES} bytes a token in k_cache, got {k_cache.shape[3]}"
    assert (extra_k_cache is None) == (extra_indices_in_kvcache is None), "an extra cache and its indices come together"
    assert extra_k_cache is not None or extra_topk_length is None, "extra_topk_length without an extra cache"
    _agree(
        tile_scheduler_metadata,
        FlashMLASchedMeta.Config(
            b=batch,
            s_q=s_q,
            h_q=heads,
            page_block_size=k_cache.shape[1],
            h_k=k_cache.shape[2],
            causal=causal,
            is_fp8_kvcache=is_fp8_kvcache,
            topk=indices.shape[-1],
            extra_page_block_size=None if extra_k_cache is None else extra_k_cache.shape[1],
            extra_topk=None if extra_indices_in_kvcache is None else extra_indices_in_kvcache.shape[-1],
            enable_batch_invariant=enable_batch_invariant,
        ),
    )
    sources = [cache_rows(k_cache, *_per_query(indices, topk_length, batch, s_q))]
    if extra_k_cache is not None and extra_indices_in_kvcache is not None:
        sources.append(cache_rows(extra_k_cache, *_per_query(extra_indices_in_kvcache, extra_topk_length, batch, s_q)))
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    out, _, lse = attend(q.reshape(batch * s_q, heads, d), sources, scale, head_dim_v, attn_sink)
    return out.view(batch, s_q, heads, head_dim_v), lse.view(batch, s_q, heads).transpose(1, 2)


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of prompt tokens over chosen rows of ``kv``.

    ``q``: bf16 (or fp32) [s_q, h, d]. ``kv``: [s_kv, 1, d], of ``q``'s dtype. ``indices``: int32 [s_q, 1, topk]; what is
    negative or not less than s_kv does not count. ``topk_length``: int32 [s_q], only so many leading indices count.
    ``attn_sink``: fp32 [h], scales ``out`` alone.

    Returns ``out`` [s_q, h, d_v] of ``q``'s dtype, the largest logits and their natural log-sum-exp, fp32 [s_q, h]: zeros, -inf
    and +inf for a query without a row.
    """
    assert q.ndim == kv.ndim == indices.ndim == 3, f"{q.shape=} {kv.shape=} {indices.shape=}"
    assert kv.shape[1] == indices.shape[1] == 1, f"expected one key head, got {kv.shape=} {indices.shape=}"
    assert kv.shape[2] == q.shape[2] and d_v <= q.shape[2], f"{q.shape=} {kv.shape=} {d_v=}"
    assert indices.dtype == torch.int32, f"{indices.dtype=}"
    rows = element_rows(kv.squeeze(1), indices.squeeze(1), topk_length)
    return attend(q, (rows,), sm_scale, d_v, attn_sink)


def _agree(meta: FlashMLASchedMeta, config: FlashMLASchedMeta.Config) -> None:
    if not meta.have_initialized:
        meta.have_initialized, meta.config = True, config
        return
    assert meta.config == config, f"the metadata was made for {meta.config}, this call is {config}: take a new one"


def _per_query(
    indices: torch.Tensor, length: torch.Tensor | None, batch: int, s_q: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    assert indices.dtype == torch.int32 and indices.shape[:2] == (batch, s_q), f"{indices.dtype=} {indices.shape=}"
    if length is not None:
        assert length.dtype == torch.int32 and length.shape == (batch,), f"{length.dtype=} {length.shape=}"
        length = length.unsqueeze(1).expand(batch, s_q).reshape(-1)
    return indices.reshape(batch * s_q, -1), length


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense attention of sequences laid end to end, each over its own keys; forward only, on the host's word for the lengths.

    ``q``: bf16 (or fp32) [total_q, h, d]. ``k``: [total_k, h_k, d], ``v``: [total_k, h_k, d_v], ``h`` a multiple of ``h_k``, each key
    head for so many neighbouring query heads. ``cu_seqlens_*``: int32 [sequences + 1], where each sequence starts, and the end.
    ``softmax_scale`` is ``d ** -0.5`` by default. ``causal``: the last query sees all keys, each one before it a key less.
    ``max_seqlen_*`` and ``is_varlen`` tell nothing more.

    Returns ``out`` [total_q, h, d_v] of ``q``'s dtype and the natural log-sum-exp of the logits, fp32 [total_q, h], contiguous along
    the tokens: zeros and -inf for a query without a key.

    Raises:
        AssertionError: dropout or a deterministic backward is asked for.
    """
    assert dropout_p == 0.0, f"dropout is not supported, got {dropout_p=}"
    assert not deterministic, "a deterministic backward is not supported"
    total, heads, d = q.shape
    key_heads, d_v = k.shape[1], v.shape[2]
    assert (
        heads % key_heads == 0 and k.shape[2] == d and v.shape[:2] == k.shape[:2]
    ), f"{q.shape=} {k.shape=} {v.shape=}"
    out = torch.zeros((total, heads, d_v), dtype=q.dtype, device=q.device)
    lse = torch.full((heads, total), -torch.inf, dtype=torch.float32, device=q.device).transpose(0, 1)
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    # NEURON: host sync
    starts, key_starts = cu_seqlens_qo.tolist(), cu_seqlens_kv.tolist()
    for first, end, key_first, key_end in zip(starts, starts[1:], key_starts, key_starts[1:], strict=False):
        if first == end or key_first == key_end:
            continue
        keys = k[key_first:key_end].to(torch.float32).transpose(0, 1)
        values = v[key_first:key_end].to(torch.float32).transpose(0, 1)
        step = max(_DENSE_LOGITS // (heads * (key_end - key_first)), 1)
        for start in range(first, end, step):
            stop = min(start + step, end)
            # Keys that the first query of the slice sees, all of them without a mask.
            seen = key_end - key_first - (end - 1 - start) if causal else None
            out[start:stop], lse[start:stop] = _dense_slice(q[start:stop], keys, values, scale, seen)
    return out, lse


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``flash_attn_varlen_func`` of ``qkv`` [total, h, 2 * head_dim_qk + d_v], queries, keys and values side by side in each head."""
    q, k, v = qkv[..., :head_dim_qk], qkv[..., head_dim_qk : 2 * head_dim_qk], qkv[..., 2 * head_dim_qk :]
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(q, k, v, *lengths, dropout_p, softmax_scale, causal, deterministic, is_varlen)


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``flash_attn_varlen_func`` of ``kv`` [total_k, h_k, head_dim_qk + d_v], keys and values side by side in each head."""
    lengths = (cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv)
    k, v = kv[..., :head_dim_qk], kv[..., head_dim_qk:]
    return flash_attn_varlen_func(q, k, v, *lengths, dropout_p, softmax_scale, causal, deterministic, is_varlen)


def _dense_slice(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, seen: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries [n, h, d] over fp32 keys and values [h_k, t, ...]; the first query sees ``seen`` keys, the next one more."""
    count, heads, d = q.shape
    key_heads, width = keys.shape[:2]
    grouped = q.to(torch.float32).unflatten(1, (key_heads, -1)).permute(1, 2, 0, 3).reshape(key_heads, -1, d)
    logits = torch.bmm(grouped, keys.transpose(1, 2)).mul_(scale).view(key_heads, heads // key_heads, count, width)
    if seen is not None:
        key = torch.arange(width, dtype=torch.int32, device=q.device)
        logits.masked_fill_(
            key >= torch.arange(seen, seen + count, dtype=torch.int32, device=q.device).unsqueeze(1), _MASKED
        )
    top = logits.amax(3, keepdim=True)
    dead = top == _MASKED
    weight = logits.sub_(top).exp_()
    total = weight.sum(3, keepdim=True)
    weight.mul_(total.reciprocal().masked_fill_(dead, 0))
    out = torch.bmm(weight.view(key_heads, -1, width), values).view(key_heads, heads // key_heads, count, -1)
    lse = (top + total.log()).masked_fill_(dead, -torch.inf)
    return out.permute(2, 0, 1, 3).reshape(count, heads, -1).to(q.dtype), lse.permute(2, 0, 1, 3).reshape(count, heads)
