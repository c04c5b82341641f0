"""store_kv_cache: bytes of every layout, slots of all kinds, nothing else touched, cost free of the cache's size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cache_support import QUANTISED, ascend_references, finite_bf16, layouts, make_cache
from harness import check_kernel, count_ops, guard, work
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overrides.tilelang_ops.store_kv_cache import store_kv_cache_tl


@pytest.fixture
def refs(upstream: Callable[[str], Any], pytestconfig: pytest.Config) -> Iterator[Any]:
    with ascend_references(upstream, pytestconfig) as found:
        yield found


def stored_rows(refs: Any, kv: torch.Tensor, layout: Any) -> torch.Tensor:
    """Bytes of each token's row, uint8 [n, bytes_per_token], by the reference cast."""
    n = kv.shape[0]
    if n == 0:
        return torch.empty(0, layout.bytes_per_token, dtype=torch.uint8)
    if layout.quantized_dtype is None:
        return kv.contiguous().view(torch.uint8).view(n, -1)
    options = {"use_e4m3_sf": True} if layout.sf_format == "e4m3" else {"round_sf": True, "use_packed_ue8m0": True}
    values, scales = refs.tk.cast(kv, layout.quantized_dtype, (1, layout.elements_per_sf), **options)
    return torch.cat((values.view(torch.uint8).view(n, -1), scales.contiguous().view(torch.uint8).view(n, -1)), dim=1)


def expected_cache(refs: Any, cache: torch.Tensor, kv: torch.Tensor, slots: list[int], layout: Any) -> torch.Tensor:
    """Contents of ``cache`` after the store, a token at a time."""
    num_blocks, block_size, _ = cache.shape
    rows = stored_rows(refs, kv, layout)
    pages = cache.contiguous().view(torch.uint8).view(num_blocks, -1).clone()
    width = layout.bytes_per_token
    for row, slot in zip(rows, slots, strict=True):
        if not 0 <= slot < num_blocks * block_size:
            continue
        page, offset = pages[slot // block_size], slot % block_size
        if layout.quantized_dtype is None or layout.token_interleaved:
            page[offset * width : (offset + 1) * width] = row
        else:
            values, scales = layout.quantized_bytes, layout.sf_bytes
            page[offset * values : (offset + 1) * values] = row[:values]
            start = block_size * values + offset * scales
            page[start : start + scales] = row[values:]
    return pages


def contents(cache: torch.Tensor) -> torch.Tensor:
    return cache.contiguous().view(torch.uint8).view(cache.shape[0], -1)


def argument(layout: Any) -> str:
    return "cache" if layout.quantized_dtype is None else "kv_cache"


SLOTS = {
    "scattered": [5, -1, 0, 23, 11, -1, 12, 24, -7],
    "run-over-blocks": [2, 3, 4, 5, 6, 7, 8, 9],
    "none": [-1, -1, -1],
    "one": [17],
    "one-skipped": [-1],
    "last": [23],
    "empty": [],
    "only-the-last-is-valid": [-1, 24, 2**31 - 1, -(2**31), 3],
}


@pytest.mark.parametrize("name", [*QUANTISED, "bf16"])
@pytest.mark.parametrize("slots", list(SLOTS.values()), ids=list(SLOTS))
@pytest.mark.parametrize("gaps", ["none", "block", "token"])
def test_each_layout(refs: Any, name: str, slots: list[int], gaps: str) -> None:
    layout = layouts(refs)[name]
    interleaved = layout.token_interleaved or layout.quantized_dtype is None
    # A token gap of 16 is what interleaved caches promise at least; pages of the others have none.
    cache = make_cache(
        layout, 6, 4, token_gap=16 if gaps == "token" and interleaved else 0, block_gap=0 if gaps == "none" else 68
    )
    kv = torch.randn(len(slots), layout.num_elements + 32).bfloat16()[:, 32:]
    expected = expected_cache(refs, cache, kv, slots, layout)
    kernel = store_kv_cache_tl(layout, 4)
    gates = gaps == "block" and slots in (SLOTS["scattered"], SLOTS["one"])
    check_kernel(
        kernel, kv, cache, guard(torch.tensor(slots, dtype=torch.int32)), written=(argument(layout),), gates=gates
    )
    assert torch.equal(contents(cache), expected)


@pytest.mark.parametrize("name", QUANTISED)
def test_token_strides_of_odd_bytes(refs: Any, name: str) -> None:
    layout = layouts(refs)[name]
    if not layout.token_interleaved:
        cache = make_cache(layout, 3, 4, block_gap=3)
    else:
        cache = make_cache(layout, 3, 4, token_gap=1)
    kv, slots = torch.randn(4, layout.num_elements).bfloat16(), [1, -1, 11, 6]
    expected = expected_cache(refs, cache, kv, slots, layout)
    check_kernel(store_kv_cache_tl(layout, 4), kv, cache, torch.tensor(slots, dtype=torch.int32), written=("kv_cache",))
    assert torch.equal(contents(cache), expected)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("order", ["sorted", "shuffled", "scaled"])
def test_every_finite_bf16(refs: Any, name: str, order: str) -> None:
    layout = layouts(refs)[name]
    values = finite_bf16()
    if order == "shuffled":
        values = values[torch.randperm(65536)]
    kv = values.view(-1, layout.num_elements)
    if order == "scaled":
        # Groups of one magnitude, so that every code of the value format occurs.
        power = torch.randint(-100, 100, (kv.shape[0], layout.num_scales)).repeat_interleave(layout.elements_per_sf, 1)
        kv = (torch.randn(kv.shape) * torch.exp2(power.float())).bfloat16()
    cache = make_cache(layout, -(-kv.shape[0] // 8), 8)
    slots = torch.arange(kv.shape[0], dtype=torch.int32)
    store_kv_cache_tl(layout, 8)(kv, cache, slots)
    assert torch.equal(contents(cache), expected_cache(refs, cache, kv, slots.tolist(), layout))


@pytest.mark.parametrize("name", [*QUANTISED, "bf16"])
def test_through_the_interface(refs: Any, name: str) -> None:
    layout, store = layouts(refs)[name], refs.store_kv_cache
    if layout.quantized_dtype is None:
        cache, kv = torch.randn(5, 8, 4, 128).bfloat16(), torch.randn(9, 12, 128).bfloat16()[:, 4:8]
    else:
        cache = refs.cache_common.alloc_kv_cache(layout, 5, 8, device="cpu")
        cache.random_(0, 100)
        kv = torch.randn(9, 1, layout.num_elements).bfloat16()
    slots = torch.tensor([3, -1, 39, 0, 12, 13, -1, 20, 7], dtype=torch.int32)
    expected = cache.clone()
    store.store_kv_cache(kv, cache, slots, layout=layout)
    store.store_kv_cache_ref(kv, expected, slots, layout=layout)
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("name", ["fp4", "index-fp4"])
@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_distinct_slots(refs: Any, name: str, data: st.DataObject) -> None:
    layout = layouts(refs)[name]
    blocks, block_size = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 2, 3, 8]))
    capacity = blocks * block_size
    valid = data.draw(st.lists(st.integers(0, capacity - 1), unique=True, max_size=6))
    skipped = data.draw(st.lists(st.sampled_from([-1, -2, capacity, 2**31 - 1, -(2**31)]), max_size=4))
    slots = data.draw(st.permutations(valid + skipped))
    kv = torch.randn(len(slots), layout.num_elements).bfloat16()
    cache = make_cache(layout, blocks, block_size)
    expected = expected_cache(refs, cache, kv, slots, layout)
    check_kernel(
        store_kv_cache_tl(layout, block_size),
        kv,
        cache,
        torch.tensor(slots, dtype=torch.int32),
        written=("kv_cache",),
        gates=False,
    )
    assert torch.equal(contents(cache), expected)


@pytest.mark.parametrize("name", [*QUANTISED, "bf16"])
def test_cost_does_not_grow_with_the_cache(refs: Any, name: str) -> None:
    layout = layouts(refs)[name]
    kv, slots = torch.randn(5, layout.num_elements).bfloat16(), torch.tensor([1, -1, 9, 8, 2], dtype=torch.int32)
    kernel = store_kv_cache_tl(layout, 8)
    small, large = ((kv, make_cache(layout, blocks, 8), slots) for blocks in (4, 64))
    assert work(kernel, *small) == work(kernel, *large)
    assert len(count_ops(kernel, *small)) <= 40


def variant(layout: Any, **changes: Any) -> Any:
    names = (
        "quantized_dtype quantized_elements elements_per_sf bf16_elements do_cast sf_format token_interleaved num_elements "
        "num_scales quantized_bytes sf_bytes sf_storage_elements bytes_per_token"
    )
    return SimpleNamespace(**({name: getattr(layout, name) for name in names.split()} | changes))


@pytest.mark.parametrize("changes", [{"sf_format": "fp32"}, {"bf16_elements": 64}])
def test_formats_that_ascend_does_not_store(refs: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError):
        store_kv_cache_tl(variant(layouts(refs)["index-fp8"], **changes), 8)


@pytest.mark.parametrize(
    "name, changes",
    [
        ("fp8", {"quantized_dtype": "e5m2"}),
        ("fp8", {"elements_per_sf": 64}),
        ("fp8", {"elements_per_sf": 16}),
        ("fp8", {"sf_format": "e4m3"}),
        ("fp4", {"elements_per_sf": 32}),
        ("fp8", {"num_elements": 100}),
        ("fp8", {"num_scales": 0}),
        ("fp8", {"num_scales": 65}),
        ("bf16", {"bf16_elements": 256}),
    ],
)
def test_refuses_what_ascend_refuses(refs: Any, name: str, changes: dict[str, Any]) -> None:
    layout = variant(layouts(refs)[name])
    store_kv_cache_tl(layout, 8)
    with pytest.raises(AssertionError):
        store_kv_cache_tl(layout, 0)
    with pytest.raises(AssertionError):
        store_kv_cache_tl(variant(layout, **changes), 8)


def test_refuses_tensors_of_another_shape(refs: Any) -> None:
    layout = layouts(refs)["fp8"]
    kv, cache, slots = torch.zeros(1, 512).bfloat16(), make_cache(layout, 2, 8), torch.zeros(1, dtype=torch.int32)
    for bad in (
        (kv[:, :256], cache, slots),
        (kv.float(), cache, slots),
        (kv, cache[:, :4], slots),
        (kv, cache[..., :512], slots),
    ):
        with pytest.raises(AssertionError):
            store_kv_cache_tl(layout, 8)(*bad)
