"""The selection against a stable sort, against the properties that upstream's tests state, and under the static gate.

The pinned distribution ships no tests: the properties are those that upstream's repository asks of every case, in our words. Its
host tests hold a later interface to its own errors; what they ask of this one (arguments passed on, outputs kept and laid out) is
tested with the distribution's unedited interface module on this backend.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import check_fake, check_fullgraph, check_kernel, guard, storage_bytes, wide_ops

from overrides.vendor.deep_select import deep_select_cuda as backend
from overrides.vendor.deep_select.interface import get_stride_requirement, topk

NAN = 0x3F3F3F3F
INF = float("inf")


def oracle(
    x: torch.Tensor, k: int, end: list[int] | None, by_value: bool, offset: list[int] | None, fills: tuple[int, float]
) -> Any:
    """Row by row, by Python's stable sort: largest first, smaller index among equal values."""
    indices, values = [], []
    for row, line in enumerate(x.tolist()):
        stop = len(line) if end is None else end[row]
        if any(v != v for v in line[:stop]):
            indices.append([NAN] * k)
            values.append([None] * k)
            continue
        best = sorted(range(stop), key=lambda i: -line[i])[:k]
        best = best if by_value else sorted(best)
        add = 0 if offset is None else offset[row]
        indices.append([i + add for i in best] + [fills[0]] * (k - len(best)))
        values.append([line[i] for i in best] + [fills[1]] * (k - len(best)))
    return values, indices


def compare(got: tuple[torch.Tensor | None, torch.Tensor], want: Any) -> None:
    assert got[1].tolist() == want[1]
    if got[0] is not None:
        for mine, theirs in zip(got[0].tolist(), want[0], strict=True):
            assert all(t is None or m == t for m, t in zip(mine, theirs, strict=True)), (mine, theirs)


def make(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Inputs as upstream's tests draw them: normal numbers of several scales, few distinct ones, bit patterns, infinities, NaN."""
    integer, bits = (torch.int16, 0x7F80) if dtype == torch.bfloat16 else (torch.int32, 0x7F800000)
    if kind == "normal":
        return torch.randn(shape).to(dtype)
    if kind == "large":
        return (torch.randn(shape) * 1000 - 100).to(dtype)
    if kind == "ties":
        return torch.randint(-2, 3, shape).to(dtype) * 0.5
    if kind == "zeros":
        return torch.randint(0, 2, shape).to(dtype) * torch.where(torch.rand(shape) < 0.5, -0.0, 0.0).to(dtype)
    if kind == "bits":
        return torch.randint(0, bits + 1, shape).to(integer).view(dtype) * torch.where(
            torch.rand(shape) < 0.5, -1, 1
        ).to(dtype)
    if kind == "tiny":
        return torch.randint(0, 32, shape).to(integer).view(dtype)
    x = torch.randn(shape).to(dtype)
    mask = torch.rand(shape) < 0.1
    if kind == "infinite":
        return x.masked_fill(mask, INF).masked_fill(torch.rand(shape) < 0.3, -INF)
    assert kind == "nan"
    return x.masked_fill(mask & (torch.arange(shape[0]) % 2 == 0)[:, None], float("nan"))


KINDS = ("normal", "large", "ties", "zeros", "bits", "tiny", "infinite", "nan")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("vocab", "k"), [(1, 1), (9, 4), (9, 9), (5, 12), (300, 64), (1000, 129)])
def test_against_a_stable_sort(kind: str, dtype: torch.dtype, vocab: int, k: int) -> None:
    rows = 6
    x = make(kind, (rows, vocab), dtype)
    end = [0, 1, vocab // 2, max(vocab - 1, 0), vocab, min(k, vocab)]
    offset = [0, 5, -7, 2**30, -(2**30), 3]
    modes = [(False, False, True), (False, True, True), (False, True, False), (False, False, False)]
    if dtype == torch.float32:
        modes.append((True, False, True))
    for (by_value, by_index, want_values), ends, offsets, index in itertools.product(
        modes, (None, end), (None, offset), (torch.int32, torch.int64)
    ):
        got = topk(
            x,
            k,
            sorted=by_value,
            end=None if ends is None else torch.tensor(ends, dtype=torch.int32),
            indices_type=index,
            sorted_index=by_index,
            output_idx_offset=None if offsets is None else torch.tensor(offsets, dtype=torch.int32),
            idx_oob_fill_value=-1,
            value_oob_fill_value=-3.0,
            return_value=want_values,
            abort_when_nan_found=False,
        )
        assert (got[0] is not None) == want_values and got[1].dtype == index
        compare(got, oracle(x, k, ends, by_value, offsets, (-1, -3.0)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_upstreams_properties(kind: str, dtype: torch.dtype) -> None:
    """What upstream's own test asks of every case: range, uniqueness, values, order, and no better one left out."""
    for vocab, k in ((2000, 512), (700, 1024)):
        x = make(kind, (5, vocab), dtype)
        end = torch.randint(0, vocab + 1, (5,), dtype=torch.int32)
        values, index = topk(
            x,
            k,
            end=end,
            indices_type=torch.int32,
            sorted_index=True,
            idx_oob_fill_value=-9,
            abort_when_nan_found=False,
        )
        assert values is not None
        for row in range(5):
            stop = int(end[row])
            if x[row, :stop].isnan().any():
                assert index[row].eq(NAN).all()
                continue
            count = min(stop, k)
            got = index[row, :count].long()
            assert len(set(got.tolist())) == count and bool(((got >= 0) & (got < stop)).all())
            assert torch.equal(values[row, :count], x[row, got]) and values[row, count:].eq(-INF).all()
            assert index[row, count:].eq(-9).all() and bool((got[1:] > got[:-1]).all())
            left = x[row, :stop].clone()
            left[got] = -INF
            if count and stop > count:
                assert x[row, got].min() >= left.max()


def test_nan_row_is_filled_whole_even_when_short_and_never_beyond_its_end() -> None:
    x = torch.zeros(3, 8, dtype=torch.bfloat16)
    x[0, 1] = x[1, 6] = float("nan")
    x[2, 3] = -float("nan")
    end = torch.tensor([3, 6, 8], dtype=torch.int32)
    _, index = topk(x, 5, end=end, output_idx_offset=torch.full((3,), 100, dtype=torch.int32), return_value=False)
    assert index[0].eq(NAN).all() and index[2].eq(NAN).all()
    assert index[1].tolist() == [100, 101, 102, 103, 104]


def test_outputs_are_written_in_place_with_their_strides() -> None:
    x = torch.randn(4, 50).bfloat16()
    values, index = topk(x, 5, indices_type=torch.int32)
    assert values is not None and values.is_contiguous() and index.is_contiguous()
    assert topk(x, 5, indices_type=torch.int32, return_value=False)[1].stride() == (8, 1)
    assert get_stride_requirement() == (1024, 32)
    buffer = torch.full((4, 12), -77, dtype=torch.int32)
    out = buffer[:, 2:7]
    none, same = topk(x, 5, indices_type=torch.int32, output_idx=out, return_value=False)
    assert none is None and same is out and torch.equal(out, index)
    assert buffer[:, :2].eq(-77).all() and buffer[:, 7:].eq(-77).all()


def test_strided_input_rows() -> None:
    wide = torch.randn(4, 512).bfloat16()
    assert torch.equal(topk(wide[:, :70], 9)[1], topk(wide[:, :70].contiguous(), 9)[1])


def test_refusals() -> None:
    x = torch.randn(2, 8)
    column = torch.zeros(2, dtype=torch.int32)
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (RuntimeError, {"topk": 0}),
        (RuntimeError, {"topk": 4097}),
        (RuntimeError, {"topk": 2, "sorted": True, "return_value": False}),
        (RuntimeError, {"topk": 2, "sorted": True, "sorted_index": True}),
        (RuntimeError, {"topk": 2, "end": column.long()}),
        (RuntimeError, {"topk": 2, "end": column[:1]}),
        (RuntimeError, {"topk": 2, "output_idx_offset": column.long()}),
        (RuntimeError, {"topk": 2, "output_idx": torch.empty(2, 3, dtype=torch.int64)}),
        (AssertionError, {"topk": 2, "begin": column}),
        (AssertionError, {"topk": 2, "hint": column}),
        (AssertionError, {"topk": 2, "output_idx": torch.empty(2, 2, dtype=torch.int32)}),
    ]
    for error, arguments in wrong:
        with pytest.raises(error):
            topk(x, **arguments)
    with pytest.raises(RuntimeError, match="fp32"):
        topk(x.bfloat16(), 2, sorted=True)
    assert topk(torch.empty(0, 8), 2)[1].shape == (0, 2)
    assert topk(torch.empty(2, 0), 2, idx_oob_fill_value=-5)[1].tolist() == [[-5, -5]] * 2


def per_step(ends: bool, offsets: bool, k: int) -> Callable[..., None]:
    """The engine's call, as a kernel of the harness."""

    def kernel(x: torch.Tensor, end: torch.Tensor, offset: torch.Tensor, out: torch.Tensor) -> None:
        topk(
            x,
            k,
            sorted=False,
            end=end if ends else None,
            indices_type=torch.int32,
            sorted_index=True,
            output_idx=out,
            output_idx_offset=offset if offsets else None,
            idx_oob_fill_value=-1,
            return_value=False,
        )

    return kernel


@pytest.mark.parametrize(
    ("ends", "offsets", "k"), [(True, True, 16), (True, False, 16), (False, True, 90), (False, False, 16)]
)
def test_per_step_call_is_static(ends: bool, offsets: bool, k: int) -> None:
    x = guard(torch.randn(3, 70).bfloat16(), strides=(512, 1))
    end, offset = torch.tensor([0, 9, 70], dtype=torch.int32), torch.tensor([3, 4, 5], dtype=torch.int32)
    out = guard(torch.full((3, k), -7, dtype=torch.int32))
    kernel = per_step(ends, offsets, k)
    check_kernel(kernel, x, end, offset, out, written=("out",))
    assert all("topk" in op for op in wide_ops(kernel, x, end, offset, out))


def test_repeats_bit_for_bit() -> None:
    x = torch.randint(0, 3, (3, 4000)).bfloat16()
    first = topk(x, 500, return_value=False)[1]
    assert all(torch.equal(first, topk(x, 500, return_value=False)[1]) for _ in range(3))


def upstream_interface(root: Path, native: types.ModuleType) -> types.ModuleType:
    """The pinned distribution's interface module on ``native`` in the place of its C++ module."""
    package = types.ModuleType("deep_select")
    package.__path__ = []
    saved = {name: sys.modules.get(name) for name in ("deep_select", "deep_select.deep_select_cuda")}
    sys.modules.update({"deep_select": package, "deep_select.deep_select_cuda": native})
    package.deep_select_cuda = native  # type: ignore[attr-defined]
    try:
        spec = importlib.util.spec_from_file_location("deep_select.interface", root / "deep_select" / "interface.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name, before in saved.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
    return module


def test_upstreams_interface_runs_on_the_drop_in(source_root: Callable[[str], Path]) -> None:
    """Upstream's unedited interface on this backend gives what this interface gives, and lays its outputs out alike where
    no values are asked for (with values, upstream's Ascend branch replaces it by contiguous outputs)."""
    theirs = upstream_interface(source_root("deep_select"), backend)
    assert theirs.get_stride_requirement() == get_stride_requirement()
    assert [p.name for p in inspect.signature(theirs.topk).parameters.values()] == list(
        inspect.signature(topk).parameters
    )
    end = torch.tensor([0, 3, 40], dtype=torch.int32)
    for dtype, k, by_value in itertools.product((torch.bfloat16, torch.float32), (1, 7, 50), (False, True)):
        if by_value and dtype == torch.bfloat16:
            continue
        x = make("ties", (3, 40), dtype)
        call = partial(
            lambda f, x, k, by: f(x, k, sorted=by, end=end, indices_type=torch.int32, idx_oob_fill_value=-1),
            x=x,
            k=k,
            by=by_value,
        )
        for a, b in zip(call(theirs.topk), call(topk), strict=True):
            assert torch.equal(a, b) and b.is_contiguous()
        if not by_value:
            bare = [
                f(x, k, end=end, indices_type=torch.int32, idx_oob_fill_value=-1, return_value=False)[1]
                for f in (theirs.topk, topk)
            ]
            assert torch.equal(*bare) and bare[0].stride() == bare[1].stride()


def test_upstreams_interface_passes_what_the_declaration_says(source_root: Callable[[str], Path]) -> None:
    """Upstream's interface calls its C++ module with as many arguments, in the order that the declaration names them."""
    calls: list[tuple[Any, ...]] = []
    native = types.ModuleType("deep_select.deep_select_cuda")
    native.get_alignment_requirement = lambda: (1024, 32)  # type: ignore[attr-defined]
    native.topk = lambda *args: calls.append(args)  # type: ignore[attr-defined]
    theirs = upstream_interface(source_root("deep_select"), native)
    end, offset, out = (
        torch.ones(2, dtype=torch.int32),
        torch.zeros(2, dtype=torch.int32),
        torch.empty(2, 3, dtype=torch.int64),
    )
    x = torch.zeros(2, 8)
    theirs.topk(x, 3, True, None, end, torch.int64, False, None, out, offset, -4, -5.0, True, False)
    named = dict(zip(inspect.signature(backend.topk).parameters, calls[0], strict=True))
    assert named["input"] is x and named["topk"] == 3 and named["begin"] is None and named["end"] is end
    assert named["sorted"] is True and named["sorted_index"] is False and named["output_idx"] is out
    assert named["output_idx_offset"] is offset and named["output_val"].shape == (2, 3)
    assert (named["idx_oob_fill_value"], named["value_oob_fill_value"]) == (-4, -5.0)
    assert (named["return_value"], named["abort_when_nan_found"]) == (True, False)


def test_values_under_the_static_gate() -> None:
    def kernel(x: torch.Tensor, end: torch.Tensor, out: torch.Tensor, index: torch.Tensor) -> None:
        backend.topk(x, 4, None, end, True, False, out, index, None, -1, -INF, True, True)

    x, end = torch.randn(3, 20), torch.tensor([0, 2, 20], dtype=torch.int32)
    out, index = torch.empty(3, 4), torch.empty(3, 4, dtype=torch.int64)
    check_fake(kernel, x, end, out, index)
    check_fullgraph(kernel, x, end, out, index)
    assert storage_bytes(index).numel() == 96
