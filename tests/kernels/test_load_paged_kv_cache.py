"""load_paged_kv_cache: every layout, every code and scale, segments of all kinds, uncovered rows kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cache_support import QUANTISED, ascend_references, layouts, make_cache, sections
from harness import check_fake, check_fullgraph, check_mutations, count_ops, guard, run_guarded, work
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.load_paged_kv_cache import load_paged_kv_cache_tl

Segment = tuple[int, int, int, int]


@pytest.fixture
def refs(upstream: Callable[[str], Any], pytestconfig: pytest.Config) -> Iterator[Any]:
    with ascend_references(upstream, pytestconfig) as found:
        yield found


def make_kernel(layout: Any, block_size: int, values: torch.Tensor, scales: torch.Tensor, **options: Any) -> Any:
    if layout.do_cast and layout.quantized_dtype == "e2m1":
        options |= {
            "fp4_value_block_stride": values.stride(0) * 2,
            "fp4_value_stride": values.stride(1) * 2,
            "fp4_scale_stride": scales.stride(1),
        }
    return load_paged_kv_cache_tl(layout, block_size, **options)


def views(cache: torch.Tensor, layout: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return (cache, cache) if layout.quantized_dtype is None else sections(cache, layout)


def make_outputs(layout: Any, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of arbitrary contents, as the interface allocates them; one tensor twice where the kernel returns bf16."""
    if layout.do_cast or layout.quantized_dtype is None:
        kv = guard(torch.randn(total, layout.num_elements).bfloat16())
        return kv, kv
    dtype = torch.int8 if layout.quantized_dtype == "e2m1" else torch.float8_e4m3fn
    kv = guard(torch.randint(0, 100, (total, layout.quantized_bytes), dtype=torch.uint8)).view(dtype)
    return kv, guard(torch.randint(0, 2**31 - 1, (total,), dtype=torch.int32))


def decode(refs: Any, values: torch.Tensor, scales: torch.Tensor, layout: Any) -> torch.Tensor:
    """bf16 rows of raw values and scales [n, width], by the reference."""
    scales = scales.view(torch.int16) if layout.sf_format == "ue8m0" else scales
    return refs.tk.cast_back((values.contiguous(), scales.contiguous()), "bf16", (1, layout.elements_per_sf))


def expect(
    refs: Any, layout: Any, cache: torch.Tensor, segments: list[Segment], kv: torch.Tensor, kv_sf: torch.Tensor
) -> tuple[Any, Any]:
    """The outputs after the load, a segment at a time."""
    one_output = kv_sf is kv
    kv, kv_sf = kv.clone(), kv_sf.clone()
    values, scales = views(cache, layout)
    for block, begin, end, start in segments:
        stop = start + max(end - begin, 0)
        if block < 0:
            kv.view(torch.uint8)[start:stop] = 0
            if not layout.do_cast and layout.quantized_dtype is not None:
                kv_sf[start:stop] = 0
        elif layout.quantized_dtype is None:
            kv[start:stop] = cache[block, begin:end]
        elif layout.do_cast:
            if stop > start:
                kv[start:stop] = decode(refs, values[block, begin:end], scales[block, begin:end], layout)
        else:
            kv.view(torch.uint8)[start:stop] = values[block, begin:end].view(torch.uint8)
            kv_sf[start:stop] = scales[block, begin:end, 0]
    return kv, kv if one_output else kv_sf


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


SEGMENTS: dict[str, tuple[int, list[Segment]]] = {
    "unordered-with-holes": (15, [(3, 1, 4, 9), (-1, 0, 2, 5), (0, 0, 4, 0), (5, 3, 4, 14)]),
    "whole-blocks": (12, [(2, 0, 4, 0), (1, 0, 4, 4), (5, 0, 4, 8)]),
    "one-row": (1, [(4, 2, 3, 0)]),
    "zeros-only": (6, [(-1, 0, 4, 0), (-1, 1, 3, 4)]),
    "empty-segments": (3, [(1, 2, 2, 0), (2, 0, 3, 0), (0, 4, 4, 3)]),
    "same-block-twice": (6, [(2, 0, 3, 3), (2, 0, 3, 0)]),
    "last-partial-block": (5, [(0, 0, 4, 0), (5, 0, 1, 4)]),
    "nothing": (3, []),
    "no-output": (0, [(1, 0, 0, 0)]),
}


@pytest.mark.parametrize("name", [*QUANTISED, "bf16"])
@pytest.mark.parametrize("case", list(SEGMENTS))
def test_each_layout(refs: Any, name: str, case: str) -> None:
    layout = layouts(refs)[name]
    total, segments = SEGMENTS[case]
    cache = make_cache(layout, 6, 4, token_gap=32 if layout.token_interleaved else 0)
    values, scales = views(cache, layout)
    kv, kv_sf = make_outputs(layout, total)
    expected = expect(refs, layout, cache, segments, kv, kv_sf)
    kernel = make_kernel(layout, 4, values, scales)
    table = guard(torch.tensor(segments, dtype=torch.int32).view(-1, 4))
    written = ("kv",) if kv_sf is kv else ("kv", "kv_sf")
    if case == "unordered-with-holes":
        check_fake(kernel, table, kv, kv_sf, values, scales)
        check_fullgraph(kernel, table, kv, kv_sf, values, scales)
        # Export does not take one tensor as two arguments.
        spare = kv_sf if kv_sf is not kv else kv.clone()
        check_mutations(kernel, table, kv, spare, values.clone(), scales.clone(), written=written)
    run_guarded(kernel, table, kv, kv_sf, values, scales, written=written)
    assert same_bytes(kv, expected[0])
    assert same_bytes(kv_sf, expected[1])


@pytest.mark.parametrize("name", QUANTISED)
@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_disjoint_segments(refs: Any, name: str, data: st.DataObject) -> None:
    layout = layouts(refs)[name]
    blocks, block_size = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 4, 7]))
    segments: list[Segment] = []
    start = 0
    for _ in range(data.draw(st.integers(0, 5))):
        begin = data.draw(st.integers(0, block_size))
        end = data.draw(st.integers(begin, block_size))
        start += data.draw(st.sampled_from([0, 0, 2]))
        segments.append((data.draw(st.integers(-1, blocks - 1)), begin, end, start))
        start += end - begin
    total = start + data.draw(st.sampled_from([0, 3]))
    segments = data.draw(st.permutations(segments))
    cache = make_cache(layout, blocks, block_size)
    values, scales = views(cache, layout)
    kv, kv_sf = make_outputs(layout, total)
    expected = expect(refs, layout, cache, segments, kv, kv_sf)
    table = torch.tensor(segments, dtype=torch.int32).view(-1, 4)
    kernel = make_kernel(layout, block_size, values, scales)
    run_guarded(kernel, table, kv, kv_sf, values, scales, written={"kv", "kv_sf"})
    assert same_bytes(kv, expected[0]) and same_bytes(kv_sf, expected[1])


@pytest.mark.parametrize("name", ["fp8", "fp4"])
def test_every_code_with_every_scale(refs: Any, name: str) -> None:
    layout = layouts(refs)[name]
    cache = make_cache(layout, 64, 4)
    code = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    # A row for each scale byte; the values of a row run through all bytes (FP4: all pairs of codes).
    cache[..., : layout.quantized_bytes] = code.repeat(layout.quantized_bytes // 256)
    cache[..., layout.quantized_bytes :] = code.view(64, 4, 1)
    values, scales = views(cache, layout)
    kv, _ = make_outputs(layout, 256)
    table = torch.tensor([(block, 0, 4, 4 * block) for block in range(64)], dtype=torch.int32)
    make_kernel(layout, 4, values, scales)(table, kv, kv, values, scales)
    expected = decode(refs, values.reshape(256, -1), scales.reshape(256, -1), layout)
    assert torch.equal(kv.isnan(), expected.isnan())
    finite = ~expected.isnan()
    assert same_bytes(kv[finite], expected[finite])


@pytest.mark.parametrize("name", ["fp8", "fp4"])
def test_zero_rows_are_zero_whatever_the_cache_holds(refs: Any, name: str) -> None:
    layout = layouts(refs)[name]
    cache = make_cache(layout, 1, 4)
    cache.fill_(0xFF)
    values, scales = views(cache, layout)
    kv, _ = make_outputs(layout, 3)
    kept = kv[2].clone()
    make_kernel(layout, 4, values, scales)(torch.tensor([[-1, 1, 3, 0]], dtype=torch.int32), kv, kv, values, scales)
    assert same_bytes(kv[:2], torch.zeros_like(kv[:2])) and same_bytes(kv[2], kept)


def test_row_numbers_next_to_the_limit_of_int32(refs: Any) -> None:
    layout = layouts(refs)["index-fp4"]
    # All blocks share one storage, so that a cache of 2**31 - 128 rows fits.
    blocks = 2**24 - 1
    page = torch.randint(0, 100, (1, 128 * 68), dtype=torch.uint8).expand(blocks, -1)
    values = page[:, : 128 * 64].unflatten(1, (128, 64)).view(torch.int8)
    scales = page[:, 128 * 64 :].unflatten(1, (128, 4)).view(torch.int32)
    kv, kv_sf = make_outputs(layout, 3)
    table = torch.tensor([[blocks - 1, 125, 128, 0]], dtype=torch.int32)
    make_kernel(layout, 128, values, scales)(table, kv, kv_sf, values, scales)
    assert same_bytes(kv, values[0, 125:]) and same_bytes(kv_sf, scales[0, 125:, 0])


def test_fp32_index_scales_are_copied(refs: Any) -> None:
    layout = refs.cache_common.FP8_FLOAT32_SF_INDEX_KV_FORMAT
    values = torch.randn(2, 4, 128).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 4, 1)
    kv, kv_sf = torch.zeros(3, 128).to(torch.float8_e4m3fn), torch.zeros(3)
    load_paged_kv_cache_tl(layout, 4)(torch.tensor([[1, 1, 4, 0]], dtype=torch.int32), kv, kv_sf, values, scales)
    assert same_bytes(kv, values[1, 1:]) and torch.equal(kv_sf, scales[1, 1:, 0])


@pytest.mark.parametrize("name", [*QUANTISED, "bf16"])
@pytest.mark.parametrize("given_out", [False, True])
def test_through_the_interface(refs: Any, name: str, given_out: bool) -> None:
    layout, load = layouts(refs)[name], refs.load_paged_kv_cache
    block_size = 32
    if layout.quantized_dtype is None:
        cache = torch.randn(5, block_size, 4, 128).bfloat16()
    else:
        cache = refs.cache_common.alloc_kv_cache(layout, 5, block_size, device="cpu")
        cache.random_(0, 0x70)
    table = torch.tensor([[4, 3, 32, 5], [-1, 0, 5, 0], [0, 0, 32, 34]], dtype=torch.int32)
    returns_bf16 = layout.do_cast or layout.quantized_dtype is None
    outs = [torch.zeros(66, layout.num_elements).bfloat16() if given_out and returns_bf16 else None for _ in range(2)]
    actual = load.load_paged_kv_cache(cache, table, 66, outs[0], layout=layout)
    expected = load.load_paged_kv_cache_ref(cache, table, 66, outs[1], layout=layout)
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one.dtype == other.dtype and same_bytes(one, other))


@pytest.mark.parametrize("name", [*QUANTISED, "bf16"])
def test_cost_does_not_grow_with_the_cache(refs: Any, name: str) -> None:
    layout = layouts(refs)[name]
    table = torch.tensor([[1, 0, 3, 0], [-1, 0, 2, 3]], dtype=torch.int32)
    kv, kv_sf = make_outputs(layout, 5)
    calls = []
    for blocks in (4, 64):
        values, scales = views(make_cache(layout, blocks, 8), layout)
        calls.append((make_kernel(layout, 8, values, scales), (table, kv, kv_sf, values, scales)))
    (small, few), (large, many) = calls
    assert work(small, *few) == work(large, *many)
    assert len(count_ops(small, *few)) <= 40


def test_stored_rows_come_back(refs: Any) -> None:
    for name in ("fp8", "fp4"):
        layout = layouts(refs)[name]
        x = torch.randn(32, 512).bfloat16()
        cache = make_cache(layout, 4, 8)
        slots = torch.randperm(32, dtype=torch.int32)
        refs.store_kv_cache.store_kv_cache(x, cache.unsqueeze(2), slots, layout=layout)
        table = torch.stack((slots // 8, slots % 8, slots % 8 + 1, torch.arange(32, dtype=torch.int32)), dim=1)
        loaded = refs.load_paged_kv_cache.load_paged_kv_cache(cache.unsqueeze(2), table, 32, layout=layout).bf16_data
        # Half a step of the value format at the top of a group.
        limit = x.float().unflatten(1, (-1, layout.elements_per_sf)).abs().amax(2, keepdim=True) * (
            1 / 16 if name == "fp8" else 0.2
        )
        assert ((loaded - x).float().unflatten(1, (-1, layout.elements_per_sf)).abs() <= limit).all()


def fake_layout(**changes: Any) -> Any:
    base = {
        "quantized_dtype": "e4m3", "quantized_elements": 512, "elements_per_sf": 32, "bf16_elements": 0, "do_cast": True, "sf_format": "ue8m0",
        "token_interleaved": True, "num_elements": 512,
    }  # fmt: skip
    return SimpleNamespace(**(base | changes))


FP4 = {"quantized_dtype": "e2m1", "elements_per_sf": 16, "sf_format": "e4m3"}
STRIDES = {"fp4_value_block_stride": 4608, "fp4_value_stride": 576, "fp4_scale_stride": 288}


@pytest.mark.parametrize(
    "layout, block_size, options",
    [
        (fake_layout(), 0, {}),
        (fake_layout(), 8, STRIDES),
        (fake_layout(**FP4), 8, {}),
        (fake_layout(**FP4), 8, STRIDES | {"fp4_value_stride": 577}),
        (fake_layout(**(FP4 | {"sf_format": "ue8m0"})), 8, STRIDES),
        (fake_layout(**(FP4 | {"elements_per_sf": 32})), 8, STRIDES),
        (fake_layout(bf16_elements=64), 8, {}),
        (fake_layout(token_interleaved=False), 8, {}),
        (fake_layout(sf_format="fp32"), 8, {}),
        (fake_layout(elements_per_sf=64), 8, {}),
        (fake_layout(), 32, {"index_batch_size": 4}),
        (fake_layout(do_cast=False), 8, {"index_batch_size": 4}),
        (fake_layout(do_cast=False), 32, {"index_batch_size": 2}),
    ],
)
def test_refuses_what_ascend_refuses(layout: Any, block_size: int, options: dict[str, int]) -> None:
    load_paged_kv_cache_tl(fake_layout(do_cast=False), 32, index_batch_size=4)
    load_paged_kv_cache_tl(fake_layout(**FP4), 8, **STRIDES)
    with pytest.raises(AssertionError):
        load_paged_kv_cache_tl(layout, block_size, **options)
