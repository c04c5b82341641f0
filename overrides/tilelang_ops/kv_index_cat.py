"""Concatenation of window and compressed KV indices, after ``tilelang_ops.asc.kv_index_cat``."""

from __future__ import annotations

from typing import Any

import torch


def kv_index_cat_tl(dtype: str, window_size: int, topk_tokens: int, out_stride: int) -> Any:
    """Factory of the two halves of one index row; ``out_stride`` is the row stride of both output views."""
    assert out_stride >= window_size + topk_tokens, f"{out_stride=} < {window_size=} + {topk_tokens=}"

    def kv_index_cat(
        kv_index: torch.Tensor,
        kv_ca_index: torch.Tensor,
        kv_index_out: torch.Tensor,
        kv_ca_index_out: torch.Tensor,
        total_k_swa: int,
        total_k: int,
    ) -> None:
        """Copy ``kv_index`` [q, window_size]; shift ``kv_ca_index`` [q, topk_tokens] by ``total_k_swa + total_k``, -1 kept."""
        assert (
            kv_index.shape == kv_index_out.shape and kv_index.shape[1] == window_size
        ), f"{kv_index.shape=} {window_size=}"
        assert (
            kv_ca_index.shape == kv_ca_index_out.shape and kv_ca_index.shape[1] == topk_tokens
        ), f"{kv_ca_index.shape=} {topk_tokens=}"
        kv_index_out.copy_(kv_index)
        valid = (kv_ca_index != -1).to(torch.int32)
        kv_ca_index_out.copy_(torch.add(kv_ca_index, valid, alpha=total_k_swa + total_k))

    return kv_index_cat
