"""compress: windows, the state ring, chunked prefill, decode after prefill, permuted tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch
from cache_support import ascend_references, ulps
from harness import check_fake, check_fullgraph, check_kernel, check_mutations, count_ops, guard, work
from hypothesis import given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.compress import (
    compress_and_update_state_decode_tl,
    compress_and_update_state_prefill_tl,
    weigh,
)

DIM = 64


@pytest.fixture
def refs(upstream: Callable[[str], Any], pytestconfig: pytest.Config) -> Iterator[Any]:
    with ascend_references(upstream, pytestconfig) as found:
        yield found


def ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def cumulative(lengths: Sequence[int]) -> torch.Tensor:
    return ints([0, *accumulate(lengths)])


def make_ring(slots: int, size: int, dim: int = DIM, gap: int = 32) -> torch.Tensor:
    return guard(torch.randn(slots, size, 2, dim), (size * 2 * dim + gap, 2 * dim, dim, 1))


def make_tokens(n: int, dim: int = DIM) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and latents as the model has them: halves of one projection."""
    projected = torch.randn(n, 2 * dim)
    score, latent = projected.chunk(2, dim=1)
    return score.mul_(3), latent


def exact_window(score: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """fp64 [dim] of the rows [ratio, dim] of one window."""
    return (score.double().softmax(0) * latent.double()).sum(0)


class Sequences:
    """A batch of sequences by their past and new lengths, with the metadata that the engine makes of it."""

    def __init__(self, past: Sequence[int], new: Sequence[int], ratio: int, slots: Sequence[int]) -> None:
        self.past, self.new, self.ratio, self.slots = past, new, ratio, slots
        self.rows = [max((p + q) // ratio - p // ratio, 1) for p, q in zip(past, new, strict=True)]
        self.total, self.total_rows = sum(new), sum(self.rows)
        mapping = [i for i, count in enumerate(self.rows) for _ in range(count)]
        self.metadata = (
            ints(slots),
            ints(mapping),
            cumulative(new),
            cumulative([p + q for p, q in zip(past, new, strict=True)]),
            cumulative(self.rows),
        )

    def expected(
        self, score: torch.Tensor, latent: torch.Tensor, ring: torch.Tensor, index: Sequence[int] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """fp64 rows [total_rows, dim] and the ring afterwards, a window and a token at a time."""
        out = torch.zeros(self.total_rows, score.shape[1], dtype=torch.float64)
        after, size = ring.clone(), ring.shape[1]
        first_token = first_row = 0
        for past, new, rows, slot in zip(self.past, self.new, self.rows, self.slots, strict=True):

            def at(
                position: int, past: int = past, first: int = first_token, slot: int = slot
            ) -> tuple[torch.Tensor, torch.Tensor]:
                if position < past:
                    return ring[slot, position % size, 0], ring[slot, position % size, 1]
                token = first + position - past
                token = token if index is None else index[token]
                return score[token], latent[token]

            for row, window in enumerate(range(past // self.ratio, (past + new) // self.ratio)):
                scores, latents = zip(*(at(window * self.ratio + i) for i in range(self.ratio)), strict=True)
                out[first_row + row] = exact_window(torch.stack(scores), torch.stack(latents))
            for position in range(max(past, past + new - size), past + new):
                after[slot, position % size] = torch.stack(at(position))
            first_token, first_row = first_token + new, first_row + rows
        return out, after


def close(actual: torch.Tensor, exact: torch.Tensor, latent: torch.Tensor) -> bool:
    """A bf16 step, and what fp32 loses where a window's rows cancel."""
    return bool(((actual.double() - exact).abs() <= exact.abs() * 2**-8 + latent.double().abs().max() * 2**-22).all())


CASES = {
    "mixed": ([0, 3, 5, 2, 0], [4, 4, 1, 1, 1], [3, 0, 5, 1, 2]),
    "one-token": ([0], [1], [0]),
    "one-token-ends-a-window": ([1], [1], [0]),
    "wraps": ([6, 7], [9, 2], [4, 1]),
    "idle-sequence": ([3, 4], [0, 2], [0, 1]),
    "all-idle": ([3, 0], [0, 0], [0, 1]),
    "long-past": ([1_000_003, 2**30 + 1], [3, 5], [2, 0]),
}


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("permuted", [False, True])
def test_prefill(ratio: int, size: int, case: str, permuted: bool) -> None:
    batch = Sequences(*CASES[case][:2], ratio, CASES[case][2])
    # Permuted tokens lie among padding, as after a gather over ranks.
    rows = batch.total + (5 if permuted else 0)
    score, latent = make_tokens(rows)
    index = torch.randperm(rows)[: batch.total].tolist() if permuted else None
    ring = make_ring(6, size)
    out = guard(torch.randn(batch.total_rows, DIM).bfloat16())
    exact, after = batch.expected(score, latent, ring, index)
    kernel = compress_and_update_state_prefill_tl(DIM, ratio, permuted)
    args = (score, latent, ring, *batch.metadata, None if index is None else guard(ints(index)), out)
    written = ("state_cache", "kv_compressed")
    if case == "mixed" and size < 5:
        # More tokens than the rings hold, and fewer: two graphs of one kind.
        check_fake(kernel, *args)
        check_fullgraph(kernel, *args)
        check_mutations(kernel, *args, written=written)
    check_kernel(kernel, *args, written=written, gates=False)
    assert torch.equal(ring, after)
    assert close(out, exact, torch.cat((latent.flatten(), ring.flatten())))
    if ratio == 1 and batch.total == batch.total_rows:
        assert torch.equal(out, (latent if index is None else latent[index]).bfloat16())


@pytest.mark.parametrize("size", [2, 9])
def test_padding_behind_the_sequences_is_not_stored(size: int) -> None:
    batch = Sequences([3, 6], [4, 2], 2, [4, 1])
    score, latent = make_tokens(batch.total + 3)
    ring = make_ring(6, size)
    out = guard(torch.zeros(batch.total_rows, DIM).bfloat16())
    exact, after = batch.expected(score, latent, ring)
    compress_and_update_state_prefill_tl(DIM, 2, False)(score, latent, ring, *batch.metadata, None, out)
    assert torch.equal(ring, after)
    assert close(out, exact, torch.cat((latent.flatten(), ring.flatten())))


@pytest.mark.parametrize("permuted", [False, True])
def test_prefill_agrees_with_the_reference(refs: Any, permuted: bool) -> None:
    batch = Sequences([0, 3, 5, 2], [40, 1, 7, 12], 2, [3, 0, 5, 1])
    score, latent = make_tokens(batch.total + 4 * permuted, 512)
    index = torch.randperm(batch.total + 4)[: batch.total].int() if permuted else None
    ring = make_ring(6, 3, 512)
    other = ring.clone()
    out = refs.compress.compress_and_update_state_prefill(score, latent, ring, *batch.metadata, 2, index)
    expected = refs.compress.compress_and_update_state_prefill_ref(score, latent, other, *batch.metadata, 2, index)
    assert torch.equal(ring, other)
    assert (out != expected).double().mean() < 1e-3
    assert ulps(out, expected.double().where(expected != 0, 1.0)).where(expected != 0, 0).max() <= 1


@settings(max_examples=40, derandomize=True, deadline=None)
@given(data=st.data())
def test_any_split_of_a_prompt_compresses_alike(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 5))
    total = data.draw(st.integers(2, 14))
    cuts = sorted(data.draw(st.sets(st.integers(1, total - 1), max_size=4)))
    score, latent = make_tokens(total)
    kernel = compress_and_update_state_prefill_tl(DIM, 2, False)
    decode = compress_and_update_state_decode_tl(DIM, 2)

    def run(bounds: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        ring, rows = torch.zeros(2, size, 2, DIM), []
        for start, stop in zip([0, *bounds], [*bounds, total], strict=True):
            batch = Sequences([start], [stop - start], 2, [1])
            out = torch.empty(batch.total_rows, DIM, dtype=torch.bfloat16)
            kernel(score[start:stop], latent[start:stop], ring, *batch.metadata, None, out)
            rows.append(out[: stop // 2 - start // 2])
        return torch.cat(rows), ring

    whole, chunked = run([]), run(cuts)
    assert torch.equal(chunked[0], whole[0]) and torch.equal(chunked[1], whole[1])

    # The same tokens one at a time, through the decode kernel.
    ring, rows = torch.zeros(2, size, 2, DIM), []
    for position in range(total):
        out = torch.full((1, DIM), torch.nan, dtype=torch.bfloat16)
        decode(
            score[position : position + 1], latent[position : position + 1], ring, ints([1]), ints([position + 1]), out
        )
        if position % 2:
            rows.append(out)
        else:
            assert (out == 0).all()
    assert torch.equal(torch.cat(rows), whole[0]) and torch.equal(ring, whole[1])


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize(
    "slots, lengths",
    [
        ([4, 1, 0, 5], [4, 7, 1, 2]),
        ([3], [6]),
        ([3], [5]),
        ([], []),
        ([2, 2, 0, 2], [8, 9, 14, 10]),
        ([0, 1], [2**31 - 2, 2**30]),
    ],
)
def test_decode(ratio: int, size: int, slots: list[int], lengths: list[int]) -> None:
    per_slot = max((slots.count(slot) for slot in slots), default=1)
    size = max(size, ratio + per_slot - 1)
    score, latent = make_tokens(len(slots))
    ring = make_ring(6, size)
    after = ring.clone()
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        after[slot, (length - 1) % size] = torch.stack((score[row], latent[row]))
    exact = torch.zeros(len(slots), DIM, dtype=torch.float64)
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        if length % ratio == 0:
            window = torch.stack([after[slot, (length - ratio + i) % size] for i in range(ratio)])
            exact[row] = exact_window(window[:, 0], window[:, 1])
    out = guard(torch.randn(len(slots), DIM).bfloat16())
    args = (score, latent, ring, guard(ints(slots)), guard(ints(lengths)), out)
    kernel = compress_and_update_state_decode_tl(DIM, ratio)
    check_kernel(kernel, *args, written=("state_cache", "kv_compressed"), gates=size == 3 and len(slots) in (1, 4))
    assert torch.equal(ring, after)
    assert out.numel() == 0 or close(out, exact, ring)
    if ratio == 1:
        assert torch.equal(out, latent.bfloat16())


def test_decode_agrees_with_the_reference(refs: Any) -> None:
    slots, lengths = [2, 2, 5, 0, 1, 1, 1], [7, 8, 12, 3, 20, 21, 22]
    score, latent = make_tokens(7, 384)
    ring = make_ring(6, 6, 384)
    other = ring.clone()
    args = ints(slots), ints(lengths), 3, 2
    out = refs.compress.compress_and_update_state_decode(score, latent, ring, *args)
    expected = refs.compress.compress_and_update_state_decode_ref(score, latent, other, *args)
    assert torch.equal(ring, other)
    assert ulps(out, expected.double().where(expected != 0, 1.0)).where(expected != 0, 0).max() <= 1


@pytest.mark.parametrize("late", [-torch.inf, -200.0, 0.0, 200.0])
def test_extreme_scores(late: float) -> None:
    latent = torch.randn(2, DIM)
    score = torch.stack((torch.zeros(DIM), torch.full((DIM,), late)))
    batch = Sequences([0], [2], 2, [0])
    out = torch.zeros(1, DIM, dtype=torch.bfloat16)
    compress_and_update_state_prefill_tl(DIM, 2, False)(score, latent, make_ring(1, 2), *batch.metadata, None, out)
    share = torch.tensor(late).double().sigmoid()
    assert close(out[0], latent[0].double() * (1 - share) + latent[1].double() * share, latent)


@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_two_rows_are_weighed_to_units_in_fp32(spread: float) -> None:
    """Before the only rounding that shows, to bf16: five roundings and a sigmoid, in units of the larger of the two."""
    score, latent = torch.randn(2, 200_000) * spread, torch.randn(2, 200_000)
    error = (weigh(score[0], latent[0], score[1], latent[1]) - exact_window(score, latent)).abs()
    error /= torch.exp2(torch.frexp(latent.double().abs().amax(0))[1].double() - 24)
    assert (error <= 2).double().mean() > 0.995
    assert error.mean() < 0.35 and error.max() < 3.5


def test_cost_does_not_grow_with_the_states() -> None:
    score, latent = make_tokens(2)
    batch = Sequences([1], [2], 2, [3])
    prefill, decode = compress_and_update_state_prefill_tl(DIM, 2, False), compress_and_update_state_decode_tl(DIM, 2)
    for kernel, rest in (
        (prefill, (*batch.metadata, None, torch.zeros(batch.total_rows, DIM).bfloat16())),
        (decode, (ints([3, 0]), ints([5, 2]), torch.zeros(2, DIM).bfloat16())),
    ):
        few, many = ((score, latent, torch.zeros(slots, 3, 2, DIM), *rest) for slots in (4, 64))
        assert work(kernel, *few) == work(kernel, *many)
    assert len(count_ops(decode, score, latent, torch.zeros(4, 3, 2, DIM), *rest)) <= 14


@pytest.mark.parametrize("dim, ratio", [(DIM, 0), (DIM, 3), (DIM, 4), (100, 2), (32, 1)])
def test_refuses_what_ascend_refuses(dim: int, ratio: int) -> None:
    with pytest.raises(AssertionError):
        compress_and_update_state_prefill_tl(dim, ratio, False)
    with pytest.raises(AssertionError):
        compress_and_update_state_decode_tl(dim, ratio)
