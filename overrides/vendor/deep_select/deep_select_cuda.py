"""``deep_select.deep_select_cuda``: the top-k selection, in pure torch.

The contract is Ascend's where it differs, and wider where that costs nothing: fp32 input, int64 indices and sorting by value are
served, rows may lie any distance apart. Among equal values (zeros of either sign are equal) the smaller index wins, so that runs
repeat. A row that holds a NaN is filled with ``NAN_INDEX``, short rows too. ``abort_when_nan_found`` does not stop the process,
which would cost a look at the result in every call: the row is filled instead, and its indices lie outside every tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

NAN_INDEX = 0x3F3F3F3F
MAX_TOPK = 4096
MAX_VOCAB = 2**23
# Bytes that rows of the input and of the outputs lie apart, as upstream's callers lay them out.
INPUT_ALIGNMENT = 1024
OUTPUT_ALIGNMENT = 32

# Below every finite bf16, and above.
_LOWEST = torch.finfo(torch.float32).min
_HIGHEST = torch.finfo(torch.float32).max


def get_alignment_requirement() -> tuple[int, int]:
    """Bytes that rows of the input and of the outputs are aligned to."""
    return INPUT_ALIGNMENT, OUTPUT_ALIGNMENT


class _Keys(NamedTuple):
    """``key``: fp32 [b, v], ordered as the values, lowest outside the row's range. ``nan``: bool [b, 1], rows that hold a NaN."""

    key: torch.Tensor
    nan: torch.Tensor


def _keys(x: torch.Tensor, outside: torch.Tensor | None) -> _Keys:
    """What to select by. bf16 infinities become finite, in order; fp32 ones stay, since fp32 has no room beyond its numbers.

    Columns outside may tie with the lowest ones inside: those have the smaller indices.
    """
    finite = x.dtype == torch.bfloat16
    key = x.to(torch.float32).clamp(_LOWEST, _HIGHEST) if finite else x
    unordered = x != x
    low = _LOWEST if finite else float("-inf")
    if outside is None:
        return _Keys(key.masked_fill(unordered, low), unordered.any(1, keepdim=True))
    return _Keys(key.masked_fill(unordered | outside, low), (unordered > outside).any(1, keepdim=True))


def _chosen(key: torch.Tensor, k: int) -> torch.Tensor:
    """bool [b, v]: the ``k`` largest of each row, the smaller indices among equal ones."""
    threshold = key.topk(k, 1, sorted=False).values.amin(1, keepdim=True)
    above, level = key > threshold, key == threshold
    missing = k - above.sum(1, keepdim=True, dtype=torch.int32)
    return above | (level & (level.cumsum(1, dtype=torch.int32) <= missing))


def _ascending(chosen: torch.Tensor, k: int) -> torch.Tensor:
    """int32 [b, k]: columns of the ``k`` True of each row, ascending."""
    column = torch.arange(0, -chosen.shape[1], -1, dtype=torch.float32, device=chosen.device)
    return torch.where(chosen, column, -float(MAX_VOCAB)).topk(k, 1).values.neg_().to(torch.int32)


def topk(
    input: torch.Tensor,
    topk: int,
    begin: torch.Tensor | None,
    end: torch.Tensor | None,
    sorted: bool,
    sorted_index: bool,
    output_val: torch.Tensor | None,
    output_idx: torch.Tensor,
    output_idx_offset: torch.Tensor | None,
    idx_oob_fill_value: int,
    value_oob_fill_value: float,
    return_value: bool,
    abort_when_nan_found: bool,
    /,
) -> None:
    """Write the ``topk`` largest of each row: indices to ``output_idx``, values to ``output_val`` when ``return_value``.

    ``input``: bf16 or fp32 [b, v]. ``end``: int32 [b], columns of each row that count, all by default. ``output_idx``: int32 or int64
    [b, topk]. ``output_val``: as ``input``, [b, topk]. ``output_idx_offset``: int32 [b], added to each index.
    A row with fewer columns than ``topk`` has its own first, then the fill values, to which no offset is added.
    Order: by value, largest first, with ``sorted`` (fp32 only); else by index, ascending.

    Raises:
        RuntimeError: arguments outside the contract.
    """
    batch, vocab = input.shape
    _check(input, topk, begin, end, sorted, sorted_index, output_val, output_idx, output_idx_offset, return_value)
    if batch == 0:
        return
    k = min(topk, vocab)
    if k == 0:
        output_idx.fill_(idx_oob_fill_value)
        if output_val is not None:
            output_val.fill_(value_oob_fill_value)
        return
    column = torch.arange(vocab, dtype=torch.int32, device=input.device)
    outside = None if end is None else column >= end.unsqueeze(1)
    key, nan = _keys(input, outside)
    index = _ascending(_chosen(key, k), k)
    row = torch.arange(batch, dtype=torch.int32, device=input.device).unsqueeze(1)
    value = input[row, index] if return_value else None
    if sorted and value is not None:
        # Columns outside the range come last in `index` and must stay there.
        ranked = value if outside is None else value.masked_fill(outside[:, :k], float("-inf"))
        order = ranked.sort(dim=1, descending=True, stable=True).indices
        index, value = index.gather(1, order), value.gather(1, order)
    shifted = index if output_idx_offset is None else index + output_idx_offset.unsqueeze(1)
    if outside is not None:
        # The row's own columns come first, so that as many places are left as the first columns tell.
        filled = outside[:, :k]
        shifted = shifted.masked_fill(filled, idx_oob_fill_value)
        value = None if value is None else value.masked_fill(filled, value_oob_fill_value)
    if k < topk:
        shifted = torch.nn.functional.pad(shifted, (0, topk - k), value=idx_oob_fill_value)
        value = None if value is None else torch.nn.functional.pad(value, (0, topk - k), value=value_oob_fill_value)
    output_idx.copy_(shifted.masked_fill(nan, NAN_INDEX))
    if value is not None and output_val is not None:
        output_val.copy_(value)


def _check(
    input: torch.Tensor,
    topk: int,
    begin: torch.Tensor | None,
    end: torch.Tensor | None,
    sorted: bool,
    sorted_index: bool,
    output_val: torch.Tensor | None,
    output_idx: torch.Tensor,
    output_idx_offset: torch.Tensor | None,
    return_value: bool,
) -> None:
    batch, vocab = input.shape
    rows = {"end": end, "output_idx_offset": output_idx_offset}
    faults = (
        (not 0 < topk <= MAX_TOPK, f"topk must be in [1, {MAX_TOPK}], got {topk}"),
        (begin is not None, "begin is not supported"),
        (sorted and not return_value, "sorted needs return_value"),
        (sorted and sorted_index, "sorted and sorted_index exclude each other"),
        (sorted and input.dtype != torch.float32, f"sorted needs fp32 input, got {input.dtype}"),
        (input.dtype not in (torch.bfloat16, torch.float32), f"expected bf16 or fp32 input, got {input.dtype}"),
        (vocab >= MAX_VOCAB, f"expected fewer than {MAX_VOCAB} columns, got {vocab}"),
        (
            output_idx.dtype not in (torch.int32, torch.int64),
            f"expected int32 or int64 indices, got {output_idx.dtype}",
        ),
        (
            tuple(output_idx.shape) != (batch, topk),
            f"expected output_idx of {(batch, topk)}, got {tuple(output_idx.shape)}",
        ),
        ((output_val is None) == return_value, "output_val must be given with return_value, and only then"),
        (
            output_val is not None and tuple(output_val.shape) != (batch, topk),
            f"expected output_val of {(batch, topk)}",
        ),
        (output_val is not None and output_val.dtype != input.dtype, f"expected output_val of {input.dtype}"),
        *((t is not None and t.dtype != torch.int32, f"expected {name} in int32") for name, t in rows.items()),
        *((t is not None and tuple(t.shape) != (batch,), f"expected {name} of {(batch,)}") for name, t in rows.items()),
    )
    for wrong, message in faults:
        if wrong:
            raise RuntimeError(message)
