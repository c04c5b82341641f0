"""``deep_select.interface``: top-k of rows, what the indexer and the sampler call."""

from __future__ import annotations

import torch

from . import deep_select_cuda as _backend


def get_stride_requirement() -> tuple[int, int]:
    """Bytes that rows of the input and of the outputs are aligned to."""
    return _backend.get_alignment_requirement()


def _empty_rows(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Uninitialised [rows, columns] whose rows lie aligned units apart, as the indexer's index rows do."""
    unit = get_stride_requirement()[1] // dtype.itemsize
    return torch.empty((rows, -(-columns // unit) * unit), dtype=dtype, device=device)[:, :columns]


def topk(
    input: torch.Tensor,
    topk: int,
    sorted: bool = False,
    begin: torch.Tensor | None = None,
    end: torch.Tensor | None = None,
    indices_type: torch.dtype = torch.int64,
    sorted_index: bool = False,
    hint: torch.Tensor | None = None,
    output_idx: torch.Tensor | None = None,
    output_idx_offset: torch.Tensor | None = None,
    idx_oob_fill_value: int = 2147483647,
    value_oob_fill_value: float = float("-inf"),
    return_value: bool = True,
    abort_when_nan_found: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """The ``topk`` largest of each row of ``input`` (bf16 or fp32 [b, v]), smaller indices first among equal values.

    ``end``: int32 [b], exclusive right end of each row. ``output_idx``: [b, topk] of ``indices_type``, written when given.
    ``output_idx_offset``: int32 [b], added to each index. Rows with fewer columns than ``topk`` have theirs first, then the fill
    values, without offset. ``sorted``: by value, largest first (fp32 only); else by index. ``begin`` and ``hint`` must be None.
    Returns the values [b, topk], None without ``return_value``, and the indices [b, topk]. New ones are contiguous with
    ``return_value``: upstream's Ascend branch hands the sampler those, which asserts it. Without, rows lie 32-byte units apart.
    """
    assert begin is None, "begin is not supported"
    assert hint is None, "hint is not supported"
    assert output_idx is None or output_idx.dtype == indices_type, f"output_idx must be of {indices_type}"
    rows = input.shape[0]
    values = input.new_empty((rows, topk)) if return_value else None
    if output_idx is not None:
        indices = output_idx
    elif return_value:
        indices = input.new_empty((rows, topk), dtype=indices_type)
    else:
        indices = _empty_rows(rows, topk, indices_type, input.device)
    _backend.topk(
        input,
        topk,
        begin,
        end,
        sorted,
        sorted_index,
        values,
        indices,
        output_idx_offset,
        idx_oob_fill_value,
        value_oob_fill_value,
        return_value,
        abort_when_nan_found,
    )
    return values, indices
