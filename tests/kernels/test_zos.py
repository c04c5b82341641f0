"""Zero-overhead scheduling: key lengths, input tokens and n-grams from the step before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check_kernel, guard, wide_ops
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.compute_seqlens_k_zos import compute_seqlens_k_zos_tl
from overrides.tilelang_ops.gather_engram_tokens_zos import gather_engram_tokens_zos_tl
from overrides.tilelang_ops.gather_input_ids_zos import gather_input_ids_zos_tl


def ints(values: Any, *shape: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).reshape(shape or -1)


def running(lens: list[int]) -> list[int]:
    return [sum(lens[: i + 1]) for i in range(len(lens))]


@pytest.mark.parametrize("remap, accepted", [([], []), ([-1], []), ([1, -1, 0], [2, 0]), ([0], [3])])
def test_key_lengths(remap: list[int], accepted: list[int]) -> None:
    nextn, n = 3, len(remap)
    keys, queries = list(range(10, 10 + n)), [4] * n
    args = (guard(ints(keys)), guard(ints(queries)), guard(ints(remap)), guard(ints(accepted)))
    kernel = compute_seqlens_k_zos_tl(nextn)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("seqlens_k",))
    want = [k + q - (nextn - accepted[r] if r != -1 else 0) for k, q, r in zip(keys, queries, remap, strict=True)]
    assert args[0].tolist() == want


def tokens_of(fresh: list[int], previous: list[list[int]], source: int) -> list[int]:
    return fresh if source < 0 else previous[source]


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("remap, previous", [([-1], 0), ([1, -1, 0], 2), ([-1, -1], 0), ([2, 0, -1, 1] * 40, 3)])
def test_input_tokens(width: int, remap: list[int], previous: int) -> None:
    n = len(remap)
    lens = [i % (width + 1) for i in range(n)] if n > 1 else [width]
    fresh = torch.randint(0, 99, (n, width)).int()
    sampled, drafted = torch.randint(100, 199, (previous,)).int(), torch.randint(200, 299, (previous, width - 1)).int()
    out = guard(torch.full((sum(lens),), -7, dtype=torch.int32))
    args = (*(guard(t) for t in (fresh, sampled, drafted, ints(remap), ints(lens), ints(running(lens)))), out)
    kernel = gather_input_ids_zos_tl(width)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("out_input_ids",))
    rows = [[s, *d] for s, d in zip(sampled.tolist(), drafted.tolist(), strict=True)]
    assert out.tolist() == [
        t for f, r, q in zip(fresh.tolist(), remap, lens, strict=True) for t in tokens_of(f, rows, r)[:q]
    ]


PAD, IMAGE = 5, -1


def ngrams(history: list[int], start: int, tokens: list[int], rows: int, size: int) -> list[list[int]]:
    """Each of the first ``rows`` tokens with those before it; the history ends ``size - 1`` columns behind ``start``."""
    line = history[start : start + size - 1] + tokens
    out = []
    for j in range(rows):
        back = line[j : j + size][::-1]
        seen = [IMAGE in back[: r + 1] for r in range(size)]
        out.append([PAD if hidden else t for hidden, t in zip(seen, back, strict=True)])
    return out


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("remap, previous", [([-1], 0), ([1, -1, 0, 1], 2)])
def test_ngrams(size: int, width: int, remap: list[int], previous: int) -> None:
    n, nextn = len(remap), width - 1
    lens = [width, 1, 0, width][:n]
    history = torch.randint(-1, 9, (n, nextn + size - 1)).int()
    fresh = torch.randint(-1, 9, (n, width)).int()
    sampled, drafted = torch.randint(0, 20, (previous,)).int(), torch.randint(0, 20, (previous, nextn)).int()
    accepted = torch.randint(0, nextn + 1, (previous,)).int()
    table = torch.randint(-1, 9, (20,)).int()
    out = guard(torch.full((sum(lens), size), 77, dtype=torch.int32))
    inputs = (history, fresh, sampled, drafted, accepted, ints(remap), table, ints(lens), ints(running(lens)))
    args = (*(guard(t) for t in inputs), out)
    kernel = gather_engram_tokens_zos_tl(width, size, PAD, IMAGE)
    assert wide_ops(kernel, *args) == []
    check_kernel(kernel, *args, written=("out_ngram_token_ids",))
    want = []
    for i, source in enumerate(remap):
        old = [int(table[t]) for t in [int(sampled[source]), *drafted[source].tolist()]] if source >= 0 else []
        start = int(accepted[source]) if source >= 0 else 0
        want += ngrams(history[i].tolist(), start, old or fresh[i].tolist(), lens[i], size)
    assert out.tolist() == want


@given(st.lists(st.integers(0, 4), min_size=1, max_size=90))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_any_lengths(lens: list[int]) -> None:
    fresh = torch.arange(len(lens) * 4, dtype=torch.int32).view(-1, 4)
    out = torch.full((sum(lens),), -7, dtype=torch.int32)
    nobody = ints([]), ints([], 0, 3)
    gather_input_ids_zos_tl(4)(fresh, *nobody, ints([-1] * len(lens)), ints(lens), ints(running(lens)), out)
    assert out.tolist() == [4 * i + j for i, q in enumerate(lens) for j in range(q)]


def test_against_the_references(upstream: Callable[[str], Any]) -> None:
    n, nextn, size = 21, 3, 3
    lens = torch.randint(1, 5, (n,)).int()
    ends, remap = lens.cumsum(0, dtype=torch.int32), torch.randint(-1, n, (n,)).int()
    sampled, drafted = torch.randint(0, 50, (n,)).int(), torch.randint(0, 50, (n, nextn)).int()
    accepted, fresh = torch.randint(0, nextn + 1, (n,)).int(), torch.randint(-1, 50, (n, nextn + 1)).int()
    keys = torch.randint(50, 90, (n,)).int(), torch.randint(50, 90, (n,)).int()
    keys = keys[0], keys[0].clone()
    module = upstream("compute_seqlens_k_zos")
    module.compute_seqlens_k_zos(keys[0], lens, remap, accepted, nextn=nextn)
    module.compute_seqlens_k_zos_ref(keys[1], lens, remap, accepted, nextn=nextn)
    assert torch.equal(*keys)
    total = int(ends[-1])
    module, got, want = upstream("gather_input_ids_zos"), torch.zeros(total).int(), torch.zeros(total).int()
    module.gather_input_ids_zos(fresh, sampled, drafted, remap, lens, ends, got, max_seqlen_q=nextn + 1)
    module.gather_input_ids_zos_ref(fresh, sampled, drafted, remap, lens, ends, want, max_seqlen_q=nextn + 1)
    assert torch.equal(got, want)
    module, ngram = upstream("gather_engram_tokens_zos"), torch.zeros(total, size).int()
    window, table = torch.randint(-1, 50, (n, nextn + size - 1)).int(), torch.randint(-1, 50, (50,)).int()
    inputs = (window, fresh, sampled, drafted, accepted, remap, table, lens, ends)
    sizes = {"max_seqlen_q": nextn + 1, "max_ngram_size": size, "engram_compressed_pad_token": 7, "image_sentinel": -1}
    module.gather_engram_tokens_zos(*inputs, ngram, **sizes)
    assert torch.equal(ngram, module.gather_engram_tokens_zos_ref(*inputs, total, **sizes))
