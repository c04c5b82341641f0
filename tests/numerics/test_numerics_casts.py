"""Casts per token, per block and per channel against tile-kernels' torch references, bit for bit; static graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from neuron_numerics import casts, layouts
from neuron_numerics.formats import E2M1, E4M3, quant_format

SCALE_OPTIONS: dict[str, dict[str, bool]] = {
    "fp32": {},
    "pow2": {"round_sf": True},
    "ue8m0": {"round_sf": True, "use_packed_ue8m0": True},
    "e4m3": {"use_e4m3_sf": True},
}
BLOCKS = [(1, 32), (1, 16), (1, 128), (32, 32), (128, 1), (32, 1), (3, 48)]


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = (x.clone(memory_format=torch.contiguous_format).view(torch.uint8) for x in (a, b))
    return torch.equal(a, b)


def random_values(shape: tuple[int, ...], dtype: torch.dtype, spread: int = 0) -> torch.Tensor:
    x = torch.randn(shape)
    if spread:
        x *= torch.exp2(torch.randint(-spread, spread, shape).float())
    return x.to(dtype)


@pytest.mark.parametrize("value", ["e4m3", "e2m1"])
@pytest.mark.parametrize("scale", list(SCALE_OPTIONS))
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_there_and_back(tk: Any, value: str, scale: str, block: tuple[int, int], dtype: torch.dtype) -> None:
    for spread in (0, 30):
        x = random_values((70, 256), dtype, spread)
        x[:32, :32].zero_()
        before = x.clone()
        values, stored = tk.cast(x, value, block, **SCALE_OPTIONS[scale])
        fmt = quant_format(value, scale)
        actual, encoded = casts.cast_blocks(x, fmt, block)
        layout = layouts.ScaleLayout(packed=scale == "ue8m0", pack_rows=scale == "ue8m0" and block[1] == 1)
        scales = layouts.store_scales(encoded, fmt.scale, layout)
        assert torch.equal(x, before)
        assert actual.dtype == values.dtype and same_bytes(actual, values)
        assert scales.dtype == stored.dtype and scales.shape == stored.shape and same_bytes(scales, stored)
        for name, out in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
            back = casts.cast_back_blocks(actual, layouts.read_scales(scales, layout), block, out)
            assert torch.equal(back, tk.cast_back((values, stored), name, block))


@pytest.mark.parametrize("value", ["e4m3", "e2m1"])
@pytest.mark.parametrize("group", [16, 32, 128])
def test_per_token_is_the_blocks_of_one_row(value: str, group: int) -> None:
    fmt = quant_format(value, "ue8m0")
    x = random_values((3, 5, 256), torch.bfloat16, 8)
    values, scale = casts.cast_per_token(x, fmt, group)
    flat, flat_scale = casts.cast_blocks(x.view(15, 256), fmt, (1, group))
    assert same_bytes(values.view(15, -1), flat) and torch.equal(scale.view(15, -1), flat_scale)
    back = casts.cast_back_per_token(values, layouts.decode_scale(scale.to(torch.uint8)), group)
    assert torch.equal(
        back.view(15, 256), casts.cast_back_blocks(flat, layouts.decode_scale(flat_scale.to(torch.uint8)), (1, group))
    )


def test_per_channel_is_the_blocks_of_one_column() -> None:
    fmt = quant_format("e4m3", "pow2")
    x = random_values((100, 24), torch.float32)
    for one, other in zip(casts.cast_per_channel(x, fmt, 32), casts.cast_blocks(x, fmt, (32, 1)), strict=True):
        assert same_bytes(one, other)


@pytest.mark.parametrize("value", [E4M3, E2M1], ids=lambda value: value.name)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_given_scales(tk: Any, value: Any, block: tuple[int, int]) -> None:
    x = random_values((70, 256), torch.bfloat16)
    # Scales of another size: values beyond the format's range saturate.
    scale = torch.rand(-(-70 // block[0]), -(-256 // block[1])) * 0.4 + 1e-3
    assert same_bytes(casts.cast_with_scale(x, value, scale, block), tk.cast(x, value.name, block, sf=scale))


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_error_is_within_half_a_step(data: st.DataObject) -> None:
    value = data.draw(st.sampled_from([E4M3, E2M1]))
    scale = data.draw(st.sampled_from(["fp32", "pow2", "ue8m0"]))
    power = data.draw(st.integers(-10, 100))
    x = torch.tensor(data.draw(st.lists(st.floats(-1, 1, width=32), min_size=32, max_size=32))).view(1, 32) * 2.0**power
    fmt = quant_format(value.name, scale)
    values, encoded = casts.cast_per_token(x, fmt, 32)
    factor = layouts.decode_scale(encoded.to(torch.uint8) if scale == "ue8m0" else encoded)
    back = casts.cast_back_per_token(values, factor, 32, torch.float32)
    # Relative steps are 1/8 and 1/2; below the least normal value, steps of 2**-9 and 1/2 times the scale.
    step, least = (1 / 8, 2.0**-9) if value is E4M3 else (1 / 2, 0.5)
    slack = 1 + 2**-20
    assert (
        (back - x).abs().double() <= torch.maximum(x.abs().double() * step / 2, factor.double() * least / 2) * slack
    ).all()


def test_no_rows(tk: Any) -> None:
    for value in ("e4m3", "e2m1"):
        expected, _ = tk.cast(torch.empty(0, 64), value, (1, 32))
        values, scale = casts.cast_blocks(torch.empty(0, 64), quant_format(value, "fp32"), (1, 32))
        assert values.shape == expected.shape and values.dtype == expected.dtype and scale.shape == (0, 2)


STATIC: dict[str, Callable[[torch.Tensor], Any]] = {
    "token-fp8": lambda x: casts.cast_per_token(x, quant_format("e4m3", "ue8m0"), 32),
    "token-fp4": lambda x: casts.cast_per_token(x, quant_format("e2m1", "e4m3"), 16),
    "block": lambda x: casts.cast_blocks(x, quant_format("e4m3", "fp32"), (3, 48)),
    "channel": lambda x: casts.cast_per_channel(x, quant_format("e4m3", "pow2"), 4),
    "given": lambda x: casts.cast_with_scale(x, E2M1, torch.ones_like(x[:, :2]), (1, 32)),
    "back": lambda x: casts.cast_back_per_token(x.to(torch.float8_e4m3fn), x[:, :2].abs(), 32),
    "store": lambda x: layouts.store_scales(
        casts.cast_blocks(x, quant_format("e4m3", "ue8m0"), (1, 32))[1],
        quant_format("e4m3", "ue8m0").scale,
        layouts.ScaleLayout(True, True),
    ),
}


@pytest.mark.parametrize("name", list(STATIC))
def test_static(name: str) -> None:
    with FakeTensorMode(shape_env=None):
        STATIC[name](torch.empty(7, 64))
    torch._dynamo.reset()
    torch.compile(STATIC[name], fullgraph=True, dynamic=False, backend="eager")(torch.randn(7, 64))
