"""Casts of the emitted tile_kernels against the real torch references with Ascend's layouts: values, scales and strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

FORMS: dict[str, dict[str, bool]] = {
    "fp32": {},
    "pow2": {"round_sf": True},
    "ue8m0": {"round_sf": True, "use_packed_ue8m0": True},
    "fp32-col": {"use_tma_aligned_col_major_sf": True},
    "pow2-col": {"round_sf": True, "use_tma_aligned_col_major_sf": True},
    "ue8m0-col": {"round_sf": True, "use_packed_ue8m0": True, "use_tma_aligned_col_major_sf": True},
}
ROW_FORMS = [name for name in FORMS if not name.endswith("-col")]


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = (one.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8) for one in (a, b))
    return torch.equal(a, b)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert expected.numel() == 0 or actual.stride() == expected.stride()
    assert same_bytes(actual, expected)


def values(
    shape: tuple[int, int], dtype: torch.dtype = torch.bfloat16, spread: int = 12, stride: int | None = None
) -> torch.Tensor:
    """Magnitudes over many binades, with rows and groups of zeros; ``stride`` leaves gaps between the rows."""
    rows, columns = shape
    x = torch.randn(rows, stride or columns)[:, :columns]
    x = (
        x
        * torch.exp2(torch.randint(-spread, spread + 1, (rows, max(columns // 16, 1))).float()).repeat_interleave(
            16, 1
        )[:, :columns]
    )
    x = x.to(dtype)
    if rows > 2:
        x[2] = 0
        x[1, :32] = 0
    if stride is None:
        return x
    wide = torch.full((rows, stride), 7.0, dtype=dtype)
    wide[:, :columns] = x
    return wide[:, :columns]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("rows", [0, 1, 37])
def test_per_token_cast(tk: Any, real: Any, form: str, fmt: str, group: int, rows: int) -> None:
    for dtype, stride in ((torch.bfloat16, None), (torch.float32, 400)):
        x = values((rows, 384), dtype, stride=stride)
        before = x.clone()
        expected = real.torch.cast(x, fmt, (1, group), **FORMS[form])
        actual = tk.quant.per_token_cast(x, fmt, group, **FORMS[form])
        assert torch.equal(x, before)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
        assert_same(tk.quant.per_token_cast_with_sf_only(x, fmt, group, **FORMS[form]), expected[1])


@pytest.mark.parametrize("rows", [0, 5])
def test_an_odd_number_of_scales_is_padded_with_zero(tk: Any, real: Any, rows: int) -> None:
    x = values((rows, 192))
    for form in ("ue8m0", "ue8m0-col"):
        for one, other in zip(
            tk.quant.per_token_cast(x, "e4m3", 64, **FORMS[form]),
            real.torch.cast(x, "e4m3", (1, 64), **FORMS[form]),
            strict=True,
        ):
            assert_same(one, other)


@pytest.mark.parametrize("form", ROW_FORMS)
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_per_token_cast_writes_the_buffers_it_is_given(tk: Any, real: Any, form: str, fmt: str) -> None:
    x = values((33, 256))
    expected_x, expected_sf = real.torch.cast(x, fmt, (1, 32), **FORMS[form])
    out_x, out_sf = torch.zeros_like(expected_x), torch.zeros_like(expected_sf)
    held = out_x.data_ptr(), out_sf.data_ptr()
    result = tk.quant.per_token_cast(x, fmt, 32, **FORMS[form], out=(out_x, out_sf))
    assert (result[0].data_ptr(), result[1].data_ptr()) == held
    for one, other in zip((*result, out_x, out_sf), (expected_x, expected_sf) * 2, strict=True):
        assert_same(one, other)
    sf_buffer = torch.zeros_like(expected_sf)
    tk.quant.per_token_cast_with_sf_only(x, fmt, 32, **FORMS[form], out_sf=sf_buffer)
    assert_same(sf_buffer, expected_sf)


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_casts_by_given_scales(tk: Any, real: Any, fmt: str, dtype: torch.dtype) -> None:
    x = values((128, 256), dtype, spread=2)
    for block, cast in (
        ((1, 32), tk.quant.per_token_cast_with_precomputed_sf),
        ((32, 32), tk.quant.per_block_cast_with_precomputed_sf),
    ):
        sf = torch.rand(128 // block[0], 256 // block[1]) + 0.1
        expected = real.torch.cast(x, fmt, block, sf=sf)
        size = block[1] if block[0] == 1 else block
        assert_same(cast(x, fmt, size, sf), expected)
        out = torch.zeros_like(expected)
        assert cast(x, fmt, size, sf, out=out) is out
        assert_same(out, expected)


@pytest.mark.parametrize("value", ["e4m3", "e2m1"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [(1, 32), (32, 32), (1, 128), (128, 128)], ids=str)
def test_quantised_inputs(tk: Any, real: Any, value: str, form: str, block: tuple[int, int]) -> None:
    stored = real.torch.cast(values((130, 256), spread=3), value, block, **FORMS[form])
    for fmt, options in (("e2m1", FORMS["ue8m0-col"]), ("e4m3", FORMS["fp32"])):
        expected = real.torch.cast(stored, fmt, (1, 32), x_block_size=block, **options)
        actual = tk.quant.per_token_cast(stored, fmt, 32, x_block_size=block, **options)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("block", [(32, 32), (128, 128), (1, 32)], ids=str)
@pytest.mark.parametrize("rows", [0, 128])
def test_per_block_cast(tk: Any, real: Any, form: str, fmt: str, block: tuple[int, int], rows: int) -> None:
    x = values((rows, 384))
    expected = real.torch.cast(x, fmt, block, **FORMS[form])
    for one, other in zip(tk.quant.per_block_cast(x, fmt, block, **FORMS[form]), expected, strict=True):
        assert_same(one, other)
    assert_same(tk.quant.per_block_cast_with_sf_only(x, fmt, block, **FORMS[form]), expected[1])
    if form in ROW_FORMS:
        out = torch.zeros_like(expected[0]), torch.zeros_like(expected[1])
        result = tk.quant.per_block_cast(x, fmt, block, **FORMS[form], out=out)
        assert result[0].data_ptr() == out[0].data_ptr()
        for one, other in zip(out, expected, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("form", ROW_FORMS)
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("rows", [0, 128, 384])
def test_per_channel_cast(tk: Any, real: Any, form: str, group: int, rows: int) -> None:
    x = values((rows, 256))
    expected = real.torch.cast(x, "e4m3", (group, 1), **FORMS[form])
    actual = tk.quant.per_channel_cast(
        x, "e4m3", group, FORMS[form].get("round_sf", False), use_packed_ue8m0=form == "ue8m0"
    )
    for one, other in zip(actual, expected, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("channels", [32, 128])
def test_per_channel_cast_of_a_quantised_input(tk: Any, real: Any, form: str, channels: int) -> None:
    stored = real.torch.cast(values((128, 256), spread=2), "e4m3", (1, channels), **FORMS[form])
    expected = real.torch.cast(
        stored, "e4m3", (32, 1), x_block_size=(1, channels), round_sf=True, use_packed_ue8m0=True
    )
    actual = tk.quant.per_channel_cast(stored, "e4m3", 32, True, channels, True)
    for one, other in zip(actual, expected, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("value", ["e4m3", "e2m1"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [(1, 32), (32, 32), (32, 1), (1, 128)], ids=str)
@pytest.mark.parametrize("fmt", ["bf16", "fp32"])
def test_cast_back(tk: Any, real: Any, value: str, form: str, block: tuple[int, int], fmt: str) -> None:
    if block == (32, 1) and form.endswith("-col"):
        stored = real.torch.cast(values((64, 128)), value, block)
        stored = (stored[0], stored[1].T.contiguous().T)
        with pytest.raises(AssertionError):
            tk.quant.cast_back(stored, fmt, block)
        return
    for rows in (0, 70):
        stored = real.torch.cast(values((rows, 256)), value, block, **FORMS[form])
        expected = real.torch.cast_back(stored, fmt, block)
        assert_same(tk.quant.cast_back(stored, fmt, block), expected)
        assert_same(tk.torch.cast_back(stored, fmt, block), expected)
        if block[0] == 1:
            assert_same(tk.quant.per_token_cast_back(stored, fmt, block[1]), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize(
    ("group", "options"), [(32, {}), (32, {"round_sf": True}), (16, {"use_e4m3_sf": True}), (128, {"round_sf": True})]
)
@pytest.mark.parametrize("stride", [None, 300])
def test_cast_and_cast_back_in_place(
    tk: Any, real: Any, dtype: torch.dtype, fmt: str, group: int, options: dict[str, bool], stride: int | None
) -> None:
    # An e4m3 scale holds no more than 448 times the values' own maximum.
    x = values((29, 256), dtype, spread=4 if "use_e4m3_sf" in options else 12, stride=stride)
    stored = real.torch.cast(x, fmt, (1, group), **options)
    expected = real.torch.cast_back(stored, "bf16" if dtype == torch.bfloat16 else "fp32", (1, group))
    storage = x.untyped_storage()
    gap = None if stride is None else torch.as_strided(x, (28, 44), (300, 1), 256).clone()
    assert tk.quant.per_token_cast_and_cast_back(x, fmt, group, **options) is None
    assert x.untyped_storage().data_ptr() == storage.data_ptr()
    assert torch.equal(x, expected)
    assert gap is None or torch.equal(torch.as_strided(x, (28, 44), (300, 1), 256), gap)


def test_cast_and_cast_back_of_nothing(tk: Any) -> None:
    assert tk.quant.per_token_cast_and_cast_back(torch.empty(0, 64), "e4m3", 32) is None


@pytest.mark.parametrize(
    "out_form", [{}, {"use_packed_ue8m0": True}, {"use_packed_ue8m0": True, "use_tma_aligned_col_major_sf": True}]
)
@pytest.mark.parametrize("in_form", ["pow2", "ue8m0", "ue8m0-col"])
@pytest.mark.parametrize("out_block", [(32, 32), (128, 128), (1, 128)], ids=str)
def test_lossless_cast(tk: Any, real: Any, in_form: str, out_form: dict[str, bool], out_block: tuple[int, int]) -> None:
    x = values((256, 256), spread=3)
    x[x == 0] = 1.0
    stored = real.torch.cast(x, "e2m1", (1, 32), **FORMS[in_form])
    actual = tk.quant.per_block_cast_lossless(stored, "e4m3", (1, 32), out_block, round_sf=True, **out_form)
    assert torch.equal(real.torch.cast_back(actual, "fp32", out_block), real.torch.cast_back(stored, "fp32", (1, 32)))
    # The scale of a block is 2**-6 of its largest input scale.
    scale = real.torch.cast_back(real.torch.cast(x, "e2m1", (1, 32), round_sf=True), "fp32", (1, 32))
    assert scale.shape == x.shape
    largest = real.torch.cast(x, "e2m1", (1, 32), round_sf=True)[1]
    bm, bk = out_block[0], out_block[1] // 32
    expected = largest.unflatten(0, (-1, bm)).unflatten(2, (-1, bk)).amax((1, 3)) / 64
    got = real.torch.cast_back((torch.ones(256, 256).to(torch.float8_e4m3fn), actual[1]), "fp32", out_block)
    assert torch.equal(got[:: out_block[0], :: out_block[1]], expected)
    layout = real.torch.cast(x, "e4m3", out_block, round_sf=True, **out_form)[1]
    assert (actual[1].dtype, actual[1].shape, actual[1].stride()) == (layout.dtype, layout.shape, layout.stride())


def test_lossless_cast_of_nothing(tk: Any) -> None:
    out, sf = tk.quant.per_block_cast_lossless(
        (torch.empty(0, 64, dtype=torch.int8), torch.empty(0, 4)), "e4m3", (1, 32), (32, 32), round_sf=True
    )
    assert out.shape == (0, 128) and sf.shape == (0, 4)


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("shape", [(4, 8), (12, 4), (3, 4, 8), (2, 8, 4)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_weight_scales(tk: Any, real: Any, block: int, shape: tuple[int, ...], transposed: bool) -> None:
    sfs = [torch.exp2(torch.randint(-40, 40, shape).float()) for _ in range(2)]
    expected = real.torch.batched_transpose_weight_sf(sfs, block, [transposed, not transposed])
    actual = tk.quant.batched_transpose_weight_sf(sfs, block, [transposed, not transposed], [None, None])
    plain = tk.torch.batched_transpose_weight_sf(sfs, block, [transposed, not transposed])
    for one, other, third in zip(actual, expected, plain, strict=True):
        for a, b, c in zip(one, other, third, strict=True):
            assert_same(a, b)
            assert_same(c, b)
    again = [torch.exp2(torch.randint(-40, 40, shape).float()) for _ in range(2)]
    pointers = [tensor.data_ptr() for pair in actual for tensor in pair]
    rewritten = tk.quant.batched_transpose_weight_sf(again, block, [transposed, not transposed], [actual[0], None])
    assert [tensor.data_ptr() for tensor in rewritten[0]] == pointers[:2]
    for one, other in zip(
        rewritten, real.torch.batched_transpose_weight_sf(again, block, [transposed, not transposed]), strict=True
    ):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)


def test_weight_scales_refuse_a_buffer_of_another_layout(tk: Any) -> None:
    sf = torch.ones(4, 8)
    pair = tk.quant.batched_transpose_weight_sf([sf], 32, [False], [None])[0]
    with pytest.raises(AssertionError):
        tk.quant.batched_transpose_weight_sf([sf], 32, [True], [pair])
    assert tk.quant.batched_transpose_weight_sf([], 32, [], []) == []


BLOCKS = [(1, 32), (32, 32), (128, 128), (3, 48), (32, 1), (1, 16)]


@pytest.mark.parametrize("form", [*FORMS, "e4m3"])
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_plain_cast(tk: Any, real: Any, form: str, fmt: str, block: tuple[int, int]) -> None:
    if block[1] == 1 and form == "ue8m0-col":
        return  # upstream refuses it
    options = {"use_e4m3_sf": True} if form == "e4m3" else FORMS[form]
    for rows, dtype in ((0, torch.float32), (70, torch.bfloat16), (128, torch.float32)):
        x = values((rows, 192), dtype, spread=4)
        expected = real.torch.cast(x, fmt, block, **options)
        for one, other in zip(tk.torch.cast(x, fmt, block, **options), expected, strict=True):
            assert_same(one, other)


def test_clamps_are_followed(tk: Any, real: Any) -> None:
    x = values((8, 64)) * 1e-8
    try:
        for package in (tk, real):
            package.config.set_amax_clamp_for_quant("e4m3", False, 3.0)
        for one, other in zip(tk.quant.per_token_cast(x, "e4m3", 32), real.torch.cast(x, "e4m3", (1, 32)), strict=True):
            assert_same(one, other)
        assert tk.quant.per_token_cast(x, "e4m3", 32)[1].unique().item() == pytest.approx(3.0 / 448)
    finally:
        for package in (tk, real):
            package.config.reset_runtime_config()


def test_codes(tk: Any, real: Any) -> None:
    grid = torch.tensor([0.0, 0.2, 0.25, 0.3, 0.5, 0.75, 1.0, 1.25, 1.75, 2.5, 3.5, 4.9, 5.0, 5.1, 6.0, 7.0, 1e30])
    x = torch.cat((grid, -grid, torch.tensor([float("nan"), float("inf"), -float("inf")]), torch.randn(200) * 3))
    assert torch.equal(
        tk.torch.cast.__globals__["convert_to_e2m1_bits"](x), real.torch.cast.__globals__["convert_to_e2m1_bits"](x)
    )
    codes = torch.arange(-128, 128, dtype=torch.int8).view(16, 16)
    for dtype in (torch.float32, torch.bfloat16):
        assert_same(tk.quant.unpack_from_e2m1fn_x2(codes, dtype), real.quant.unpack_from_e2m1fn_x2(codes, dtype))
    with pytest.raises(ValueError):
        tk.quant.unpack_from_e2m1fn_x2(codes[0, 0])


def test_maxima(tk: Any, real: Any) -> None:
    ours, theirs = (package.torch.cast.__globals__["get_max_quant_val"] for package in (tk, real))
    assert [ours(d) for d in (torch.int8, torch.float8_e4m3fn)] == [
        theirs(d) for d in (torch.int8, torch.float8_e4m3fn)
    ]


def _upstream_noise(x: torch.Tensor) -> torch.Tensor:
    """Upstream's stochastic rounding in plain Python, from its published constants and order of steps."""
    mask = 0xFFFFFFFF
    bits = [b & mask for b in x.view(torch.int32).tolist()]
    out = []
    for place in range(len(bits) // 4):
        words = bits[4 * place : 4 * place + 4]
        h = (
            sum(w * c for w, c in zip(words, (0x5671D42B, 0x9995E499, 0xACE1B8A5, 0xE153538D), strict=True)) + place
        ) & mask
        h ^= h >> 23
        h = h * 0x7FEB352D & mask
        h ^= h >> 16
        for factor, pair in zip((0x846CA68B, 0xD35A2D97), (words[:2], words[2:]), strict=True):
            r = h * factor & mask
            r ^= r >> 11
            for noise, word in zip((r & 0xFFFF, r >> 16), pair, strict=True):
                out.append((word >> 16) + (noise < (word & 0xFFFF)) & 0xFFFF)
    return torch.tensor(out, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def test_stochastic_rounding(tk: Any) -> None:
    x = torch.randn(4096)
    actual = tk.quant.cast(x, torch.bfloat16, True)
    assert torch.equal(actual, _upstream_noise(x))
    down = x.view(torch.int32).bitwise_and(~0xFFFF).view(torch.float32)
    up = (x.view(torch.int32).bitwise_and(~0xFFFF) + 0x10000).view(torch.float32)
    assert bool(((actual.float() == down) | (actual.float() == up)).all())
    assert abs((actual.float() - x).mean().item()) < 1e-4
    assert torch.equal(tk.quant.cast(x.view(64, 64), torch.bfloat16), x.view(64, 64).bfloat16())
    assert tk.quant.cast(torch.empty(0), torch.bfloat16, True).shape == (0,)
    with pytest.raises(AssertionError):
        tk.quant.cast(x, torch.float8_e4m3fn, True)


REFUSED: list[Callable[[Any], object]] = [
    lambda tk: tk.quant.per_token_cast(torch.zeros(2, 64), "e4m3", 16, use_e4m3_sf=True),
    lambda tk: tk.quant.per_token_cast(torch.zeros(2, 64), "e4m3", 32, use_packed_ue8m0=True),
    lambda tk: tk.quant.per_token_cast(torch.zeros(2, 64), "bf16", 32),
    lambda tk: tk.quant.per_token_cast(torch.zeros(2, 64), "e4m3", 48),
    lambda tk: tk.quant.per_token_cast(torch.zeros(2, 80), "e4m3", 16),
    lambda tk: tk.quant.per_block_cast(torch.zeros(100, 128), "e4m3", (32, 32)),
    lambda tk: tk.quant.cast_back(
        (torch.zeros(2, 64).to(torch.float8_e4m3fn), torch.ones(2, 2).to(torch.float8_e4m3fn)), "bf16", (1, 32)
    ),
    lambda tk: tk.quant.per_token_cast_and_cast_back(torch.zeros(2, 64), "e4m3", 16, True, True),
]


@pytest.mark.parametrize("call", REFUSED)
def test_calls_that_ascend_refuses(tk: Any, call: Callable[[Any], object]) -> None:
    with pytest.raises(AssertionError):
        call(tk)
